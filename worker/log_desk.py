"""What a worker tells of its log files when a controller asks: what there is, in pages, and what comes, as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.daemon import LINES_MAX, LogFiles, pages
from headrace.protos import codec, control_pb2 as pb

#: Searches that may be followed at once.
FOLLOWED_MAX = 64
#: Seconds for which lines to come are gathered before they are told.
GATHER_S = 0.2
#: Lines to come that wait to be told, of one search; more are counted and lost.
WAITING_MAX = 2_000


class LogDesk:
    """Answers searches. Called on the event loop's thread; `say` puts a page on its way."""

    def __init__(self, book: LogFiles, say: Callable[[pb.LogPage], None]) -> None:
        self._book, self._say = book, say
        self._waiting: dict[int, tuple[list[bytes], int]] = {}

    def asked(self, message: pb.LogsAsked) -> None:
        """Answer a search, or end one that is followed."""
        number = message.number
        if message.end:
            self._book.leave(number)
            self._waiting.pop(number, None)
            return
        search, lines_max = codec.search_from(message.search), message.search.lines_max or LINES_MAX
        if message.search.follow and len(self._waiting) < FOLLOWED_MAX:
            loop = asyncio.get_running_loop()
            self._waiting[number] = ([], 0)
            came = lambda line: loop.call_soon_threadsafe(self._came, number, line)  # noqa: E731
            found = self._book.follow(number, search, came, lines_max)
        else:
            found = self._book.read(search, lines_max)
        for page in pages(found):
            self._say(pb.LogPage(number=number, lines=page))
        self._say(pb.LogPage(number=number, last=True))

    def forget(self) -> None:
        """The session in which these were asked is over."""
        for number in self._waiting:
            self._book.leave(number)
        self._waiting.clear()

    def _came(self, number: int, line: bytes) -> None:
        if number not in self._waiting:
            return
        lines, lost = self._waiting[number]
        if not lines:
            asyncio.get_running_loop().call_later(GATHER_S, self._tell, number)
        if len(lines) < WAITING_MAX:
            lines.append(line)
        else:
            self._waiting[number] = (lines, lost + 1)

    def _tell(self, number: int) -> None:
        lines, lost = self._waiting.get(number, ([], 0))
        if not lines:
            return
        self._waiting[number] = ([], 0)
        for index, page in enumerate(pages(lines)):
            self._say(pb.LogPage(number=number, lines=page, lost=0 if index else lost))
