"""Limits of fetching: how much is asked for twice, what a store that gives too little is taken for, what is let go."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.loader.cache import fetch
from headrace.loader.cache.cache import ShardCache
from headrace.loader.cache.fetch import HEDGE_EVERY, Pool
from headrace.loader.cache.partial_shard import PartialShard
from headrace.loader.cache.spans import Spans, _Span
from headrace.loader.dataset.dataset import TokenDataset, dataset_in, open_dataset
from headrace.loader.loader import Loader
from headrace.loader.prefetch import shard_prefetcher
from headrace.store.contract.errors import StoreUnavailable
from tests.kits.loader.store import RemoteStore


class ShortStore(RemoteStore):
    """Gives `missing` bytes too few of each shard behind its head, the first `times` times."""

    def __init__(self, root: str, missing: int, times: int) -> None:
        super().__init__(root)
        self.missing, self.times = missing, times

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        data = super().get(key, offset, length)
        if key.startswith("shards") and offset and self.times:
            self.times -= 1
            return data[: max(0, len(data) - self.missing)]
        return data


def opened(store: RemoteStore, folder: Path) -> TokenDataset:
    return dataset_in(store, cache=ShardCache(folder))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def short_heads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.loader.cache.head.HEAD_BYTES", 4096)


def test_a_shard_shorter_than_its_header_says_is_refused(large_dataset: str, tmp_path: Path):
    dataset = opened(ShortStore(large_dataset, 70_000, times=1000), tmp_path)
    with pytest.raises(StoreUnavailable, match="cut short"):
        dataset.rows(1, np.array([480]))


def test_a_cut_answer_is_asked_for_from_where_it_ended(large_dataset: str, tmp_path: Path):
    dataset = opened(ShortStore(large_dataset, 65_536, times=1), tmp_path)
    rows = np.arange(300, 400)
    assert np.array_equal(dataset.rows(1, rows), open_dataset(large_dataset).rows(1, rows))


@pytest.mark.parametrize("times", [1, 2])
def test_a_short_part_of_a_shard_without_blocks_is_asked_again(
    make_dataset: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
):
    uri = make_dataset(sequences=(40,), seq_len=64, blocks=False)
    monkeypatch.setattr("headrace.loader.cache.fetch.PART_BYTES", 1024)
    dataset = opened(ShortStore(uri, 10, times), tmp_path)
    assert np.array_equal(dataset.rows(0, np.arange(40)), open_dataset(uri).rows(0, np.arange(40)))
    assert dataset.cache is not None
    assert dataset.cache.statistics().retries == times


def late_spans(partial: PartialShard, spans: Spans, count: int) -> list[Any]:
    """Spans on their way that have not moved for a long time, and what is asked for from now on."""
    asked: list[Any] = []
    # who opened the shard was woken by the last block that it waited for, and not by the end of that request
    deadline = time.monotonic() + 60
    while spans._running:
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)
    spans.counts.hedges = 0
    # threads that read blocks may all be stalled, so others ask again
    spans._spare.submit = lambda job, first=False: asked.append(job)  # type: ignore[method-assign, misc]
    long_ago = time.monotonic() - 1000
    spans._running = [_Span(partial, at, at + 1, at, moved_at=long_ago) for at in range(count)]
    spans.counts.requests = count
    return asked


def test_of_many_stalled_requests_an_eighth_is_asked_again_once(large_dataset: str, tmp_path: Path):
    dataset = opened(RemoteStore(large_dataset), tmp_path)
    arriving, cache = dataset.shard(1).arriving, dataset.cache
    assert arriving is not None
    assert cache is not None
    asked = late_spans(arriving.partial, cache.spans, count := 3 * HEDGE_EVERY)
    for _ in range(5):
        cache.spans._hedge(time.monotonic())
    assert len(asked) == cache.statistics().hedges == count // HEDGE_EVERY + 1
    hedged = [span.first for span in cache.spans._running if span.is_hedged]
    assert len(hedged) == len(asked)
    # few requests stall: each of them once, however often one looks
    cache.spans._running = []
    asked = late_spans(arriving.partial, cache.spans, 1)
    cache.spans.counts.requests = 1000
    for _ in range(5):
        cache.spans._hedge(time.monotonic())
    assert len(asked) == 1


def test_a_block_is_said_to_be_there_once_its_bytes_are(
    large_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import os

    dataset = opened(RemoteStore(large_dataset), tmp_path)
    arriving = dataset.shard(1).arriving
    assert arriving is not None
    partial, write = arriving.partial, os.pwritev
    before = partial.present.copy()
    said: list[bool] = []

    def watched(descriptor: int, parts: list[memoryview], offset: int) -> int:
        said.append(bool((partial.present != before).any()))
        # as a disk may, half of it at a time
        data = b"".join(parts)
        return write(descriptor, [data[: max(1, len(data) // 2)]], offset)

    monkeypatch.setattr("headrace.loader.cache.partial_shard.os.pwritev", watched)
    offset, length = partial.table.span(5, 7)
    partial.write(5, partial.remote.get(partial.key, offset, length))
    assert len(said) > 2
    assert not any(said)
    assert partial.has_all(5, 7)
    assert partial.opened.get("", offset, length) == partial.remote.get(partial.key, offset, length)


def test_shards_that_the_reader_has_left_behind_are_let_go_of(
    make_dataset: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shard_prefetcher, "FIRST_POSITIONS", 8)
    monkeypatch.setattr(shard_prefetcher, "STAGE_POSITIONS", 8)
    monkeypatch.setattr(shard_prefetcher, "AHEAD_POSITIONS_MIN", 4)
    dataset = opened(RemoteStore(make_dataset(sequences=(8,) * 12, seq_len=8)), tmp_path)
    loader = Loader(dataset, batch_size=2, order="sequential", prefetch=1)
    deadline = time.monotonic() + 60
    for step, _ in enumerate(loader):
        # the reader is in shard step // 4: nothing from before the last stage stays; the first is that of the next pass
        while any(0 < number < step // 4 - 2 for number in list(dataset._open)):
            assert time.monotonic() < deadline, sorted(dataset._open)
            threading.Event().wait(0.005)
    loader.close()


def test_the_bytes_told_from_the_store_are_those_of_the_shards(large_dataset: str, tmp_path: Path):
    dataset = opened(RemoteStore(large_dataset), tmp_path)
    shards = [Path(large_dataset) / entry.tokens for entry in (dataset.manifest.shards[n] for n in range(2))]
    for number, path in enumerate(shards):
        dataset.rows(number, np.arange(dataset.manifest.shards[number].sequences))
        assert path.stat().st_size > 1 << 20
    assert dataset.cache is not None
    size = sum(path.stat().st_size for path in shards)
    # on a loaded machine something may be asked for twice
    assert size * 0.99 <= dataset.cache.statistics().fetched_bytes <= size * 1.3


def test_threads_that_fetch_end_when_idle_and_others_begin(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetch, "IDLE_S_MAX", 0.01)
    pool, ran, threads = Pool(3), threading.Semaphore(0), list[threading.Thread]()

    def job() -> None:
        threads.append(threading.current_thread())
        ran.release()

    for _ in range(2):
        for _ in range(10):
            pool.submit(job)
        for _ in range(10):
            assert ran.acquire(timeout=300)
        assert len(set(threads)) <= 3
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        threads.clear()


HANGING = """
import sys, threading
from tests.kits.loader.store import RemoteStore
from headrace.loader.loader import Loader
from headrace.loader.cache.cache import ShardCache
from headrace.loader.dataset.dataset import dataset_in

asked = threading.Event()

def hang(key, offset, attempt):
    if key.startswith("shards"):
        asked.set()
        threading.Event().wait()

batches = iter(Loader(dataset_in(RemoteStore(sys.argv[1], hang), cache=ShardCache(sys.argv[2])), batch_size=4))
threading.Thread(target=lambda: next(batches), daemon=True).start()
assert asked.wait(60)
print("over")
"""


def test_a_process_ends_though_a_store_hangs(large_dataset: str, tmp_path: Path):
    arguments = [large_dataset, str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", HANGING, *arguments], timeout=300, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (0, b"over\n")
