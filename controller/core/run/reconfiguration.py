"""What people want of a run while it lives: paused, resumed, scaled, moved, relinked, drained from a worker.

A change of the plan needs no pause where the stages that remember keep their tasks, and the workers have the memory for
what leaves and what comes: the next tasks start beside those in force (`Amendment`, docs/design/surgery.md). Else, and
where the run stands still, it is one manoeuvre, seal before fence. Sources let go of what they have not sent, a marker
sweeps the links after it, and the sinks commit what they hold. Then nothing is on its way, and the plan may change:
tasks that it keeps run on, those that it does not keep end, new ones start. What is open is read by the tasks that are
there then, and nothing is read twice. The graph stays as it was, so no epoch is raised, unless an index ends: then one
is, at the same rest, and all tasks begin anew.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, assert_never

from headrace.controller.core.messages import Command, GateRecorded, HoldDecided, PipelineRequested, SteerRequested
from headrace.controller.core.plan import (
    NOTHING,
    Change,
    Need,
    Plan,
    RequestedChanges,
    beside,
    groups,
    move,
    places_of,
    plan,
    reserved,
    total,
)
from headrace.controller.core.run.input import Intake, Listing
from headrace.controller.core.run.refusals import NotYetError
from headrace.controller.core.run.tasks import RunTasks, Workers
from headrace.controller.core.run.work import Work
from headrace.pipeline import Pipeline, PipelineError
from headrace.store import counted
from headrace.store.ledger import LedgerState

_V = TypeVar("_V")
#: Times that a change is begun under flow: its tasks may be lost with a worker.
TRIES_MAX = 3


@dataclass(frozen=True, slots=True)
class Reshape:
    """Another plan for the version in force, the names of the tasks that are in both, and the changes that it makes.

    `epoch`: with another index its tasks are started in this epoch, before it is raised; 0: the index stays.
    """

    plan: Plan
    stay: frozenset[str]
    changes: tuple[Change, ...]
    epoch: int = 0

    @property
    def leaves(self) -> bool:
        """Whether workers are left, which may not be there for long."""
        return bool(self.changes[0].leave)


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
        # What people had changed of a stage that the graph has no more counts no more.
        known = {stage.name for stage in pipeline.stages}
        self._places = {**request.places, **_of(requested.made.places, known)}
        self._transports = {**request.transports, **_of(requested.made.transports, known)}
        self._counts = _of(requested.made.replicas, known)
        self.pause_wanted = requested.pause
        #: Whether its cores are another's: it stands still until its queue lets it go on.
        self.held = requested.held
        #: Whether its gate has paused it, once: who resumes it has seen why, and makes it False.
        self.gated: bool | None = requested.gated
        #: Why its gate is to pause it, until the cluster's log has that; whether it is on its way there.
        self._broken: tuple[str, ...] = ()
        self._submitted = False
        #: Changes that wait, in this order; why the last one was not made.
        self.waiting: list[Change] = list(requested.waiting)
        self.refused = ""
        #: Whether each change that people requested was made, the oldest first; the cluster's log takes them.
        self.outcomes: list[bool] = []
        #: How often the tasks of what waits longest were lost while they were to take the place of others.
        self._undone = 0
        #: The last epoch that tasks were started in before it was raised.
        self._reserved = 0

    @property
    def stands(self) -> bool:
        """Whether the run is to stand still."""
        return self.pause_wanted or self.held or bool(self.gated)

    def considered(self, event: SteerRequested, tasks: RunTasks | None, state: str) -> Change:
        """The change that a request asks of the plan. PipelineError, with the reason, where no plan can hold it."""
        self._check_links(tasks, event.transports)
        change = self._whole_chains(tasks, Change(event.replicas, event.places, event.transports))
        if not change.empty:
            self._planned_with([change], tasks, state)
        return change

    def take(self, pause: bool | None, change: Change) -> None:
        """A request was judged: remember it until nothing is on its way."""
        if pause is not None:
            self.pause_wanted = pause
            if not pause and self.gated:
                self.gated = False
        if not change.empty:
            self.waiting.append(change)

    def pause_for_gate(self, broken: tuple[str, ...], *, logged: bool) -> None:
        """The gate is broken: stand still, if that was not said before; with a log when it is there."""
        if self.gated is None and not self._broken:
            self.gated, self._broken = (None, broken) if logged else (True, ())

    def gate_to_record(self) -> tuple[str, ...]:
        """Why the gate pauses the run, which a successor has to know; asked for once."""
        if self._submitted:
            return ()
        self._submitted = bool(self._broken)
        return self._broken

    def stand(self, event: HoldDecided | GateRecorded) -> None:
        """What the log says of whether the run stands still."""
        match event:
            case HoldDecided():
                self.held = event.held
            case GateRecorded():
                self.gated, self._broken, self._submitted = True, (), False
            case _:
                assert_never(event)

    def leave(self, worker: str) -> None:
        """Have no task on a worker any more."""
        self.waiting.append(Change(leave=worker))

    def under_flow(self, work: Work) -> Reshape | None:
        """The changes that wait longest and their plan, where it needs no pause; those to leave workers are one."""
        if self.stands or work.tasks.index.lost or work.adoption.rejoin_at is not None:
            return None
        while self.waiting and self._undone < TRIES_MAX:
            changes = [*itertools.takewhile(lambda change: change.leave, self.waiting)] or self.waiting[:1]
            try:
                made = self._planned_with(changes, work.tasks)
            except PipelineError as error:
                # The workers could hold it when it was requested; some have gone since.
                self._refuse(changes[0], str(error))
                continue
            try:
                workers, taken = self._workers.fit(), self._workers.reserved()
                made, stay = beside(work.tasks.plan, made, self._pipeline, workers, taken, stay=True)
            except PipelineError:
                return None
            if keeps_index(self._pipeline, made, stay):
                return Reshape(made, stay, tuple(changes))
            return Reshape(made, stay, tuple(changes), self.take_epoch()) if self.free_epoch else None
        return None

    @property
    def free_epoch(self) -> int:
        """The epoch that tasks may start in before it is raised; 0 if none is free: no two plans may be of one."""
        number = self._ledger.number
        return number if number > max(self._ledger.epoch, self._reserved) else 0

    def take_epoch(self) -> int:
        """That epoch, which is free no more."""
        self._reserved = self.free_epoch
        return self._reserved

    def reshaped(self, reshape: Reshape) -> None:
        """These changes are made."""
        self._undone = 0
        for change in reshape.changes:
            self._made(change)

    def rolled_back(self, wrong: str) -> None:
        """The tasks of the changes that wait longest were lost. What a worker is left for is made with a pause then."""
        self._undone += 1
        if self._undone == TRIES_MAX and not self.waiting[0].leave:
            self._undone = 0
            self._refuse(self.waiting[0], wrong)

    def _made(self, change: Change) -> None:
        self.waiting.remove(change)
        self.outcomes += [] if change.leave else [True]
        self.refused = ""
        self._counts |= change.replicas
        self._places |= change.places
        self._transports |= change.transports

    def _refuse(self, change: Change, why: str) -> None:
        self.waiting.remove(change)
        self.refused = f"{change.words()}: {why}"
        self.outcomes += [] if change.leave else [False]

    def fusible(self, chains: Sequence[tuple[str, ...]]) -> list[tuple[int, int]]:
        """Pairs of these chains, by their place, that would be one if both had the same number of tasks."""
        if not self._fuse:
            return []
        places = places_of(self._pipeline, self._places)
        counts = dict.fromkeys((stage.name for stage in self._pipeline.stages), 1)
        fused = groups(self._pipeline, fuse=True, places=places, counts=counts, transports=self._transports)
        head = {chain[0]: place for place, chain in enumerate(chains)}
        tail = {chain[-1]: place for place, chain in enumerate(chains)}
        pairs = [pair for chain in fused for pair in itertools.pairwise(chain)]
        return [(tail[before], head[behind]) for before, behind in pairs if before in tail and behind in head]

    def check_without(self, worker: str, tasks: RunTasks) -> None:
        """Raises PipelineError where this run's tasks cannot leave a worker."""
        try:
            self._planned_with([Change(leave=worker)], tasks)
        except PipelineError as error:
            raise PipelineError(f"pipeline {self._pipeline.name!r}: {error}") from error

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

    def beside(
        self, pipeline: Pipeline, request: PipelineRequested, current: Plan, *, anew: bool
    ) -> tuple[Plan, frozenset[str]]:
        """The plan of another version, whose tasks live beside those of this one for a while, on the same cores.

        `anew`: with another index. PipelineError if the workers cannot hold it: memory is not shared.
        """
        workers, others = self._workers.fit(), self._workers.reserved()
        remember = set[str]() if anew else {stage.name for stage in pipeline.stateful}
        leaving = [task for task in current.tasks if remember.isdisjoint(task.stages)]
        taken = dict(others)
        for worker, need in reserved([Plan(tuple(leaving), ())]).items():
            taken[worker] = total((taken.get(worker, NOTHING), Need(memory_bytes=need.memory_bytes)))
        known = {stage.name for stage in pipeline.stages}
        made = plan(
            pipeline,
            self._workers.fit(),
            fuse=request.fuse,
            replicas=request.replicas,
            places={**_of(self._places, known), **request.places},
            transports={**_of(self._transports, known), **request.transports},
            counts=_of(self._counts, known),
            current=current,
            taken=taken,
        )
        return beside(current, made, pipeline, workers, others, stay=False, anew=anew)

    def has(self, request: PipelineRequested) -> bool:
        """Whether the stages that a request names have the places and transports that it gives them."""
        placed = request.places.items() <= self._places.items()
        return placed and request.transports.items() <= self._transports.items()

    def amended(self, pipeline: Pipeline, request: PipelineRequested) -> None:
        """Another version is in force."""
        known = {stage.name for stage in pipeline.stages}
        self._pipeline, self._fuse, self._replicas = pipeline, request.fuse, request.replicas
        self._places = {**_of(self._places, known), **request.places}
        self._transports = {**_of(self._transports, known), **request.transports}
        self._counts = _of(self._counts, known)
        # Another graph may be paused by its gate as well.
        self.gated = self.gated or None

    def begins_anew(self, tasks: RunTasks) -> bool:
        """Whether the index is lost, or a change that waits ends a task of it: an epoch begins at this rest."""
        tasks.index.lost = tasks.index.lost or any(map(tasks.ends_index, self._plans_of_each(tasks)))
        return tasks.index.lost

    def _plans_of_each(self, tasks: RunTasks) -> Iterator[Plan]:
        for change in self.waiting:
            with contextlib.suppress(PipelineError):
                yield self._planned_with([change], tasks)

    def change_all(self, tasks: RunTasks, now: float) -> list[Command]:
        """Nothing is on its way: make the changes that wait; all tasks begin anew where an index is to."""
        commands: list[Command] = []
        self._undone = 0
        while self.waiting:
            change = self.waiting[0]
            try:
                made = self._planned_with([change], tasks)
            except PipelineError as error:
                self._refuse(change, str(error))
                continue
            self._made(change)
            commands += self._ended(tasks.change(made, now, change.words()))
        if tasks.index.lost:
            commands += self._ended(tasks.renew(now, "the epoch was raised"))
        return [*commands, *tasks.start_due(now, self._ledger.epoch, self._workers.present)]

    def _ended(self, ended: tuple[list[Command], list[str]]) -> list[Command]:
        """The orders to tasks that end; what they were given is theirs no more."""
        stops, gone = ended
        for name in gone:
            self._intake.task_died(name)
            self._listing.task_died(name)
        return stops

    def _planned_with(self, changes: Sequence[Change], tasks: RunTasks | None, state: str = "") -> Plan:
        """The plan that a change leads to, or leaving workers. PipelineError if the workers cannot hold it."""
        if tasks is None:
            raise NotYetError(f"pipeline {self._pipeline.name!r} is {state} and has no tasks yet: try again")
        change, gone = changes[0], {change.leave for change in changes}
        if not change.leave:
            return self.plan(tasks, change.replicas, change.places, change.transports)
        staying = [worker for worker in self._workers.fit() if worker.name not in gone]
        made = move(tasks.plan, gone, staying, self._workers.reserved())
        if left := [task for task in made.tasks if task.worker in gone]:
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
        decide = {stage.name for stage in self._pipeline.stateful}
        known = [stage.name for stage in self._pipeline.stages]
        counts: dict[str, int] = {}
        for stage, count in change.replicas.items():
            if stage not in known:
                raise PipelineError(
                    f"pipeline {self._pipeline.name!r} has no stage {stage!r}; it has {', '.join(known)}"
                )
            if stage in decide and count != self._pipeline.stage(stage).replicas:
                raise PipelineError(
                    f"stage {stage!r}: {count} tasks were asked for; one decides, and the partitions of its index are "
                    "given with dedup(partitions=...)"
                )
            if count < 1:
                raise PipelineError(
                    f"stage {stage!r}: {count} tasks were asked for; for none there is `headrace pause`"
                )
            planned = tasks.plan.tasks if tasks else ()
            chain = next((task.stages for task in planned if not task.alone and stage in task.stages), (stage,))
            if counts.get(stage, count) != count:
                raise PipelineError(
                    f"stages {', '.join(chain)} are fused and have the same tasks: {counts[stage]} and {count} were "
                    "asked for; give one number"
                )
            counts |= dict.fromkeys(chain, count)
        return replace(change, replicas=counts)


def keeps_index(pipeline: Pipeline, made: Plan, stay: Collection[str]) -> bool:
    """Whether all tasks of a plan that remember are those that stay."""
    remember = {stage.name for stage in pipeline.stateful}
    return all(task.name in stay for task in made.tasks if not task.alone and not remember.isdisjoint(task.stages))


def _of(chosen: Mapping[str, _V], known: Collection[str]) -> dict[str, _V]:
    return {stage: value for stage, value in chosen.items() if stage in known}
