"""A run that is paused, resumed, or changed while it lives: scaled, moved, relinked, drained from a worker.

All of it is one manoeuvre, seal before fence. Sources let go of what they have not sent, a marker sweeps the links
behind what they have, and the sinks commit what they hold. Then nothing is on its way, and the plan may be another one:
tasks that it keeps run on, those that it does not keep end, new ones start. What is open is read by whoever is there
then, and nothing is read twice. The graph stays what it was, so no epoch is raised.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headrace.controller.core.messages import AnswerRequest, Command, SteerAdmitted, SteerRequested, WorkerDrained
from headrace.controller.core.plan import Change, Plan, move
from headrace.controller.core.run.run_base import WORKING
from headrace.controller.core.run.run_opening import Opening
from headrace.controller.core.run.run_states import RunState, RunTurn
from headrace.pipeline import PipelineError
from headrace.store import counted
from headrace.store.ledger import EpochRaised


class Changes(Opening):
    """Pauses, and other plans for the same pipeline."""

    def considered(self, event: SteerRequested) -> Change:
        """What a wish asks of the plan. PipelineError, with the reason, where the run or every plan is against it."""
        if self.state is RunState.DRAINING or self.state not in (RunState.OPENING, *WORKING):
            raise PipelineError(f"pipeline {self.pipeline.name!r} is {self.state.value}")
        self._check_links(event.transports)
        change = self._whole_chains(Change(event.replicas, event.places, event.transports))
        if not change.empty:
            self._planned_with(change)
        return change

    def _steer(self, event: SteerRequested) -> list[Command]:
        """Somebody wants the run paused, resumed or changed; refused at once where no plan can hold the change."""
        try:
            change = self.considered(event)
        except PipelineError as error:
            return [AnswerRequest(event.request, accepted=False, reason=str(error))]
        return self._see_to(SteerAdmitted(event.request, event.pipeline, event.pause, change))

    def _see_to(self, wish: SteerAdmitted) -> list[Command]:
        """A wish was judged: take it up, and answer."""
        if wish.pause is not None:
            self.pause_wanted = wish.pause
        if not wish.change.empty:
            self.changes.append(wish.change)
        words = () if wish.change.empty else (wish.change.words(),)
        return [AnswerRequest(wish.request, accepted=True, warnings=words)]

    def why_not_without(self, worker: str) -> str:
        """Why this run's tasks cannot leave a worker; empty if they can."""
        if self.crew is None or self.state not in WORKING:
            return ""
        try:
            self._planned_with(Change(leave=worker))
        except PipelineError as error:
            return f"pipeline {self.pipeline.name!r}: {error}"
        return ""

    def _leave(self, event: WorkerDrained) -> list[Command]:
        """Have no task on a worker any more; `why_not_without` was asked before."""
        if self.crew is not None and any(task.worker == event.worker for task in self.crew.plan.tasks):
            self.changes.append(Change(leave=event.worker))
        return []

    def _change_if_due(self, now: float) -> list[Command]:
        assert self.crew is not None
        if self.state is RunState.RUNNING and (self.pause_wanted or self.changes or self.crew.index_lost):
            self._turn(RunTurn.PAUSE_ASKED)
            self._halt()
        elif self.state is RunState.PAUSING and self._empty:
            self._turn(RunTurn.SINKS_EMPTY)
        if self.state is not RunState.PAUSED or not self._empty:
            # After a death a marker that halts is on its way: it must not meet what is read again.
            return []
        commands: list[Command] = []
        if self.crew.index_lost:
            commands = self._renew(now)
            if self.crew.index_lost:
                return commands
        while self.changes:
            commands += self._change(self.changes.pop(0), now)
        if not self.pause_wanted:
            self._turn(RunTurn.RESUME_ASKED)
            self.intake.begin_again()
            self._settled = False
        return commands

    def _renew(self, now: float) -> list[Command]:
        """Nothing is on its way: raise the epoch for a new index, and when that is durable begin anew in it."""
        assert self.crew is not None
        if self._renewed_from is None:
            self._renewed_from = self.ledger.epoch
            self.leadership.submit(EpochRaised("the dedup index begins anew"))
        if self.ledger.epoch == self._renewed_from:
            return []
        self._renewed_from = None
        stops, gone = self.crew.renew(now, "the epoch was raised")
        for name in gone:
            self.intake.task_died(name)
            self.listing.task_died(name)
        return [*stops, *self.crew.start_due(now, self.ledger.epoch, self._workers)]

    def _change(self, change: Change, now: float) -> list[Command]:
        """Nothing is on its way: put the other plan in the place of this one."""
        assert self.crew is not None
        try:
            made = self._planned_with(change)
        except PipelineError as error:
            # It could be held when it was asked for; workers have gone since.
            self.refused_change = f"{change.words()}: {error}"
            self.seen_to += [] if change.leave else [False]
            return []
        self.seen_to += [] if change.leave else [True]
        self.refused_change = ""
        self._counts |= change.replicas
        self._places |= change.places
        self._transports |= change.transports
        stops, gone = self.crew.change(made, now, change.words())
        self.plan = made
        for name in gone:
            self.intake.task_died(name)
            self.listing.task_died(name)
        return [*stops, *self.crew.start_due(now, self.ledger.epoch, self._workers)]

    def _planned_with(self, change: Change) -> Plan:
        """The plan that a change leads to. PipelineError, with the reason, if the workers cannot hold it."""
        if self.crew is None:
            raise PipelineError(
                f"pipeline {self.pipeline.name!r} is {self.state.value} and has no tasks yet: try again"
            )
        current = self.crew.plan
        if change.leave:
            staying = [worker for worker in self._fit_workers() if worker.name != change.leave]
            made = move(current, change.leave, staying, self._beside())
            if left := [task for task in made.tasks if task.worker == change.leave]:
                where = f", which is placed on {left[0].place!r}" if left[0].place else ""
                stuck = counted(len(left), "task has", "tasks have")
                raise PipelineError(
                    f"{stuck} nowhere else to go, such as {left[0].name}{where}: "
                    f"no other worker may have it and has {left[0].need} left"
                )
            return made
        return self._plan(change.replicas, change.places, change.transports)

    def _check_links(self, stages: Iterable[str]) -> None:
        """PipelineError for a stage that no link leads to, because it is fused with the one before it."""
        for task in self.crew.plan.tasks if self.crew else ():
            for stage in stages:
                if not task.alone and stage in task.stages[1:]:
                    before = task.stages[task.stages.index(stage) - 1]
                    raise PipelineError(
                        f"stage {stage!r} is fused with {before!r} before it: no link joins them; give it a place of "
                        f"its own with `headrace move {self.pipeline.name} {stage} WORKER`, or stop the run and apply "
                        f"it again with --transport {stage}=KIND or --no-fuse: what is closed stays closed"
                    )

    def _whole_chains(self, change: Change) -> Change:
        """Stages that are fused are scaled together, but for one that decides: it is fused no more."""
        if not change.replicas:
            return change
        decides = self.pipeline.stateful.name if self.pipeline.stateful is not None else ""
        known = [stage.name for stage in self.pipeline.stages]
        counts: dict[str, int] = {}
        for stage, count in change.replicas.items():
            if stage not in known:
                raise PipelineError(
                    f"pipeline {self.pipeline.name!r} has no stage {stage!r}; it has {', '.join(known)}"
                )
            if stage == decides and count != 1:
                raise PipelineError(f"stage {stage!r}: {count} tasks were asked for; one decides, so there is one")
            if count < 1:
                raise PipelineError(
                    f"stage {stage!r}: {count} tasks were asked for; for none there is `headrace pause`"
                )
            tasks = self.crew.plan.tasks if self.crew else ()
            chain = next((task.stages for task in tasks if not task.alone and stage in task.stages), (stage,))
            counts |= dict.fromkeys((name for name in chain if name != decides), count)
        return replace(change, replicas=counts)
