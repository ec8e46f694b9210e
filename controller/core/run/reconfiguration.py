"""A run that is paused, resumed or reconfigured while it lives: scaled, moved, relinked, drained from a worker.

Each is one manoeuvre, seal before fence. Sources let go of what they have not sent, a marker sweeps the links after it,
and the sinks commit what they hold. Then nothing is on its way, and the plan may change: tasks that it keeps run on,
those that it does not keep end, new ones start. What is open is read by the tasks that are there then, and nothing is
read twice. The graph stays as it was, so no epoch is raised.

A change of the graph needs no pause (`Amendment`, docs/design/surgery.md): the tasks of the next version start beside
those in force, and take the input when they are ready. Nor do tasks that leave a worker, where no stage remembers: its
sinks seal, then its tasks start elsewhere as they would after its death, and what they had on hand is read again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from headrace.controller.core.messages import AnswerRequest, Command, PipelineRequested, SteerRequested
from headrace.controller.core.plan import (
    Change,
    Need,
    Plan,
    RequestedChanges,
    groups,
    move,
    places_of,
    plan,
    reserved,
)
from headrace.controller.core.run.input import Intake, Listing
from headrace.controller.core.run.states import AMEND_TRANSITIONS, AmendState, AmendTurn, Machine, RunState
from headrace.controller.core.run.sweeps import Sweeps
from headrace.controller.core.run.tasks import RunTask, RunTasks, TaskPhase, Workers
from headrace.controller.core.run.work import Parts, Work, Works
from headrace.pipeline import Pipeline, PipelineError, StageKind, difference, validate
from headrace.store import counted
from headrace.store.ledger import LedgerState, PipelineApplied

_V = TypeVar("_V")
#: Seconds that the sinks of a worker that is left under flow have for what they hold; the rest is read again.
SEAL_S_MAX = 3.0


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
        #: Whether its gate has paused it. Each leader asks the gate itself, so no log has it; who resumes it ends it.
        self.gated = False
        #: Changes that wait, in this order; why the last one was not made.
        self.waiting: list[Change] = list(requested.waiting)
        self.refused = ""
        #: Whether each change that people requested was made, the oldest first; the cluster's log takes them.
        self.outcomes: list[bool] = []
        #: While workers are left under flow: until when at most sinks seal, and which have closed nothing since.
        self.seal_until: float | None = None
        self._sealing = set[str]()

    @property
    def stands(self) -> bool:
        """Whether the run is to stand still."""
        return self.pause_wanted or self.held or self.gated

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
            self.pause_wanted, self.gated = pause, self.gated and pause
        if not change.empty:
            self.waiting.append(change)

    def leave(self, worker: str) -> None:
        """Have no task on a worker any more."""
        self.waiting.append(Change(leave=worker))

    def leaves_under_flow(self, work: Work) -> bool:
        """Whether all that waits is to leave workers, in a graph in which nothing remembers: then the others go on."""
        leaves = bool(self.waiting) and all(change.leave for change in self.waiting)
        return leaves and not (self.stands or self._pipeline.stateful or work.adoption.rejoin_at is not None)

    def leave_under_flow(self, tasks: RunTasks, now: float, sweeps: Sweeps) -> list[Command]:
        """Have the sinks of those workers seal; once that is closed, or late, start the tasks elsewhere."""
        leaving = {change.leave for change in self.waiting}
        if self.seal_until is None:
            sinks = [stage.name for stage in self._pipeline.of_kind(StageKind.SINK)]
            seals = [seal for seal in tasks.seal(sinks, "drain") if seal.worker in leaving]
            self.seal_until, self._sealing = now + SEAL_S_MAX, {seal.task for seal in seals}
            return [*seals]
        if self._sealing and now < self.seal_until:
            return []
        self.seal_until = None
        sweeps.lost()
        return self.change_all(tasks, now)

    def closed(self, sink: str) -> None:
        """A shard of this sink's task is in the ledger."""
        self._sealing.discard(sink)

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

    def beside(self, pipeline: Pipeline, request: PipelineRequested, current: Plan) -> Plan:
        """The plan of another version, whose tasks live beside those of this one for a while, on the same cores.

        PipelineError if the workers cannot hold it: memory is not shared.
        """
        known = {stage.name for stage in pipeline.stages}
        taken = dict(self._workers.reserved())
        for worker, need in reserved([current]).items():
            others = taken.get(worker, Need())
            taken[worker] = replace(others, memory_bytes=others.memory_bytes + need.memory_bytes)
        return plan(
            pipeline,
            self._workers.fit(),
            fuse=request.fuse,
            replicas=request.replicas,
            places={**_of(self._places, known), **request.places},
            transports={**_of(self._transports, known), **request.transports},
            counts=_of(self._counts, known),
            beside=current,
            taken=taken,
        )

    def amended(self, pipeline: Pipeline, request: PipelineRequested) -> None:
        """Another version is in force."""
        known = {stage.name for stage in pipeline.stages}
        self._pipeline, self._fuse, self._replicas = pipeline, request.fuse, request.replicas
        self._places = {**_of(self._places, known), **request.places}
        self._transports = {**_of(self._transports, known), **request.transports}
        self._counts = _of(self._counts, known)

    def change_all(self, tasks: RunTasks, now: float) -> list[Command]:
        """Nothing is on its way: make the changes that wait, behind a new beginning where an index was lost."""
        commands = self._renew(tasks, now) if tasks.index_lost else []
        while self.waiting:
            commands += self._change(self.waiting.pop(0), tasks, now)
        return commands

    def _renew(self, tasks: RunTasks, now: float) -> list[Command]:
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
            counts |= dict.fromkeys(chain, count)
        return replace(change, replicas=counts)


class Amendment:
    """A change of the graph while records flow; see docs/design/surgery.md."""

    def __init__(
        self,
        reconfiguration: Reconfiguration,
        parts: Parts,
        taken_up: Callable[[Pipeline, PipelineRequested], None],
    ) -> None:
        self._reconfiguration, self._parts, self._taken_up = reconfiguration, parts, taken_up
        self._machine = Machine("amendment", AMEND_TRANSITIONS, AmendState.IN_FORCE)
        #: What was asked for, and has no answer yet.
        self.request: PipelineRequested | None = None
        #: The number of the last sweep that began before input went to the next version.
        self._since = 0
        #: Whether it is on its way to the cluster's log.
        self._recorded = False
        #: Why the last one was rolled back, for people.
        self.refused = ""

    @property
    def state(self) -> AmendState:
        """How far it is."""
        return self._machine.state

    def words(self, works: Works | None) -> str:
        """For people; empty if the graph is not being changed."""
        if works is None or works.next is None:
            return ""
        tasks = list(works.next.tasks)
        ready = sum(task.state is TaskPhase.READY for task in tasks)
        to = f"the graph to version {works.next.version}"
        return f"{to}: {self.state.value}, {ready} of {counted(len(tasks), 'task')} ready"

    def why_busy(self) -> str:
        """Why nothing else is changed now; empty if it may be."""
        return "" if self.state is AmendState.IN_FORCE else "the graph of the pipeline is being changed: try again"

    def considered(self, event: PipelineRequested, works: Works | None, state: RunState) -> tuple[Pipeline, Plan]:
        """The next version and its plan. PipelineError, with the reason, where the graph cannot be changed to it."""
        pipeline = Pipeline.from_dict(event.pipeline)
        validate(pipeline)
        if works is None or state is not RunState.RUNNING:
            raise PipelineError(f"pipeline {pipeline.name!r} is {state.value}: a graph is changed while it is running")
        if works.in_force.adoption.rejoin_at is not None:
            raise PipelineError(f"pipeline {pipeline.name!r} waits for its workers to come back: try again")
        if busy := self.why_busy():
            raise PipelineError(busy)
        if self._reconfiguration.waiting or self._reconfiguration.stands:
            raise PipelineError(f"pipeline {pipeline.name!r} is being changed: try again")
        before = works.in_force.pipeline
        if wrong := why_not_flowing(before, pipeline):
            raise PipelineError(f"{wrong}: stop the pipeline, and apply it with --amend")
        return pipeline, self._reconfiguration.beside(pipeline, event, works.in_force.tasks.plan)

    def asked(self, event: PipelineRequested, works: Works | None, state: RunState) -> list[Command]:
        """Somebody wants another graph; answered at once where it cannot be, else when it is in force."""
        if self.request is not None and event.token and event.token == self.request.token:
            self.request = event
            return []
        try:
            pipeline, made = self.considered(event, works, state)
        except PipelineError as error:
            return [AnswerRequest(event.request, accepted=False, reason=str(error))]
        assert works is not None
        if pipeline.version() == works.in_force.version:
            words = f"pipeline {pipeline.name} is in force as it was asked for"
            return [AnswerRequest(event.request, accepted=True, warnings=(words,))]
        self._machine.turn(AmendTurn.ASKED)
        self.request, self.refused, self._recorded = event, "", False
        tasks = RunTasks(made, pipeline, pipeline.version(), self._parts.leadership.term)
        tasks.follow(works.in_force.tasks)
        works.next = Work(pipeline, tasks, self._parts)
        works.on_trial, works.wrong = True, ""
        return []

    def advance(self, works: Works, state: RunState) -> list[Command]:
        """Take the next step that is due."""
        match self.state:
            case AmendState.WARMING | AmendState.HANDING_OVER if wrong := self._wrong(works, state):
                return self._undo(works, wrong)
            case AmendState.WARMING if self._is_ready(works):
                self._machine.turn(AmendTurn.READY)
                self._hand_over(works)
            case AmendState.HANDING_OVER:
                names = [task.plan.name for task in works.in_force.tasks]
                if self._parts.intake.have_left(names, self._since):
                    works.on_trial = False
                    self._machine.turn(AmendTurn.LEFT)
                    return self.take_up(works) if not self._parts.leadership.cluster else []
            case AmendState.APPLYING if self._parts.leadership.ledger.pipeline_version == works.in_force.version:
                self._machine.turn(AmendTurn.DURABLE)
                return self.answer()
            case _:
                pass
        return []

    def take_up(self, works: Works | None) -> list[Command]:
        """What was in force is empty, and a successor knows: the next version takes its place."""
        request = self.request
        if works is None or request is None or self.state is not AmendState.RECORDING:
            return []
        self._machine.turn(AmendTurn.RECORDED)
        if self._parts.intake.sweeping:
            # It began while the log took the change, and asked tasks that answer no more.
            self._parts.sweeps.lost()
        old, new = works.in_force.tasks, works.reader
        stops = old.stop("the graph was changed")
        new.tasks.follow(old)
        new.losses.deaths = works.in_force.losses.deaths
        works.in_force, works.next = new, None
        self._reconfiguration.amended(new.pipeline, request)
        self._taken_up(new.pipeline, request)
        self._parts.leadership.submit(PipelineApplied(new.version, new.pipeline.to_dict()))
        return stops

    @property
    def recording(self) -> bool:
        """Whether the cluster's log is to have, or gets, the next version."""
        return self.state is AmendState.RECORDING

    def to_record(self, works: Works | None) -> tuple[PipelineRequested, Plan] | None:
        """What a successor has to know before the next version is taken up; asked for once."""
        if not self.recording or self._recorded or works is None or self.request is None:
            return None
        self._recorded = True
        return self.request, works.reader.tasks.plan

    def answer(self, reason: str = "") -> list[Command]:
        """Say that the graph is changed, or why not."""
        request, self.request = self.request, None
        return [] if request is None else [AnswerRequest(request.request, accepted=not reason, reason=reason)]

    def _wrong(self, works: Works, state: RunState) -> str:
        """Why the next version is given up; empty if it is not."""
        assert works.next is not None
        died = next((task for task in works.next.tasks if task.restarts), None)
        if died is not None:
            return f"task {died.plan.name} of the next version died: {died.story}"
        stopped = self.state is AmendState.WARMING and state is not RunState.RUNNING
        return works.wrong or (f"the pipeline is {state.value}" if stopped else "")

    def _is_ready(self, works: Works) -> bool:
        tasks = works.next.tasks if works.next is not None else None
        return tasks is not None and tasks.table.stable and not tasks.links_missing

    def _hand_over(self, works: Works) -> None:
        """Input goes to the next version; the next sweep has the sources in force let go of what they have not sent."""
        assert works.next is not None
        works.next.tasks.first_solitary = works.in_force.tasks.first_solitary + sum(
            task.plan.alone for task in works.in_force.tasks
        )
        works.reader = works.next
        self._since = self._parts.intake.sweep
        self._let_go(works.in_force.tasks)
        self._parts.sweeps.lost()

    def _undo(self, works: Works, wrong: str) -> list[Command]:
        """The version in force goes on, and reads again what the next one had."""
        assert works.next is not None
        tasks = works.next.tasks
        stops = tasks.stop("the change of the graph was rolled back")
        works.in_force.tasks.follow(tasks)
        if self.state is AmendState.HANDING_OVER:
            self._let_go(tasks)
            for task in tasks:
                self._parts.intake.task_died(task.plan.name)
            # A marker that halts them may have passed, or may be on its way: the next sweep tells what they still have.
            for task in works.in_force.tasks:
                self._parts.intake.let_go(task.plan.name)
            self._parts.intake.distrust()
            self._parts.sweeps.lost()
        works.reader, works.next, works.on_trial = works.in_force, None, False
        self._machine.turn(AmendTurn.FAILED)
        self.refused = f"the change of the graph was rolled back: {wrong}"
        return [*stops, *self.answer(self.refused)]

    def _let_go(self, tasks: Iterable[RunTask]) -> None:
        self._parts.intake.solitary.let_go()
        for task in tasks:
            self._parts.listing.task_died(task.plan.name)


def why_not_flowing(before: Pipeline, after: Pipeline) -> str:
    """Why a graph cannot become another while records flow; empty if it can.

    Fragments are named by their source, and shards have the form of their sink: these stay. An index knows what its
    own epoch let through, so a graph that has one, or gets one, is changed at rest.
    """
    if before.dataset != after.dataset:
        return f"the dataset is {before.dataset}, not {after.dataset}"
    for pipeline in (before, after):
        if pipeline.stateful:
            return f"stage {pipeline.stateful[0].name!r} remembers what it has seen, and begins with an epoch"
    changed = difference(before.identity(), after.identity())
    for kind, words in ((StageKind.SOURCE, "reads"), (StageKind.SINK, "writes")):
        names = [{stage.name for stage in pipeline.of_kind(kind)} for pipeline in (before, after)]
        if names[0] != names[1]:
            return f"what {words} would be {', '.join(sorted(names[1]))} and is {', '.join(sorted(names[0]))}"
        for line in changed:
            stage, _, rest = line.partition(".")
            if stage in names[0] and not rest.startswith("after: "):
                return f"stage {stage!r} {words}, and would do so otherwise ({line})"
    return ""


def _of(chosen: Mapping[str, _V], known: Collection[str]) -> dict[str, _V]:
    return {stage: value for stage, value in chosen.items() if stage in known}
