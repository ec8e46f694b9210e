"""The tasks of a run give way to others while records flow: by another graph, or another plan of the same one.

The next tasks start beside those in force, and take the input when they are ready. Those in force send what they have
read, their sinks commit it, and they end (docs/design/surgery.md). Tasks that are in both plans run on. With another
index no task is in both: the next ones are of another epoch, which is raised when those in force are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.controller.core.messages import (
    AnswerRequest,
    Command,
    PipelineRequested,
    SealSink,
    fixed_options,
    same_options,
)
from headrace.controller.core.plan import Plan
from headrace.controller.core.run.reconfiguration import Reconfiguration, Reshape, keeps_index
from headrace.controller.core.run.refusals import NotYetError, refusal
from headrace.controller.core.run.states import AMEND_TRANSITIONS, AmendState, AmendTurn, Machine, RunState
from headrace.controller.core.run.tasks import RunTask, RunTasks, TaskPhase
from headrace.controller.core.run.work import Parts, Work, Works
from headrace.pipeline import Pipeline, PipelineError, Stage, StageKind, difference, validate
from headrace.store import counted
from headrace.store.ledger import PipelineApplied

#: Seconds that tasks have for what they have on hand, where they leave a worker, and where their duplicates may wait
#: for records of those that take their place; the rest is read again.
LEAVE_S_MAX = 5.0
#: Why the tasks end that have handed over.
GIVES_WAY = "others take its place"
LEFT_EARLY = "others take its place, and read again what it has on hand"


class Amendment:
    """A change of the graph, or of the plan, while records flow."""

    def __init__(
        self,
        reconfiguration: Reconfiguration,
        parts: Parts,
        taken_up: Callable[[Pipeline, PipelineRequested], None],
    ) -> None:
        self._reconfiguration, self._parts, self._taken_up = reconfiguration, parts, taken_up
        self._machine = Machine("amendment", AMEND_TRANSITIONS, AmendState.IN_FORCE)
        #: The graph that was asked for, and has no answer yet; the plan that is to take the place of the one in force.
        self.request: PipelineRequested | None = None
        self._reshape: Reshape | None = None
        #: The number of the last sweep that began before input went to the next version; until when it is waited for
        #: what those in force have on hand, where they leave a worker.
        self._since = 0
        self.leave_by: float | None = None
        self._left_early = False
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
        if works is None or works.next is None or self._reshape is not None:
            return ""
        tasks = list(works.next.tasks)
        ready = sum(task.state is TaskPhase.READY for task in tasks)
        to = f"the graph to version {works.next.version}"
        return f"{to}: {self.state.value}, {ready} of {counted(len(tasks), 'task')} ready"

    @property
    def busy(self) -> bool:
        """Whether tasks are giving way to others."""
        return self.state is not AmendState.IN_FORCE

    @property
    def taking_up(self) -> bool:
        """Whether the next version takes its place: the run does not end between the logs, of which one may have it."""
        return self.state in (AmendState.SUCCEEDING, AmendState.RECORDING, AmendState.APPLYING)

    def why_ended(self, state: RunState) -> str:
        """Why a change is not made any more: the run has ended as `state` says."""
        return f"the pipeline is {state.value}" + ("" if self.taking_up else ": its graph is as it was")

    def check_free(self) -> None:
        """Raises NotYetError while the graph is being changed: nothing else is asked for meanwhile."""
        if self.busy and self._reshape is None:
            raise NotYetError("the graph of the pipeline is being changed: try again")

    def considered(
        self, event: PipelineRequested, earlier: PipelineRequested, works: Works | None, state: RunState
    ) -> tuple[Pipeline, Plan, frozenset[str], bool]:
        """The next version, its plan, the tasks that stay, and whether its index is another.

        PipelineError where it cannot be.
        """
        pipeline = Pipeline.from_dict(event.pipeline)
        validate(pipeline)
        if works is not None and (wrong := why_not_now(event, works.in_force.pipeline, pipeline)):
            raise PipelineError(wrong)
        if works is None or state is not RunState.RUNNING:
            raise PipelineError(f"pipeline {pipeline.name!r} is {state.value}: a graph is changed while it is running")
        if works.in_force.adoption.rejoin_at is not None:
            raise NotYetError(f"pipeline {pipeline.name!r} waits for its workers to come back: try again")
        self.check_free()
        if self.busy or self._reconfiguration.waiting or self._reconfiguration.stands:
            raise NotYetError(f"pipeline {pipeline.name!r} is being changed: try again")
        before, current = works.in_force.pipeline, works.in_force.tasks.plan
        if wrong := why_not_amended(before, pipeline):
            raise PipelineError(f"{wrong}: stop the pipeline, and apply it with --amend")
        if wrong := why_without_keys(before, pipeline):
            raise PipelineError(f"{wrong}: write a new dataset")
        anew = bool(why_an_epoch(before, pipeline))
        made, stay = self._reconfiguration.beside(pipeline, event, current, anew=anew)
        anew = anew or not keeps_index(pipeline, made, stay)
        if anew and not self._reconfiguration.free_epoch:
            raise NotYetError(f"pipeline {pipeline.name!r} is at the beginning of an epoch: try again")
        if fixed := fixed_options(event, earlier):
            raise PipelineError(
                f"pipeline {pipeline.name!r} keeps its {', '.join(fixed)} while it runs: stop the pipeline, and apply "
                "it with --amend"
            )
        return pipeline, made, stay, anew

    def asked(
        self, event: PipelineRequested, earlier: PipelineRequested, works: Works | None, state: RunState
    ) -> list[Command]:
        """Somebody wants another graph or options; answered at once where it cannot be, else when it is in force."""
        if self.request is not None and event.token and event.token == self.request.token:
            self.request = event
            return []
        try:
            pipeline, made, stay, anew = self.considered(event, earlier, works, state)
        except PipelineError as error:
            return [refusal(event.request, error)]
        assert works is not None
        same = same_options(event, earlier) and self._reconfiguration.has(event)
        if pipeline.version() == works.in_force.version and same:
            words = f"pipeline {pipeline.name} is in force as it was asked for"
            return [AnswerRequest(event.request, accepted=True, warnings=(words,))]
        self.request, self.refused = event, ""
        return self._begin(works, pipeline, made, stay, self._reconfiguration.take_epoch() if anew else 0)

    def options(self, task: str, works: Works | None) -> PipelineRequested | None:
        """The request of the next version, if it is one of its tasks that is started."""
        next_one = works.next if works is not None else None
        is_next = next_one is not None and works is not None and works.of(task) is next_one
        return self.request if is_next else None

    def reshape(self, works: Works, reshape: Reshape, now: float) -> list[Command]:
        """Another plan of the version in force is to take the place of its plan, while the run is running."""
        self._reshape = reshape
        seals = self._begin(works, works.in_force.pipeline, reshape.plan, reshape.stay, reshape.epoch)
        return [*seals, *self.advance(works, RunState.RUNNING, now)]

    def _begin(self, works: Works, pipeline: Pipeline, made: Plan, stay: frozenset[str], ahead: int) -> list[Command]:
        """Start the next tasks; with another index in this epoch, which finds closed what the sinks hold now."""
        self._machine.turn(AmendTurn.ASKED)
        self._recorded = self._left_early = False
        tasks = RunTasks(made, pipeline, pipeline.version(), self._parts.leadership.term)
        tasks.begin_beside(works.in_force.tasks, stay, ahead)
        works.next = Work(pipeline, tasks, self._parts)
        works.on_trial, works.wrong = True, ""
        return [*self._seal(works, "amended")] if ahead else []

    def advance(self, works: Works, state: RunState, now: float) -> list[Command]:
        """Take the next step that is due."""
        recorded = bool(self._parts.leadership.cluster) and self._reshape is None
        match self.state:
            case AmendState.WARMING | AmendState.HANDING_OVER if wrong := self._wrong(works, state):
                return self._undo(works, wrong, state)
            case AmendState.WARMING if self._is_ready(works) or self._may_join(works):
                self._machine.turn(AmendTurn.READY)
                return self._hand_over(works, now)
            case AmendState.HANDING_OVER if self._is_joining(works):
                pass
            case AmendState.HANDING_OVER if self._parts.intake.have_left(works.leaving, self._since):
                self._old_left(works)
                return self.take_up(works) if not recorded else []
            case AmendState.HANDING_OVER if self.leave_by is not None and now >= self.leave_by:
                self._old_left(works)
                self._left_early = True
                return self.take_up(works) if not recorded else []
            case AmendState.SUCCEEDING if self._parts.epoch.take_up():
                self._machine.turn(AmendTurn.FENCED)
                return [] if recorded else self.take_up(works)
            case AmendState.HANDING_OVER if self.leave_by is None and self._may_wait_for_each_other(works):
                self.leave_by = now + LEAVE_S_MAX
            case AmendState.APPLYING if self._parts.leadership.ledger.pipeline_version == works.in_force.version:
                self._machine.turn(AmendTurn.DURABLE)
                return self.answer()
            case _:
                pass
        return []

    def _old_left(self, works: Works) -> None:
        works.on_trial, self.leave_by = False, None
        works.reader.tasks.inherit_guests(works.in_force.tasks)
        if works.reader.tasks.ahead:
            self._machine.turn(AmendTurn.EMPTIED)
            self._parts.epoch.begin("another index takes over", works.reader.tasks.ahead)
        else:
            self._machine.turn(AmendTurn.LEFT)

    def _may_wait_for_each_other(self, works: Works) -> bool:
        """Whether all was sent to the sinks in force, and a duplicate there may need a record of the next version.

        That is closed when these sinks are empty, so they are not waited for without end.
        """
        return bool(works.in_force.pipeline.stateful) and self._parts.intake.answered(works.leaving, self._since)

    def take_up(self, works: Works | None) -> list[Command]:
        """What was in force is empty or given up, and a successor knows: the next version takes its place."""
        if works is None or self.state is not AmendState.RECORDING:
            return []
        self._machine.turn(AmendTurn.RECORDED)
        if self._left_early:
            for name in works.leaving:
                self._parts.intake.task_died(name)
        if self._left_early or self._parts.intake.sweeping:
            # A sweep that began while the log took the change asked tasks that answer no more.
            self._parts.sweeps.lost()
        old, new = works.in_force.tasks, works.reader
        stops = old.stop(LEFT_EARLY if self._left_early else GIVES_WAY)
        new.tasks.follow(old)
        new.losses.deaths = works.in_force.losses.deaths
        works.in_force, works.next = new, None
        stops += new.tasks.serve(self._parts.leadership.ledger.number)
        if self._reshape is not None:
            self._reconfiguration.reshaped(self._reshape)
            self._reshape = None
            self._machine.turn(AmendTurn.DURABLE)
        else:
            self._apply(new)
        return stops

    def _apply(self, work: Work) -> None:
        assert self.request is not None
        self._reconfiguration.amended(work.pipeline, self.request)
        self._parts.committer.closings.sinks = work.pipeline.dependent_sinks
        self._taken_up(work.pipeline, self.request)
        self._parts.leadership.submit(PipelineApplied(work.version, work.pipeline.to_dict()))

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
        if works.next.tasks.guests_elsewhere:
            return "a task that stays is on another worker now"
        stopped = (self.state is AmendState.WARMING or self._is_joining(works)) and state is not RunState.RUNNING
        return works.wrong or (f"the pipeline is {state.value}" if stopped else "")

    def _is_ready(self, works: Works) -> bool:
        tasks = works.next.tasks if works.next is not None else None
        return tasks is not None and tasks.table.stable and not tasks.links_missing

    def _grows(self, works: Works) -> bool:
        """Whether there are only more tasks than before, of which none sends to another: each reads once it is ready.

        All have to be ready still before they are taken up: one that cannot begin takes the change back.
        """
        if self._reshape is None or works.next is None or works.next.tasks.own_links:
            return False
        together = works.next.tasks.table.tasks
        return all(task.plan.name in together for task in works.in_force.tasks)

    def _may_join(self, works: Works) -> bool:
        """Whether one of more tasks is ready to read."""
        ready = works.next is not None and any(task.state is TaskPhase.READY for task in works.next.tasks)
        return ready and self._grows(works)

    def _is_joining(self, works: Works) -> bool:
        """Whether some of more tasks read already, and others are not ready yet."""
        return self.state is AmendState.HANDING_OVER and self._grows(works) and not self._is_ready(works)

    def _hand_over(self, works: Works, now: float) -> list[Command]:
        """Input goes to the next version; the next sweep has the sources in force let go of what they have not sent."""
        assert works.next is not None
        works.next.tasks.first_solitary = works.in_force.tasks.first_solitary + sum(
            task.plan.alone for task in works.in_force.tasks
        )
        works.reader = works.next
        self._since = self._parts.intake.sweep
        leaving = works.leaving
        self._let_go(task for task in works.in_force.tasks if task.plan.name in leaving)
        self._parts.sweeps.lost()
        if self._reshape is None or not self._reshape.leaves:
            return []
        self.leave_by = now + LEAVE_S_MAX
        return [seal for seal in self._seal(works, "drain") if seal.task in leaving]

    def _seal(self, works: Works, reason: str) -> list[SealSink]:
        """Have the sinks in force seal what they hold now: it is closed by the time that they are to be empty."""
        sinks = [stage.name for stage in works.in_force.pipeline.of_kind(StageKind.SINK)]
        return works.in_force.tasks.seal(sinks, reason)

    def _undo(self, works: Works, wrong: str, state: RunState) -> list[Command]:
        """The version in force goes on, and reads again what the next one had."""
        assert works.next is not None
        tasks, leaving, reshape = works.next.tasks, works.leaving, self._reshape
        stops = tasks.stop("the change was rolled back")
        works.in_force.tasks.follow(tasks)
        if self.state is AmendState.HANDING_OVER:
            self._let_go(tasks)
            for task in tasks:
                self._parts.intake.task_died(task.plan.name)
            # A marker that halts them may have passed, or may be on its way and let go of what is handed out now: the
            # next sweep tells what they still have, and what waits.
            for name in leaving:
                self._parts.intake.let_go(name)
            self._parts.intake.drop_queue()
            self._parts.intake.distrust()
            self._parts.sweeps.lost()
        works.reader, works.next, works.on_trial = works.in_force, None, False
        self.leave_by = None
        self._machine.turn(AmendTurn.FAILED)
        if reshape is not None:
            self._reshape = None
            if state is RunState.RUNNING:
                self._reconfiguration.rolled_back(wrong)
            return stops
        self.refused = f"the change of the graph was rolled back: {wrong}"
        return [*stops, *self.answer(self.refused)]

    def _let_go(self, tasks: Iterable[RunTask]) -> None:
        self._parts.intake.solitary.let_go()
        for task in tasks:
            self._parts.listing.task_died(task.plan.name)


def why_not_now(event: PipelineRequested, before: Pipeline, after: Pipeline) -> str:
    """Why a graph that was asked for is none to take the place of the one in force; empty if it is one."""
    was, asked, name = before.version(), after.version(), before.name
    if event.was not in ("", was) and asked != was:
        return f"pipeline {name!r} was changed meanwhile: it has version {was}, and no longer {event.was}: try again"
    if asked == was and (lines := difference(_declared(before), _declared(after))):
        return (
            f"pipeline {name!r} would decide as it does ({lines[0]}): use scale or move, or stop it and apply it anew"
        )
    return ""


def _declared(pipeline: Pipeline) -> dict[str, object]:
    """What is declared of each stage."""
    return {f"{stage.name}.{key}": value for stage in pipeline.stages for key, value in stage.to_dict().items()}


def why_an_epoch(before: Pipeline, after: Pipeline) -> str:
    """Why a graph becomes another with an epoch, of an index of its own; empty if it need not.

    An index knows what its own epoch let through, by what stands before it: where that is the same the index stays. A
    record that it has let through, and that was lost then, would else be filtered before it, and its duplicates be
    left without a copy.
    """
    changed = difference(before.identity(), after.identity())
    for pipeline in (before, after):
        for stage in pipeline.stateful:
            known = {stage.name, *_above(pipeline, stage.name)}
            lines = difference(before.environment, after.environment)
            lines += [line for line in changed if line.partition(".")[0] in known or line.startswith("source of ")]
            if lines:
                return f"stage {stage.name!r} remembers what has come to it ({lines[0]})"
    return ""


def why_not_amended(before: Pipeline, after: Pipeline) -> str:
    """Why a graph cannot become another during a run; empty if it can.

    Fragments are named by their source, and shards have the form of their sink: these stay.
    """
    if before.dataset != after.dataset:
        return f"the dataset is {before.dataset}, not {after.dataset}"
    changed = difference(before.identity(), after.identity())
    for kind, words in ((StageKind.SOURCE, "reads"), (StageKind.SINK, "writes")):
        names = [{stage.name for stage in pipeline.of_kind(kind)} for pipeline in (before, after)]
        if names[0] != names[1]:
            return f"what {words} would be {', '.join(sorted(names[1]))} and is {', '.join(sorted(names[0]))}"
        for line in changed:
            name, _, rest = line.partition(".")
            if name in names[0] and not rest.startswith("after: "):
                return f"stage {name!r} {words}, and would do so otherwise ({line})"
    return ""


def why_without_keys(before: Pipeline, after: Pipeline) -> str:
    """Why a stage would not know what was kept so far, by keys that lie beside its shards; empty if it would."""
    for sink in after.dependent_sinks:
        made = before.key_makers(sink)
        for number, maker in sorted(after.key_makers(sink).items()):
            if number < len(after.stateful) and (number not in made or _making(made[number]) != _making(maker)):
                stage, kept = after.stateful[number].name, f"all that {sink!r} keeps, which has others or none"
                return f"stage {stage!r} needs keys from {maker.name!r} of {kept}"
    return ""


def _making(stage: Stage) -> tuple[str, dict[str, object]]:
    """What decides which keys a stage makes of a record."""
    return stage.target, {key: value for key, value in stage.parameters.items() if key not in stage.volatile}


def _above(pipeline: Pipeline, name: str) -> set[str]:
    """The stages that records pass before this one."""
    found: set[str] = set()
    for stage in pipeline.stage(name).after:
        found |= {stage, *_above(pipeline, stage)}
    return found
