"""Local shards that the page cache lacks: what comes is asked for before the reader is there, and nothing else."""

import mmap
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.loader.cache.cache import ShardCache
from headrace.loader.cache.rowblocks import ON_DISK, Coalescing, joined
from headrace.loader.dataset import shard as shards
from headrace.loader.dataset.dataset import dataset_in, open_dataset
from headrace.loader.dataset.shard import MappedRows, mapping_of
from headrace.loader.loader import Loader
from headrace.loader.order.order import I64
from headrace.loader.prefetch import readahead
from headrace.loader.prefetch.readahead import Readahead, disk_reads
from tests.kits.loader.shards import write_dataset
from tests.kits.loader.store import RemoteStore
from tests.kits.loader.threads import watch_threads

WAIT_S = 120.0
WINDOW, LEAD, LOOK = 64, 32, 16
ROWS_ALONE = Coalescing(0, 1.0)


class Disk:
    """Counts reads as it is told to, and notes what rows of which file were asked for ahead."""

    def __init__(self) -> None:
        self.reads = 0
        self.asked: list[tuple[str, int]] = []

    def count(self) -> int:
        return self.reads

    def note(self, rows_of: MappedRows, rows: I64, coalescing: Coalescing) -> None:
        assert coalescing == ON_DISK
        self.asked += [(str(rows_of._path), int(row)) for row in rows]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    found = Disk()

    def noted(rows_of: MappedRows, rows: I64, coalescing: Coalescing) -> None:
        found.note(rows_of, rows, coalescing)

    monkeypatch.setattr(MappedRows, "read_ahead", noted)
    monkeypatch.setattr(readahead, "WINDOW_POSITIONS", WINDOW)
    monkeypatch.setattr(readahead, "LEAD_POSITIONS", LEAD)
    monkeypatch.setattr(readahead, "LOOK_POSITIONS", LOOK)
    monkeypatch.setattr(readahead, "FIRST_POSITIONS", 4)
    monkeypatch.setattr(readahead, "ASK_S_MAX", WAIT_S)
    return found


@pytest.fixture
def follow(disk: Disk) -> Iterator[Callable[..., tuple[Readahead, Loader]]]:
    """A follower of a loader's sequence, whose disk is `disk`."""
    made: list[Readahead] = []

    def follow(dataset: Any, **arguments: Any) -> tuple[Readahead, Loader]:
        loader = Loader(dataset, batch_size=1, **arguments)
        made.append(Readahead(loader.sources, loader._mixture, loader._hosted(), disk.count))
        return made[-1], loader

    yield follow
    for one in made:
        one.close()


def places(loader: Loader, first: int, end: int) -> set[tuple[str, int]]:
    """The file and the row of each position."""
    shards, rows = loader._mixture.locate(np.arange(first, end, dtype=np.int64))
    keys = [loader.dataset.manifest.shards[shard].tokens for shard in shards.tolist()]
    return {(str(loader.dataset.store.open_local(key)), row) for key, row in zip(keys, rows.tolist(), strict=True)}


def asked_to(follower: Readahead, position: int) -> None:
    """Return when all before this position was asked for."""
    with follower._changed:
        assert follower._changed.wait_for(lambda: follower._asked >= position, WAIT_S)


@pytest.mark.parametrize("order", ["windowed", "full", "sequential"])
def test_coming_parts_are_asked_for_once_from_the_first_read(
    thousand_dataset: str, disk: Disk, follow: Callable[..., tuple[Readahead, Loader]], order: str
):
    follower, loader = follow(thousand_dataset, order=order)
    for position in range(100):
        follower.moved(position)
    assert not disk.asked
    began = 99 + LOOK
    for position in range(began, 600):
        disk.reads += 1
        follower.moved(position)
    asked_to(follower, 600)
    assert len(disk.asked) == len(set(disk.asked))
    assert set(disk.asked) == places(loader, began, follower._asked)
    assert follower._asked <= 600 + LEAD + WINDOW


def test_nothing_more_is_asked_for_once_the_disk_is_read_no_more(
    thousand_dataset: str, disk: Disk, follow: Callable[..., tuple[Readahead, Loader]]
):
    follower, _ = follow(thousand_dataset)
    disk.reads += 1
    follower.moved(0)
    asked_to(follower, WINDOW)
    for position in range(1000):
        follower.moved(position)
    assert len(disk.asked) == WINDOW


def test_a_reader_that_jumps_is_followed_to_where_it_is(
    thousand_dataset: str, disk: Disk, follow: Callable[..., tuple[Readahead, Loader]]
):
    follower, loader = follow(thousand_dataset)
    for begin in (0, 700, 300):
        disk.reads += 1
        disk.asked.clear()
        follower.moved(begin)
        asked_to(follower, begin + LEAD)
        assert set(disk.asked) == places(loader, begin, follower._asked)
        assert follower._asked % WINDOW == 0


def test_the_next_pass_is_asked_for_before_this_one_ends(
    thousand_dataset: str, disk: Disk, follow: Callable[..., tuple[Readahead, Loader]]
):
    follower, loader = follow(thousand_dataset)
    disk.reads += 1
    follower.moved(990)
    asked_to(follower, 990 + LEAD)
    assert follower._asked == 1003 + WINDOW
    assert set(disk.asked) == places(loader, 990, 1003 + WINDOW)


def test_a_host_asks_for_what_its_own_ranks_read(
    thousand_dataset: str, disk: Disk, follow: Callable[..., tuple[Readahead, Loader]]
):
    follower, loader = follow(thousand_dataset, rank=1, world_size=4, local_ranks=[1])
    disk.reads += 1
    follower.moved(0)
    asked_to(follower, WINDOW)
    mine = [place for position in range(1, WINDOW, 4) for place in places(loader, position, position + 1)]
    assert sorted(disk.asked) == sorted(mine)


@pytest.fixture
def gate(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """(set when something is asked for, lets it go on)."""
    at_gate, opened = threading.Event(), threading.Event()

    def held(rows_of: MappedRows, rows: I64, coalescing: Coalescing) -> None:
        at_gate.set()
        assert opened.wait(WAIT_S)
        disk.note(rows_of, rows, coalescing)

    monkeypatch.setattr(MappedRows, "read_ahead", held)
    return at_gate, opened


def test_a_reader_waits_until_what_it_reads_now_was_asked_for(
    thousand_dataset: str,
    disk: Disk,
    follow: Callable[..., tuple[Readahead, Loader]],
    gate: tuple[threading.Event, threading.Event],
):
    at_gate, opened = gate
    follower, loader = follow(thousand_dataset)
    disk.reads += 1
    moved = threading.Thread(target=follower.moved, args=(0,))
    moved.start()
    assert at_gate.wait(WAIT_S)
    assert moved.is_alive()
    opened.set()
    moved.join(WAIT_S)
    assert set(disk.asked) >= places(loader, 0, WINDOW)


def test_closing_lets_go_of_a_reader_that_waits_and_ends_the_thread(
    thousand_dataset: str,
    disk: Disk,
    follow: Callable[..., tuple[Readahead, Loader]],
    gate: tuple[threading.Event, threading.Event],
):
    at_gate, opened = gate
    reading = watch_threads("headrace readahead")
    follower, _ = follow(thousand_dataset)
    disk.reads += 1
    moved = threading.Thread(target=follower.moved, args=(0,))
    moved.start()
    assert at_gate.wait(WAIT_S)
    closing = threading.Thread(target=follower.close)
    closing.start()
    moved.join(WAIT_S)
    assert not moved.is_alive()
    opened.set()
    closing.join(WAIT_S)
    assert not reading()
    disk.reads += 1
    follower.moved(500)  # changes nothing
    assert follower._thread is not None
    assert not follower._thread.is_alive()


def test_a_file_that_is_gone_is_left_to_the_reader(
    tmp_path: Path, disk: Disk, follow: Callable[..., tuple[Readahead, Loader]]
):
    root = write_dataset(tmp_path / "dataset", sequences=(300, 400), seq_len=8)
    follower, _ = follow(str(root))
    (root / open_dataset(str(root)).manifest.shards[1].tokens).unlink()
    disk.reads += 1
    follower.moved(0)
    asked_to(follower, WINDOW)


def test_nothing_is_fetched_from_a_remote_store_to_be_read_ahead(
    thousand_dataset: str, tmp_path: Path, disk: Disk, follow: Callable[..., tuple[Readahead, Loader]]
):
    store: Any = RemoteStore(thousand_dataset)
    dataset = dataset_in(store, cache=ShardCache(tmp_path / "cache"))
    follower, _ = follow(dataset)
    gets = dict(store.gets)
    disk.reads += 1
    follower.moved(0)
    asked_to(follower, WINDOW)
    assert store.gets == gets
    assert not disk.asked


def test_what_a_cache_holds_whole_is_read_ahead_once_it_is_open(
    thousand_dataset: str, tmp_path: Path, disk: Disk, follow: Callable[..., tuple[Readahead, Loader]]
):
    store: Any = RemoteStore(thousand_dataset)
    dataset = dataset_in(store, cache=ShardCache(tmp_path / "cache"))
    for shard in (0, 2):
        dataset.rows(shard, np.arange(dataset.manifest.shards[shard].sequences))
        dataset.shard(shard).wait(np.arange(1))
    follower, loader = follow(dataset)
    disk.reads += 1
    follower.moved(0)
    asked_to(follower, WINDOW)
    shards, _ = loader._mixture.locate(np.arange(WINDOW, dtype=np.int64))
    assert len(disk.asked) == int(np.isin(shards, (0, 2)).sum()) > 0


@pytest.mark.parametrize("prefetch", [None, 0])
def test_batches_are_the_same_where_the_disk_is_read_all_the_time(
    thousand_dataset: str, monkeypatch: pytest.MonkeyPatch, prefetch: int | None
):
    reading = watch_threads("headrace readahead")
    expected = [batch["tokens"].copy() for batch in Loader(thousand_dataset, batch_size=8, seed=3, prefetch=0)]
    reads = iter(range(10**9))
    monkeypatch.setattr(readahead.Readahead.__init__, "__defaults__", (lambda: next(reads),))
    loader = Loader(thousand_dataset, batch_size=8, seed=3, prefetch=prefetch)
    found = [batch["tokens"].copy() for batch in loader]
    assert np.array_equal(found, expected)
    loader.close()
    assert not reading()


def test_the_kernel_is_told_of_the_very_bytes_of_the_rows(large_dataset: str, monkeypatch: pytest.MonkeyPatch):
    dataset = open_dataset(large_dataset)
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(shards.os, "posix_fadvise", lambda _, *span: told.append(span[:2]))
    for number in range(2):
        shard = dataset.shard(number)
        assert shard.mapped is not None
        size = os.path.getsize(shard.mapped._path)
        data = Path(shard.mapped._path).read_bytes()
        beside, told = told.copy(), []
        assert sum(length for _, length in beside) == size - shard.tokens.nbytes
        rows = np.array([0, 3, 4, 5, 99, shard.tokens.shape[0] - 1])
        shard.mapped.read_ahead(rows, ROWS_ALONE)
        assert [length // shard.tokens[0].nbytes for _, length in told] == [1, 3, 1, 1]
        found = b"".join(data[offset : offset + length] for offset, length in told)
        assert found == shard.tokens[rows].tobytes()
        told.clear()
        shard.mapped.read_ahead(rows, Coalescing(100 * shard.tokens[0].nbytes, 1.0))
        assert [length // shard.tokens[0].nbytes for _, length in told] == [100, 1]
        told.clear()


def test_an_opened_local_shard_is_advised_random_reading(large_dataset: str):
    shard = open_dataset(large_dataset).shard(0)
    base = shard.tokens.ctypes.data
    flags = ""
    with open("/proc/self/smaps") as maps:
        for line in maps:
            if "-" in line.split(" ")[0]:
                first, end = (int(at, 16) for at in line.split(" ")[0].split("-"))
                inside = first <= base < end
            elif line.startswith("VmFlags") and inside:
                flags = line
    assert " rr" in flags, "the mapping is not advised to be read at random"


def test_reads_of_a_disk_are_counted(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    before = disk_reads()
    assert sum(mapping[at] for at in range(0, 1 << 20, 4096)) >= 0
    # a file system in memory reads no disk
    is_on_disk = os.stat("/dev/shm").st_dev != path.stat().st_dev and path.stat().st_dev not in _in_memory()
    assert disk_reads() > before or not is_on_disk


def _in_memory() -> set[int]:
    found = set()
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            if " - tmpfs " in line or " - ramfs " in line:
                major, minor = line.split()[2].split(":")
                found.add(os.makedev(int(major), int(minor)))
    return found


def test_arrays_in_memory_have_no_mapping():
    assert mapping_of(np.zeros(3)) is None
    assert shards.mapped_rows(Path("nowhere"), np.zeros((3, 3))) is None


def test_runs_are_joined_over_gaps_and_where_they_overlap():
    first, end = np.array([0, 1, 10, 12]), np.array([3, 2, 11, 13])
    assert joined(first, end, 0) == [(0, 3), (10, 11), (12, 13)]
    assert joined(first, end, 1) == [(0, 3), (10, 13)]
    assert joined(first, end, 7) == [(0, 13)]
    assert joined(first[:0], end[:0], 7) == []
