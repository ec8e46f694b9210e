"""The page over real sockets: its bundle, the stream, questions, and those who are refused, slow or silent."""

import asyncio
import contextlib
import functools
import json
import os
import re
import stat
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.daemon import AddressError
from headrace.page import PageServer, QuestionRefused, serve_page, server as module
from headrace.page.core.board import Board

BUNDLE = Path(module.__file__).with_name("bundle")
DEADLINE_S = 300


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(test(*given, **named))

    return run


class Shown:
    """A source of one board."""

    def __init__(self) -> None:
        self.board = Board()
        self.board.put("about", "page", {"kind": "run"})
        self.asked: list[Mapping[str, Any]] = []
        self.changes: list[str] = []

    def whole(self) -> bytes:
        return self.board.whole()

    def change(self) -> bytes:
        return self.board.change()

    async def answer(self, question: str, given: Mapping[str, Any]) -> dict[str, Any]:
        if question != "pause":
            raise QuestionRefused("that is not answered here")
        self.asked.append(given)
        return {"changes": self.changes}


@contextlib.asynccontextmanager
async def served(tmp_path: Path, where: str = "127.0.0.1:0") -> AsyncIterator[tuple[PageServer, Shown]]:
    os.chmod(tmp_path, 0o700)
    shown = Shown()
    page = await serve_page(shown, where, tmp_path / "page.url")
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield page, shown
    finally:
        await page.close()
        while _clients:
            writer = _clients.pop()
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


#: The ends of this test's connections.
_clients: list[asyncio.StreamWriter] = []


async def connect(page: PageServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(page.address.host, page.address.port, limit=1 << 26)
    _clients.append(writer)
    return reader, writer


def request(page: PageServer, line: str, body: bytes = b"", **given: str) -> bytes:
    headers = {"Host": f"{page.address.host}:{page.address.port}", "Authorization": f"Bearer {page.address.key}"}
    headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))} if body else {}
    headers |= {name.replace("_", "-"): value for name, value in given.items()}
    return "".join(f"{x}\r\n" for x in (line, *(f"{k}: {v}" for k, v in headers.items()))).encode() + b"\r\n" + body


async def fetch(page: PageServer, line: str, body: bytes = b"", **given: str) -> tuple[int, str, bytes]:
    """Status, head and body."""
    reader, writer = await connect(page)
    writer.write(request(page, line, body, **given))
    answer = await reader.read()
    writer.close()
    head, _, data = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode(), data


async def event(reader: asyncio.StreamReader) -> tuple[str, Any]:
    """The next event of a stream, signs of life left out."""
    while True:
        text = (await reader.readuntil(b"\n\n")).decode()
        if found := re.fullmatch(r"event: (\w+)\ndata: (.*)\n\n", text, re.DOTALL):
            return found[1], json.loads(found[2])


async def stream(page: PageServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await connect(page)
    writer.write(request(page, "GET /api/state HTTP/1.1"))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    return reader, writer


@on_a_loop
async def test_the_address_with_its_key_is_for_this_user_alone(tmp_path: Path) -> None:
    async with served(tmp_path) as (page, _):
        file = tmp_path / "page.url"
        assert file.read_text() == f"{page.address.url}\n"
        assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
        first = page.address
    async with served(tmp_path) as (page, _):
        assert page.address.port == first.port
        assert page.address.key != first.key, "who took the port meanwhile may have been shown the first"
        assert file.read_text() == f"{page.address.url}\n"


@on_a_loop
async def test_a_port_that_another_took_meanwhile_is_given_up(tmp_path: Path) -> None:
    async with served(tmp_path) as (first, _):
        again = await serve_page(Shown(), "127.0.0.1:0", tmp_path / "page.url")
        try:
            assert again.address.port != first.address.port
            assert again.address.key != first.address.key
        finally:
            await again.close()


@on_a_loop
async def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path):
        pass
    (tmp_path / "page.url").chmod(0o644)
    with pytest.raises(OSError, match="0644"):
        await serve_page(Shown(), "127.0.0.1:0", tmp_path / "page.url")


@pytest.mark.parametrize("where", ["0.0.0.0:0", "[::]:0"])
@on_a_loop
async def test_the_page_is_served_on_loopback_only(tmp_path: Path, where: str) -> None:
    with pytest.raises(AddressError, match="loopback"):
        await serve_page(Shown(), where, tmp_path / "page.url")


@on_a_loop
async def test_every_file_is_served_with_a_policy_that_lets_nothing_else_in(tmp_path: Path) -> None:
    async with served(tmp_path) as (page, _):
        names = [file.name for file in BUNDLE.iterdir()]
        assert {"index.html", "main.js", "page.css"} <= set(names)
        for name in ["", *names]:
            status, head, data = await fetch(page, f"GET /{name} HTTP/1.1")
            assert (status, data) == (200, (BUNDLE / (name or "index.html")).read_bytes())
            for wanted in ("default-src 'none'", "frame-ancestors 'none'", "require-trusted-types-for", "no-store"):
                assert wanted in head
            assert page.address.key not in data.decode()
        for missing in ("/../server.py", "/bundle/main.js", "/%2e%2e/server.py", "/x"):
            assert (await fetch(page, f"GET {missing} HTTP/1.1"))[0] == 404


@on_a_loop
async def test_a_stream_begins_with_the_whole_and_goes_on_with_changes(tmp_path: Path) -> None:
    async with served(tmp_path) as (page, shown):
        reader, _ = await stream(page)
        assert await event(reader) == ("whole", {"about": {"page": {"kind": "run"}}})
        shown.board.put("tasks", "a", 1)
        assert await event(reader) == ("change", {"tasks": {"a": 1}})
        late, _ = await stream(page)
        assert (await event(late))[1]["tasks"] == {"a": 1}
        shown.board.drop("tasks", "a")
        assert await event(reader) == await event(late) == ("change", {"tasks": {"a": None}})


@on_a_loop
async def test_viewers_see_the_last_state_when_the_page_ends(tmp_path: Path) -> None:
    async with served(tmp_path) as (page, shown):
        reader, _ = await stream(page)
        await event(reader)
        shown.board.put("pipelines", "plain", "completed")
        await page.close()
        assert await event(reader) == ("change", {"pipelines": {"plain": "completed"}})
        assert await reader.read() == b""


@on_a_loop
async def test_nothing_is_read_of_the_source_without_a_viewer(tmp_path: Path) -> None:
    async with served(tmp_path) as (page, shown):
        reader, writer = await stream(page)
        await event(reader)
        looking = page._looking
        assert looking is not None
        writer.close()
        await asyncio.wait([looking])
        shown.change = shown.whole = lambda: pytest.fail("nobody looks")  # type: ignore[method-assign]
        assert (await fetch(page, "GET / HTTP/1.1"))[0] == 200


@on_a_loop
async def test_a_viewer_who_does_not_read_is_sent_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEHIND_BYTES_MAX", 1 << 16)
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    async with served(tmp_path) as (page, shown):
        reader, writer = await stream(page)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        number = 0
        looking = page._looking
        assert looking is not None
        while not looking.done():
            number += 1
            shown.board.put("tasks", "a", f"{number}" * (1 << 12))
            await asyncio.wait([looking], timeout=0.001)
        assert page._viewers == {}
        del reader


@pytest.mark.parametrize("asked", ["a question", "the state"])
@on_a_loop
async def test_who_never_reads_is_let_go_with_what_he_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setattr(module, "TAKE_S", 0.05)
    async with served(tmp_path) as (page, shown):
        row = "x" * (200 << 10)
        for number in range(160):
            shown.board.put("tasks", str(number), row)

        async def answer(question: str, given: Mapping[str, Any]) -> dict[str, Any]:
            return {"rows": [row] * 160}

        over, meet = asyncio.Event(), page._meet

        async def met(*given: Any) -> None:
            await meet(*given)
            over.set()

        shown.answer = answer  # type: ignore[method-assign]
        page._meet = met  # type: ignore[method-assign]
        reader, writer = await connect(page)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        if asked == "a question":
            writer.write(request(page, "POST /api/ask HTTP/1.1", b'{"question": "x"}'))
        else:
            writer.write(request(page, "GET /api/state HTTP/1.1") + b"spoken")
        await over.wait()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        with contextlib.suppress(ConnectionError):
            assert len(await reader.read()) < 160 * len(row)


@on_a_loop
async def test_a_question_with_the_key_is_answered(tmp_path: Path) -> None:
    async with served(tmp_path) as (page, shown):
        asked = b'{"question": "pause", "pipeline": "plain"}'
        status, _, data = await fetch(page, "POST /api/ask HTTP/1.1", asked)
        assert (status, json.loads(data)) == (200, {"changes": []})
        assert shown.asked == [{"question": "pause", "pipeline": "plain"}]
        shown.changes.append(os.fsdecode(b"caf\xe9.txt"))
        status, _, data = await fetch(page, "POST /api/ask HTTP/1.1", asked)
        assert (status, json.loads(data)) == (200, {"changes": ["caf\\udce9.txt"]})


@pytest.mark.parametrize(
    ("line", "body", "given", "refused"),
    [
        ("POST /api/ask HTTP/1.1", b'{"question": "expel"}', {}, 409),
        ("POST /api/ask HTTP/1.1", b'{"question": 1}', {}, 400),
        ("POST /api/ask HTTP/1.1", b"[]", {}, 400),
        ("POST /api/ask HTTP/1.1", b"{", {}, 400),
        ("POST /api/ask HTTP/1.1", b'{"question": "pause"}', {"Authorization": "Bearer x"}, 401),
        ("POST /api/ask HTTP/1.1", b'{"question": "pause"}', {"Origin": "http://evil.example"}, 403),
        ("POST /api/ask HTTP/1.1", b'{"question": "pause"}', {"Host": "evil.example"}, 421),
        ("POST /api/ask HTTP/1.1", b'{"question": "pause"}', {"Content_Type": "text/plain"}, 415),
        ("POST /api/ask HTTP/1.1", b'{"question": "pause"}', {"Content_Length": "99999"}, 413),
        ("GET /api/ask HTTP/1.1", b"", {}, 404),
        ("POST /api/state HTTP/1.1", b"{}", {}, 404),
        ("OPTIONS /api/ask HTTP/1.1", b"", {}, 400),
    ],
)
@on_a_loop
async def test_what_may_not_be_asked_does_nothing(
    tmp_path: Path, line: str, body: bytes, given: dict[str, str], refused: int
) -> None:
    async with served(tmp_path) as (page, shown):
        status, head, _ = await fetch(page, line, body, **given)
        assert status == refused
        assert "Access-Control" not in head
        assert shown.asked == []


@on_a_loop
async def test_strangers_who_say_nothing_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STRANGERS_MAX", 4)
    async with served(tmp_path) as (page, _):
        silent = [await connect(page) for _ in range(12)]
        assert (await fetch(page, "GET / HTTP/1.1"))[0] == 200
        with contextlib.suppress(ConnectionError):
            assert await silent[0][0].read() == b"", "the oldest was closed"
        assert len(page._strangers) <= 4


@on_a_loop
async def test_a_silent_stranger_is_closed_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_S", 0.05)
    async with served(tmp_path) as (page, _):
        reader, writer = await connect(page)
        writer.write(b"GET / HT")
        assert await reader.read() == b""


@on_a_loop
async def test_more_viewers_than_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VIEWERS_MAX", 1)
    async with served(tmp_path) as (page, _):
        reader, _ = await stream(page)
        await event(reader)
        assert (await fetch(page, "GET /api/state HTTP/1.1"))[0] == 503


def test_the_bundle_makes_no_markup_of_text_and_loads_nothing_from_elsewhere() -> None:
    for file in BUNDLE.iterdir():
        text = file.read_text(encoding="utf-8")
        for never in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "//cdn",
        ):
            assert never not in text, file.name
        found = set(re.findall(r"https?://[\w./-]+", text)) - {"http://www.w3.org/2000/svg"}
        assert found == set(), file.name


@on_a_loop
async def test_a_source_that_raises_ends_nothing_but_its_viewers(tmp_path: Path) -> None:
    surprises: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: surprises.append(context))
    async with served(tmp_path) as (page, shown):
        reader, _ = await stream(page)
        await event(reader)
        change = shown.change
        shown.change = lambda: {}["gone"]  # type: ignore[method-assign]
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        shown.change = change  # type: ignore[method-assign]
        again, _ = await stream(page)
        assert (await event(again))[0] == "whole"
    assert surprises == []


@on_a_loop
async def test_more_questions_than_the_limit_wait_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUESTIONS_MAX", 1)
    async with served(tmp_path) as (page, shown):
        asked, answered = asyncio.Event(), asyncio.Event()

        async def answer(question: str, given: Mapping[str, Any]) -> dict[str, Any]:
            asked.set()
            await answered.wait()
            return {}

        shown.answer = answer  # type: ignore[method-assign]
        body = b'{"question": "pause"}'
        first = asyncio.ensure_future(fetch(page, "POST /api/ask HTTP/1.1", body))
        await asked.wait()
        assert (await fetch(page, "POST /api/ask HTTP/1.1", body))[0] == 503
        answered.set()
        assert (await first)[0] == 200
        assert (await fetch(page, "POST /api/ask HTTP/1.1", body))[0] == 200
