"""Fetching blocks of shards: spans of them, streamed over a bounded number of connections, and hedged.

A span is a run of blocks of one shard that one request asks for. Its bytes are checked and written in pieces as they
come, so a request that breaks or stalls is taken up where it stood, and by whichever connection: a span that makes no
progress for much longer than spans usually do is asked for a second time, from its next block on, and what either
brings counts (Dean and Barroso, "The tail at scale", 2013).

What a request costs beside its bytes (some tens of milliseconds far away, a millisecond of two processors nearby) buys
`GAP_BYTES` of a connection's bytes. So blocks that lie nearer to each other than that are asked for in one request.
"""

import logging
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from headrace.loader import LoaderError
from headrace.loader.cache.fetch import (
    ATTEMPTS_MAX,
    HEDGE_EVERY,
    HEDGE_FACTOR,
    HEDGE_S_MIN,
    THREADS_DEFAULT,
    Asked,
    FetchCounts,
    Pool,
    never,
    not_wanted,
)
from headrace.loader.cache.head import Head, head_and_rest, read_head
from headrace.loader.cache.reach import Reach
from headrace.loader.cache.rowblocks import RowBlocks, wrong_block
from headrace.loader.cache.sparse import Sparse, runs
from headrace.loader.order import I64
from headrace.store import ChecksumMismatch, ObjectStore, StoreError, StoreStalled, StoreUnavailable, Stream, stream
from headrace.store.shards import BLOCK_BYTES

#: one request asks for at most this; a shard of the usual size is one request
SPAN_BYTES_MAX: Final = 32 << 20
#: blocks that are read, checked and written at once: a MiB stays near a processor, and takes few turns of threads
PIECE_BLOCKS: Final = 16
PIECE_BYTES: Final = PIECE_BLOCKS * BLOCK_BYTES
#: how long who opens a shard waits until another may be on its way; with no answer it asks for what it needs alone
TURN_S_MAX: Final = 0.25
#: between two looks at what other processes have brought, and at what stalls
POLL_S: Final = 0.02
#: blocks that another process has claimed are fetched here too after this long
CLAIM_S_MAX: Final = 20.0
WAIT_S_MAX: Final = 600.0


logger = logging.getLogger("headrace.loader")


@dataclass(slots=True, eq=False)
class _Span:
    sparse: Sparse
    first: int
    end: int
    #: the next block
    at: int
    #: whether nobody wants it any more
    stopped: Callable[[], bool] = never
    #: whether somebody waits for just these blocks, and is told of an error
    is_urgent: bool = False
    #: whether other processes' claims are overridden
    is_forced: bool = False
    is_hedge: bool = False
    is_hedged: bool = False
    moved_at: float | None = None
    #: its bytes, where a request for them is on its way
    coming: Stream | None = None


@dataclass(slots=True)
class Spans:
    """All spans of one cache that are asked for or on their way."""

    pool: Pool
    counts: FetchCounts
    #: told of a shard of which every block is there
    finished: Callable[[Sparse], None]
    _running: list[_Span] = field(default_factory=list)
    #: seconds between two pieces, newest last
    _gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=256))
    #: requests that brought a shard's head and go on with its blocks: no more than threads that can read them
    _turns: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(THREADS_DEFAULT))

    #: for heads, and for what is asked for again: those that read blocks may all be stalled
    _spare: Pool = field(default_factory=Pool)

    def begin(
        self, store: ObjectStore, key: str, *, whole: bool = False, stopped: Callable[[], bool] = never
    ) -> Head | None:
        """The head of a shard; with `whole` what follows it is on its way. `read_on` or `give_up` must follow.

        None where it has no checksums of its blocks. Raises the store's errors, and LoaderClosed once `stopped`.
        """
        head = None
        if whole and self._turns.acquire(timeout=TURN_S_MAX):
            try:
                head = self._asked(lambda: head_and_rest(store, key, SPAN_BYTES_MAX, PIECE_BYTES)).first(key, stopped)
            finally:
                if head is None:
                    self._turns.release()
        return head or self._asked(lambda: read_head(store, key)).first(key, stopped)

    def _asked(self, ask: Callable[[], Head | None]) -> Asked[Head | None]:
        return Asked(self._spare, self.counts, ask, _drop)

    def read_on(self, sparse: Sparse, head: Head) -> None:
        """Write what follows the head, where that is on its way."""
        table = sparse.table
        end = table.count if table.size <= SPAN_BYTES_MAX else (SPAN_BYTES_MAX - table.body) // table.block_bytes
        if head.rest is None or head.blocks >= end:
            self.give_up(head)
            return
        rest, head.rest = head.rest, None
        span = _Span(sparse, head.blocks, end, head.blocks, coming=rest)
        sparse.claim(span.first, span.end)
        sparse.flying[span.first : span.end] = 1
        self.counts.asked += 1
        self.pool.submit(lambda: self._run(span), first=True)

    def give_up(self, head: Head) -> None:
        """Close what `begin` opened, once."""
        rest, head.rest = head.rest, None
        if rest is not None:
            rest.close()
            self._turns.release()

    def want(
        self,
        sparse: Sparse,
        wanted: list[tuple[int, int]],
        *,
        urgent: bool = False,
        forced: bool = False,
        stopped: Callable[[], bool] = never,
    ) -> None:
        """Have the blocks of these runs fetched, except what is there or on its way here, or, unless `forced`, in
        another process; `urgent` before all else; not those that did not begin when `stopped`.
        """
        table = sparse.table
        most = max(1, SPAN_BYTES_MAX // table.block_bytes)
        spans: list[_Span] = []
        with sparse.lock:
            for first, end in wanted:
                open_ = (sparse.present[first:end] | sparse.flying[first:end]) == 0
                for begin, stop in runs(open_):
                    starts = range(first + begin, first + stop, most)
                    spans += [
                        _Span(sparse, at, min(at + most, first + stop), at, stopped, urgent, forced) for at in starts
                    ]
                    # at once: runs may overlap, as where several small arrays lie in one block
                    sparse.flying[first + begin : first + stop] = 1
        for span in reversed(spans) if urgent else spans:
            self.counts.asked += 1
            self.pool.submit(lambda span=span: self._run(span), first=urgent)  # type: ignore[misc]

    def wait(
        self,
        sparse: Sparse,
        wanted: list[tuple[int, int]],
        wait_s: float = WAIT_S_MAX,
        stopped: Callable[[], bool] = never,
    ) -> None:
        """Return when these blocks are there and right, and have them fetched if nobody does.

        Raises the store's errors, LoaderError after `wait_s`, and LoaderClosed once `stopped`.
        """
        self._wait_there(sparse, wanted, wait_s, stopped)
        if sparse.unchecked is not None:
            self._check_found(sparse, wanted, wait_s, stopped)

    def _wait_there(
        self, sparse: Sparse, wanted: list[tuple[int, int]], wait_s: float, stopped: Callable[[], bool]
    ) -> None:
        began, is_asked = time.monotonic(), False
        while missing := _missing(sparse, wanted):
            if stopped():
                raise not_wanted(sparse.key)
            error = sparse.take_error(missing)
            with sparse.lock:
                sparse.awaited.update(missing)
                # what came just now woke nobody
                sparse.awaited.difference_update(at for at in missing if sparse.present[at])
            # one of before may be over by now, and who waited for it has gone
            if error is not None and is_asked:
                raise error
            is_asked = True
            now = time.monotonic()
            if now - began > wait_s:
                raise LoaderError(
                    f"{sparse.remote.uri}: {len(missing)} blocks of {sparse.key!r} did not arrive within {wait_s:.0f} s"
                )
            self.want(sparse, wanted, urgent=True, forced=now - began > CLAIM_S_MAX, stopped=stopped)
            self._hedge(now)
            self._pause(sparse, missing)

    def _check_found(
        self, sparse: Sparse, wanted: list[tuple[int, int]], wait_s: float, stopped: Callable[[], bool]
    ) -> None:
        """Check what of these blocks stood in the file already; what a disk has damaged since is fetched anew.

        A block counts as checked once it was, and not before: another thread that needs it checks it too.
        """
        unchecked = sparse.unchecked
        if unchecked is None:
            return  # another thread came to its end
        for first, end in wanted:
            for block in (np.flatnonzero(unchecked[first:end]) + first).tolist():
                if not sparse.is_right(block):
                    logger.warning(
                        "block %d of %s was damaged in the cache and is fetched anew; see whether the disk fails",
                        block,
                        sparse.key,
                    )
                    self._wait_there(sparse, [(block, block + 1)], wait_s, stopped)
                unchecked[block] = 0
        if not unchecked.any():
            sparse.unchecked = None
            sparse.checked()

    def _pause(self, sparse: Sparse, missing: list[int]) -> None:
        """Return when some of these blocks may be there or not come, and soon in any case."""
        with self.counts.changed:
            self.counts.changed.wait_for(lambda: not sparse.awaited or sparse.has_failed(missing), POLL_S)

    def _hedge(self, now: float) -> None:
        limit = HEDGE_S_MIN * 4
        if self._gaps_s:
            limit = max(HEDGE_S_MIN, HEDGE_FACTOR * statistics.median(list(self._gaps_s)))
        for span in list(self._running):
            late = span.moved_at is not None and span.moved_at + limit < now
            if (
                late
                and not (span.is_hedge or span.is_hedged)
                and self.counts.hedges <= self.counts.asked // HEDGE_EVERY
            ):
                span.is_hedged = True
                self.counts.hedges += 1
                other = _Span(span.sparse, span.at, span.end, span.at, is_urgent=span.is_urgent, is_hedge=True)
                self._spare.submit(lambda other=other: self._run(other), first=True)  # type: ignore[misc]

    def _run(self, span: _Span) -> None:
        sparse, coming = span.sparse, span.coming
        self._running.append(span)
        is_claimed = False
        try:
            if not span.is_hedge and not span.stopped():
                is_claimed = sparse.claim(span.first, span.end)
            if span.is_hedge or is_claimed or span.is_forced or coming is not None:
                self._fetch(span)
            if sparse.has_all(0, sparse.table.count):
                self.finished(sparse)
        except Exception as error:  # noqa: BLE001 - it belongs to the thread that waits
            # what was asked for ahead is asked for again by whoever needs a part of it, and perhaps not the bad one
            if span.is_urgent and not sparse.has_all(span.first, span.end):
                known = isinstance(error, StoreError | LoaderError)
                sparse.fail(span.first, span.end, error if known else _unexpected(sparse, error))
        finally:
            self._running.remove(span)
            if coming is not None:
                coming.close()
                self._turns.release()
            if is_claimed:
                sparse.let_go(span.first, span.end)
            with sparse.lock:
                if not span.is_hedge:
                    sparse.flying[span.first : span.end] = 0
            with self.counts.changed:
                self.counts.changed.notify_all()

    def _fetch(self, span: _Span) -> None:
        failures, at = 0, span.at
        while True:
            try:
                self._stream(span)
                return
            except (StoreUnavailable, ChecksumMismatch) as error:
                # what breaks off, but further on each time, gets there in the end
                failures, at = failures + 1 if span.at == at else 1, span.at
                if failures >= ATTEMPTS_MAX or isinstance(error, StoreStalled) or span.stopped():
                    raise
                with self.counts.changed:
                    self.counts.retries += 1

    def _stream(self, span: _Span) -> None:
        sparse, table = span.sparse, span.sparse.table
        pieces, span.coming = span.coming, None
        while pieces is None and span.at < span.end and sparse.present[span.at]:
            span.at += 1
        if span.at == span.end:
            return
        moved = span.moved_at = time.monotonic()
        offset, length = table.span(span.at, span.end)
        pieces = pieces or stream(sparse.remote, sparse.key, offset, length, PIECE_BLOCKS * table.block_bytes)
        # at once, and not when an error is collected that holds it: its connection would be closed in the pool
        with closing(pieces):
            for piece in pieces:
                count = _check(sparse, span.at, piece)
                sparse.write(span.at, piece)
                if sparse.awaited:
                    self._wake(sparse, span.at, span.at + count)
                span.at += count
                now = time.monotonic()
                self._gaps_s.append(now - moved)
                self.counts.came(piece.nbytes)
                moved = span.moved_at = now
                if span.at >= span.end or ((span.is_hedged or span.is_hedge) and sparse.has_all(span.at, span.end)):
                    return
        if span.at < span.end:
            raise StoreUnavailable(
                f"{sparse.remote.uri}: {sparse.key!r} ended before byte {offset + length}; the object was cut short, "
                "restore it"
            )

    def _wake(self, sparse: Sparse, first: int, end: int) -> None:
        with sparse.lock:
            sparse.awaited.difference_update(range(first, end))
        if not sparse.awaited:
            with self.counts.changed:
                self.counts.changed.notify_all()


class Arriving:
    """The rows of a shard that is on its way: `offset` is where row 0 begins in the file, in bytes."""

    __slots__ = ("_rows", "_spans", "sparse")

    def __init__(self, sparse: Sparse, spans: Spans, offset: int, row_bytes: int) -> None:
        self.sparse = sparse
        self._spans = spans
        self._rows = RowBlocks(sparse.table, offset, row_bytes)

    @property
    def is_whole(self) -> bool:
        """Whether every row is there."""
        return self.sparse.is_whole

    def want(self, rows: I64, stopped: Callable[[], bool], reach: Reach) -> None:
        """Have these rows [k] fetched, and beside them what is in `reach`, unless `stopped` before."""
        table = self.sparse.table
        wanted = self._rows.runs(rows, reach.gap_bytes)
        wanted_bytes = sum(end - first for first, end in wanted) * table.block_bytes
        if wanted and reach.takes_whole(len(wanted), wanted_bytes, table.count * table.block_bytes):
            wanted = [(0, table.count)]
        self._spans.want(self.sparse, wanted, stopped=stopped)

    def wait(self, rows: I64, stopped: Callable[[], bool] = never) -> None:
        """Return when these rows [k] are there. Raises the store's errors, LoaderError, LoaderClosed once `stopped`."""
        if self.sparse.unchecked is None:
            first, end = self._rows.bounds(np.asarray(rows, dtype=np.int64))
            present = self.sparse.present
            # a row lies in one block or in two, unless it is longer than a block
            if present[first].all() and present[end - 1].all() and int((end - first).max(initial=0)) <= 2:
                return
        self._spans.wait(self.sparse, self._rows.runs(rows), stopped=stopped)


def _drop(head: Head | None) -> None:
    """Close what came too late."""
    if head is not None and head.rest is not None:
        head.rest.close()


def _missing(sparse: Sparse, wanted: list[tuple[int, int]]) -> list[int]:
    return [first + int(at) for first, end in wanted for at in np.flatnonzero(sparse.present[first:end] == 0)]


def _check(sparse: Sparse, first: int, piece: memoryview) -> int:
    """How many blocks this piece holds, all of them right. Raises ChecksumMismatch."""
    wrong, count = sparse.table.first_wrong(first, piece)
    if wrong is not None:
        raise wrong_block(sparse.remote.uri, sparse.key, wrong)
    return count


def _unexpected(sparse: Sparse, error: Exception) -> LoaderError:
    return LoaderError(f"{sparse.remote.uri}: {sparse.key!r} could not be fetched into the cache: {error!r}")
