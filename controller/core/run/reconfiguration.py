"""A run that is paused, resumed or reconfigured while it lives: scaled, moved, relinked, drained from a worker.

Each is one manoeuvre, seal before fence. Sources let go of what they have not sent, a marker sweeps the links after it,
and the sinks commit what they hold. Then nothing is on its way, and the plan may change: tasks that it keeps run on,
those that it does not keep end, new ones start. What is open is read by the tasks that are there then, and nothing is
read twice. The graph stays as it was, so no epoch is raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from headrace.controller.core.messages import Command, PipelineRequested, SteerRequested
from headrace.controller.core.plan import Change, Plan, RequestedChanges, move, plan
from headrace.controller.core.run.input import Intake, Listing
from headrace.controller.core.run.tasks import RunTasks, Workers
from headrace.pipeline import Pipeline, PipelineError
from headrace.store import counted
from headrace.store.ledger import LedgerState


class Reconfiguration:
    """What people requested of a run's plan, and the plans that it leads to."""

    def __init__(
        self,
        request: PipelineRequested,
        requested: RequestedChanges,
        pipeline: Pipeline,
        ledger: LedgerState,
        workers: Workers,
        intake: Intake,
        listing: Listing,
    ) -> None:
        self._pipeline, self._ledger, self._workers = pipeline, ledger, workers
        self._intake, self._listing = intake, listing
        self._fuse, self._replicas = request.fuse, request.replicas
        self._places = {**request.places, **requested.made.places}
        self._transports = {**request.transports, **requested.made.transports}
        self._counts = dict(requested.made.replicas)
        self.pause_wanted = requested.pause
        #: Changes that wait, in this order; why the last one was not made.
        self.waiting: list[Change] = list(requested.waiting)
        self.refused = ""
        #: Whether each change that people requested was made, the oldest first; the cluster's log takes them.
        self.outcomes: list[bool] = []

    def considered(self, event: SteerRequested, tasks: RunTasks | None, state: str) -> Change:
        """The change that a request asks of the plan. PipelineError, with the reason, where no plan can hold it."""
        self._check_links(tasks, event.transports)
        change = self._whole_chains(tasks, Change(event.replicas, event.places, event.transports))
        if not change.empty:
            self._planned_with(change, tasks, state)
        return change

    def take(self, pause: bool | None, change: Change) -> None:
        """A request was judged: remember it until nothing is on its way."""
        if pause is not None:
            self.pause_wanted = pause
        if not change.empty:
            self.waiting.append(change)

    def leave(self, worker: str) -> None:
        """Have no task on a worker any more."""
        self.waiting.append(Change(leave=worker))

    def why_not_without(self, worker: str, tasks: RunTasks) -> str:
        """Why this run's tasks cannot leave a worker; empty if they can."""
        try:
            self._planned_with(Change(leave=worker), tasks)
        except PipelineError as error:
            return f"pipeline {self._pipeline.name!r}: {error}"
        return ""

    def plan(
        self,
        tasks: RunTasks | None = None,
        counts: Mapping[str, int] | None = None,
        places: Mapping[str, str] | None = None,
        transports: Mapping[str, str] | None = None,
    ) -> Plan:
        """The plan as it was requested so far, and with these requests. PipelineError if the workers cannot hold it."""
        return plan(
            self._pipeline,
            self._workers.fit(),
            fuse=self._fuse,
            replicas=self._replicas,
            places={**self._places, **(places or {})},
            transports={**self._transports, **(transports or {})},
            counts={**self._counts, **(counts or {})},
            current=tasks.plan if tasks else None,
            taken=self._workers.reserved(),
        )

    def change_all(self, tasks: RunTasks, now: float) -> list[Command]:
        """Nothing is on its way: make the changes that wait."""
        commands: list[Command] = []
        while self.waiting:
            commands += self._change(self.waiting.pop(0), tasks, now)
        return commands

    def renew(self, tasks: RunTasks, now: float) -> list[Command]:
        """The epoch was raised and nothing is on its way: start every task anew."""
        stops, gone = tasks.renew(now, "the epoch was raised")
        return [*stops, *self._started_anew(tasks, gone, now)]

    def _change(self, change: Change, tasks: RunTasks, now: float) -> list[Command]:
        """Replace the plan."""
        try:
            made = self._planned_with(change, tasks)
        except PipelineError as error:
            # The workers could hold it when it was requested; some have gone since.
            self.refused = f"{change.words()}: {error}"
            self.outcomes += [] if change.leave else [False]
            return []
        self.outcomes += [] if change.leave else [True]
        self.refused = ""
        self._counts |= change.replicas
        self._places |= change.places
        self._transports |= change.transports
        stops, gone = tasks.change(made, now, change.words())
        return [*stops, *self._started_anew(tasks, gone, now)]

    def _started_anew(self, tasks: RunTasks, gone: Iterable[str], now: float) -> list[Command]:
        for name in gone:
            self._intake.task_died(name)
            self._listing.task_died(name)
        return tasks.start_due(now, self._ledger.epoch, self._workers.present)

    def _planned_with(self, change: Change, tasks: RunTasks | None, state: str = "") -> Plan:
        """The plan that a change leads to. PipelineError, with the reason, if the workers cannot hold it."""
        if tasks is None:
            raise PipelineError(f"pipeline {self._pipeline.name!r} is {state} and has no tasks yet: try again")
        if not change.leave:
            return self.plan(tasks, change.replicas, change.places, change.transports)
        staying = [worker for worker in self._workers.fit() if worker.name != change.leave]
        made = move(tasks.plan, change.leave, staying, self._workers.reserved())
        if left := [task for task in made.tasks if task.worker == change.leave]:
            where = f", which is placed on {left[0].place!r}" if left[0].place else ""
            stuck = counted(len(left), "task has", "tasks have")
            raise PipelineError(
                f"{stuck} nowhere else to go, such as {left[0].name}{where}: "
                f"no other worker may have it and has {left[0].need} left"
            )
        return made

    def _check_links(self, tasks: RunTasks | None, stages: Iterable[str]) -> None:
        """PipelineError for a stage that no link leads to, because it is fused with the one before it."""
        for task in tasks.plan.tasks if tasks else ():
            for stage in stages:
                if not task.alone and stage in task.stages[1:]:
                    before = task.stages[task.stages.index(stage) - 1]
                    raise PipelineError(
                        f"stage {stage!r} is fused with {before!r} before it: no link joins them; give it a place of "
                        f"its own with `headrace move {self._pipeline.name} {stage} WORKER`, or stop the run and apply "
                        f"it again with --transport {stage}=KIND or --no-fuse: what is closed stays closed"
                    )

    def _whole_chains(self, tasks: RunTasks | None, change: Change) -> Change:
        """Stages that are fused are scaled together; one that decides stays alone."""
        if not change.replicas:
            return change
        decides = self._pipeline.stateful.name if self._pipeline.stateful is not None else ""
        known = [stage.name for stage in self._pipeline.stages]
        counts: dict[str, int] = {}
        for stage, count in change.replicas.items():
            if stage not in known:
                raise PipelineError(
                    f"pipeline {self._pipeline.name!r} has no stage {stage!r}; it has {', '.join(known)}"
                )
            if stage == decides and count != 1:
                raise PipelineError(f"stage {stage!r}: {count} tasks were asked for; one decides, so there is one")
            if count < 1:
                raise PipelineError(
                    f"stage {stage!r}: {count} tasks were asked for; for none there is `headrace pause`"
                )
            planned = tasks.plan.tasks if tasks else ()
            chain = next((task.stages for task in planned if not task.alone and stage in task.stages), (stage,))
            counts |= dict.fromkeys(chain, count)
        return replace(change, replicas=counts)
