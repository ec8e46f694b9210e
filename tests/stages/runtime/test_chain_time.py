"""What a task says of the time of its stages: for how long they were at work, and how much of it a core was theirs."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_batches, read_jsonl, write_jsonl
from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.contract import Transform
from headrace.worker.task.chain import Chain, StageStatistics, Watch

#: Processor time that a stage takes, at least, in the tests.
SPENT_S = 0.05
WAITS = """
import threading, time
SPENT_S = 0.05

def waits(rows):
    threading.Event().wait(5 * SPENT_S)
    return rows

def works(rows):
    until = time.thread_time() + SPENT_S
    while time.thread_time() < until:
        pass
    return rows
"""


def spend() -> None:
    until = time.thread_time() + SPENT_S
    while time.thread_time() < until:
        pass


def chain(function: str) -> Chain:
    stages = (read_jsonl("nowhere/*.jsonl"), map_batches(f"stage:{function}", name=function), write_jsonl())
    return Chain(replace(Pipeline.chain("p", "nowhere", *stages), modules={"stage": WAITS}), [function])


@pytest.mark.parametrize(("function", "works"), [("waits", False), ("works", True)])
def test_time_that_a_stage_waits_is_no_time_of_a_core(
    batch_of: Callable[..., Batch], function: str, works: bool
) -> None:
    made = chain(function)
    made.process(batch_of(["a", "b"]))
    (row,) = made.progress(StageStatistics())
    assert row.busy_s >= SPENT_S
    assert (row.cpu_s >= SPENT_S) is works
    assert row.cpu_s <= row.busy_s


def test_what_another_thread_spends_meanwhile_is_not_counted() -> None:
    """As where five tasks share two cores: the time of others is theirs."""
    mine, others = StageStatistics(), threading.Thread(target=spend)
    watch = Watch()
    others.start()
    others.join()
    watch.stop(mine)
    assert mine.busy_s >= SPENT_S
    assert mine.cpu_s < SPENT_S


class Employer(Transform):
    """A stage that has had others work for it."""

    spent = 1.0

    def process(self, batch: Batch) -> Batch:
        return batch

    def delegated_cpu_s(self) -> float:
        return self.spent


def test_what_a_stage_has_others_do_is_counted() -> None:
    employer, statistics = Employer(), StageStatistics()
    watch = Watch(employer)
    employer.spent += 2.0
    watch.stop(statistics)
    assert 2.0 <= statistics.cpu_s < 2.0 + SPENT_S


def test_a_shard_that_is_being_written_is_time_at_work_already() -> None:
    made = Chain(Pipeline.chain("p", "nowhere", read_jsonl("nowhere/*.jsonl"), write_jsonl(name="lines")), ["lines"])
    (row,) = made.progress(StageStatistics(busy_s=2.0, cpu_s=1.0), writing_s=3.0)
    assert (row.busy_s, row.cpu_s, row.at_batch_s) == (5.0, 1.0, 3.0)
