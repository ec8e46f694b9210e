"""Fetching what the next positions read from remote datasets, before their batches are assembled.

The sequence is looked at in *stages*: at first one of so many positions as a window of the default order has, since
within a window rows come in any order, then several windows at once, since the more of a shard is asked for together,
the fewer requests it takes. What a stage reads of each shard is asked for in the order in which shards are first
needed; so the first batch waits for the blocks of one window, and not for whole shards.
"""

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from headrace.loader.cache import AMONG_HOSTS, CROWDED, ROOMY, Coalescing, Pool
from headrace.loader.dataset import HELD_SHARE, SHARD_BYTES_MIN, TOKEN_BYTES_MAX, Sources
from headrace.loader.order import BLOCK_ROWS_DEFAULT, I64, WINDOW_BLOCKS_DEFAULT, Hosted, Mixture, distinct

logger = logging.getLogger("headrace.loader")

FIRST_POSITIONS: Final = BLOCK_ROWS_DEFAULT * WINDOW_BLOCKS_DEFAULT
STAGE_POSITIONS: Final = 4 * FIRST_POSITIONS
#: with fewer positions asked for ahead of the reader, the next stage is
AHEAD_POSITIONS_MIN: Final = STAGE_POSITIONS // 2
#: shards opened at once: a request each, and for one without checksums of blocks all of it
SHARDS_AT_ONCE: Final = 8
#: of a source, what the rest of a pass must read at least for bytes between to be fetched since they are read later
COMING_SHARE_MIN: Final = 0.5
#: rows of a shard whose next use stands for all; a block of the default order has 64
SAMPLED_ROWS: Final = 64
#: how long `close` waits for threads that a store may keep; they are daemons, and end by themselves
CLOSE_S_MAX: Final = 0.25
#: how long the producer waits for a plan, which takes milliseconds
PLAN_S_MAX: Final = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class Needed:
    """Rows of one shard that a stage reads, sorted, and the positions where the first and the last of them are read."""

    shard: int
    rows: I64
    first: int
    last: int
    #: what is asked for beside the rows
    coalescing: Coalescing


def needed_by(mixture: Mixture, positions: I64, coalescings: Sequence[Coalescing]) -> list[Needed]:
    """What these positions [k], sorted, read, by shard, in order of first need; `coalescings`: one a source."""
    shards, rows = mixture.locate_ahead(positions)
    # stable: within a shard the positions stay in order; numbers of 16 bits are sorted digit by digit
    is_small = int(shards.max(initial=0)) < 1 << 16
    order = np.argsort(shards.astype(np.uint16) if is_small else shards, kind="stable")
    cuts = np.flatnonzero(np.diff(shards[order])) + 1
    parts = [part for part in np.split(order, cuts) if part.size]
    numbers = shards[[int(part[0]) for part in parts]]
    sources = mixture.source_of(numbers).tolist()
    found = [
        Needed(shard, distinct(rows[part]), int(positions[part[0]]), int(positions[part[-1]]), coalescings[source])
        for part, shard, source in zip(parts, numbers.tolist(), sources, strict=True)
    ]
    return sorted(found, key=lambda one: one.first)


def next_use(mixture: Mixture, shard: int, position: int) -> int:
    """About where in the sequence a shard is needed next, judged by a sample of its rows."""
    source = int(mixture.source_of(np.array([shard]))[0])
    local = shard - int(mixture.shard_starts[source])
    pass_, place = mixture.passes[source].at(int(mixture.given(position)[source]))
    layout = mixture.passes[source].layout(pass_)
    if local >= layout.shards:
        # a shard that came since: with the next pass
        return layout.samples - place
    rows = int(layout.ends[local]) - (int(layout.ends[local - 1]) if local else 0)
    sampled = np.arange(0, max(rows, 1), SAMPLED_ROWS, dtype=np.int64)
    places = mixture.order(source, pass_).inverse(np.full(sampled.size, local), sampled).view(np.int64)
    coming = places[places >= place]
    return int(coming.min()) - place if coming.size else int(places.min()) + layout.samples - place


def coming_share(mixture: Mixture, source: int, position: int) -> float:
    """Of a source's samples, those that were not read in its pass at an absolute position, and are in the mixture's."""
    begin, end = (
        int(mixture.given(at)[source]) for at in (position, (position // mixture.samples + 1) * mixture.samples)
    )
    pass_, place = mixture.passes[source].at(begin)
    samples = mixture.passes[source].layout(pass_).samples
    return min(end - begin, samples - place) / samples


class ShardPrefetcher:
    """A thread that opens the shards of the next positions, through the caches of their datasets.

    What is asked for is what the ranks of this host read.
    """

    def __init__(self, sources: Sources, mixture: Mixture, hosted: Hosted) -> None:
        self._sources = sources.until(self._is_closed)
        self._mixture = mixture
        self._hosted = hosted
        self._changed = threading.Condition()
        self._position = 0
        self._seen = -1
        #: up to which position everything was asked for, and until which each of its shards is needed
        self._planned = 0
        self._until: dict[int, int] = {}
        self._closed = False
        #: whether the first stage was looked at, or never will be
        self._has_planned = False
        self._pool = Pool(SHARDS_AT_ONCE, name="headrace prefetch shard")
        #: shards of a stage that are not asked for yet
        self._left = 0
        # several datasets may share one
        self._caches = list(dict.fromkeys(one.cache for one in sources.datasets if one.cache is not None))
        for cache in self._caches:
            cache.look_at_disk()
        remote = [dataset for dataset in sources.datasets if dataset.cache is not None]
        bytes_all = sum(
            dataset.layout.samples * dataset.seq_len * TOKEN_BYTES_MAX + dataset.layout.shards * SHARD_BYTES_MIN
            for dataset in remote
        )
        #: whether the caches keep what is fetched until it is read
        self._has_space = bytes_all <= self._held_max()
        checksums = [one for dataset in sources.datasets for one in dataset.manifest.shards.checksums]
        self._by_hash = {one.rpartition(":")[2]: number for number, one in enumerate(checksums)}
        for cache in self._caches:
            cache.add_plan(self._plan)
        self._thread = threading.Thread(target=self._run, name="headrace prefetch", daemon=True)
        self._thread.start()

    def moved(self, position: int) -> None:
        """The producer is about to read from this absolute position on; any number of calls may tell it.

        The first call returns when there is a plan: it says which shards are fetched whole by whoever opens them.
        """
        # often enough for a stage, and not for each batch
        if self._has_planned and 0 <= position - self._position < FIRST_POSITIONS // 4:
            return
        with self._changed:
            self._position = position
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._has_planned or self._closed, PLAN_S_MAX)

    def close(self) -> None:
        """End the thread; shards on their way arrive in the cache and are let go of."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for cache in self._caches:
            cache.remove_plan(self._plan)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S_MAX)
            with self._changed:
                self._changed.wait_for(lambda: not self._left, CLOSE_S_MAX)

    def _held_max(self) -> int:
        """Bytes of shards that may be held at once, of which the disk has its say."""
        return int(min(cache.space_bytes for cache in self._caches) * HELD_SHARE)

    def _bytes_of(self, number: int) -> int:
        dataset, entry = self._sources.entry(number)
        return entry.sequences * dataset.seq_len * TOKEN_BYTES_MAX + SHARD_BYTES_MIN

    def _coalescing(self, source: int, position: int) -> Coalescing:
        """What is asked for beside what positions from this one on read of a source's shards."""
        if not self._hosted.is_all:
            return AMONG_HOSTS
        is_coming = self._has_space and coming_share(self._mixture, source, position) >= COMING_SHARE_MIN
        return ROOMY if is_coming else CROWDED

    def _plan(self, hashes: list[str]) -> dict[str, int]:
        known = {name: self._by_hash[name] for name in hashes if name in self._by_hash}
        return {name: next_use(self._mixture, number, self._position) for name, number in known.items()}

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    # without a deadline on purpose: the reader may take any time between two steps
                    self._changed.wait_for(lambda: self._closed or self._position != self._seen)
                    if self._closed:
                        return
                    position = self._seen = self._position
                self._let_go(position)
                stage = self._next_stage(position)
                self._planned_once()
                while not self._closed and stage is not None:
                    self._ask_all(stage)
                    stage = self._next_stage(position)
        finally:
            # also where planning fails: the reader then goes on without
            self._planned_once()

    def _planned_once(self) -> None:
        if not self._has_planned:
            with self._changed:
                self._has_planned = True
                self._changed.notify_all()

    def _let_go(self, position: int) -> None:
        """Close the shards that nothing of what was asked for needs any more, so that a cache may evict them."""
        if position > self._planned:
            self._until.clear()  # the reader is somewhere else
            self._planned = position
        self._until = {number: last for number, last in self._until.items() if last >= position}
        self._sources.release(set(self._until))

    def _next_stage(self, position: int) -> list[Needed] | None:
        """What is to be asked for next; None where enough is, or where more shards would fill the cache."""
        samples = self._mixture.samples
        more = STAGE_POSITIONS if self._until else FIRST_POSITIONS
        end = min(self._planned + more, (position // samples + 2) * samples)
        if self._planned >= min(end, position + AHEAD_POSITIONS_MIN):
            return None
        stage: list[Needed] = []
        coalescings = [self._coalescing(source, self._planned) for source in range(len(self._sources.datasets))]
        held, held_max = sum(map(self._bytes_of, self._until)), self._held_max()
        needed = needed_by(self._mixture, self._hosted.positions(self._planned, end), coalescings)
        for one in needed:
            held += 0 if one.shard in self._until else self._bytes_of(one.shard)
            if held > held_max and (stage or self._until):
                # those that come later in this stage are asked for when there is space
                end = one.first
                if end < position + FIRST_POSITIONS:
                    self._say_crowded(needed, position)
                break
            stage.append(one)
        if end == self._planned:
            return None
        self._until.update({one.shard: one.last for one in stage})
        for one in stage:
            dataset, entry = self._sources.entry(one.shard)
            if one.coalescing.takes_whole_for(one.rows, dataset.seq_len * TOKEN_BYTES_MAX, entry.sequences):
                self._sources.fetch_whole(one.shard)
        self._planned = end
        return stage

    def _say_crowded(self, needed: Sequence[Needed], position: int) -> None:
        """Say once a cache that it holds less than a window reads."""
        unsaid = [cache for cache in self._caches if not cache.is_crowded]
        for cache in unsaid:
            cache.is_crowded = True
        if unsaid:
            shards = {one.shard for one in needed if one.first < position + FIRST_POSITIONS} | set(self._until)
            logger.warning(
                "the cache in %s holds %d MB of shards at once, and the next %d samples lie in shards of %d MB: what "
                "is evicted is fetched again, at worst for each batch; raise its bytes_max, or lower window_blocks",
                unsaid[0].directory,
                self._held_max() // 10**6,
                FIRST_POSITIONS,
                sum(map(self._bytes_of, shards)) // 10**6,
            )

    def _is_closed(self) -> bool:
        return self._closed

    def _ask_all(self, stage: Sequence[Needed]) -> None:
        """Return when all of a stage was asked for, some shards at once, or this was closed meanwhile."""
        with self._changed:
            self._left = len(stage)
        for needed in stage:
            self._pool.submit(partial(self._ask, needed))
        with self._changed:
            # without a deadline on purpose: what each of them waits for has one
            self._changed.wait_for(lambda: self._closed or not self._left)

    def _ask(self, needed: Needed) -> None:
        if not self._closed:
            # the reader meets the same error where it needs the shard, and says it
            with suppress(Exception):
                self._sources.shard(needed.shard).want(needed.rows, self._is_closed, needed.coalescing)
        with self._changed:
            self._left -= 1
            if not self._left:
                self._changed.notify_all()
