"""Who wants blocks of a shard, who waits for them, and what each is told."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.loader.cache import spans
from headrace.loader.cache.cache import ShardCache
from headrace.loader.cache.partial_shard import runs
from headrace.loader.cache.rowblocks import Coalescing
from headrace.loader.cache.spans import Arriving, Spans
from headrace.loader.dataset.dataset import TokenDataset, dataset_in, open_dataset
from headrace.store.contract.errors import StoreUnavailable
from tests.kits.loader.store import RemoteStore

PATIENCE_S = 120.0


def remote(uri: str, folder: Path, on_get: Callable[[str, int, int], None] = lambda *_: None) -> TokenDataset:
    return dataset_in(RemoteStore(uri, on_get), cache=ShardCache(folder))  # type: ignore[arg-type]


def on_its_way(dataset: TokenDataset) -> tuple[Arriving, Spans]:
    """The second shard of a dataset, of which blocks are missing, and what fetches them."""
    arriving, cache = dataset.shard(1).arriving, dataset.cache
    assert arriving is not None
    assert cache is not None
    return arriving, cache.spans


@pytest.fixture(autouse=True)
def short_heads(monkeypatch: pytest.MonkeyPatch):
    """Heads hold the header alone, as those of large shards do."""
    monkeypatch.setattr("headrace.loader.cache.head.HEAD_BYTES", 4096)


def test_a_claim_is_of_its_own_blocks_alone(large_dataset: str, tmp_path: Path):
    (other, _), (mine, _) = (on_its_way(remote(large_dataset, tmp_path)) for _ in range(2))
    assert other.partial.claim(3, 5)
    assert [mine.partial.claim(at, at + 1) for at in range(2, 6)] == [True, False, False, True]
    other.partial.let_go(3, 4)
    assert [mine.partial.claim(at, at + 1) for at in range(3, 5)] == [True, False]


def test_blocks_that_another_process_brought_meanwhile_are_not_asked_for_again(large_dataset: str, tmp_path: Path):
    asked: list[int] = []
    mine, ours = on_its_way(remote(large_dataset, tmp_path, lambda _key, offset, _attempt: asked.append(offset)))
    other, theirs = on_its_way(remote(large_dataset, tmp_path))
    theirs.wait(other.partial, [(9, 10)])
    asked.clear()
    for end in (10, 12):
        ours._run(spans._Span(mine.partial, 9, end, 9, is_forced=True))
    assert asked == [mine.partial.table.span(10, 12)[0]]
    assert mine.partial.has_all(9, 12)


def test_a_waiter_wakes_at_the_last_block_or_an_error(
    large_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spans, "POLL_S", 1000.0)

    def fail(key: str, offset: int, attempt: int) -> None:
        if offset > 1_500_000:
            raise StoreUnavailable("busy")

    dataset = remote(large_dataset, tmp_path, fail)
    told: list[str] = []

    def read() -> None:
        told.extend(str(dataset.rows(1, rows).shape) for rows in (np.array([200]), np.array([300, 301, 302])))
        try:
            dataset.rows(1, np.array([489]))
        except StoreUnavailable as error:
            told.append(str(error))

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(PATIENCE_S)
    assert told == ["(1, 1000)", "(3, 1000)", "busy"]


def test_what_is_wanted_comes_though_nobody_waits_for_it(large_dataset: str, tmp_path: Path):
    arriving, _ = on_its_way(remote(large_dataset, tmp_path))
    first, end = (int(side[0]) for side in arriving._rows.bounds(np.array([300])))
    for share, blocks in ((2.0, (first, end)), (0.0, (0, arriving.partial.table.count))):
        arriving.want(np.array([300]), lambda: False, Coalescing(0, share))
        deadline = time.monotonic() + PATIENCE_S
        while not arriving.partial.has_all(*blocks):
            assert time.monotonic() < deadline
            threading.Event().wait(0.001)
        assert arriving.partial.has_all(0, arriving.partial.table.count) == (share == 0.0)


def test_a_row_longer_than_a_block_waits_for_all_between(make_dataset: Callable[..., str], tmp_path: Path):
    uri = make_dataset(sequences=(0, 8), seq_len=40_000)
    dataset = remote(uri, tmp_path / "cache")
    arriving, fetching = on_its_way(dataset)
    firsts, ends = arriving._rows.bounds(np.arange(8))
    row = int(np.flatnonzero(ends - firsts == 3)[-1])
    first, end = int(firsts[row]), int(ends[row])
    fetching.wait(arriving.partial, [(first, first + 1), (end - 1, end)])
    assert not arriving.partial.present[first + 1]
    assert np.array_equal(dataset.rows(1, np.array([row])), open_dataset(uri).rows(1, np.array([row])))


def test_runs_are_told_by_where_they_begin_and_end():
    assert runs(np.array([0, 1, 1, 0, 7, 0, 1])) == [(1, 3), (4, 5), (6, 7)]
    assert runs(np.zeros(3)) == []


def test_a_waiter_for_good_blocks_hears_nothing_of_bad_ones(
    large_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked, answered, looked = threading.Event(), threading.Event(), threading.Semaphore(0)

    def hold(key: str, offset: int, attempt: int) -> None:
        if offset > 1_000_000:
            asked.set()
            assert answered.wait(PATIENCE_S)

    def look(_self: spans.Spans, _now: float) -> None:
        looked.release()

    monkeypatch.setattr(spans.Spans, "_hedge", look)
    arriving, _ = on_its_way(remote(large_dataset, tmp_path, hold))
    told: list[Exception] = []

    def wait() -> None:
        try:
            arriving.wait(np.array([489]))
        except StoreUnavailable as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert asked.wait(PATIENCE_S)
    arriving.partial.fail(3, 5, StoreUnavailable("of other blocks"))
    for _ in range(5):
        assert looked.acquire(timeout=PATIENCE_S)
    answered.set()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert told == []


def test_a_stores_failure_towards_another_is_asked_for_again(large_dataset: str, tmp_path: Path):
    dataset = remote(large_dataset, tmp_path)
    arriving, _ = on_its_way(dataset)
    arriving.partial.fail(0, arriving.partial.table.count, StoreUnavailable("some time ago"))
    assert np.array_equal(dataset.rows(1, np.array([489])), open_dataset(large_dataset).rows(1, np.array([489])))


def test_a_whole_shard_without_such_a_name_is_read(large_dataset: str, tmp_path: Path):
    dataset = remote(large_dataset, tmp_path)
    arriving, fetching = on_its_way(dataset)
    refused = threading.Event()

    def refuse(_sparse: object) -> None:
        refused.set()
        raise OSError("too many open files")

    fetching.finished = refuse
    assert np.array_equal(dataset.rows(1, np.arange(490)), open_dataset(large_dataset).rows(1, np.arange(490)))
    assert refused.wait(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while arriving.partial.flying.any() or fetching._running:
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)
