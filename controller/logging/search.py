"""`headrace logs` on the controller's side: its own lines, and those that it asks its workers for."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable

from headrace.daemon import FILE_BYTES_MAX, LINES_MAX, LogFiles, pages
from headrace.protos import codec, control_pb2 as pb

#: Seconds that workers have to tell what there is.
ANSWER_S = 5.0
#: Seconds between two pages of a search that is followed, empty or not: so its reader knows that it lives.
ALIVE_S = 5.0
#: Pages that wait for a reader; when it is slower than that, the search is over.
WAITING_PAGES_MAX = 1_000


class LogSearches:
    """The searches under way. Called on the event loop's thread; `ask` sends a message to a worker by its name."""

    def __init__(self, book: LogFiles, ask: Callable[[str, pb.ToWorker], None]) -> None:
        self._book, self._ask = book, ask
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Queue[tuple[str, pb.LogPage]]] = {}
        #: Who may answer each: this controller itself, as "", and the workers that were asked.
        self._asked: dict[int, set[str]] = {}

    def told(self, worker: str, page: pb.LogPage) -> None:
        """A worker's page. One that was not asked for, or has no bounds, is dropped."""
        queue = self._waiting.get(page.number)
        wanted = worker in self._asked.get(page.number, ()) and sum(map(len, page.lines)) <= FILE_BYTES_MAX
        if queue is not None and wanted and not queue.full():
            queue.put_nowait((worker, page))

    async def search(self, wanted: pb.LogSearch, workers: Iterable[str]) -> AsyncIterator[pb.LogPage]:
        """Pages of what there is, the last of them with `last`; then, if it is followed, of what comes, without end."""
        number, asked = next(self._numbers), set(workers)
        queue = self._waiting[number] = asyncio.Queue(WAITING_PAGES_MAX)
        self._asked[number] = {"", *asked}
        loop = asyncio.get_running_loop()
        search = codec.search_from(wanted)

        def come(line: bytes) -> None:
            loop.call_soon_threadsafe(self.told, "", pb.LogPage(number=number, lines=[line]))

        try:
            lines_max = wanted.lines_max or LINES_MAX
            follow = self._book.follow
            found = follow(number, search, come, lines_max) if wanted.follow else self._book.read(search, lines_max)
            for lines in pages(found):
                yield pb.LogPage(lines=lines)
            for worker in asked:
                self._ask(worker, pb.ToWorker(logs=pb.LogsAsked(number=number, search=wanted)))
            async for page in self._gather(queue, asked):
                yield page
            while wanted.follow and not queue.full():
                yield await self._next(queue, ALIVE_S) or pb.LogPage()
        finally:
            del self._waiting[number], self._asked[number]
            self._book.leave(number)
            for worker in asked if wanted.follow else ():
                self._ask(worker, pb.ToWorker(logs=pb.LogsAsked(number=number, end=True)))

    async def _gather(self, queue: asyncio.Queue[tuple[str, pb.LogPage]], asked: set[str]) -> AsyncIterator[pb.LogPage]:
        """What each worker has, until all have told or are late; the last page says who is missing."""
        missing, deadline = set(asked), time.monotonic() + ANSWER_S
        while missing and time.monotonic() < deadline:
            try:
                worker, page = await asyncio.wait_for(queue.get(), max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                break
            if page.last:
                missing.discard(worker)
            else:
                yield page
        yield pb.LogPage(last=True, missing=sorted(missing))

    async def _next(self, queue: asyncio.Queue[tuple[str, pb.LogPage]], within_s: float) -> pb.LogPage | None:
        try:
            _, page = await asyncio.wait_for(queue.get(), within_s)
        except TimeoutError:
            return None
        page.last = False
        return page
