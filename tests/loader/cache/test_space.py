"""A cache without space: a disk that is too small, and shards that others have in use."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from headrace.loader.batch.assemble import find_segments
from headrace.loader.cache import cached_files
from headrace.loader.cache.cache import ShardCache
from headrace.loader.cache.cached_files import CacheFull, users_of
from headrace.loader.dataset.dataset import TokenDataset, dataset_in, open_dataset
from headrace.loader.dataset.shard import Shard
from headrace.loader.loader import Loader
from tests.kits.host.small_disk import enlarge, small_disk
from tests.kits.loader.store import RemoteStore

#: well below the two minutes of waiting for space
SOON_S = 30.0
PATIENCE_S = 120.0
#: a shard of `large_dataset` has a MiB, another has two
SMALLER, LARGER = 1 << 20, 2 << 20


def remote(uri: str, cache: ShardCache) -> TokenDataset:
    return dataset_in(RemoteStore(uri), cache=cache)  # type: ignore[arg-type]


def gets(dataset: TokenDataset) -> int:
    """How often the store was asked for something of a shard."""
    asked: dict[tuple[str, int], int] = dataset.store.gets  # type: ignore[attr-defined]
    return sum(count for (key, _), count in asked.items() if key.startswith("shards"))


def files(cache: ShardCache) -> list[str]:
    return sorted(path.name for path in cache._root.iterdir() if path.name != "lock")


class Listener(logging.Handler):
    """What the loader says, and what is done when it does."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self.said: list[str] = []
        self._then = then

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        self._then()


@pytest.fixture
def listen() -> Iterator[Callable[[Callable[[], None]], Listener]]:
    listeners: list[Listener] = []

    def begin(then: Callable[[], None]) -> Listener:
        listeners.append(Listener(then))
        cached_files.logger.addHandler(listeners[-1])
        return listeners[-1]

    yield begin
    for listener in listeners:
        cached_files.logger.removeHandler(listener)


def test_a_full_disk_under_the_cache_is_told_and_recovers(tiny_dataset: str, tmp_path: Path):
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        cache = ShardCache(disk)
        dataset = remote(tiny_dataset, cache)
        entry = dataset.manifest.shards[0]
        (disk / "ballast").write_bytes(bytes(1 << 20))
        with pytest.raises(CacheFull, match=r"has \d+ bytes left, .* evicted, and \d+ are needed .*; free space there"):
            cache.hold(dataset.store, entry.tokens, entry.checksum)
        assert files(cache) == []
        (disk / "ballast").unlink()
        assert cache.hold(dataset.store, entry.tokens, entry.checksum).size


@pytest.mark.parametrize("prefetch", [0, 8])
def test_a_disk_too_small_for_a_shard_is_told_soon_and_cheaply(large_dataset: str, tmp_path: Path, prefetch: int):
    with small_disk(tmp_path / "disk", SMALLER // 2) as disk:
        dataset = remote(large_dataset, ShardCache(disk))
        began = time.monotonic()
        with pytest.raises(CacheFull, match="nothing in the cache that could be evicted") as caught:
            next(iter(Loader(dataset, batch_size=4, prefetch=prefetch)))
        assert time.monotonic() - began < SOON_S
        assert str(disk) in str(caught.value)
        assert "name another folder in HEADRACE_CACHE" in str(caught.value)
        # the reader's and those of two shards ahead, and none for each look
        assert gets(dataset) <= 4


@pytest.mark.parametrize("fields", [None, ()])
def test_a_disk_with_room_for_one_shard_gives_every_sample(
    large_dataset: str, tmp_path: Path, fields: tuple[str, ...] | None
):
    shape = {"batch_size": 90, "fields": fields}
    local = [batch["tokens"].tolist() for batch in Loader(large_dataset, **shape)]
    with small_disk(tmp_path / "disk", LARGER + SMALLER // 2) as disk:
        dataset = remote(large_dataset, ShardCache(disk))
        assert [batch["tokens"].tolist() for batch in Loader(dataset, **shape)] == local
        assert dataset.cache is not None
        assert dataset.cache.statistics().evicted


def test_a_shard_takes_the_room_of_later_ones_on_full_disks(make_dataset: Callable[..., str], tmp_path: Path):
    uri = make_dataset(sequences=(500, 500, 500), seq_len=1000)
    with small_disk(tmp_path / "disk", LARGER + 3 * SMALLER // 2) as disk:
        cache = ShardCache(disk)
        dataset = remote(uri, cache)
        hashes = [entry.checksum.partition(":")[2] for entry in dataset.manifest.shards]
        cache.add_plan(lambda names: {name: [20, 0, 10][hashes.index(name)] for name in names})
        for number in (0, 2, 1):
            entry = dataset.manifest.shards[number]
            cache.hold(dataset.store, entry.tokens, entry.checksum)
        assert hashes[0] not in [name.partition(".")[0] for name in files(cache)]
        assert hashes[2] in [name.partition(".")[0] for name in files(cache)]


def test_the_disks_room_for_a_cache_is_known_before_and_again(large_dataset: str, tmp_path: Path):
    with small_disk(tmp_path / "disk", 4 * LARGER) as disk:
        cache = ShardCache(disk)
        loader = Loader(remote(large_dataset, cache), batch_size=90)
        next(iter(loader))
        assert cache.space_bytes <= 4 * LARGER
        enlarge(disk, 64 * LARGER)
        next(iter(loader))
        assert 60 * LARGER < cache.space_bytes <= 64 * LARGER
        loader.close()
    assert ShardCache(tmp_path, bytes_max=5).space_bytes == 5


def test_room_that_others_use_is_waited_for_and_told_once(
    large_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listen: Callable[..., Listener]
):
    monkeypatch.setattr(cached_files, "SAID_AFTER_S", 0.0)
    other = remote(large_dataset, ShardCache(tmp_path))
    used = [other.shard(0)]
    other._open.clear()
    # one of the two fits
    dataset = remote(large_dataset, ShardCache(tmp_path, bytes_max=LARGER + SMALLER // 2))
    listener = listen(lambda: None)
    taken = [threading.Thread(target=dataset.shard, args=(1,)) for _ in range(3)]
    apart = remote(large_dataset, dataset.cache)  # type: ignore[arg-type]
    taken.append(threading.Thread(target=apart.shard, args=(1,)))
    let_go = listen(used.clear)
    for thread in taken:
        thread.start()
    for thread in taken:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert len(listener.said) == len(let_go.said) == 1
    assert "waits up to 120 s: the cache" in listener.said[0]
    assert gets(dataset) + gets(apart) <= 4
    assert dataset.cache is not None
    assert dataset.cache.statistics().misses == 1


def test_of_many_threads_that_wait_one_says_so(listen: Callable[..., Listener]):
    listener = listen(lambda: None)
    said = cached_files.Said()
    for _ in range(3):
        said.say(CacheFull("it is full"), 4.0)
    assert listener.said == ["the loader has waited 4 s for space in its cache, and waits up to 120 s: it is full"]


class Clock:
    """Time that passes where somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.slept: list[float] = []
        monkeypatch.setattr(cached_files, "time", self)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def waited(clock: Clock, wait: cached_files.SpaceWait, full: CacheFull) -> float:
    """How long `wait` goes on, in seconds."""
    began = clock.now_s
    with suppress(CacheFull):
        while True:
            wait.go_on(full)
    return clock.now_s - began


def test_room_in_use_is_waited_for_two_minutes_ever_slower(
    monkeypatch: pytest.MonkeyPatch, listen: Callable[..., Listener]
):
    clock, listener = Clock(monkeypatch), listen(lambda: None)
    took_s = waited(clock, cached_files.SpaceWait(cached_files.Said(), lambda: False), CacheFull("it is full"))
    assert cached_files.SPACE_S_MAX < took_s <= cached_files.SPACE_S_MAX + cached_files.LOOK_S_MAX
    assert clock.slept[:6] == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.25])
    assert set(clock.slept[5:]) == {cached_files.LOOK_S_MAX}
    assert len(listener.said) == 1
    assert listener.said[0].startswith("the loader has waited 3 s for space")


def test_room_that_nobody_uses_is_waited_for_a_moment(monkeypatch: pytest.MonkeyPatch, listen: Callable[..., Listener]):
    clock, listener = Clock(monkeypatch), listen(lambda: None)
    wait = cached_files.SpaceWait(cached_files.Said(), lambda: False)
    for _ in range(4):
        wait.go_on(CacheFull("it is full", in_use=False))
    # somebody takes a shard, and lets go of it again
    wait.go_on(CacheFull("it is full"))
    took_s = waited(clock, wait, CacheFull("it is full", in_use=False))
    assert cached_files.EVICTED_S_MAX <= took_s <= cached_files.EVICTED_S_MAX + cached_files.LOOK_S_MAX
    assert listener.said == []


def test_what_was_said_is_said_again_after_two_minutes(
    monkeypatch: pytest.MonkeyPatch, listen: Callable[..., Listener]
):
    clock, listener, said = Clock(monkeypatch), listen(lambda: None), cached_files.Said()
    for seconds, times in ((0.0, 1), (cached_files.SPACE_S_MAX, 1), (0.1, 2), (1.0, 2)):
        clock.now_s += seconds
        said.say("it is full", 4.0)
        assert len(listener.said) == times


def test_where_room_is_tight_each_shard_is_opened_once(tiny_dataset: str):
    local, opened = open_dataset(tiny_dataset), list[int]()

    class Watched:
        seq_len, pad_id = local.seq_len, local.pad_id

        def shard(self, number: int) -> Shard:
            opened.append(number)
            return local.shard(number)

    shards, rows = np.array([2, 0, 2, 3, 0]), np.array([1, 1, 0, 2, 4])
    found = find_segments(Watched(), shards, rows, rows.size, tight=True)
    assert opened == [0, 2, 3]
    assert found.documents.tolist() == find_segments(local, shards, rows, rows.size).documents.tolist()


def test_room_that_stays_in_use_is_given_up_after_its_time(
    large_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cached_files, "SPACE_S_MAX", 0.0)
    used = remote(large_dataset, ShardCache(tmp_path)).shard(0)
    dataset = remote(large_dataset, ShardCache(tmp_path, bytes_max=LARGER + SMALLER // 2))
    with pytest.raises(CacheFull, match=r"in use.*raise bytes_max") as caught:
        dataset.rows(1, np.arange(3))
    assert caught.value.in_use
    del used


def test_a_loop_that_ends_leaves_no_thread_that_waits_for_room(
    large_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listen: Callable[..., Listener]
):
    monkeypatch.setattr(cached_files, "SAID_AFTER_S", 0.0)
    used = remote(large_dataset, ShardCache(tmp_path)).shard(0)
    waiting = threading.Event()
    listen(waiting.set)
    dataset = remote(large_dataset, ShardCache(tmp_path, bytes_max=LARGER + SMALLER // 2))
    stopped = threading.Event()
    failed: list[Exception] = []

    def open_it() -> None:
        try:
            dataset.shard(1, stopped.is_set)
        except CacheFull as error:
            failed.append(error)

    thread = threading.Thread(target=open_it)
    thread.start()
    assert waiting.wait(PATIENCE_S)
    stopped.set()
    thread.join(SOON_S)
    assert not thread.is_alive()
    assert failed
    del used


HOLDER = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_SH)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the kernel does not tell of locks here")
def test_the_processes_that_use_a_file_are_named(tmp_path: Path):
    used, free = tmp_path / "used", tmp_path / "free"
    used.touch()
    free.touch()
    arguments = [sys.executable, "-c", HOLDER, str(used)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        assert users_of([free, used, tmp_path / "gone"]) == [holder.pid]
        assert users_of([free]) == []
        holder.stdin.close()
        assert holder.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("space_bytes", [5 << 20, 64 << 20])
def test_a_cache_smaller_than_a_window_is_told_once(
    large_dataset: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, space_bytes: int
):
    cache = ShardCache(tmp_path, bytes_max=space_bytes)
    loader = Loader(remote(large_dataset, cache), batch_size=50)
    with caplog.at_level(logging.WARNING, "headrace.loader"):
        for _ in range(2):
            assert sum(1 for _ in loader) == 19
    loader.close()
    said = [record.getMessage() for record in caplog.records]
    if space_bytes > 8 << 20:
        assert said == []
    else:
        (only,) = said
        assert f"the cache in {tmp_path} holds 2 MB of shards at once" in only
        assert "lie in shards of 3 MB" in only
