"""Shards that come block by block: rows are given as soon as their own blocks are there, and only then."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.loader.batch.compiled import KERNELS
from headrace.loader.cache import fetch, spans
from headrace.loader.cache.cache import ShardCache
from headrace.loader.cache.partial_shard import PARTIAL
from headrace.loader.cache.rowblocks import Coalescing
from headrace.loader.dataset.dataset import TokenDataset, dataset_in, open_dataset
from headrace.loader.loader import Loader
from headrace.loader.prefetch import shard_prefetcher
from headrace.store.contract.errors import ChecksumMismatch, ObjectMissing, StoreUnavailable
from headrace.store.contract.objects import Capabilities, Stream, stream
from tests.kits.loader.store import RemoteStore

SHAPE = {"batch_size": 4, "block_rows": 8, "window_blocks": 4}


def remote(uri: str, folder: Path, on_get: Callable[[str, int, int], None] = lambda *_: None) -> TokenDataset:
    return dataset_in(RemoteStore(uri, on_get), cache=ShardCache(folder))  # type: ignore[arg-type]


def gets(dataset: TokenDataset) -> dict[tuple[str, int], int]:
    return {at: count for at, count in dataset.store.gets.items() if at[0].startswith("shards")}  # type: ignore[attr-defined]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / f"user-{os.getuid()}").iterdir() if path.name != "lock")


@pytest.fixture(autouse=True)
def short_heads(monkeypatch: pytest.MonkeyPatch):
    """Heads hold the header alone, as those of large shards do."""
    monkeypatch.setattr("headrace.loader.cache.head.HEAD_BYTES", 4096)


def test_a_row_is_read_without_the_rest_of_its_shard(large_dataset: str, tmp_path: Path):
    dataset = remote(large_dataset, tmp_path)
    rows = np.array([300, 301])
    assert np.array_equal(dataset.rows(1, rows), open_dataset(large_dataset).rows(1, rows))
    arriving = dataset.shard(1).arriving
    assert arriving is not None
    assert 0 < int(arriving.partial.present.sum()) <= 4  # its pieces' blocks, and those of two neighbouring rows
    assert names(tmp_path)[0].endswith(PARTIAL)


def test_blocks_that_several_runs_name_are_asked_for_once(
    large_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dataset = remote(large_dataset, tmp_path)
    arriving, cache = dataset.shard(1).arriving, dataset.cache
    assert arriving is not None
    assert cache is not None
    before = set(gets(dataset))
    asked: list[Callable[[], object]] = []
    monkeypatch.setattr(cache.spans.pool, "submit", lambda work, first: asked.append(work))
    cache.spans.want(arriving.partial, [(9, 11), (9, 11), (9, 12)])
    for ask in asked:
        ask()
    assert len(asked) == 2
    assert {count for at, count in gets(dataset).items() if at not in before} == {1}
    assert arriving.partial.present[9:12].all()


def test_a_shard_of_which_every_block_came_is_whole(large_dataset: str, tmp_path: Path):
    dataset = remote(large_dataset, tmp_path)
    dataset.rows(1, np.arange(490))
    deadline = time.monotonic() + 30
    # the thread that brought the last block renames the file after it woke the reader
    while names(tmp_path)[0].endswith(PARTIAL):
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    again = remote(large_dataset, tmp_path)
    assert np.array_equal(again.rows(1, np.arange(490)), open_dataset(large_dataset).rows(1, np.arange(490)))
    assert gets(again) == {}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("prefetch", [0, 4])
def test_any_way_of_coming_gives_the_batches_of_a_local_dataset(
    large_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool, prefetch: int
):
    monkeypatch.setattr(shard_prefetcher, "ROOMY", Coalescing(0, 2.0))
    monkeypatch.setattr(spans, "SPAN_BYTES_MAX", 3 << 16)
    monkeypatch.setattr(shard_prefetcher, "FIRST_POSITIONS", 32)
    monkeypatch.setattr(shard_prefetcher, "STAGE_POSITIONS", 64)
    assert KERNELS.wait(300), KERNELS.error
    if not compiled:
        monkeypatch.setattr(KERNELS, "_module", None)
    local = [batch["tokens"].copy() for batch in Loader(large_dataset, **SHAPE)]
    loader = Loader(remote(large_dataset, tmp_path), **SHAPE, prefetch=prefetch)
    for count, (batch, expected) in enumerate(zip(loader, local, strict=True)):
        assert np.array_equal(batch["tokens"], expected), count


def test_the_first_batch_waits_for_its_own_blocks_alone(
    large_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shard_prefetcher, "FIRST_POSITIONS", 32)
    monkeypatch.setattr(shard_prefetcher, "STAGE_POSITIONS", 64)
    monkeypatch.setattr(shard_prefetcher, "ROOMY", Coalescing(shard_prefetcher.CROWDED.gap_bytes, 2.0))
    shut = threading.Event()

    def gate(key: str, offset: int, attempt: int) -> None:
        if offset > 600_000:
            assert shut.wait(60)

    loader = Loader(remote(large_dataset, tmp_path, gate), batch_size=4, order="sequential")
    batch = next(iter(loader))
    assert np.array_equal(batch["positions"], np.arange(4))
    shut.set()
    loader.close()


def test_a_shard_of_which_much_is_wanted_comes_by_one_request(
    make_dataset: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # what is asked for twice because this machine is slow is none of this test's business
    monkeypatch.setattr(fetch, "HEDGE_S_MIN", 60.0)
    monkeypatch.setattr(spans, "TURN_S_MAX", 60.0)
    monkeypatch.setattr(spans, "PIECE_BYTES", spans.BLOCK_BYTES)
    # more shards than turns, and of several pieces each
    uri = make_dataset(sequences=(90,) * (2 * fetch.THREADS_DEFAULT), seq_len=1000)
    dataset = remote(uri, tmp_path / "cache")
    loader = Loader(dataset, batch_size=4)
    for batch, expected in zip(loader, Loader(uri, batch_size=4), strict=True):
        assert np.array_equal(batch["tokens"], expected["tokens"])
    assert gets(dataset) == {(shard.tokens, 0): 1 for shard in dataset.manifest.shards}


class Breaking(RemoteStore):
    """Its streams break after `pieces` pieces, the first time that each is asked for."""

    pieces = 3

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(stream=self.stream)

    def stream(self, key: str, offset: int, length: int, piece_bytes: int, first_bytes: int | None = None) -> Stream:
        came = stream(_Plain(self), key, offset, length, piece_bytes, first_bytes)  # type: ignore[arg-type]
        is_first = self.gets.get((key, 0), 0) == 0
        size: int | None = None
        for _ in range(self.pieces if is_first else 1 << 30):
            try:
                size = yield came.send(size)
            except StopIteration:
                return
        raise StoreUnavailable("broken")


class _Plain:
    """A store without streams of its own."""

    capabilities = Capabilities()

    def __init__(self, store: RemoteStore) -> None:
        self.get = store.get


@pytest.mark.parametrize("pieces", [2, 3, 5])
def test_a_request_that_brought_the_head_and_breaks_is_resumed(
    make_dataset: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int
):
    monkeypatch.setattr(fetch, "HEDGE_S_MIN", 60.0)
    monkeypatch.setattr(spans, "PIECE_BYTES", spans.BLOCK_BYTES)
    monkeypatch.setattr(Breaking, "pieces", pieces)
    uri = make_dataset(sequences=(300,), seq_len=1000)
    dataset = dataset_in(Breaking(uri), cache=ShardCache(tmp_path / "cache"))  # type: ignore[arg-type]
    for batch, expected in zip(Loader(dataset, batch_size=4), Loader(uri, batch_size=4), strict=True):
        assert np.array_equal(batch["tokens"], expected["tokens"])
    first, second = sorted(offset for _, offset in gets(dataset))
    assert first == 0
    assert (pieces - 1) * spans.BLOCK_BYTES < second <= pieces * spans.BLOCK_BYTES


def test_a_damaged_block_is_refused_and_the_rows_of_others_are_given(make_dataset: Callable[..., str], tmp_path: Path):
    uri = make_dataset(sequences=(500,), seq_len=1000)
    local = open_dataset(uri).rows(0, np.arange(500))
    dataset = remote(uri, tmp_path / "cache")
    path = Path(uri) / dataset.manifest.shards[0].tokens
    whole = path.read_bytes()
    path.write_bytes(whole[:-5] + b"\xff" + whole[-4:])
    assert np.array_equal(dataset.rows(0, np.arange(10)), local[:10])
    for _ in range(2):
        with pytest.raises(ChecksumMismatch, match="block"):
            dataset.rows(0, np.array([499]))
    path.write_bytes(whole)
    assert np.array_equal(dataset.rows(0, np.array([499])), local[499:])


def test_a_pass_gives_every_batch_before_a_damaged_block(make_dataset: Callable[..., str], tmp_path: Path):
    uri = make_dataset(sequences=(500,), seq_len=1000)
    local = [batch["tokens"].copy() for batch in Loader(uri, batch_size=4, order="sequential")]
    dataset = remote(uri, tmp_path / "cache")
    path = Path(uri) / dataset.manifest.shards[0].tokens
    whole = bytearray(path.read_bytes())
    # a token of row 402 of two bytes each, from the end
    whole[-2 * 1000 * (500 - 402) + 500] ^= 1
    path.write_bytes(whole)
    given = []
    with pytest.raises(ChecksumMismatch, match="block"):
        given.extend(batch["tokens"].copy() for batch in Loader(dataset, batch_size=4, order="sequential"))
    assert 370 // 4 <= len(given) <= 402 // 4
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(given, local, strict=False))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("block", [4, 5, 6, 7])
def test_a_damaged_block_takes_no_good_batch_along(
    make_dataset: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, compiled: bool
):
    assert KERNELS.wait(300), KERNELS.error
    if not compiled:
        monkeypatch.setattr(KERNELS, "_module", None)
    uri = make_dataset(sequences=(500,), seq_len=1000)
    dataset = remote(uri, tmp_path / "cache")
    arriving = dataset.shard(0).arriving
    assert arriving is not None
    begin, length = arriving.partial.table.span(block, block + 1)
    first, end = (arriving._rows.bounds(np.arange(500))[side] for side in (0, 1))
    needing = int(np.flatnonzero((first <= block) & (block < end))[0])
    path = Path(uri) / dataset.manifest.shards[0].tokens
    damaged = bytearray(path.read_bytes())
    damaged[begin + length // 2] ^= 1
    path.write_bytes(damaged)
    given: list[int] = []
    with pytest.raises(ChecksumMismatch, match=f"block {block}"):
        given.extend(batch["tokens"].size for batch in Loader(dataset, batch_size=2, order="sequential", prefetch=8))
    assert len(given) == needing // 2


@pytest.mark.parametrize("rows", [30, 45])
def test_a_shard_that_does_not_open_takes_no_good_batch_along(
    make_dataset: Callable[..., str], tmp_path: Path, rows: int
):
    uri = make_dataset(sequences=(rows, 45), seq_len=100)
    dataset = remote(uri, tmp_path / "cache")
    (Path(uri) / dataset.manifest.shards[1].tokens).unlink()
    given: list[int] = []
    with pytest.raises(ObjectMissing):
        given.extend(batch["tokens"].size for batch in Loader(dataset, batch_size=2, order="sequential", prefetch=8))
    assert len(given) == rows // 2


def test_a_damaged_header_leaves_the_shard_to_its_whole_checksum(make_dataset: Callable[..., str], tmp_path: Path):
    uri = make_dataset(sequences=(500,), seq_len=1000)
    dataset = remote(uri, tmp_path / "cache")
    path = Path(uri) / dataset.manifest.shards[0].tokens
    path.write_bytes(path.read_bytes().replace(b'"seq_len":"1000"', b'"seq_len":"1001"'))
    with pytest.raises(ChecksumMismatch, match="xxh3-128"):
        dataset.shard(0)
    assert names(tmp_path / "cache") == []


def test_anothers_work_is_left_to_it_until_it_gives_up(large_dataset: str, tmp_path: Path):
    theirs, ours = remote(large_dataset, tmp_path), remote(large_dataset, tmp_path)
    other, mine = theirs.shard(1).arriving, ours.shard(1).arriving
    assert other is not None
    assert mine is not None
    before, theirs_before = len(gets(ours)), len(gets(theirs))
    blocks = other.partial.table.count
    assert other.partial.claim(0, blocks)
    assert not mine.partial.claim(3, 4)
    waiting = threading.Thread(target=mine.wait, args=(np.arange(480, 490),))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    assert len(gets(ours)) == before
    # as the kernel does for a process that is killed
    other.partial.let_go(0, blocks)
    waiting.join(60)
    assert not waiting.is_alive()
    assert len(gets(ours)) == before + 1
    # and what one has brought, the other has
    assert other.partial.present[-1]
    other.wait(np.arange(480, 490))
    assert len(gets(theirs)) == theirs_before


def test_a_span_that_stalls_is_asked_for_again_from_where_it_stands(
    large_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fetch, "HEDGE_S_MIN", 0.5)
    stuck = threading.Event()

    def hang(key: str, offset: int, attempt: int) -> None:
        if offset > 1_000_000 and attempt == 1:
            stuck.wait(60)

    dataset = remote(large_dataset, tmp_path, hang)
    assert np.array_equal(dataset.rows(1, np.array([489])), open_dataset(large_dataset).rows(1, np.array([489])))
    stuck.set()
    assert dataset.cache is not None
    assert dataset.cache.statistics().hedges == 1


@pytest.mark.parametrize(("failures", "works"), [(2, True), (3, False)])
def test_a_span_is_asked_for_three_times(large_dataset: str, tmp_path: Path, failures: int, works: bool):
    def fail(key: str, offset: int, attempt: int) -> None:
        if offset > 1_000_000 and attempt <= failures:
            raise StoreUnavailable("busy")

    assert fetch.ATTEMPTS_MAX == 3
    dataset = remote(large_dataset, tmp_path, fail)
    if works:
        assert dataset.rows(1, np.array([489])).shape == (1, 1000)
    else:
        with pytest.raises(StoreUnavailable, match="busy"):
            dataset.rows(1, np.array([489]))
    assert dataset.cache is not None
    assert dataset.cache.statistics().retries == 2


KILLED = """
import os, signal, sys
import numpy as np
from tests.kits.loader.store import RemoteStore
from headrace.loader.cache.cache import ShardCache
from headrace.loader.dataset.dataset import dataset_in

def die(key, offset, attempt):
    if offset > 1_000_000:
        os.kill(os.getpid(), signal.SIGKILL)

dataset = dataset_in(RemoteStore(sys.argv[1], die), cache=ShardCache(sys.argv[2]))
dataset.rows(1, np.arange(100))
dataset.rows(1, np.array([489]))
"""


def test_a_killed_reader_leaves_its_blocks_and_no_claim(large_dataset: str, tmp_path: Path):
    arguments = [large_dataset, str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], timeout=300)
    assert done.returncode == -signal.SIGKILL
    (name,) = names(tmp_path)
    assert name.endswith(PARTIAL)
    dataset = remote(large_dataset, tmp_path)
    rows = np.array([50, 489])
    assert np.array_equal(dataset.rows(1, rows), open_dataset(large_dataset).rows(1, rows))
    assert [offset > 1_000_000 for _, offset in gets(dataset)] == [True]


def test_a_sparse_file_from_before_a_crash_is_not_believed(large_dataset: str, tmp_path: Path):
    remote(large_dataset, tmp_path).rows(1, np.array([489]))
    root = tmp_path / f"user-{os.getuid()}"
    (name,) = names(tmp_path)
    (root / name).rename(root / f"{name.partition('.')[0]}.0ldb00t0{PARTIAL}")
    dataset = remote(large_dataset, tmp_path)
    dataset.rows(1, np.array([489]))
    assert gets(dataset)
    assert names(tmp_path) == [name]


def test_a_shard_unneeded_before_opening_is_not_fetched_whole_later(large_dataset: str, tmp_path: Path):
    dataset = remote(large_dataset, tmp_path)
    dataset.fetch_whole(1)
    dataset.release({0})
    dataset.rows(1, np.array([300]))
    arriving = dataset.shard(1).arriving
    assert arriving is not None
    assert 0 < int(arriving.partial.present.sum()) < arriving.partial.table.count // 2
