"""Defects of tasks: in their core, in how they ask a decider, and in how it asks its partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace.chaos.sim.world import DEDUPS, Part
from headrace.controller.core.messages import DecisionAsked
from headrace.controller.core.run import proposals
from headrace.controller.core.run.tasks import RunTasks
from headrace.stages.dedup import partitions
from headrace.store.ledger import Range
from headrace.worker.task import ORDER, AskedBatches, HeldBatches, TaskCore, TaskState, messages, task_core


def _batch_not_told_from_fenced(self: TaskCore[Any, Any], batch: Any, item: Range | None) -> list[Any]:
    self._item = item
    return [messages.RunStages(batch)]


def _unasked_alone(self: TaskCore[Any, Any], event: messages.BatchProcessed[Any], _now: float) -> list[Any]:
    return self._pass_on(event.batch)


def _asked_once(self: TaskCore[Any, Any], event: Any, now: float) -> list[Any]:
    return [] if isinstance(event, messages.DeciderJoined) else _handled(self, event, now)


_handled = TaskCore.handle


def _fenced_lets_all_through(self: AskedBatches[Any], number: int, answer: Any) -> None:
    _heard(self, number, self._batches.get(number) if answer is None else answer)


def _whatever_its_number(self: AskedBatches[Any], number: int, answer: Any) -> None:
    _heard(self, next((number for number, _ in self.unanswered()), number), answer)


_heard = AskedBatches.answered


def _first_answer_for_all(self: _Requests, partition: int, number: int, answer: Any) -> list[Any] | None:
    found = _answer_taken(self, partition, number, answer)
    if found is None and number == self.number and self.unanswered():
        found = [answer] * self._partitions
        self._answers = dict(enumerate(found))
    return found


_Requests = partitions.OpenRequests[Any, Any]
_answer_taken = partitions.OpenRequests.answered


def _fenced_partition_served(self: TaskCore[Any, Any]) -> list[Any]:
    waiting = self.asked.unanswered()
    for number, _ in waiting:
        self.asked.answered(number, [])
    return []


def _fenced_unsaid(self: TaskCore[Any, Any], sweep: int) -> list[Any]:
    (answer,) = _swept(self, sweep)
    assert isinstance(answer, messages.AnswerSweep)
    return [replace(answer, fenced=False)]


_swept = TaskCore._swept


def _any_request_again(self: partitions.ServedRequest[Any], number: int) -> Any:
    return self._answer and self._answer._replace(number=number)


def _asked_of_the_first(self: proposals.Proposals, event: Any) -> list[Any]:
    if isinstance(event, DecisionAsked):
        event = replace(event, question=replace(event.question, stage=DEDUPS[0]))
    return _passed_on(self, event)


_passed_on = proposals.Proposals.passed_on


def _all_that_passed(self: Part) -> int:
    return (self.kept | self.other) & ~self.quarantined


def _serving_at_once(self: TaskCore[Any, Any], epoch: int, **options: Any) -> None:
    _made(self, epoch, **{**options, "waits": False})


_made = TaskCore.__init__


def _as_of_its_number(self: RunTasks, _position: int) -> list[Any]:
    return _told_to_serve(self, self.ahead)


_told_to_serve = RunTasks.serve


def _no_epoch_fault(*_arguments: Any) -> str:
    return ""


def _first_page_only(self: TaskCore[Any, Any], event: Any, now: float) -> None:
    _noted(self, messages.PageListed(last=True) if isinstance(event, messages.PageListed) else event, now)


_noted = TaskCore._note


def _pending_untold(self: TaskCore[Any, Any], sweep: int) -> list[Any]:
    commands = _answered(self, sweep)
    return [replace(item, pending=()) if isinstance(item, messages.AnswerSweep) else item for item in commands]


_answered = TaskCore._swept


def _unheard(kind: type[Any]) -> Callable[..., None]:
    return lambda self, event, now: None if isinstance(event, kind) else _noted(self, event, now)


def _all_of_it(_self: HeldBatches[Any, Any], item: Range) -> tuple[Range, ...]:
    return (item,)


#: Mutants by name: what is patched with what.
MUTANTS: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "frame-epoch-not-looked-at": ((task_core, "epoch_fault", _no_epoch_fault),),
    "full-sink-fed": ((task_core, "ORDER", tuple(row for row in ORDER if row[0] is not TaskState.FULL)),),
    "pending-untold": ((TaskCore, "_swept", _pending_untold),),
    "gone-link-awaited": ((TaskCore, "_note", _unheard(messages.InputClosed)),),
    "link-not-awaited": ((TaskCore, "_note", _unheard(messages.LinkOpened)),),
    "listing-ends-with-a-page": ((TaskCore, "_note", _first_page_only),),
    "held-batch-taken-again": ((HeldBatches, "missing", _all_of_it),),
    "nobody-asks": ((TaskCore, "_processed", _unasked_alone),),
    "fenced-decider-fed": ((TaskCore, "_begin", _batch_not_told_from_fenced),),
    "question-asked-once": ((TaskCore, "handle", _asked_once),),
    "fenced-answer-lets-through": ((AskedBatches, "answered", _fenced_lets_all_through),),
    "answer-without-number": ((AskedBatches, "answered", _whatever_its_number),),
    "partition-not-awaited": ((partitions.OpenRequests, "answered", _first_answer_for_all),),
    "fenced-decider-unsaid": ((TaskCore, "_swept", _fenced_unsaid),),
    "fenced-partition-served": ((TaskCore, "_fence", _fenced_partition_served),),
    # Of several dedup stages.
    "first-stage-decides-alone": ((proposals.Proposals, "passed_on", _asked_of_the_first),),
    "duplicate-named-in-its-shard": ((Part, "standing", property(_all_that_passed)),),
    # Of an index that waits for its epoch.
    "index-serves-before-its-epoch": ((TaskCore, "__init__", _serving_at_once),),
    "index-serves-without-the-last-kept": ((RunTasks, "serve", _as_of_its_number),),
    "request-taken-for-a-repeat": ((partitions.ServedRequest, "again", _any_request_again),),
}
