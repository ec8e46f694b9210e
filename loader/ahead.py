"""Fetching shards of remote datasets into the cache before the batches that need them are assembled."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from headrace.loader.mixture import Mixture
from headrace.loader.sources import HELD_SHARE, TOKEN_BYTES_MAX, Sources

#: positions looked at, at most, to see which shards come next
HORIZON_POSITIONS: Final = 1 << 16
#: shards fetched at once; each of them by parallel ranged reads
SHARDS_AT_ONCE: Final = 4
#: rows of a shard whose next use stands for all; a block of the default order has 64
SAMPLED_ROWS: Final = 64
CLOSE_S_MAX: Final = 10.0


def upcoming(mixture: Mixture, position: int, bytes_of: Callable[[int], int], bytes_max: int) -> list[int]:
    """Shards that positions from `position` on read, in order of first need, up to `bytes_max` in all."""
    end = min(position + HORIZON_POSITIONS, (position // mixture.samples + 2) * mixture.samples)
    shards, _ = mixture.locate(np.arange(position, end, dtype=np.int64))
    distinct, first = np.unique(shards, return_index=True)
    chosen: list[int] = []
    total = 0
    for number in distinct[np.argsort(first)].tolist():
        total += bytes_of(number)
        if total > bytes_max and chosen:
            break
        chosen.append(number)
    return chosen


def next_use(mixture: Mixture, shard: int, position: int) -> int:
    """About where in the sequence a shard is needed next, judged by a sample of its rows."""
    source = int(mixture.source_of(np.array([shard]))[0])
    layout = mixture.layouts[source]
    local = shard - int(mixture.shard_starts[source])
    rows = int(layout.ends[local]) - (int(layout.ends[local - 1]) if local else 0)
    sampled = np.arange(0, max(rows, 1), SAMPLED_ROWS, dtype=np.int64)
    given = int(mixture.given(position)[source])
    pass_, place = divmod(given, layout.samples)
    places = mixture.order(source, pass_).inverse(np.full(sampled.size, local), sampled).view(np.int64)
    coming = places[places >= place]
    return int(coming.min()) - place if coming.size else int(places.min()) + layout.samples - place


class Ahead:
    """A thread that opens the shards of the next positions, through the caches of their datasets."""

    def __init__(self, sources: Sources, mixture: Mixture) -> None:
        self._sources = sources
        self._mixture = mixture
        self._changed = threading.Condition()
        self._position = 0
        self._seen = -1
        self._closed = False
        self.error: Exception | None = None
        caches = [dataset.cache for dataset in sources.datasets if dataset.cache is not None]
        self._bytes_max = int(min(cache.bytes_max for cache in caches) * HELD_SHARE)
        checksums = [one for dataset in sources.datasets for one in dataset.manifest.shards.checksums]
        self._by_hash = {one.rpartition(":")[2]: number for number, one in enumerate(checksums)}
        for cache in caches:
            cache.plan = self._plan
        self._thread = threading.Thread(target=self._run, name="headrace ahead", daemon=True)
        self._thread.start()

    def moved(self, position: int) -> None:
        """The producer is about to read from this absolute position on."""
        with self._changed:
            self._position = position
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread; shards on their way arrive in the cache and are let go of."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S_MAX)

    def _bytes_of(self, number: int) -> int:
        dataset, entry = self._sources.entry(number)
        return entry.sequences * dataset.seq_len * TOKEN_BYTES_MAX

    def _plan(self, hashes: list[str]) -> dict[str, int]:
        known = {name: self._by_hash[name] for name in hashes if name in self._by_hash}
        return {name: next_use(self._mixture, number, self._position) for name, number in known.items()}

    def _run(self) -> None:
        pool = ThreadPoolExecutor(SHARDS_AT_ONCE, thread_name_prefix="headrace ahead")
        try:
            while True:
                with self._changed:
                    # without a deadline on purpose: the reader may take any time between two steps
                    self._changed.wait_for(lambda: self._closed or self._position != self._seen)
                    if self._closed:
                        return
                    position = self._seen = self._position
                wanted = upcoming(self._mixture, position, self._bytes_of, self._bytes_max)
                self._sources.release(set(wanted))
                for _ in pool.map(self._open, wanted):
                    pass
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _open(self, number: int) -> None:
        if self._closed:
            return
        try:
            self._sources.shard(number)
        except Exception as error:  # noqa: BLE001 - the reader meets the same error where it needs the shard
            self.error = error
