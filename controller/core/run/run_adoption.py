"""A run that goes on under a new leader: tasks that live are taken up, and those of absent workers are waited for.

What the earlier leader had handed out, nobody here knows. So nothing is handed out before a sweep has been through all
tasks: then sources have said what they were given, and sinks what they hold.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.controller.core.messages import Command, KillTask, WorkerLost
from headrace.controller.core.plan import Change, Plan
from headrace.controller.core.run.run_base import WORKING
from headrace.controller.core.run.run_tasks import Tasks
from headrace.controller.core.run.tasks import TaskState

#: Seconds that the workers of an inherited plan have to come back before their tasks are planned elsewhere.
REJOIN_S = 8.0
#: Sweeps and listings in one term: those of a later leader have higher numbers.
NUMBERS_A_TERM = 1 << 20


def without_solitary(plan: Plan) -> Plan:
    """The plan as it was before anything was suspect: what the earlier leader suspected is not known here."""
    return replace(plan, tasks=tuple(task for task in plan.tasks if not task.alone))


class Adoption(Tasks):
    """From an earlier leader's tasks to this one's."""

    def _inherit(self, now: float) -> list[Command]:
        """The crew is there and nothing is started yet: take up what lives, and wait for what may."""
        assert self.crew is not None
        first = self.leadership.term * NUMBERS_A_TERM
        self.listing.number = self.intake.sweep = first
        planned = {task.plan.worker for task in self.crew}
        # A drain that an earlier leader was asked for and did not see to.
        self.changes += [Change(leave=worker) for worker in sorted(planned & set(self._drained))]
        commands: list[Command] = []
        # Also of workers that the plan does not name: what they have of this run nobody would end otherwise.
        for worker in sorted(self._workers):
            commands += self._adopt(worker, now)
        away = planned - self._workers.keys()
        if away and self._inherited is not None:
            self._rejoin_at = now + REJOIN_S
        if self._rejoin_at is not None or any(task.state is not TaskState.WAITING for task in self.crew):
            self.intake.inherit()
            self.crew.joints.inherit(self.leadership.term)
            self._dirty = True
        return commands

    def _adopt(self, worker: str, now: float) -> list[Command]:
        """Go on with the tasks of one worker that fit the plan; end those that do not."""
        assert self.crew is not None
        claim = self._claims.take(self.pipeline.name, worker)
        self.crew.joints.claim(self.crew.plan, worker, claim.links)
        born = self.version, self.ledger.epoch
        fit = {name: item for (name, _), item in sorted(claim.tasks.items()) if (item.version, item.epoch) == born}
        for task in self.crew.waiting_on(worker):
            found = fit.get(task.plan.name)
            if found is not None and self.crew.adopt(task, found, now):
                self.intake.distrust()
        commands: list[Command] = []
        for item in claim.tasks.values():
            current = self.crew.current(item.task, item.attempt)
            if current is None or current.plan.worker != worker:
                commands.append(KillTask(worker, item.task, item.attempt, "another attempt takes its place"))
        return commands

    def _rejoin_over(self, now: float) -> list[Command]:
        """Whoever has not come back by now is lost."""
        if self._rejoin_at is None or self.crew is None or self.state not in WORKING:
            return []
        away = {task.plan.worker for task in self.crew} - self._workers.keys()
        if away and now < self._rejoin_at:
            return []
        self._rejoin_at = None
        commands: list[Command] = []
        for worker in sorted(away):
            commands += self._worker_lost(WorkerLost(worker, "it did not come back to the new leader"), now)
        return commands
