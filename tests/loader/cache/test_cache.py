"""The cache of shards and the reads that fill it."""

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.loader.cache import fetch
from headrace.loader.cache.cache import CacheFull, ShardCache
from headrace.loader.cache.cached_files import evict_file
from headrace.loader.cache.fetch import FetchCounts, Pool, fetch_object
from headrace.loader.dataset.dataset import TokenDataset, dataset_in, open_dataset
from headrace.loader.loader import Loader
from headrace.loader.order.errors import LoaderError
from headrace.loader.prefetch.shard_prefetcher import SAMPLED_ROWS, next_use
from headrace.store.contract.errors import ChecksumMismatch, StoreUnavailable
from tests.kits.loader.store import RemoteStore

SHAPE = {"batch_size": 4, "last": "pad", "block_rows": 4, "window_blocks": 2}


def remote(uri: str, cache: ShardCache, on_get: Callable[[str, int, int], None] = lambda *_: None) -> TokenDataset:
    return dataset_in(RemoteStore(uri, on_get), cache=cache)  # type: ignore[arg-type]


def files(cache: ShardCache) -> list[str]:
    return sorted(path.name for path in cache._root.iterdir() if path.name != "lock")


def test_a_remote_dataset_gives_what_a_local_one_gives(tiny_dataset: str, tmp_path: Path):
    cache = ShardCache(tmp_path)
    local = [batch["tokens"].tolist() for batch in Loader(tiny_dataset, **SHAPE)]
    loader = Loader(remote(tiny_dataset, cache), **SHAPE)
    assert [batch["tokens"].tolist() for batch in loader] == local
    statistics = loader.statistics()
    assert statistics.cache_misses == 3
    assert statistics.verified_shards == 3
    # the second shard is empty, and nobody asks for it
    shards = open_dataset(tiny_dataset).manifest.shards
    paths = [Path(tiny_dataset) / shard.tokens for shard in shards if shard.sequences]
    assert statistics.store_bytes == sum(path.stat().st_size for path in paths)
    again = Loader(remote(tiny_dataset, ShardCache(tmp_path)), **SHAPE)
    assert [batch["tokens"].tolist() for batch in again] == local
    assert again.statistics().cache_misses == 0
    assert again.statistics().cache_hits >= 3


@pytest.mark.parametrize("blocks", [True, False])
def test_the_cache_stays_within_its_bytes_and_every_sample_still_comes(
    make_dataset: Callable[..., str], tmp_path: Path, blocks: bool
):
    uri = make_dataset(blocks=blocks)
    sizes = [path.stat().st_size for path in Path(uri).glob("shards/0/*.safetensors")]
    # beside its blocks a shard has a map, on a page of its own
    cache = ShardCache(tmp_path / "cache", bytes_max=max(sizes) + blocks * 5000)
    loader = Loader(remote(uri, cache), **SHAPE)
    seen = 0
    for batch in loader:
        seen += int((batch["positions"] >= 0).sum())
        with cache._names_still():
            assert sum(size for _, size, _ in cache._entries()) <= cache.bytes_max
    assert seen == 17


def test_a_damaged_object_is_refused_and_leaves_nothing(make_dataset: Callable[..., str], tmp_path: Path):
    uri = make_dataset()
    cache = ShardCache(tmp_path)
    dataset = remote(uri, cache)
    path = Path(uri) / dataset.manifest.shards[0].tokens
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(ChecksumMismatch):
        dataset.shard(0)
    assert files(cache) == []


def test_a_shard_that_is_in_use_is_never_evicted(tiny_dataset: str, tmp_path: Path):
    cache = ShardCache(tmp_path)
    dataset = remote(tiny_dataset, cache)
    entries = dataset.manifest.shards
    held = cache.hold(dataset.store, entries[0].tokens, entries[0].checksum)
    small = ShardCache(tmp_path, bytes_max=sum(cache.cached().values()) + 1)
    with pytest.raises(CacheFull, match="in use"):
        small.hold(dataset.store, entries[3].tokens, entries[3].checksum)
    del held
    small.hold(dataset.store, entries[3].tokens, entries[3].checksum)
    assert list(cache.cached()) == [entries[3].checksum.partition(":")[2]]


def test_a_part_written_anew_between_look_and_eviction_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    part = tmp_path / "0123.part"
    part.write_bytes(b"given up")
    flock = fcntl.flock

    def locked(descriptor: int, how: int) -> None:
        # Its writer removes what it gave up, and the next one begins.
        part.unlink()
        part.write_bytes(b"the next")
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", locked)
    assert not evict_file(part)
    assert part.read_bytes() == b"the next"
    monkeypatch.undo()
    assert evict_file(part)
    assert not part.exists()


def test_a_fetch_that_is_interrupted_writes_nothing_afterwards(monkeypatch: pytest.MonkeyPatch):
    asked, answered, ended = threading.Event(), threading.Event(), threading.Event()
    written: list[int] = []

    class Slow:
        uri = "s3://slow"

        def get(self, key: str, offset: int, length: int) -> bytes:
            asked.set()
            assert answered.wait(60)
            return bytes(length)

    def interrupt(_requests: object, _now: float) -> float:
        assert asked.wait(60)
        raise KeyboardInterrupt

    run = fetch.HedgedRequests._run

    def run_and_say(requests: Any, request: Any) -> None:
        run(requests, request)
        ended.set()

    monkeypatch.setattr(fetch.HedgedRequests, "_hedge_late", interrupt)
    monkeypatch.setattr(fetch.HedgedRequests, "_run", run_and_say)
    with pytest.raises(KeyboardInterrupt):
        fetch_object(Slow(), "key", 100, lambda offset, _: written.append(offset), Pool(1), FetchCounts())  # type: ignore[arg-type]
    # The file that it wrote to is closed by now, and its number another's.
    answered.set()
    assert ended.wait(60)
    assert written == []


def test_the_latest_needed_goes_first_and_the_unplanned_before_it(tiny_dataset: str, tmp_path: Path):
    cache = ShardCache(tmp_path)
    dataset = remote(tiny_dataset, cache)
    hashes = [entry.checksum.partition(":")[2] for entry in dataset.manifest.shards]
    for number in (0, 2, 3):
        entry = dataset.manifest.shards[number]
        cache.hold(dataset.store, entry.tokens, entry.checksum)
    size = sum(cache.cached().values())
    one = dataset.manifest.shards[1]
    cache.hold(dataset.store, one.tokens, one.checksum)
    needed = sum(cache.cached().values()) - size
    os.unlink(cache._root / cache._final(hashes[1]))
    stranger = tmp_path / f"user-{os.getuid()}" / "00ff.boot"
    stranger.write_bytes(b"x")
    cache.bytes_max = size + needed
    cache.add_plan(lambda names: {name: [10, 0, 30, 20][hashes.index(name)] for name in names if name in hashes})
    cache.hold(dataset.store, one.tokens, one.checksum)
    assert set(cache.cached()) == set(hashes)
    cache.bytes_max -= 1
    os.unlink(cache._root / cache._final(hashes[1]))
    cache.hold(dataset.store, one.tokens, one.checksum)
    assert set(cache.cached()) == set(hashes) - {hashes[2]}


def test_of_several_loops_the_soonest_need_is_heeded_until_its_end(tiny_dataset: str, tmp_path: Path):
    cache = ShardCache(tmp_path)
    dataset = remote(tiny_dataset, cache)
    entries = [dataset.manifest.shards[number] for number in (0, 2, 3)]
    hashes = [entry.checksum.partition(":")[2] for entry in entries]
    for entry in entries[1:]:
        cache.hold(dataset.store, entry.tokens, entry.checksum)
    training, trial = {hashes[1]: 1, hashes[2]: 9}, {hashes[1]: 20, hashes[2]: 10}
    plans = [
        lambda names, uses=uses: {name: uses[name] for name in names if name in uses} for uses in (training, trial)
    ]
    for plan in plans:
        cache.add_plan(plan)
    assert cache._next_uses(hashes) == training
    cache.remove_plan(plans[0])
    assert cache._next_uses(hashes) == trial
    cache.bytes_max = sum(cache.cached().values()) + 1
    cache.hold(dataset.store, entries[0].tokens, entries[0].checksum)
    assert hashes[2] in cache.cached()
    assert hashes[1] not in cache.cached()


def test_a_loop_that_has_ended_leaves_no_plan_in_the_cache(tiny_dataset: str, tmp_path: Path):
    cache = ShardCache(tmp_path)
    loader = Loader(remote(tiny_dataset, cache), **SHAPE)
    batches = iter(loader)
    next(batches)
    assert len(cache._plans) == 1
    loader.close()
    assert cache._plans == ()


def test_the_next_use_of_a_shard_lies_ahead_and_near(thousand_dataset: str):
    loader = Loader(thousand_dataset, batch_size=1, block_rows=16, window_blocks=4)
    shards, _ = loader._mixture.locate(np.arange(2006))
    for position in (0, 300, 900):
        for shard in (0, 2, 3, 4):
            exact = int(np.flatnonzero(shards[position:] == shard)[0])
            guess = next_use(loader._mixture, shard, position)
            assert exact <= guess < exact + 1003


def test_the_next_use_of_a_shard_is_its_rows_soonest(thousand_dataset: str):
    loader = Loader(thousand_dataset, batch_size=1, block_rows=16, window_blocks=4)
    shards, rows = loader._mixture.locate(np.arange(1003))
    for shard in (0, 2, 3, 4):
        sampled = np.flatnonzero((shards == shard) & (rows % SAMPLED_ROWS == 0))
        for position in range(0, int(sampled.max()), 60):
            assert next_use(loader._mixture, shard, position) == int(sampled[sampled >= position].min()) - position


def test_a_slow_part_is_asked_for_again_and_the_first_answer_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetch, "HEDGE_S_MIN", 0.5)
    (tmp_path / "object").write_bytes(bytes(range(256)) * 4)
    stuck = threading.Event()

    def hang(key: str, offset: int, attempt: int) -> None:
        if offset == 256 and attempt == 1:
            stuck.wait(60)

    store = RemoteStore(tmp_path, hang)
    got = bytearray(1024)
    counts = FetchCounts()

    def write(offset: int, data: bytes) -> None:
        got[offset : offset + len(data)] = data

    monkeypatch.setattr(fetch, "PART_BYTES", 256)
    fetch_object(store, "object", 1024, write, Pool(4), counts, timeout_s=30)  # type: ignore[arg-type]
    stuck.set()
    assert bytes(got) == bytes(range(256)) * 4
    assert counts.hedges == 1
    assert store.gets["object", 256] == 2


@pytest.mark.parametrize(("failures", "works"), [(2, True), (3, False)])
def test_a_store_that_does_not_answer_is_asked_three_times(tmp_path: Path, failures: int, works: bool):
    (tmp_path / "object").write_bytes(b"x" * 10)

    def fail(key: str, offset: int, attempt: int) -> None:
        if attempt <= failures:
            raise StoreUnavailable("busy")

    store = RemoteStore(tmp_path, fail)
    with contextlib.nullcontext() if works else pytest.raises(StoreUnavailable, match="busy"):
        fetch_object(store, "object", 10, lambda *_: None, Pool(2), FetchCounts(), timeout_s=30)  # type: ignore[arg-type]


def test_a_directory_that_others_may_enter_is_refused(tiny_dataset: str, tmp_path: Path):
    (tmp_path / f"user-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(LoaderError, match="mode 0700"):
        remote(tiny_dataset, ShardCache(tmp_path)).shard(0)


@pytest.mark.parametrize("place", ["file", "/proc/nothing"])
def test_a_directory_that_cannot_be_made_is_said_with_what_to_do(tiny_dataset: str, tmp_path: Path, place: str):
    (tmp_path / "file").write_text("")
    with pytest.raises(LoaderError, match=r"cannot be made: .*; name a folder that user .* in HEADRACE_CACHE, or by"):
        remote(tiny_dataset, ShardCache(tmp_path / place)).shard(0)


@pytest.mark.parametrize("verb", ["statvfs", "scandir", "ftruncate", "posix_fallocate", "pwritev"])
def test_what_the_system_refuses_in_the_folder_is_said(
    tiny_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
):
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    dataset = remote(tiny_dataset, ShardCache(tmp_path))
    monkeypatch.setattr(os, verb, refuse)
    with pytest.raises(LoaderError, match=r"user-\d+ cannot be used: Read-only file system; name a folder that user"):
        dataset.shard(0)


def test_a_lock_that_is_a_folder_is_said(tiny_dataset: str, tmp_path: Path):
    cache = ShardCache(tmp_path)
    cache.look_at_disk()
    (cache._root / "lock").mkdir()
    with pytest.raises(LoaderError, match="cannot be used: Is a directory"):
        remote(tiny_dataset, cache).shard(0)


def test_two_users_of_one_directory_neither_meet_nor_believe_each_other(
    tiny_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    me, other = os.getuid(), os.getuid() + 1
    remote(tiny_dataset, ShardCache(tmp_path)).shard(0)
    (mine,) = tmp_path.iterdir()
    kept = sorted(mine.iterdir())
    monkeypatch.setattr("headrace.loader.cache.cache.os.getuid", lambda: other)
    theirs = ShardCache(tmp_path)
    assert theirs._root != mine
    # a folder of the name that the other's would have, but not the other's own
    theirs._root.mkdir(mode=0o700)
    with pytest.raises(LoaderError, match=f"of user {other} alone .* of user {me}: remove it, or choose another"):
        remote(tiny_dataset, theirs).shard(0)
    assert list(theirs._root.iterdir()) == []
    assert sorted(mine.iterdir()) == kept


def test_a_file_from_before_a_machine_crash_is_checked_first(tiny_dataset: str, tmp_path: Path):
    cache = ShardCache(tmp_path)
    dataset = remote(tiny_dataset, cache)
    entry = dataset.manifest.shards[0]
    name = entry.checksum.partition(":")[2]
    del dataset
    cache.hold(RemoteStore(tiny_dataset), entry.tokens, entry.checksum)  # type: ignore[arg-type]
    path = cache._root / cache._final(name)
    whole = path.read_bytes()
    path.rename(cache._root / f"{name}.0ldb00t0")
    store = RemoteStore(tiny_dataset)
    # of no process that looked before the crash
    cache = cache.replica()
    cache.hold(store, entry.tokens, entry.checksum)  # type: ignore[arg-type]
    assert store.gets == {}
    path.unlink()
    (cache._root / f"{name}.0ldb00t0").write_bytes(whole[:300] + b"\xff" + whole[301:])
    cache = cache.replica()
    cache.hold(store, entry.tokens, entry.checksum)  # type: ignore[arg-type]
    assert store.gets
    assert path.read_bytes() == whole
    assert files(cache) == [path.name]


KILLED = """
import os, signal, sys
from tests.kits.loader.store import RemoteStore
from headrace.loader.cache.cache import ShardCache
from headrace.loader.dataset.dataset import dataset_in

def die(key, offset, attempt):
    if key.startswith("shards"):
        os.kill(os.getpid(), signal.SIGKILL)

dataset_in(RemoteStore(sys.argv[1], die), cache=ShardCache(sys.argv[2])).shard(0)
"""


def test_a_killed_fetch_leaves_no_lock_and_nothing_that_is_believed(make_dataset: Callable[..., str], tmp_path: Path):
    tiny_dataset, tmp_path = make_dataset(blocks=False), tmp_path / "cache"
    arguments = [tiny_dataset, str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], timeout=300)
    assert done.returncode == -signal.SIGKILL
    cache = ShardCache(tmp_path)
    (left,) = files(_opened(cache))
    assert left.endswith(".part")
    dataset = remote(tiny_dataset, cache)
    expected = open_dataset(tiny_dataset).rows(0, np.arange(5))
    assert np.array_equal(dataset.rows(0, np.arange(5)), expected)
    assert not any(name.endswith(".part") for name in files(cache))


def _opened(cache: ShardCache) -> ShardCache:
    cache._make()
    return cache


def test_two_processes_that_need_one_shard_fetch_it_once(tiny_dataset: str, tmp_path: Path):
    cache = _opened(ShardCache(tmp_path))
    dataset = remote(tiny_dataset, cache)
    entry = dataset.manifest.shards[0]
    name = entry.checksum.partition(":")[2]
    # another process is at it: it holds the lock, and then gives the file its final name
    other = os.open(cache._root / f"{name}.part", os.O_RDWR | os.O_CREAT)
    fcntl.flock(other, fcntl.LOCK_EX)
    waiting = threading.Thread(target=dataset.shard, args=(0,))
    waiting.start()
    os.write(other, Path(tiny_dataset, entry.tokens).read_bytes())
    os.rename(cache._root / f"{name}.part", cache._root / cache._final(name))
    os.close(other)
    waiting.join(60)
    assert not waiting.is_alive()
    assert cache.statistics().misses == 0
    assert not any(key == entry.tokens for key, _ in dataset.store.gets)  # type: ignore[attr-defined]
