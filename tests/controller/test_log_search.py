"""A search of logs that is followed: what there is and what comes, and nothing falls between."""

import asyncio
import json
import time

from headrace.controller.event_log import LogSearches
from headrace.daemon.log_files import FILE_BYTES_MAX, LogFiles
from headrace.daemon.log_lines import make_line
from headrace.protos import control_pb2 as pb


def test_what_the_controller_says_while_its_pages_are_read_is_told_once() -> None:
    book = LogFiles("controller")

    def say(message: str) -> None:
        book.add(make_line(time.time(), "info", "controller", message, {}))

    async def read() -> list[str]:
        searches = LogSearches(book, lambda worker, message: None)
        told: list[str] = []
        say("before")
        search = searches.search(pb.LogSearch(follow=True), [])
        async with asyncio.timeout(60):
            async for page in search:
                if not told:
                    # Whoever reads has the first page; the next is not asked for yet.
                    say("meanwhile")
                elif page.last:
                    say("behind")
                told += [json.loads(line)["message"] for line in page.lines]
                if "behind" in told:
                    break
        await search.aclose()  # type: ignore[attr-defined]
        return told

    assert asyncio.run(read()) == ["before", "meanwhile", "behind"]


def test_pages_not_asked_for_or_without_bounds_are_not_taken() -> None:
    async def read() -> list[bytes]:
        numbers: list[int] = []
        searches = LogSearches(LogFiles("controller"), lambda worker, message: numbers.append(message.logs.number))
        search = searches.search(pb.LogSearch(), ["asked"])
        told: list[bytes] = []
        async with asyncio.timeout(60):
            reading = asyncio.ensure_future(anext(search))
            while not numbers:
                await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.001)
            (number,) = numbers
            searches.told("stranger", pb.LogPage(number=number, lines=[b"forged"]))
            searches.told("asked", pb.LogPage(number=number, lines=[bytes(FILE_BYTES_MAX + 1)]))
            searches.told("asked", pb.LogPage(number=number, lines=[b"true"]))
            searches.told("asked", pb.LogPage(number=number, last=True))
            told += (await reading).lines
            async for page in search:
                told += page.lines
        return told

    assert asyncio.run(read()) == [b"true"]
