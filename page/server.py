"""Serve the page on loopback: its files, the state as server-sent events, and answers to questions.

One reading is made for all viewers, and none without a viewer. Who reads more slowly than the state changes is sent
away, and comes again by itself. Every limit on what an unknown client may hold stands at the top.

The file that holds the page's address with its key, for this user alone. A page that is served again, after a
restart, has the same port where any was asked for, and another key: whoever took the port meanwhile may have been
shown the one before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import orjson

from headrace.daemon import Effects, host_and_port, loopback, make_private, read_private, runtime_folder
from headrace.page.core import HEAD_BYTES_MAX, Request, RequestRefused, body_length, check, parse_head, written

_ADDRESS = re.compile(r"http://(127\.[0-9.]{5,11}|\[::1\]):([0-9]{1,5})/#([A-Za-z0-9_-]{43})\n?")
_BYTES_MAX = 256


@dataclass(frozen=True, slots=True)
class PageAddress:
    """Where a page is served, and what its viewers show."""

    host: str
    port: int
    key: str

    @property
    def url(self) -> str:
        """What a browser is given. What follows the # is never sent to a server."""
        return f"http://{self.host}:{self.port}/#{self.key}"


def page_address(file: Path | None, host: str, port: int) -> tuple[PageAddress, Path]:
    """The address to serve: with a new key, and by the file the port of before; and the file, named after the port.

    Raises OSError where others may read or exchange the file.
    """
    if file is None:
        file = make_private(runtime_folder()) / f"page-{port or 'any'}.url"
    found = None
    if os.path.lexists(file):
        found = _ADDRESS.fullmatch(read_private(file, _BYTES_MAX).decode("latin-1"))
    return PageAddress(host, port or (int(found[2]) if found else 0), secrets.token_urlsafe(32)), file


def write_address(file: Path, address: PageAddress) -> None:
    """Have the file hold this address. Raises OSError."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    # who may write to the folder may have made it before, and hold it open
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(f"{address.url}\n".encode())
    os.replace(draft, file)


logger = logging.getLogger("headrace.page")

#: Connections at once that have not shown the key; for a further one the oldest is closed.
STRANGERS_MAX = 64
#: Streams, and questions that are being answered, at once.
VIEWERS_MAX, QUESTIONS_MAX = 16, 8
#: Seconds for a head, for a body, and until an answer is taken.
HEAD_S, BODY_S, TAKE_S = 10.0, 10.0, 30.0
#: Bytes that may wait for a viewer, besides the state that he is sent first.
BEHIND_BYTES_MAX = 8 << 20
#: Seconds between two looks for changes, and between two signs of life.
LOOK_S, ALIVE_S = 0.18, 5.0
BACKLOG = 64
#: Seconds until viewers have taken the last state.
END_S = 1.0
#: What is logged of a surprise: whoever has a page has it besides work that must go on.
FAULT = "the page failed and closed its connections; only the page is affected"
_BUNDLE = Path(__file__).with_name("bundle")
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_WORDS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 409: "Conflict"}
#: Nothing but the bundle is loaded, no text becomes markup, and no other page shows this one.
_SAFE = (
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cache-Control: no-store\r\n"
    "Connection: close\r\n"
)


class QuestionRefused(Exception):  # noqa: N818 - named after what is so
    """A question that is not answered, and why."""


class PageSource(Protocol):
    """What a page shows. Called on the event loop's thread."""

    def whole(self) -> bytes:
        """The state as a JSON object, up to the last `change`."""
        ...

    def change(self) -> bytes:
        """What changed since the last call, as a JSON object; empty for nothing."""
        ...

    async def answer(self, question: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a question, or do what it asks for. Raises QuestionRefused."""
        ...


class PageServer:
    """One page, of one source."""

    def __init__(self, source: PageSource, address: PageAddress, file: Path | None = None) -> None:
        self._source, self.address, self.file = source, address, file
        self._files = {
            f"/{file.name}": (_KINDS[file.suffix], file.read_bytes())
            for file in sorted(_BUNDLE.iterdir())
            if file.suffix in _KINDS
        }
        self._files["/"] = self._files["/index.html"]
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        #: Each with the bytes of the state that it was sent first.
        self._viewers: dict[asyncio.StreamWriter, int] = {}
        self._questions = 0
        self._effects = Effects()
        self._listening: asyncio.Server | None = None
        self._looking: asyncio.Task[None] | None = None

    async def open(self) -> str:
        """Listen; the address that a browser is given. Raises OSError."""
        family = socket.AF_INET6 if ":" in self.address.host else socket.AF_INET
        listening = socket.create_server((self.address.host.strip("[]"), self.address.port), family=family)
        self.address = replace(self.address, port=int(listening.getsockname()[1]))
        self._listening = await asyncio.start_server(self._come, sock=listening, limit=HEAD_BYTES_MAX, backlog=BACKLOG)
        return self.address.url

    async def close(self) -> None:
        """Show viewers the last state, and close every connection."""
        if self._listening is not None:
            self._listening.close()
        self._broadcast(b"change", self._source.change() if self._viewers else b"")
        for writer in [*self._viewers, *self._strangers]:
            writer.close()
        if self._looking is not None:
            self._looking.cancel()
        await self._effects.settle(END_S)  # while viewers take it
        self._effects.cancel()
        await self._effects.settle(END_S)

    @property
    def place(self) -> str:
        """Where it is served, without the key."""
        return f"http://{self.address.host}:{self.address.port}"

    def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._strangers) >= STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        self._strangers[writer] = None
        self._effects.start("a request to the page", self._meet(reader, writer))

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the one request of a connection."""
        try:
            await self._serve(reader, writer)
        except (RequestRefused, QuestionRefused) as error:
            status = error.status if isinstance(error, RequestRefused) else 409
            with contextlib.suppress(OSError, TimeoutError):
                await _send(writer, status, "application/json", written({"error": str(error)}))
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # who asks is gone, or says too little or too much
        except Exception:
            logger.exception(FAULT)
        finally:
            self._strangers.pop(writer, None)
            self._viewers.pop(writer, None)
            # and not `close`: that waits, uncounted and for ever, until who asked has read what he was sent
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_S):
            request = parse_head(await reader.readuntil(b"\r\n\r\n"))
        check(request, self.address.key)
        if not request.private:
            kind, data = self._files.get(request.path, ("", b""))
            if not kind:
                raise RequestRefused(404, "nothing is there")
            await _send(writer, 200, kind, data, head_only=request.method == "HEAD")
            return
        self._strangers.pop(writer, None)
        if (request.method, request.path) == ("GET", "/api/state"):
            await self._stream(reader, writer)
        elif (request.method, request.path) == ("POST", "/api/ask"):
            await self._ask(request, reader, writer)
        else:
            raise RequestRefused(404, "nothing is there")

    async def _ask(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._questions >= QUESTIONS_MAX:
            raise RequestRefused(503, f"{QUESTIONS_MAX} questions are being answered; ask again")
        self._questions += 1
        try:
            async with asyncio.timeout(BODY_S):
                body = await reader.readexactly(body_length(request))
            try:
                given = orjson.loads(body)
            except orjson.JSONDecodeError as error:
                raise RequestRefused(400, "a question is JSON") from error
            if not isinstance(given, dict) or not isinstance(given.get("question"), str):
                raise RequestRefused(400, 'a question is an object with "question"')
            answer = await self._source.answer(given["question"], given)
            await _send(writer, 200, "application/json", written(answer))
        finally:
            self._questions -= 1

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send the state, and each change until the viewer goes."""
        if len(self._viewers) >= VIEWERS_MAX:
            raise RequestRefused(503, f"{VIEWERS_MAX} browsers show this page already")
        # What changed so far is for those who are here; who comes is sent all of it.
        self._broadcast(b"change", self._source.change())
        whole = self._source.whole()
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{_SAFE}\r\n".encode())
        writer.write(_event(b"whole", whole))
        self._viewers[writer] = len(whole)
        if self._looking is None:
            self._looking = self._effects.start("the page's looks", self._look())
        await reader.read(1)  # nothing is said on a stream: it ends, or breaks

    async def _look(self) -> None:
        """Send what changes for as long as anybody looks."""
        loop = asyncio.get_running_loop()
        said_at = due_at = loop.time()
        try:
            while self._viewers:
                due_at = max(due_at + LOOK_S, loop.time())
                await asyncio.sleep(due_at - loop.time())
                change = self._source.change()
                if change:
                    self._broadcast(b"change", change)
                    said_at = loop.time()
                elif loop.time() >= said_at + ALIVE_S:
                    self._write(b":\n\n")
                    said_at = loop.time()
        except Exception:
            logger.exception(FAULT)
            for writer in self._viewers:
                writer.transport.abort()
        finally:
            self._looking = None

    def _broadcast(self, name: bytes, data: bytes) -> None:
        if data:
            self._write(_event(name, data))

    def _write(self, data: bytes) -> None:
        for writer, first in list(self._viewers.items()):
            if writer.transport.get_write_buffer_size() > BEHIND_BYTES_MAX + first:
                del self._viewers[writer]
                writer.transport.abort()
                logger.info("closed the stream of a slow viewer of the page; its browser reconnects")
            else:
                writer.write(data)


async def serve_page(source: PageSource, where: str, file: Path | None = None) -> PageServer:
    """Serve a page at HOST:PORT of loopback; the file holds its address with the key.

    Raises AddressError for a place beyond this host, OSError.
    """
    host, port = host_and_port(loopback(where))
    address, file = page_address(file, f"[{host}]" if ":" in host else host, port)
    server = PageServer(source, address, file)
    try:
        await server.open()
    except OSError:
        if port or not address.port:
            raise
        server = PageServer(source, replace(address, port=0), file)  # another process has the earlier page's port
        await server.open()
    write_address(file, server.address)
    return server


def _event(name: bytes, data: bytes) -> bytes:
    return b"event: " + name + b"\ndata: " + data + b"\n\n"


async def _send(writer: asyncio.StreamWriter, status: int, kind: str, data: bytes, *, head_only: bool = False) -> None:
    head = f"HTTP/1.1 {status} {_WORDS.get(status, 'Refused')}\r\nContent-Type: {kind}\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n{_SAFE}\r\n".encode() + (b"" if head_only else data))
    async with asyncio.timeout(TAKE_S):
        await writer.drain()
        writer.close()
        await writer.wait_closed()
