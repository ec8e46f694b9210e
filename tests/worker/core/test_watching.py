"""What a task has in hand, as its worker reads it; and for what the worker kills it."""

import os
import threading
import time

import pytest

from headrace.store.ledger.core.fragments import Range
from headrace.worker.core.watchdog import Held, Memory, StageInHand, TaskLimits, fault
from headrace.worker.processes.processes import _spent_s
from headrace.worker.task.batch.in_flight import RANGES_MAX, STAGES, WRITER, InFlightPage

FILE = b"f" * 16
NOTHING = Memory(0)

Pages = tuple[InFlightPage, InFlightPage]


@pytest.fixture
def pages() -> tuple[InFlightPage, InFlightPage]:
    """The task's view of a page, and the worker's."""
    descriptor = InFlightPage.create()
    views = InFlightPage(descriptor), InFlightPage(descriptor)
    os.close(descriptor)
    return views


def idle(_thread: int) -> float:
    return 0.0


def held(count: int, since: float = 0.0, *, timed: bool = True) -> list[Held]:
    return [Held(since, timed, (StageInHand("keep", Range(FILE, 0, count)),))]


@pytest.mark.parametrize(("count", "allowed_s"), [(1, 2.0), (5, 10.0), (10, 20.0), (5000, 20.0), (0, 20.0)])
def test_a_batch_has_its_records_time_and_that_of_ten_at_most(count: int, allowed_s: float) -> None:
    limits = TaskLimits(record_s=2.0)
    assert fault(held(count), NOTHING, limits, allowed_s, idle) == ""
    assert fault(held(count), NOTHING, limits, allowed_s + 0.1, idle) == f"it did not return within {allowed_s:g} s"


def test_who_waits_for_a_store_has_no_deadline() -> None:
    assert fault(held(1, timed=False), NOTHING, TaskLimits(record_s=2.0), 1e6, idle) == ""


@pytest.mark.parametrize(("count", "allowed_s"), [(1, 2.0), (5, 10.0), (0, 20.0)])
def test_a_computing_source_or_sink_has_as_many_processor_seconds(count: int, allowed_s: float) -> None:
    found = [Held(0.0, False, (StageInHand("read", Range(FILE, 0, count)),), thread=7, spent_s=100.0)]
    limits = TaskLimits(record_s=2.0)
    assert fault(found, NOTHING, limits, 1e6, {7: 100.0 + allowed_s}.__getitem__) == ""
    story = f"it did not return within {allowed_s:g} s of processor time"
    assert fault(found, NOTHING, limits, 1e6, {7: 100.1 + allowed_s}.__getitem__) == story


def test_a_page_says_which_thread_has_it_and_its_time(pages: Pages) -> None:
    task, worker = pages
    before = time.thread_time()
    task.take(STAGES, "read", (Range(FILE, 0, 0),))
    (found,) = worker.read()
    assert found.thread == threading.get_native_id()
    assert before <= found.spent_s <= time.thread_time()
    assert _spent_s(os.getpid(), found.thread) > 0
    assert _spent_s(os.getpid(), 1) == 0 or os.getpid() == 1


def test_memory_above_the_cap_is_told_in_mebibytes() -> None:
    assert fault([], Memory(1200 << 20), TaskLimits(task_bytes=1000 << 20), 0.0, idle) == (
        "it took 1200 MiB of memory, the cap of a task is 1000 MiB"
    )
    assert fault([], Memory(1000 << 20), TaskLimits(task_bytes=1000 << 20), 0.0, idle) == ""
    assert fault([], Memory(1 << 50), TaskLimits(), 0.0, idle) == ""


def test_the_worker_reads_what_the_task_has_in_hand(pages: Pages) -> None:
    task, worker = pages
    assert worker.read() == []
    task.take(STAGES, "keep", (Range(FILE, 3, 4, 30, 40),), timed=True)
    task.take(WRITER, "write", (Range(FILE, 0, 2), Range(FILE, 2, 1)))
    stages, writer = worker.read()
    assert (stages.timed, stages.items) == (True, (StageInHand("keep", Range(FILE, 3, 4, 30, 40)),))
    assert (writer.timed, [item.range.count for item in writer.items]) == (False, [2, 1])
    task.clear(STAGES)
    assert [item.items[0].stage for item in worker.read()] == ["write"]


def test_a_shard_of_too_many_ranges_harms_no_other_slot(pages: Pages) -> None:
    task, worker = pages
    far = 1 << 40
    task.take(STAGES, "keep", [Range(FILE, far + at, 1, far, far) for at in range(2 * RANGES_MAX)])
    task.take(WRITER, "write", (Range(FILE, 1, 1),))
    stages, writer = worker.read()
    assert len(stages.items) == RANGES_MAX
    assert writer.items == (StageInHand("write", Range(FILE, 1, 1)),)
