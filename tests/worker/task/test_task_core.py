"""The core of a task: what comes first in a turn, the way of a batch, the answer to a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.store.ledger.core.fragments import Fragment, Range
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap
from headrace.worker.task.core import messages
from headrace.worker.task.core.asked import WAITING_MAX
from headrace.worker.task.core.held import HeldBatches
from headrace.worker.task.core.sink import SealPolicy
from headrace.worker.task.core.task import ASK_AGAIN_S, LISTING_AGAIN_S, ORDER, DedupRole, TaskCore, TaskState

FILE = Fragment.named("read", "a", "1", start=0, end=-1, reader="lines", size=1)
FIRST = Range(FILE.id, 0, 3, 0, 30)
ALL = (FILE.id, (Gap(0, UNBOUNDED, 0),))
REST = (FILE.id, (Gap(3, UNBOUNDED, 30),))
TURNED = messages.Turned(unsent=False)


def source(**options: Any) -> TaskCore[str, str]:
    """A source that was told to read one file."""
    core = TaskCore[str, str](7, reads=True, **options)
    core.handle(messages.ReadAsked(FILE, [Gap(0, UNBOUNDED, 0)]), 0.0)
    return core


def solitary() -> TaskCore[str, str]:
    """A solitary task whose one record waits for a decision."""
    core = source(sink=HeldBatches[Any, Any](SealPolicy()), dedup=DedupRole.ASKS_ALONE)
    assert core.handle(messages.BatchRead("batch", FIRST), 0.0) == [messages.RunStages("batch")]
    assert core.handle(messages.BatchProcessed("staged", kept=True), 1.0) == []
    return core


def pending(core: TaskCore[str, str], sweep: int, *, halt: bool = False) -> tuple[Any, ...]:
    core.handle(messages.SweepAsked(sweep, halt), 2.0)
    answer = core.handle(TURNED, 2.0)[-1]
    assert isinstance(answer, messages.AnswerSweep)
    return answer.pending


def test_each_state_stands_once_in_the_order_of_a_turn() -> None:
    assert [state for state, _ in ORDER] == list(TaskState)
    page = (Path(__file__).parents[3] / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = page[page.index("### What a task does next") :].splitlines()
    assert [row.split(" | ")[0][2:] for row in rows if row.startswith("| ")][1:] == [state.value for state in TaskState]


def test_a_batch_waiting_for_credit_precedes_sweep_and_reading() -> None:
    core = source(outputs=True)
    core.handle(messages.SweepAsked(1), 0.0)
    assert core.handle(messages.Turned(unsent=True), 0.0) == [messages.SendUnsent()]
    assert core.handle(TURNED, 0.0) == [messages.SendMarkers(1)]
    assert core.handle(TURNED, 0.0) == [messages.SendMarkers(1)], "until each link has taken its marker"
    assert core.handle(messages.MarkersSent(1), 0.0) == [messages.AnswerSweep(1, (ALL,), ())]
    assert core.handle(TURNED, 0.0) == [messages.ReadNext()]


def test_a_batch_is_pending_until_it_is_passed_on() -> None:
    core = source(outputs=True)
    assert core.handle(messages.BatchRead("batch", FIRST), 0.0) == [messages.RunStages("batch")]
    assert core.reading.pending() == [ALL]
    assert core.handle(messages.BatchProcessed("after", kept=True), 0.0) == [messages.SendBatch("after")]
    assert core.reading.pending() == [REST]


def test_a_fenced_task_lets_nothing_through_nor_rereads() -> None:
    core = TaskCore[str, str](7, reads=False, dedup=DedupRole.FENCED)
    assert core.handle(messages.BatchReceived("question"), 0.0) == [messages.LetThroughNone("question")]
    assert core.handle(messages.DecisionNeeded("question"), 0.0) == []


def test_a_sweep_waits_for_no_link_that_was_closed() -> None:
    core = TaskCore[str, str](7, reads=False, outputs=False)
    for link in ("stands", "goes"):
        core.handle(messages.LinkOpened(link), 0.0)
    core.handle(messages.SweepAsked(1), 0.0)
    core.handle(messages.FrameArrived("stands", 7, 1), 0.0)
    assert not core.due
    core.handle(messages.InputClosed("goes"), 0.0)
    assert core.due


def test_a_decider_that_was_fenced_says_so_in_each_sweep() -> None:
    core = TaskCore[str, str](7, reads=False, dedup=DedupRole.CONSULTS)
    core.handle(messages.SweepAsked(1), 0.0)
    assert core.handle(TURNED, 0.0) == [messages.AnswerSweep(1, (), ())]
    assert core.handle(messages.BatchProcessed("question", kept=True), 0.0) == [messages.AskDecider(1, "question")]
    assert core.handle(messages.AnswerArrived(1, None), 0.0) == [messages.LetThroughNone("question")]
    for sweep in (2, 3):
        core.handle(messages.SweepAsked(sweep), 0.0)
        assert core.handle(TURNED, 0.0) == [messages.AnswerSweep(sweep, (), (), fenced=True)]


def test_who_decides_answers_a_solitary_task() -> None:
    core = source(outputs=True, dedup=DedupRole.DECIDES)
    assert core.handle(messages.DecisionNeeded("question"), 0.0) == [messages.Decide("question")]


def test_a_record_waiting_for_a_decision_holds_up_all_others() -> None:
    core = solitary()
    assert core.handle(TURNED, 1.0) == [messages.PutQuestion(1, "staged")]
    assert core.handle(TURNED, 1.5) == []
    assert core.wake_at(1.5) == 1.0 + ASK_AGAIN_S
    assert core.handle(TURNED, 1.0 + ASK_AGAIN_S) == [messages.PutQuestion(1, "staged")]
    core.handle(messages.DecisionArrived(1, "kept"), 2.5)
    assert core.handle(TURNED, 2.5) == [messages.ResumeStages("staged", "kept")]
    assert core.handle(messages.BatchDecided("after"), 2.5) == [messages.HoldBatch("after")]
    assert core.reading.pending() == [REST]


def test_a_waiting_record_is_pending_until_its_source_halts() -> None:
    core = solitary()
    assert pending(core, 1) == (ALL,)
    assert pending(core, 2, halt=True) == ()
    core.handle(messages.DecisionArrived(1, "kept"), 2.5)
    assert core.state(2.5, unsent=False) is TaskState.IDLE


def asking_task(count: int = 1, **options: Any) -> TaskCore[str, str]:
    """A source that has asked its decider about the batches "0", "1" and so on."""
    core = source(dedup=DedupRole.ASKS, **options)
    for number in range(count):
        item = Range(FILE.id, 3 * number, 3, 30 * number, 30)
        assert core.handle(messages.BatchRead("batch", item), 0.0) == [messages.RunStages("batch")]
        assert core.handle(messages.BatchProcessed(str(number), kept=True), 0.0) == [
            messages.AskDecider(number + 1, str(number))
        ]
    return core


def test_batches_go_on_in_the_order_in_which_they_were_asked_about() -> None:
    core = asking_task(2, outputs=True)
    core.handle(messages.AnswerArrived(2, "second"), 0.0)
    assert core.handle(TURNED, 0.0) == [messages.ReadNext()], "the first has no answer"
    core.handle(messages.AnswerArrived(1, "first"), 0.0)
    assert core.handle(TURNED, 0.0) == [messages.ResumeStages("0", "first")]
    assert core.handle(messages.BatchDecided("after"), 0.0) == [messages.SendBatch("after", decided=True)]
    assert core.handle(TURNED, 0.0) == [messages.ResumeStages("1", "second")]


def test_a_batch_of_which_no_record_is_left_is_not_asked_about() -> None:
    core = source(dedup=DedupRole.ASKS, outputs=True)
    core.handle(messages.BatchRead("batch", FIRST), 0.0)
    assert core.handle(messages.BatchProcessed("empty", kept=False), 0.0) == [messages.SendBatch("empty")]


def test_a_task_reads_no_further_than_its_questions_may_wait() -> None:
    core = asking_task(WAITING_MAX - 1, outputs=True)
    assert core.state(0.0, unsent=False) is TaskState.READING
    core = asking_task(WAITING_MAX, outputs=True)
    assert core.state(0.0, unsent=False) is TaskState.WAITING
    core.handle(messages.AnswerArrived(1, "first"), 0.0)
    assert core.state(0.0, unsent=False) is TaskState.RESUMING


def test_a_sweep_is_answered_when_no_batch_waits_for_the_decider() -> None:
    core = asking_task(1, sink=HeldBatches[Any, Any](SealPolicy()))
    core.handle(messages.SweepAsked(1), 0.0)
    assert core.handle(TURNED, 0.0) == []
    core.handle(messages.AnswerArrived(1, "answer"), 0.0)
    assert core.handle(TURNED, 0.0) == [messages.ResumeStages("0", "answer")]
    assert core.handle(messages.BatchDecided("after"), 0.0) == [messages.HoldBatch("after")]
    assert core.handle(TURNED, 0.0) == [messages.AnswerSweep(1, (REST,), ())]


def test_a_decided_batch_waits_for_room_in_the_sink() -> None:
    full = HeldBatches[Any, Any](SealPolicy())
    core = asking_task(1, sink=full)
    core.handle(messages.AnswerArrived(1, "answer"), 0.0)
    full.__class__ = type("Full", (HeldBatches,), {"accepts": False})
    assert core.state(0.0, unsent=False) is TaskState.FULL


def test_questions_without_an_answer_are_asked_again_on_a_new_link() -> None:
    core = asking_task(3, outputs=True)
    core.handle(messages.AnswerArrived(2, "second"), 0.0)
    again = [messages.AskDecider(1, "0", again=True), messages.AskDecider(3, "2", again=True)]
    assert core.handle(messages.DeciderJoined(), 0.0) == again
    core.handle(messages.AnswerArrived(2, "another"), 0.0)
    core.handle(messages.AnswerArrived(1, "first"), 0.0)
    core.handle(messages.AnswerArrived(1, "another"), 0.0)
    core.handle(messages.AnswerArrived(9, "of nothing"), 0.0)
    assert [core.asked.take(), core.asked.take()] == [("0", "first"), ("1", "second")], "the first answer counts"


def test_what_a_fenced_decider_does_not_let_through_is_nobodys() -> None:
    core = asking_task(1, outputs=True)
    core.handle(messages.AnswerArrived(1, None), 0.0)
    core.handle(messages.SweepAsked(1), 0.0)
    assert core.handle(TURNED, 0.0) == [messages.SendMarkers(1)]
    assert core.handle(messages.MarkersSent(1), 0.0) == [messages.AnswerSweep(1, (REST,), ())]


def test_a_source_that_halts_drops_what_it_has_read_ahead() -> None:
    core = source()
    core.handle(messages.SweepAsked(1, halt=True), 0.0)
    assert core.handle(TURNED, 0.0) == [messages.DropInput(), messages.AnswerSweep(1, (), ())]


def test_a_sweep_that_another_overtakes_while_its_marker_waits_is_not_answered() -> None:
    core = TaskCore[str, str](7, reads=False, outputs=True)
    core.handle(messages.LinkOpened("in"), 0.0)
    core.handle(messages.FrameArrived("in", 7, 1), 0.0)
    core.handle(messages.SweepAsked(1), 0.0)
    assert core.handle(TURNED, 0.0) == [messages.SendMarkers(1)]
    core.handle(messages.SweepAsked(2), 0.0)
    assert core.handle(TURNED, 0.0) == [messages.ReceiveFrame()]
    core.handle(messages.FrameArrived("in", 7, 2), 0.0)
    assert core.handle(TURNED, 0.0) == [messages.SendMarkers(2)]


@pytest.mark.parametrize("sweep", [None, 1])
def test_a_frame_of_another_epoch_is_refused(sweep: int | None) -> None:
    core = TaskCore[str, str](7, reads=False)
    [refusal] = core.handle(messages.FrameArrived("in", 6, sweep), 0.0)
    assert refusal == messages.RefuseFrame("link in: a frame of epoch 6, this task is of 7")
    assert core.handle(messages.FrameArrived("in", 7, None), 0.0) == [messages.ReceiveBatch()]


def test_a_page_is_listed_before_reading_and_taken_up_again() -> None:
    core = source()
    core.handle(messages.ListAsked(4), 0.0)
    assert core.handle(TURNED, 0.0) == [messages.ListPage(4)]
    core.handle(messages.ListingPaused(), 0.0)
    assert core.handle(TURNED, 0.0) == [messages.ReadNext()]
    assert core.wake_at(0.0) == LISTING_AGAIN_S
    assert core.handle(TURNED, LISTING_AGAIN_S) == [messages.ListPage(4)]
    core.handle(messages.PageListed(last=True), LISTING_AGAIN_S)
    assert core.handle(TURNED, 1.0) == [messages.ReadNext()]


def test_a_task_that_is_stopped_does_nothing_more() -> None:
    core = source()
    core.handle(messages.StopAsked(), 0.0)
    assert core.state(0.0, unsent=True) is TaskState.STOPPED
    assert core.handle(TURNED, 0.0) == []


def test_an_index_that_waits_for_its_epoch_answers_sweeps_alone() -> None:
    core = TaskCore[str, str](7, reads=False, dedup=DedupRole.DECIDES, waits=True)
    assert core.state(0.0, unsent=False) is TaskState.WAITING
    assert core.handle(messages.DecisionNeeded("a record"), 0.0) == [], "it is asked again"
    core.handle(messages.SweepAsked(1), 0.0)
    assert core.handle(messages.Turned(unsent=False), 0.0) == [messages.AnswerSweep(1, (), ())]
    assert core.state(0.0, unsent=False) is TaskState.WAITING
    core.handle(messages.IndexServes(), 0.0)
    assert core.state(0.0, unsent=False) is TaskState.RECEIVING
    assert core.handle(messages.DecisionNeeded("a record"), 0.0) == [messages.Decide("a record")]
