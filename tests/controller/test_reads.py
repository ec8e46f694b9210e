"""Orders to read and what was read go in one message where they are many, and mean what each would mean alone."""

from __future__ import annotations

from headrace.controller.convert import READS_MAX, add_reads, said_together, task_event, to_worker
from headrace.controller.core.messages import messages as m
from headrace.protos import control_pb2 as pb
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap
from tests.kits.controller.core import Stand, changes, fragment, of

WHOLE = (Gap(0, UNBOUNDED, 0),)
A, B, C = (fragment(number) for number in range(3))


def order(number: int, task: str = "run/read.0", attempt: int = 1) -> m.ReadFragment:
    return m.ReadFragment("w1", task, attempt, fragment(number), WHOLE)


def test_orders_to_one_attempt_go_together_and_no_others() -> None:
    stop = m.StopTask("w1", "run/read.0", 1, "over")
    commands = [order(0), order(1), order(2, "run/read.1"), stop, stop, order(3), order(4, attempt=2)]
    assert list(said_together(commands)) == [
        [order(0), order(1)],
        [order(2, "run/read.1")],
        [stop],
        [stop],
        [order(3)],
        [order(4, attempt=2)],
    ]


def test_a_message_holds_so_many_orders_at_most() -> None:
    sizes = [len(alike) for alike in said_together(order(number) for number in range(2 * READS_MAX + 1))]
    assert sizes == [READS_MAX, READS_MAX, 1]


def test_a_message_holds_every_order_with_what_is_condemned() -> None:
    guilty = m.PoisonRecord(3, "read", "signal 6")
    alone = m.ReadFragment("w1", "run/read.0", 1, B, WHOLE, (guilty,), trial=True)
    message = to_worker(order(0), 1)
    assert message is not None
    add_reads(message, [alone])
    first, second = message.task.reads.reads
    assert (first.fragment.id, first.trial, len(first.poison)) == (A.id, False, 0)
    assert (second.fragment.id, second.trial, second.poison[0].ordinal) == (B.id, True, 3)
    assert [gap.end for gap in second.gaps] == [UNBOUNDED]


def test_one_read_of_a_message_is_told_as_ever_and_several_together() -> None:
    reads = [pb.FragmentRead(fragment=A.id, count=3), pb.FragmentRead(fragment=B.id, count=-1, error="x", changed=True)]
    first = m.FragmentWasRead("run/read.0", 1, A.id, 3)
    second = m.FragmentWasRead("run/read.0", 1, B.id, -1, "x", changed=True)
    told = pb.TaskEvent(task="run/read.0", attempt=1, reads=pb.FragmentsRead(reads=reads[:1]))
    assert task_event(told) == first
    told = pb.TaskEvent(task="run/read.0", attempt=1, reads=pb.FragmentsRead(reads=reads))
    assert task_event(told) == m.FragmentsWereRead("run/read.0", 1, (first, second))


def test_the_ends_of_fragments_that_were_read_together_are_logged() -> None:
    stand = Stand()
    stand.begin(A, B, C)
    before = changes(stand)
    place = stand.task()
    stand.tell(m.FragmentsWereRead(*place, tuple(m.FragmentWasRead(*place, item.id, 5) for item in (A, B, C))))
    assert changes(stand)[len(before) :] == ["FragmentEnded"] * 3


def test_an_error_among_them_ends_the_run_and_nothing_behind_it_counts() -> None:
    stand = Stand()
    stand.begin(A, B, C)
    place = stand.task()
    reads = (
        m.FragmentWasRead(*place, A.id, 5),
        m.FragmentWasRead(*place, B.id, -1, error="the file is damaged"),
        m.FragmentWasRead(*place, C.id, 5),
    )
    commands = stand.tell(m.FragmentsWereRead(*place, reads))
    assert of(m.ReportRun, commands) == [m.ReportRun("run", "failed", "the file is damaged")]
    assert C.id not in {item for item, state in stand.run.ledger.fragments.items() if state.count is not None}
