"""What kills in a pipeline with dedup: its solitary task asks the decider by way of the controller."""

from dataclasses import replace

import pytest
from msgspec import structs

from headrace.controller.core.messages import messages as m
from headrace.controller.core.messages.dedup import (
    AnswerDecision,
    AskDecision,
    Decision,
    DecisionAsked,
    DecisionMade,
    Question,
)
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.store.ledger.core.fragments import Range
from tests.controller.core.run.test_needs import DEDUP, READ, begun, pipeline, swept
from tests.kits.controller.core import Stand, fragment, of

A = fragment(0)
QUESTION = Question(1, A.id, 3, b"keys", "dedup")
ANSWER = Decision(1, (A.id, 2))


def solitary(stand: Stand, of_pipeline: Pipeline | None = None) -> m.StartTask:
    """A record of a run with a decider hung in its source; the solitary task that takes it up."""
    begun(stand, of_pipeline)
    hand = m.InHand("read", Range(A.id, 3, 1))
    stand.tell(m.TaskExited(*stand.task(READ), -9, in_hand=(hand,), killed_for="it did not return"))
    looked = swept(stand, stand.ready(stand.later(1.0)))
    (start,) = of(m.StartTask, [*looked, *stand.later(0.1)])
    assert start.alone
    assert of_pipeline is not None or start.stages == ("read", "dedup", "write")
    assert not start.fenced
    orders = of(m.ReadFragment, stand.tell(m.TaskReady(start.task, start.attempt)))
    assert [(order.task, order.fragment.id) for order in orders] == [(start.task, A.id)]
    return start


def test_a_question_goes_to_the_decider_and_its_answer_to_who_asked() -> None:
    stand = Stand()
    start = solitary(stand)
    asking_task, decider = (start.task, start.attempt), stand.task(DEDUP)
    assert stand.tell(DecisionAsked(*asking_task, QUESTION)) == [AskDecision("w1", *decider, *asking_task, QUESTION)]
    assert stand.tell(DecisionMade(*decider, *asking_task, ANSWER)) == [AnswerDecision("w1", *asking_task, ANSWER)]


def test_of_two_deciders_each_is_asked_what_is_for_it() -> None:
    before = [replace(stage, after=()) for stage in pipeline().stages]
    again = (Stage("again", StageKind.TRANSFORM, "m:again"), replace(before[1], name="second"))
    stand = Stand()
    start = solitary(stand, Pipeline.chain("run", "file:///data", *before[:2], *again, before[2]))
    assert start.stages == ("read", "dedup", "again", "second", "write")
    asking_task = start.task, start.attempt
    for stage in ("dedup", "second"):
        (decider,) = (task for task in stand.run.tasks or () if task.plan.stages == (stage,))
        place, question = (decider.plan.name, decider.attempt), structs.replace(QUESTION, stage=stage)
        assert stand.tell(DecisionAsked(*asking_task, question)) == [AskDecision("w1", *place, *asking_task, question)]
        assert stand.tell(DecisionMade(*place, *asking_task, ANSWER)) == [AnswerDecision("w1", *asking_task, ANSWER)]
    assert stand.tell(DecisionAsked(*asking_task, structs.replace(QUESTION, stage="again"))) == []
    assert stand.tell(DecisionMade(*asking_task, *asking_task, ANSWER)) == []


def test_what_the_dead_ask_or_answer_is_not_passed_on() -> None:
    stand = Stand()
    start = solitary(stand)
    (name, attempt), decider = (start.task, start.attempt), stand.task(DEDUP)
    assert stand.tell(DecisionAsked(name, attempt + 1, QUESTION)) == []
    assert stand.tell(DecisionMade(*decider, name, attempt + 1, ANSWER)) == []
    stand.tell(m.TaskExited(*decider, -9))
    assert stand.tell(DecisionAsked(name, attempt, QUESTION)) == []
    assert stand.tell(DecisionMade(*decider, name, attempt, ANSWER)) == []


def test_a_solitary_task_is_no_index_whose_death_raises_the_epoch() -> None:
    stand = Stand()
    start = solitary(stand)
    epoch = stand.run.ledger.epoch
    stand.tell(m.TaskExited(start.task, start.attempt, -11, in_hand=(m.InHand("write", Range(A.id, 3, 1)),)))
    (again,) = of(m.StartTask, stand.later(1.0))
    assert (again.task, again.fenced) == (start.task, False)
    assert stand.run.tasks is not None
    assert (stand.run.tasks.index.lost, stand.run.ledger.epoch) == (False, epoch)


def test_a_decider_killed_by_a_record_has_it_condemned() -> None:
    stand = Stand()
    solitary(stand)
    hand = m.InHand("dedup", Range(A.id, 3, 1))
    for death in (1, 2):
        stand.tell(m.TaskExited(*stand.task(DEDUP), -11, in_hand=(hand,)))
        poison = stand.run.intake.suspicion.poison(A.id)
        assert [(item.ordinal, item.stage) for item in poison] == [(3, "dedup")] * (death - 1)
        stand.ready(stand.later(5.0))


@pytest.mark.parametrize(
    ("dies", "hands"),
    [
        (DEDUP, [("dedup", 3, 4)]),
        (DEDUP, [("dedup", 3, 1), ("dedup", 5, 1)]),
        (READ, [("read", 3, 1)]),
    ],
    ids=["of several records", "of several ranges", "of no question"],
)
def test_who_died_of_more_than_one_question_condemns_nothing(dies: str, hands: list[tuple[str, int, int]]) -> None:
    stand = Stand()
    solitary(stand)
    in_hand = tuple(m.InHand(stage, Range(A.id, first, count)) for stage, first, count in hands)
    for _ in range(2):
        stand.tell(m.TaskExited(*stand.task(dies), -11, in_hand=in_hand))
        stand.ready(stand.later(5.0))
    suspicion = stand.run.intake.suspicion
    assert suspicion.poison(A.id) == ()
    suspects = suspicion.of(A.id)
    assert suspects is not None
    assert [bool(suspects.overlap(first, first + count)) for _, first, count in hands] == [True] * len(hands)
    assert sum(end - first for first, end in suspects) == sum(count for _, _, count in hands)
