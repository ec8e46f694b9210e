"""What is believed of an event that came by a worker's session: `hearing.py` judges, by what the runs know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.controller.core.cluster import event_checks
from headrace.controller.core.cluster.claims import Claims
from headrace.controller.core.cluster.event_checks import Born, Said
from headrace.controller.core.messages import TaskExited, TaskFailed
from headrace.controller.core.run import Run


class Witness:
    """Judges what workers say, by the runs and the claims of one controller."""

    def __init__(self, runs: Mapping[str, Run], claims: Claims) -> None:
        self._runs, self._claims = runs, claims

    def hear(self, worker: str, event: Said) -> tuple[Said | None, str]:
        """What is believed of an event that came by a worker's session, and why that is not what it said, if so.

        Nothing is believed of another's attempt. An attempt that says what cannot be has failed; that it has ended is
        believed all the same.
        """
        if refused := self.stranger(worker, event.task, event.attempt):
            return None, refused
        run, born = self._born(event.task, event.attempt)
        wrong = event_checks.fault(event, born, run) if run is not None and born is not None and not run.ended else ""
        if not wrong:
            return event, ""
        why = f"task {event.task} of worker {worker} says what cannot be: {wrong}"
        if isinstance(event, TaskExited):
            return replace(event, in_hand=(), story=why, killed_for=""), why
        return TaskFailed(event.task, event.attempt, why, final=False), why

    def stranger(self, worker: str, task: str, attempt: int) -> str:
        """Why a worker may not speak for an attempt; empty if it may."""
        if self._claims.holds(worker, task, attempt):
            return ""
        _, born = self._born(task, attempt)
        return event_checks.stranger(worker, task, attempt, born)

    def _born(self, task: str, attempt: int) -> tuple[Run | None, Born | None]:
        run = self._runs.get(task.split("/", 1)[0])
        return run, run.crew.born(task, attempt) if run is not None and run.crew is not None else None
