"""A sink's writer and the task that sleeps until it has finished something."""

from __future__ import annotations

import os
import select
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.protos import control_pb2 as pb
from headrace.protos.codec import counts_from, counts_to
from headrace.stages.runtime.batch import ROW, Batch, BatchDraft, Columns, batch_of, no_verdicts
from headrace.stages.sinks.texts import DocumentSink, JsonlSink
from headrace.store.ledger.core.fragments import Fragment
from headrace.store.open import open_store
from headrace.worker.task.batch.in_flight import InFlightPage
from headrace.worker.task.batch.isolation import Isolation, try_writing
from headrace.worker.task.core.sink import SealAsked, SealPolicy
from headrace.worker.task.sink import AGES, TaskSink, policy_of

PATIENCE_S = 120.0


def batch(rows: int = 3) -> Batch:
    texts = pa.array([f"text {row}" for row in range(rows)])
    columns = {ROW: pa.array(np.arange(rows)), "id": texts, "text": texts, "metadata": pa.nulls(rows, pa.string())}
    return Batch(bytes(16), "file:///x", 0, rows, -1, -1, pa.RecordBatch.from_pydict(columns), no_verdicts())


def writing_to(folder: Path) -> TaskSink:
    sink = JsonlSink("write")
    sink.begin("dataset", "version")
    store = open_store(folder.as_uri())
    page = InFlightPage.private()
    return TaskSink("write", sink, store, version="version", epoch=1, policy=SealPolicy(), in_flight=page)


def test_a_proposal_holds_what_stages_counted(tmp_path: Path) -> None:
    sinks = writing_to(tmp_path)
    sinks.add(replace(batch(), edits={"upper": 1}).counted("urls", "without a URL", 2))
    sinks.do(SealAsked("asked"))
    assert select.select([sinks.wake_fd], [], [], PATIENCE_S)[0]
    sinks.tick()
    [proposal] = sinks.take_proposals()
    sinks.close()
    counts = counts_from(proposal.counts)
    assert (counts.edited, counts.counters) == ({"upper": 1}, {"urls/without a URL": 2})
    assert counts_to(counts) == proposal.counts


@pytest.mark.parametrize("kind", [DocumentSink, JsonlSink])
def test_a_sink_may_be_tried_on_one_record_without_a_store(kind: type[DocumentSink | JsonlSink]) -> None:
    sink = kind("write")
    sink.begin("dataset", "version")
    try_writing(sink, batch(1))


def test_a_killer_of_two_stages_is_quarantined_at_the_first() -> None:
    poison = [pb.PoisonRecord(ordinal=0, stage=stage, story=f"died in {stage}") for stage in ("write", "clean")]
    isolation = Isolation()
    isolation.learn(pb.ReadFragment(fragment=pb.Fragment(id=bytes(16)), poison=poison))
    assert isolation.at("tokenize", batch(1)).rows.num_rows == 1
    for stage in ("clean", "write"):
        cut = isolation.at(stage, batch(1))
        assert cut.rows.num_rows == 0
        assert cut.verdicts.column("reason").to_pylist() == [f"killed its process: died in {stage}"]
    once = isolation.at("write", isolation.at("clean", batch(1)))
    assert once.verdicts.column("stage").to_pylist() == ["clean"]


def test_who_is_woken_by_the_writer_finds_its_shard_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sinks = writing_to(tmp_path)
    looked = threading.Event()
    write = os.eventfd_write

    def wake_and_linger(descriptor: int, value: int) -> None:
        write(descriptor, value)
        # What the writer does behind it, it does once the task has looked.
        assert looked.wait(PATIENCE_S)

    monkeypatch.setattr(os, "eventfd_write", wake_and_linger)
    try:
        sinks.add(batch())
        sinks.do(SealAsked("asked"))
        assert select.select([sinks.wake_fd], [], [], PATIENCE_S)[0]
        sinks.tick()
        [proposal] = sinks.take_proposals()
        assert proposal.counts.kept == 3
    finally:
        looked.set()
        sinks.close()


def test_a_joint_batch_is_held_as_ranges_of_its_members(tmp_path: Path) -> None:
    sink = JsonlSink("write")
    sink.begin("dataset", "version")
    store = open_store(tmp_path.as_uri())
    sinks = TaskSink(
        "write", sink, store, version="version", epoch=1, policy=SealPolicy(), in_flight=InFlightPage.private()
    )
    sinks.add(merged(0, 1))
    assert [item.fragment for item in sinks.core.ranges()] == [bytes([0]) * 16, bytes([1]) * 16]
    sinks.add(merged(1, 2))
    assert [(item.fragment[0], item.first, item.count) for item in sinks.core.ranges()] == [
        (0, 5, 2),
        (1, 5, 2),
        (2, 5, 2),
    ]
    sinks.do(SealAsked("asked"))
    assert select.select([sinks.wake_fd], [], [], PATIENCE_S)[0]
    sinks.tick()
    [proposal] = sinks.take_proposals()
    assert proposal.counts.kept == 6
    assert sorted((item.fragment[0], item.offset, item.length) for item in proposal.ranges) == [
        (0, 50, 20),
        (1, 50, 20),
        (2, 50, 20),
    ]


def merged(*numbers: int) -> Batch:
    """A merged batch of two records, the sixth and the seventh, of each of these fragments."""
    drafts: list[BatchDraft] = []
    for number in numbers:
        columns = Columns(f"file:///{number}")
        for ordinal in (5, 6):
            columns.keep(ordinal, None, b"text", {})
        fragment = Fragment(bytes([number]) * 16, "read", f"file:///{number}", "1", 0, -1, "jsonl/1", 10)
        drafts.append(BatchDraft(columns, fragment, "read", 5, 2, 50, 20))
    return batch_of(drafts)


def test_tasks_of_a_stage_seal_at_different_ages_down_to_half() -> None:
    orders = [pb.StartTask(replica=number, seal=pb.SealPolicy(age_s=20.0)) for number in range(2 * AGES)]
    ages = [policy_of(order, JsonlSink("write")).age_s for order in orders]
    assert (ages[0], ages[AGES]) == (20.0, 20.0)
    assert len(set(ages)) == AGES
    assert all(10.0 < age <= 20.0 for age in ages)
