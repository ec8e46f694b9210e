"""A sink's writer and the task that sleeps until it has finished something."""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.stages.batch import ROW, Batch, no_verdicts
from headrace.stages.texts import JsonlSink
from headrace.store.objects import open_store
from headrace.worker import sinking
from headrace.worker.core.gathering import SealPolicy
from headrace.worker.hands import Hands
from headrace.worker.sinking import Sinking

PATIENCE_S = 60.0


def batch(rows: int = 3) -> Batch:
    texts = pa.array([f"text {row}" for row in range(rows)])
    columns = {ROW: pa.array(np.arange(rows)), "id": texts, "text": texts, "metadata": pa.nulls(rows, pa.string())}
    return Batch(bytes(16), "file:///x", 0, rows, -1, -1, pa.RecordBatch.from_pydict(columns), no_verdicts())


def test_who_is_woken_by_the_writer_finds_its_shard_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = JsonlSink("write")
    sink.begin("dataset", "version")
    sinks = Sinking(
        "write",
        sink,
        open_store(tmp_path.as_uri()),
        version="version",
        epoch=1,
        policy=SealPolicy(),
        hands=Hands.private(),
    )
    looked = threading.Event()
    write = os.eventfd_write

    def wake_and_linger(descriptor: int, value: int) -> None:
        write(descriptor, value)
        # What the writer does behind it, it does once the task has looked.
        assert looked.wait(PATIENCE_S)

    monkeypatch.setattr(sinking.os, "eventfd_write", wake_and_linger)
    try:
        sinks.add(batch())
        sinks.seal("asked")
        assert select.select([sinks.wake_fd], [], [], PATIENCE_S)[0]
        sinks.tick()
        [proposal] = sinks.take_proposals()
        assert proposal.counts.kept == 3
    finally:
        looked.set()
        sinks._thread.shutdown()
