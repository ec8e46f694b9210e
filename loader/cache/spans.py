"""Fetching blocks of shards: spans of them, streamed over a bounded number of connections, and hedged.

A span is a run of blocks of one shard that one request asks for. Its bytes are checked and written in pieces as they
come, so a request that breaks or stalls is taken up where it stood, and by whichever connection: a span that makes no
progress for much longer than spans usually do is asked for a second time, from its next block on, and what either
brings counts (Dean and Barroso, "The tail at scale", 2013).

What a request costs beside its bytes (some tens of milliseconds far away, a millisecond of two processors nearby) buys
`GAP_BYTES` of a connection's bytes. So blocks that lie nearer to each other than that are asked for in one request.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from headrace.loader.cache.fetch import (
    ATTEMPTS_MAX,
    THREADS_DEFAULT,
    FetchCounts,
    Hedge,
    Pool,
    first_answer,
    never,
    not_wanted,
)
from headrace.loader.cache.head import ShardHead, head_and_rest, read_head
from headrace.loader.cache.partial_shard import PartialShard, runs
from headrace.loader.cache.rowblocks import Coalescing, RowBlocks, wrong_block
from headrace.loader.order import I64, LoaderError
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
    partial: PartialShard
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
    finished: Callable[[PartialShard], None]
    _running: list[_Span] = field(default_factory=list)
    #: when the next piece of a span is late
    _pieces: Hedge = field(init=False)
    #: requests that brought a shard's head and go on with its blocks: no more than threads that can read them
    _turns: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(THREADS_DEFAULT))

    #: for heads, and for what is asked for again: those that read blocks may all be stalled
    _spare: Pool = field(default_factory=Pool)

    def __post_init__(self) -> None:
        self._pieces = Hedge(self.counts)

    def begin(
        self, store: ObjectStore, key: str, *, whole: bool = False, stopped: Callable[[], bool] = never
    ) -> ShardHead | None:
        """The head of a shard; with `whole` what follows it is on its way. `read_on` or `give_up` must follow.

        None where it has no checksums of its blocks. Raises the store's errors, and LoaderClosed once `stopped`.
        """
        head = None
        if whole and self._turns.acquire(timeout=TURN_S_MAX):
            try:
                head = self._first(lambda: head_and_rest(store, key, SPAN_BYTES_MAX, PIECE_BYTES), key, stopped)
            finally:
                if head is None:
                    self._turns.release()
        return head or self._first(lambda: read_head(store, key), key, stopped)

    def _first(self, ask: Callable[[], ShardHead | None], key: str, stopped: Callable[[], bool]) -> ShardHead | None:
        return first_answer(ask, key, self._spare, self.counts, drop=_drop, stopped=stopped)

    def read_on(self, partial: PartialShard, head: ShardHead) -> None:
        """Write what follows the head, where that is on its way."""
        table = partial.table
        end = table.count if table.size <= SPAN_BYTES_MAX else (SPAN_BYTES_MAX - table.body) // table.block_bytes
        if head.rest is None or head.blocks >= end:
            self.give_up(head)
            return
        rest, head.rest = head.rest, None
        span = _Span(partial, head.blocks, end, head.blocks, coming=rest)
        partial.claim(span.first, span.end)
        partial.flying[span.first : span.end] = 1
        self.counts.requests += 1
        self.pool.submit(lambda: self._run(span), first=True)

    def give_up(self, head: ShardHead) -> None:
        """Close what `begin` opened, once."""
        rest, head.rest = head.rest, None
        if rest is not None:
            rest.close()
            self._turns.release()

    def want(
        self,
        partial: PartialShard,
        wanted: list[tuple[int, int]],
        *,
        urgent: bool = False,
        forced: bool = False,
        stopped: Callable[[], bool] = never,
    ) -> None:
        """Have the blocks of these runs fetched, except what is there or on its way here, or, unless `forced`, in
        another process; `urgent` before all else; not those that did not begin when `stopped`.
        """
        table = partial.table
        most = max(1, SPAN_BYTES_MAX // table.block_bytes)
        spans: list[_Span] = []
        with partial.lock:
            for first, end in wanted:
                open_ = (partial.present[first:end] | partial.flying[first:end]) == 0
                for begin, stop in runs(open_):
                    starts = range(first + begin, first + stop, most)
                    spans += [
                        _Span(partial, at, min(at + most, first + stop), at, stopped, urgent, forced) for at in starts
                    ]
                    # at once: runs may overlap, as where several small arrays lie in one block
                    partial.flying[first + begin : first + stop] = 1
        for span in reversed(spans) if urgent else spans:
            self.counts.requests += 1
            self.pool.submit(lambda span=span: self._run(span), first=urgent)  # type: ignore[misc]

    def wait(self, partial: PartialShard, wanted: list[tuple[int, int]], stopped: Callable[[], bool] = never) -> None:
        """Return when these blocks are there and right, and have them fetched if nobody does.

        Raises the store's errors, LoaderError after WAIT_S_MAX, and LoaderClosed once `stopped`.
        """
        self._wait_there(partial, wanted, stopped)
        if partial.unchecked is not None:
            self._check_found(partial, wanted, stopped)

    def _wait_there(self, partial: PartialShard, wanted: list[tuple[int, int]], stopped: Callable[[], bool]) -> None:
        began, is_asked = time.monotonic(), False
        while missing := _missing(partial, wanted):
            if stopped():
                raise not_wanted(partial.key)
            error = partial.take_error(missing)
            with partial.lock:
                partial.awaited.update(missing)
                # what came just now woke nobody
                partial.awaited.difference_update(at for at in missing if partial.present[at])
            # one of before may be over by now, and who waited for it has gone
            if error is not None and is_asked:
                raise error
            is_asked = True
            now = time.monotonic()
            if now - began > WAIT_S_MAX:
                raise LoaderError(
                    f"{partial.remote.uri}: {len(missing)} blocks of {partial.key!r} did not arrive within "
                    f"{WAIT_S_MAX:.0f} s"
                )
            self.want(partial, wanted, urgent=True, forced=now - began > CLAIM_S_MAX, stopped=stopped)
            self._hedge(now)
            self._pause(partial, missing)

    def _check_found(self, partial: PartialShard, wanted: list[tuple[int, int]], stopped: Callable[[], bool]) -> None:
        """Check what of these blocks stood in the file already; what a disk has damaged since is fetched anew.

        A block counts as checked once it was, and not before: another thread that needs it checks it too.
        """
        unchecked = partial.unchecked
        if unchecked is None:
            return  # another thread came to its end
        for first, end in wanted:
            for block in (np.flatnonzero(unchecked[first:end]) + first).tolist():
                if not partial.is_right(block):
                    logger.warning(
                        "block %d of %s was damaged in the cache and is fetched anew; see whether the disk fails",
                        block,
                        partial.key,
                    )
                    self._wait_there(partial, [(block, block + 1)], stopped)
                unchecked[block] = 0
        if not unchecked.any():
            partial.unchecked = None
            partial.checked()

    def _pause(self, partial: PartialShard, missing: list[int]) -> None:
        """Return when some of these blocks may be there or not come, and soon in any case."""
        with self.counts.changed:
            self.counts.changed.wait_for(lambda: not partial.awaited or partial.has_failed(missing), POLL_S)

    def _hedge(self, now: float) -> None:
        limit_s = self._pieces.limit_s()
        for span in list(self._running):
            is_late = span.moved_at is not None and span.moved_at + limit_s < now
            if is_late and not (span.is_hedge or span.is_hedged) and self._pieces.begin():
                span.is_hedged = True
                other = _Span(span.partial, span.at, span.end, span.at, is_urgent=span.is_urgent, is_hedge=True)
                self._spare.submit(lambda other=other: self._run(other), first=True)  # type: ignore[misc]

    def _run(self, span: _Span) -> None:
        partial, coming = span.partial, span.coming
        self._running.append(span)
        is_claimed = False
        try:
            if not span.is_hedge and not span.stopped():
                is_claimed = partial.claim(span.first, span.end)
            if span.is_hedge or is_claimed or span.is_forced or coming is not None:
                self._fetch(span)
            if partial.has_all(0, partial.table.count):
                self.finished(partial)
        except Exception as error:  # noqa: BLE001 - it belongs to the thread that waits
            # what was asked for ahead is asked for again by whoever needs a part of it, and perhaps not the bad one
            if span.is_urgent and not partial.has_all(span.first, span.end):
                if not isinstance(error, StoreError | LoaderError):
                    where = f"{partial.remote.uri}: {partial.key!r}"
                    error = LoaderError(f"{where} could not be fetched into the cache: {error!r}")
                partial.fail(span.first, span.end, error)
        finally:
            self._running.remove(span)
            if coming is not None:
                coming.close()
                self._turns.release()
            if is_claimed:
                partial.let_go(span.first, span.end)
            with partial.lock:
                if not span.is_hedge:
                    partial.flying[span.first : span.end] = 0
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
        partial, table = span.partial, span.partial.table
        pieces, span.coming = span.coming, None
        while pieces is None and span.at < span.end and partial.present[span.at]:
            span.at += 1
        if span.at == span.end:
            return
        moved = span.moved_at = time.monotonic()
        offset, length = table.span(span.at, span.end)
        pieces = pieces or stream(partial.remote, partial.key, offset, length, PIECE_BLOCKS * table.block_bytes)
        # at once, and not when an error is collected that holds it: its connection would be closed in the pool
        with closing(pieces):
            for piece in pieces:
                wrong, count = table.first_wrong(span.at, piece)
                if wrong is not None:
                    raise wrong_block(partial.remote.uri, partial.key, wrong)
                partial.write(span.at, piece)
                if partial.awaited:
                    self._wake(partial, span.at, span.at + count)
                span.at += count
                now = time.monotonic()
                self._pieces.took(now - moved)
                self.counts.came(piece.nbytes)
                moved = span.moved_at = now
                if span.at >= span.end or ((span.is_hedged or span.is_hedge) and partial.has_all(span.at, span.end)):
                    return
        if span.at < span.end:
            raise StoreUnavailable(
                f"{partial.remote.uri}: {partial.key!r} ended before byte {offset + length}; the object was cut short, "
                "restore it"
            )

    def _wake(self, partial: PartialShard, first: int, end: int) -> None:
        with partial.lock:
            partial.awaited.difference_update(range(first, end))
        if not partial.awaited:
            with self.counts.changed:
                self.counts.changed.notify_all()


class Arriving:
    """The rows of a shard that is on its way: `offset` is where row 0 begins in the file, in bytes."""

    __slots__ = ("_rows", "_spans", "partial")

    def __init__(self, partial: PartialShard, spans: Spans, offset: int, row_bytes: int) -> None:
        self.partial = partial
        self._spans = spans
        self._rows = RowBlocks(partial.table, offset, row_bytes)

    @property
    def is_whole(self) -> bool:
        """Whether every row is there."""
        return self.partial.is_whole

    def want(self, rows: I64, stopped: Callable[[], bool], coalescing: Coalescing) -> None:
        """Have these rows [k] fetched, and beside them what is in `coalescing`, unless `stopped` before."""
        table = self.partial.table
        wanted = self._rows.runs(rows, coalescing.gap_bytes)
        wanted_bytes = sum(end - first for first, end in wanted) * table.block_bytes
        if wanted and coalescing.takes_whole(len(wanted), wanted_bytes, table.count * table.block_bytes):
            wanted = [(0, table.count)]
        self._spans.want(self.partial, wanted, stopped=stopped)

    def wait(self, rows: I64, stopped: Callable[[], bool] = never) -> None:
        """Return when these rows [k] are there. Raises the store's errors, LoaderError, LoaderClosed once `stopped`."""
        if self.partial.unchecked is None:
            first, end = self._rows.bounds(np.asarray(rows, dtype=np.int64))
            present = self.partial.present
            # a row lies in one block or in two, unless it is longer than a block
            if present[first].all() and present[end - 1].all() and int((end - first).max(initial=0)) <= 2:
                return
        self._spans.wait(self.partial, self._rows.runs(rows), stopped=stopped)


def _drop(head: ShardHead | None) -> None:
    """Close what came too late."""
    if head is not None and head.rest is not None:
        head.rest.close()


def _missing(partial: PartialShard, wanted: list[tuple[int, int]]) -> list[int]:
    return [first + int(at) for first, end in wanted for at in np.flatnonzero(partial.present[first:end] == 0)]
