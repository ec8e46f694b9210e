"""Defects of tasks: in their core, in how they ask a decider, and in how it asks its partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import structs

from headrace.chaos.sim.planting import Patch, around, says
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


def _asked_once(handled: Any, self: TaskCore[Any, Any], event: Any, now: float) -> list[Any]:
    return [] if isinstance(event, messages.DeciderJoined) else handled(self, event, now)


def _fenced_lets_all_through(heard: Any, self: AskedBatches[Any], number: int, answer: Any) -> None:
    heard(self, number, self._batches.get(number) if answer is None else answer)


def _whatever_its_number(heard: Any, self: AskedBatches[Any], number: int, answer: Any) -> None:
    heard(self, next((number for number, _ in self.unanswered()), number), answer)


def _first_answer_for_all(answer_taken: Any, self: _Requests, partition: int, number: int, answer: Any) -> Any:
    found = answer_taken(self, partition, number, answer)
    if found is None and number == self.number and self.unanswered():
        found = [answer] * self._partitions
        self._answers = dict(enumerate(found))
    return found


_Requests = partitions.OpenRequests[Any, Any]


def _fenced_partition_served(self: TaskCore[Any, Any]) -> list[Any]:
    waiting = self.asked.unanswered()
    for number, _ in waiting:
        self.asked.answered(number, [])
    return []


def _fenced_unsaid(swept: Any, self: TaskCore[Any, Any], sweep: int) -> list[Any]:
    (answer,) = swept(self, sweep)
    assert isinstance(answer, messages.AnswerSweep)
    return [structs.replace(answer, fenced=False)]


def _any_request_again(self: partitions.ServedRequest[Any], number: int) -> Any:
    return self._answer and self._answer._replace(number=number)


def _asked_of_the_first(passed_on: Any, self: proposals.Proposals, event: Any) -> Any:
    if isinstance(event, DecisionAsked):
        event = structs.replace(event, question=structs.replace(event.question, stage=DEDUPS[0]))
    return passed_on(self, event)


def _all_that_passed(self: Part) -> int:
    return (self.kept | self.other) & ~self.quarantined


def _serving_at_once(made: Any, self: TaskCore[Any, Any], epoch: int, **options: Any) -> None:
    made(self, epoch, **{**options, "waits": False})


def _as_of_its_number(told_to_serve: Any, self: RunTasks, _position: int) -> Any:
    return told_to_serve(self, self.ahead)


def _first_page_only(noted: Any, self: TaskCore[Any, Any], event: Any, now: float) -> None:
    noted(self, messages.PageListed(last=True) if isinstance(event, messages.PageListed) else event, now)


def _pending_untold(answered: Any, self: TaskCore[Any, Any], sweep: int) -> list[Any]:
    commands = answered(self, sweep)
    return [structs.replace(item, pending=()) if isinstance(item, messages.AnswerSweep) else item for item in commands]


def _unheard(kind: type[Any]) -> Callable[..., None]:
    return lambda noted, self, event, now: None if isinstance(event, kind) else noted(self, event, now)


def _all_of_it(_self: HeldBatches[Any, Any], item: Range) -> tuple[Range, ...]:
    return (item,)


#: Mutants by name: what is patched with what.
MUTANTS: dict[str, tuple[Patch, ...]] = {
    "frame-epoch-not-looked-at": ((task_core, "epoch_fault", says("")),),
    "full-sink-fed": ((task_core, "ORDER", tuple(row for row in ORDER if row[0] is not TaskState.FULL)),),
    "pending-untold": (around(TaskCore, "_swept", _pending_untold),),
    "gone-link-awaited": (around(TaskCore, "_note", _unheard(messages.InputClosed)),),
    "link-not-awaited": (around(TaskCore, "_note", _unheard(messages.LinkOpened)),),
    "listing-ends-with-a-page": (around(TaskCore, "_note", _first_page_only),),
    "held-batch-taken-again": ((HeldBatches, "missing", _all_of_it),),
    "nobody-asks": ((TaskCore, "_processed", _unasked_alone),),
    "fenced-decider-fed": ((TaskCore, "_begin", _batch_not_told_from_fenced),),
    "question-asked-once": (around(TaskCore, "handle", _asked_once),),
    "fenced-answer-lets-through": (around(AskedBatches, "answered", _fenced_lets_all_through),),
    "answer-without-number": (around(AskedBatches, "answered", _whatever_its_number),),
    "partition-not-awaited": (around(partitions.OpenRequests, "answered", _first_answer_for_all),),
    "fenced-decider-unsaid": (around(TaskCore, "_swept", _fenced_unsaid),),
    "fenced-partition-served": ((TaskCore, "_fence", _fenced_partition_served),),
    # Of several dedup stages.
    "first-stage-decides-alone": (around(proposals.Proposals, "passed_on", _asked_of_the_first),),
    "duplicate-named-in-its-shard": ((Part, "standing", property(_all_that_passed)),),
    # Of an index that waits for its epoch.
    "index-serves-before-its-epoch": (around(TaskCore, "__init__", _serving_at_once),),
    "index-serves-without-the-last-kept": (around(RunTasks, "serve", _as_of_its_number),),
    "request-taken-for-a-repeat": ((partitions.ServedRequest, "again", _any_request_again),),
}
