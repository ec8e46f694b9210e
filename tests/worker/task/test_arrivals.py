"""What a task takes from its links: frames of its own epoch, and no others."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.pipeline.graph import Pipeline
from headrace.protos import control_pb2 as pb
from headrace.stages.library import read_jsonl, write_jsonl
from headrace.transport.core.errors import TransportError
from headrace.transport.core.frame import Frame, FrameKind
from headrace.worker.task.batch.in_flight import InFlightPage
from headrace.worker.task.channel import Channel
from headrace.worker.task.codec import sweep_frame
from headrace.worker.task.core import messages
from headrace.worker.task.core.task import TaskState
from headrace.worker.task.task import Task

EPOCH = 3


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    """The task of a sink, of epoch 3, before it has begun to run."""
    pipeline = Pipeline.chain("p", f"file://{tmp_path}/out", read_jsonl(f"{tmp_path}/*.jsonl"), write_jsonl())
    order = pb.StartTask(
        pipeline_json=json.dumps(pipeline.to_dict()), stages=[pipeline.stages[-1].name], version="v", epoch=EPOCH
    )
    mine, theirs = socket.socketpair()
    with mine, theirs:
        yield Task(Channel(mine), pb.TaskCommand(task="p/lines.0", attempt=1, start=order), InFlightPage.private())


@pytest.mark.parametrize("kind", FrameKind)
@pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH + 1])
def test_a_frame_of_another_epoch_ends_the_task(task: Task, kind: FrameKind, epoch: int) -> None:
    frame = Frame(kind=kind, epoch=epoch, fragment=bytes(16), first=0, count=1, metadata=b"", body=b"")
    with pytest.raises(TransportError, match=f"link l: a frame of epoch {epoch}, this task is of {EPOCH}"):
        task._received("l", frame)


def test_a_marker_of_the_tasks_own_epoch_is_taken(task: Task) -> None:
    task._do(messages.LinkOpened("l"))
    task._received("l", sweep_frame(7, EPOCH))
    task._do(messages.SweepAsked(7))
    assert task._state() is TaskState.SWEEPING
