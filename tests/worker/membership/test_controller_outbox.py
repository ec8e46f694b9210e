"""What waits for a controller that is away: little, in order, and each end of a task."""

import pytest

from headrace.protos import control_pb2 as pb
from headrace.worker.membership import outbox as outboxes
from headrace.worker.membership.outbox import ControllerOutbox

PROPOSAL_BYTES = 40_000


def progress(held: int, task: str = "p/a.0", attempt: int = 1) -> pb.TaskEvent:
    return pb.TaskEvent(task=task, attempt=attempt, progress=pb.Progress(held_bytes=held))


def proposed(number: int, version: str = "", task: str = "p/a.0") -> pb.TaskEvent:
    shard = pb.Proposed(proposal=number, sink="w" * PROPOSAL_BYTES, version=version)
    return pb.TaskEvent(task=task, attempt=1, proposed=shard)


def exited(number: int) -> pb.TaskEvent:
    return pb.TaskEvent(task=f"p/{number}.0", attempt=1, exited=pb.TaskExited(story="s" * PROPOSAL_BYTES))


def swept(number: int) -> pb.TaskEvent:
    return pb.TaskEvent(task="p/a.0", attempt=1, swept=pb.Swept(sweep=number))


def waiting(*events: pb.TaskEvent) -> list[pb.TaskEvent]:
    """What is left of these for the next controller."""
    outbox = ControllerOutbox()
    for event in events:
        outbox.put_nowait(pb.FromWorker(task=event))
        outbox.trim()
    left = [outbox.get_nowait().task for _ in range(outbox.qsize())]
    assert outbox.bytes == 0
    return left


def test_of_what_a_task_says_again_the_newest_waits() -> None:
    said = [event for number in range(300) for event in (progress(number), proposed(1, f"v{number}"))]
    assert waiting(*said) == [progress(299), proposed(1, "v299")]


def test_what_is_of_another_attempt_or_shard_waits_beside_it() -> None:
    needs = pb.TaskEvent(task="p/a.0", attempt=1, needs=pb.NeedsAsked(proposal=1))
    said = [progress(1), progress(1, attempt=2), progress(1, "p/b.0"), proposed(1), proposed(2), needs]
    assert waiting(*said, *said) == said


def test_what_waits_is_told_in_the_order_first_said() -> None:
    said = [proposed(1), swept(1), exited(1), swept(1)]
    assert waiting(*said, proposed(1)) == said


def test_the_oldest_goes_where_too_much_waits_and_no_end_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "WAITING_BYTES_MAX", 4 * PROPOSAL_BYTES + PROPOSAL_BYTES // 2)
    said = [exited(1), proposed(1), proposed(2), exited(2), proposed(3)]
    assert waiting(*said) == [exited(1), proposed(2), exited(2), proposed(3)]
    ends = [exited(number) for number in range(9)]
    assert waiting(proposed(1), *ends) == ends
