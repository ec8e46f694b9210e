"""A store that stalls, breaks off and comes back, and loops that are ended meanwhile."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.loader import loader as batches
from headrace.loader.batch.producer import Iteration
from headrace.loader.cache import fetch, spans
from headrace.loader.cache.cache import ShardCache
from headrace.loader.cache.fetch import FetchCounts, Pool, first_answer
from headrace.loader.dataset.dataset import TokenDataset, dataset_in, open_dataset
from headrace.loader.loader import Loader
from headrace.loader.order.errors import LoaderClosed
from headrace.store.contract.errors import ChecksumMismatch, StoreStalled, StoreUnavailable
from headrace.store.contract.objects import Capabilities, Stream
from tests.kits.loader.store import RemoteStore

PATIENCE_S = 120.0
#: well below the seconds for which a store's answer is waited for, above what a busy machine takes
SOON_S = 60.0


def remote(store: RemoteStore, folder: Path) -> TokenDataset:
    return dataset_in(store, cache=ShardCache(folder))  # type: ignore[arg-type]


class Gate:
    """Holds who asks for something of a shard, but for the first few, as a store that does not answer any more."""

    def __init__(self, answers: int) -> None:
        self._answers = iter(range(answers))
        self.asked, self.opened = threading.Event(), threading.Event()

    def __call__(self, key: str, offset: int, attempt: int) -> None:
        if key.startswith("shards") and next(self._answers, None) is None:
            self.asked.set()
            assert self.opened.wait(PATIENCE_S)


INTERRUPTED = """
import os, sys, threading
from tests.kits.loader.store import RemoteStore
from headrace.loader.loader import Loader
from headrace.loader.cache.cache import ShardCache
from headrace.loader.dataset.dataset import dataset_in

answers = iter(range(int(sys.argv[3])))

def hang(key, offset, attempt):
    if key.startswith("shards") and next(answers, None) is None:
        os.write(1, b"asked\\n")  # whole: several threads ask at once
        threading.Event().wait()

dataset = dataset_in(RemoteStore(sys.argv[1], hang), cache=ShardCache(sys.argv[2]))
for batch in Loader(dataset, batch_size=4):
    pass
"""


@pytest.mark.parametrize("answers", [0, 1])
def test_an_interrupt_ends_a_process_whose_store_does_not_answer(large_dataset: str, tmp_path: Path, answers: int):
    command = [
        sys.executable,
        "-c",
        INTERRUPTED,
        large_dataset,
        str(tmp_path),
        str(answers),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"asked\n"
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(SOON_S) == -signal.SIGINT
        finally:
            process.kill()


@pytest.mark.parametrize("prefetch", [0, 8])
@pytest.mark.parametrize("answers", [0, 1])
def test_closing_does_not_wait_for_a_store_nor_leave_threads(
    large_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefetch: int, answers: int
):
    monkeypatch.setattr(fetch, "IDLE_S_MAX", 0.0)
    before = set(threading.enumerate())
    gate = Gate(answers)
    loader = Loader(remote(RemoteStore(large_dataset, gate), tmp_path), batch_size=4, prefetch=prefetch)
    ended: list[Exception] = []

    def read() -> None:
        try:
            for _ in loader:
                pass
        except LoaderClosed as error:
            ended.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert gate.asked.wait(PATIENCE_S)
    began = time.monotonic()
    loader.close()
    reader.join(SOON_S)
    assert time.monotonic() - began < SOON_S
    assert not reader.is_alive()
    assert ended
    gate.opened.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_loader_that_is_closed_while_its_threads_begin_reads_no_more(
    large_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gate = Gate(0)
    loader = Loader(remote(RemoteStore(large_dataset, gate), tmp_path), batch_size=4, prefetch=8)

    def closed_meanwhile(*arguments: Any) -> Iteration[Any]:
        running: Iteration[Any] = Iteration(*arguments)
        assert gate.asked.wait(PATIENCE_S)
        loader.close()
        return running

    monkeypatch.setattr(batches, "Iteration", closed_meanwhile)
    began = time.monotonic()
    with pytest.raises(LoaderClosed, match="while its threads began"):
        next(iter(loader))
    assert time.monotonic() - began < SOON_S
    gate.opened.set()


def test_threads_of_a_pool_end_when_idle_and_begin_again(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(fetch, "IDLE_S_MAX", 0.0)
    pool, ran = Pool(2), list[threading.Thread]()
    for _ in range(3):
        done = threading.Event()

        def job(done: threading.Event = done) -> None:
            ran.append(threading.current_thread())
            done.set()

        pool.submit(job)
        assert done.wait(PATIENCE_S)
        ran[-1].join(PATIENCE_S)
        assert not ran[-1].is_alive()
    assert len(set(ran)) == 3


@pytest.mark.parametrize(
    ("error", "times", "works"),
    [(StoreUnavailable, 2, True), (StoreUnavailable, 3, False), (StoreStalled, 1, False)],
)
def test_a_broken_head_is_asked_again_unless_the_store_was_given_up(
    large_dataset: str, tmp_path: Path, error: type[Exception], times: int, works: bool
):
    def fail(key: str, offset: int, attempt: int) -> None:
        if key.startswith("shards") and offset == 0 and attempt <= times:
            raise error("cut off")

    store = RemoteStore(large_dataset, fail)
    dataset = remote(store, tmp_path)
    if works:
        assert np.array_equal(dataset.rows(1, np.arange(9)), open_dataset(large_dataset).rows(1, np.arange(9)))
    else:
        with pytest.raises(error, match="cut off"):
            dataset.rows(1, np.arange(9))
    assert store.gets[dataset.manifest.shards[1].tokens, 0] == times + works


def test_a_late_head_is_asked_again_and_the_first_answer_counts(
    large_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fetch, "HEDGE_S_MIN", 0.05)
    stuck = threading.Event()

    def hang(key: str, offset: int, attempt: int) -> None:
        if key.startswith("shards") and offset == 0 and attempt == 1:
            stuck.wait(PATIENCE_S)

    store = RemoteStore(large_dataset, hang)
    dataset = remote(store, tmp_path)
    assert dataset.shard(0).key
    assert not stuck.is_set()
    assert store.gets[dataset.manifest.shards[0].tokens, 0] == 2
    assert dataset.cache is not None
    assert dataset.cache.statistics().hedges == 1
    stuck.set()


def test_an_answer_that_comes_when_nobody_waits_any_more_is_dropped():
    begun, answered, dropped = threading.Event(), threading.Event(), threading.Event()

    def ask() -> str:
        begun.set()
        assert answered.wait(PATIENCE_S)
        return "late"

    with pytest.raises(LoaderClosed, match="iterate the loader anew"):
        first_answer(
            ask, "key", Pool(1), FetchCounts(),
            drop=lambda answer: dropped.set() if answer == "late" else None, stopped=begun.is_set,
        )  # fmt: skip
    answered.set()
    assert dropped.wait(PATIENCE_S)


class Breaking(RemoteStore):
    """Streams that break off after each piece, or give wrong bytes."""

    def __init__(self, root: str, change: Callable[[bytearray], None] | None = None, *, breaks: bool = False) -> None:
        super().__init__(root)
        self._change, self._breaks = change, breaks
        self.streams = [0, 0]

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(stream=self.stream)

    def stream(self, key: str, offset: int, length: int, piece_bytes: int, first_bytes: int | None) -> Stream:
        data = bytearray(self.get(key, offset, length))
        if self._change is not None:
            self._change(data)
        self.streams[0] += 1
        try:
            at, size = 0, first_bytes or piece_bytes
            while at < len(data):
                begin, at = at, at + size
                size = (yield memoryview(data)[begin:at]) or piece_bytes
                if self._breaks:
                    raise StoreUnavailable("cut off")
        finally:
            self.streams[1] += 1


def test_blocks_that_break_off_further_on_each_time_get_there(
    large_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spans, "PIECE_BLOCKS", 2)
    store = Breaking(large_dataset, breaks=True)
    rows = np.arange(490)
    assert np.array_equal(remote(store, tmp_path).rows(1, rows), open_dataset(large_dataset).rows(1, rows))
    assert store.streams[0] > 2 * fetch.ATTEMPTS_MAX


def test_a_stream_of_damaged_blocks_is_closed_at_once(large_dataset: str, tmp_path: Path):
    def damage(data: bytearray) -> None:
        data[-1] ^= 1

    store = Breaking(large_dataset, damage)
    with pytest.raises(ChecksumMismatch) as caught:
        remote(store, tmp_path).rows(1, np.arange(490))
    assert caught.value.__traceback__ is not None
    assert store.streams[0] == store.streams[1] >= fetch.ATTEMPTS_MAX
