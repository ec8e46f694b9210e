"""What a worker tells a controller of what it could not do, with a real daemon and nobody to hear it."""

import asyncio
import json
import signal

import pytest

from headrace.daemon.log_files import LogFiles
from headrace.pipeline.graph import Pipeline
from headrace.protos import control_pb2 as pb
from headrace.stages.library import read
from headrace.worker.daemon import Daemon
from headrace.worker.membership import outbox
from tests.kits.host.descriptors import descriptors_left, open_count

SENDER, RECEIVER = "plain/read.0", "plain/write.0"
LINK = "plain/read.0->write.0"


def start(task: str, attempt: int = 1) -> pb.ToWorker:
    pipeline = Pipeline.chain("plain", "file:///nowhere", read("*.jsonl"))
    order = pb.StartTask(pipeline_json=json.dumps(pipeline.to_dict()), stages=["read"])
    return pb.ToWorker(task=pb.TaskCommand(task=task, attempt=attempt, start=order))


def link(transport: str = "ring") -> pb.ToWorker:
    made = pb.MakeLink(link=LINK, transport=transport, sender=SENDER, receiver=RECEIVER, generation=3)
    made.sender_attempt = made.receiver_attempt = 1
    made.sender_end.sends = True
    return pb.ToWorker(link=made)


def waiting(daemon: Daemon) -> list[pb.TaskEvent]:
    """What is to be told of tasks, in order."""
    return [daemon._outbox.get_nowait().task for _ in range(daemon._outbox.qsize())]


def told_of(*commands: pb.ToWorker, left: int) -> tuple[list[pb.TaskEvent], pb.Register, int]:
    """What a worker with two tasks says where it obeys with so few descriptors; and how many more are open then."""

    async def scenario() -> tuple[list[pb.TaskEvent], pb.Register, int]:
        daemon = Daemon("w", 1, LogFiles("worker w"))
        for task in (SENDER, RECEIVER):
            daemon._live.started(task, 1, "v", 1, ("stage",))
        before = open_count()
        with descriptors_left(left):
            for command in commands:
                daemon._take(command)
        return waiting(daemon), daemon._register(), open_count() - before

    return asyncio.run(scenario())


@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_a_ring_without_descriptors_is_told_as_lost_and_stands_nowhere(left: int) -> None:
    [event], register, _ = told_of(link(), left=left)
    assert (event.task, event.lost.link, event.lost.generation) == (SENDER, LINK, 3)
    assert "could not make it: [Errno 24]" in event.lost.reason
    assert [item.link for item in register.links] == []


def test_a_ring_that_no_owner_can_map_leaves_no_descriptor() -> None:
    assert told_of(link(), left=3)[2] == 0


@pytest.mark.parametrize("left", range(8))
def test_a_start_without_descriptors_is_told_as_an_end_and_leaves_nothing(left: int) -> None:
    [event], register, more = told_of(start("plain/read.1"), left=left)
    assert (event.task, event.attempt, event.exited.code) == ("plain/read.1", 1, -signal.SIGKILL)
    assert "could not start it: [Errno 24]" in event.exited.story
    assert [item.task for item in register.tasks] == [SENDER, RECEIVER]
    assert more == 0


def test_an_end_is_told_however_long_nobody_has_listened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "WAITING_BYTES_MAX", 1 << 10)

    async def scenario() -> list[pb.TaskEvent]:
        daemon = Daemon("w", 1, LogFiles("worker w"))
        for number in range(10_000):
            swept = pb.TaskEvent(task=SENDER, attempt=1, swept=pb.Swept(sweep=number))
            daemon._say(pb.FromWorker(task=swept))
        with descriptors_left(0):
            daemon._take(start("plain/read.2"))
        assert daemon._outbox.bytes <= 1 << 10
        return waiting(daemon)

    last = asyncio.run(scenario())[-1]
    assert (last.task, last.exited.code) == ("plain/read.2", -signal.SIGKILL)
