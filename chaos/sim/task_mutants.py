"""Defects of a task's core (`worker/task/core/task.py`), for `headrace.chaos.sim.mutants`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace.store.ledger import Range
from headrace.worker.task import ORDER, HeldBatches, TaskCore, TaskState, messages, task_core


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
}
