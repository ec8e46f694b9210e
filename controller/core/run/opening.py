"""The opening of a run: may this pipeline write this dataset, with which plan, and which tasks go on?

A run may go on under a new leader: tasks that live are adopted, and those of absent workers are waited for. The new
leader does not know what the earlier one had handed out. So nothing is handed out before a sweep has passed all tasks:
then sources have said what they were given, and sinks what they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.controller.core.log import LOG_LIMITS, Leadership, LogLimits
from headrace.controller.core.messages import Command, KillTask, PipelineRequested, WorkerLost
from headrace.controller.core.plan import Plan, RequestedChanges
from headrace.controller.core.run.input import Intake, Listing
from headrace.controller.core.run.states import (
    EPOCH_TRANSITIONS,
    OPENING_TRANSITIONS,
    EpochState,
    EpochTurn,
    Machine,
    OpeningState,
    OpeningTurn,
)
from headrace.controller.core.run.sweeps import Sweeps
from headrace.controller.core.run.tasks import ReportedTasks, RunTasks, TaskPhase, Workers
from headrace.pipeline import Pipeline, PipelineError, StageKind, difference
from headrace.store import counted
from headrace.store.ledger import EpochRaised, LedgerState, PipelineApplied, Removed

#: Seconds that the workers of an earlier leader have to come back before tasks are planned without them, and that a run
#: waits for workers where those that are there cannot have its tasks.
REJOIN_S, WORKER_AWAY_S_MAX = 8.0, 60.0
#: Sweeps and listings in one term: those of a later leader have higher numbers.
NUMBERS_A_TERM = 1 << 20


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the controller gives each of its runs."""

    identity: Mapping[str, Any]
    workers: Workers
    reported: ReportedTasks = field(default_factory=ReportedTasks)
    standby: bool = False
    #: The origin of the cluster's log; empty without one.
    cluster: str = ""
    log_limits: LogLimits = LOG_LIMITS


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What an earlier leader left of a run: its plan, if there was one, and what people requested since.

    `awaited`: whether some of its workers are not back.
    """

    plan: Plan | None
    requested: RequestedChanges
    awaited: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer: a reason to refuse (empty: none), what differs, and what to warn of.

    `anew`: another pipeline was here, and nothing that it made is worth keeping, so the dataset begins anew.
    """

    refusal: str = ""
    differences: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    anew: bool = False


def nothing_kept(ledger: LedgerState) -> bool:
    """Whether no sink has kept a record, and no version was published."""
    return not ledger.version and not any(counts.kept for counts in ledger.counts.values())


def _begins_anew(ledger: LedgerState) -> tuple[str, ...]:
    """The warning where verdicts are forgotten; nothing where there was none."""
    closed = max((counts.records for counts in ledger.counts.values()), default=0)
    if not closed:
        return ()
    warning = (
        f"the dataset begins anew: another pipeline had read {counted(closed, 'record')} into it and kept none; what "
        "it quarantined is not named any more, and `headrace dataset gc` deletes it"
    )
    return (warning,)


def admit(pipeline: Pipeline, ledger: LedgerState, *, amend: bool) -> Admission:
    """Compare a pipeline with the one that made the dataset so far.

    Another graph, source, parameter or tokenizer is refused, unless `amend` says that what is still open shall be
    processed by the new one; the sinks' form cannot change once there are shards. Another environment alone warns.
    A dataset in which nothing was kept takes any pipeline, and begins anew with it.
    """
    if not ledger.pipeline:
        return Admission()
    earlier = Pipeline.from_dict(ledger.pipeline)
    changed = difference(earlier.identity(), pipeline.identity())
    if changed and not amend:
        if nothing_kept(ledger):
            return Admission(warnings=_begins_anew(ledger), anew=True)
        return Admission(
            f"dataset {pipeline.dataset} was made by another pipeline; write to a new dataset, or add --amend to "
            "process what is still open with this one",
            tuple(changed),
        )
    sinks = {stage.name for stage in pipeline.of_kind(StageKind.SINK)}
    # What stands before a sink is no part of its form.
    fixed = [line for line in changed if line.split(".", 1)[0] in sinks and ".after: " not in line]
    if fixed and ledger.shards:
        if nothing_kept(ledger):
            return Admission(warnings=_begins_anew(ledger), anew=True)
        return Admission(
            f"dataset {pipeline.dataset} holds shards of another form, and --amend cannot change them: write to a new "
            "dataset",
            tuple(fixed),
        )
    if changed or earlier.environment == pipeline.environment:
        return Admission()
    lines = difference(earlier.environment, pipeline.environment)
    return Admission(warnings=tuple(f"environment differs: {line}" for line in lines))


class EpochRaise:
    """The dataset's epoch, and whether the next one is on its way to the log."""

    def __init__(self, leadership: Leadership[LedgerState]) -> None:
        self._leadership = leadership
        self._machine = Machine("epoch", EPOCH_TRANSITIONS, EpochState.CURRENT)
        self._from = 0

    @property
    def raising(self) -> bool:
        """What is queued for the log now would stand after the raise, and be of the epoch before it."""
        return self._machine.state is EpochState.RAISING

    def begin(self, reason: str, number: int = 0) -> None:
        """Have the log raise the epoch; to this number where its tasks were started before."""
        self._machine.turn(EpochTurn.SUBMITTED)
        self._from = self._leadership.ledger.epoch
        self._leadership.submit(EpochRaised(reason, number))

    def begun_anew(self) -> bool:
        """Raise the epoch for an index that is lost; False until that is durable."""
        if not self.raising:
            self.begin("the dedup index begins anew")
        return self.take_up()

    def take_up(self) -> bool:
        """Go on in the epoch of the ledger; False while its raise is not durable."""
        if self.raising and self._leadership.ledger.epoch == self._from:
            return False
        self._machine.note(EpochTurn.TAKEN_UP)
        return True


class Opening:
    """From the log's first reading to the first plan."""

    def __init__(
        self,
        request: PipelineRequested,
        pipeline: Pipeline,
        leadership: Leadership[LedgerState],
        epoch: EpochRaise,
        *,
        inherited: Plan | None,
        awaited: Callable[[], bool],
    ) -> None:
        self._pipeline, self._leadership, self._epoch = pipeline, leadership, epoch
        self._ledger = leadership.ledger
        self._version = pipeline.version()
        self._amend = request.amend
        self._inherited, self._awaited = inherited, awaited
        self._machine = Machine("opening", OPENING_TRANSITIONS, OpeningState.READING)
        self._plan_by = 0.0
        #: Until when it waits for workers that can hold the plan.
        self._give_up_at: float | None = None

    @property
    def wake_at(self) -> float | None:
        """When absent workers are waited for no more."""
        return self._plan_by if self._machine.state is OpeningState.AWAITING else self._give_up_at

    def admission(self, plan: Callable[[], Any] | None) -> Admission:
        """Whether the pipeline may go on with the dataset, and whether `plan` finds a plan for it."""
        admission = admit(self._pipeline, self._ledger, amend=self._amend)
        if admission.refusal or plan is None:
            return admission
        try:
            plan()
        except PipelineError as error:
            return Admission(str(error))
        return admission

    def apply(self) -> str:
        """A leader makes its pipeline the dataset's; why it may not, since the log has grown since it was read."""
        reading = self._machine.state is OpeningState.READING
        if self._ledger.pipeline_version == self._version and self._ledger.epoch > 0:
            if reading and self._inherited is None:
                # An index knows what is kept up to its epoch: an epoch begins with it. And what sinks of an earlier run
                # hold of open fragments may be of other bytes than stand there now.
                sinks = tuple(stage.name for stage in self._pipeline.of_kind(StageKind.SINK))
                if self._pipeline.stateful:
                    self._epoch.begin("the dedup index begins")
                elif not all(state.done(sinks) for state in self._ledger.fragments.values()):
                    self._epoch.begin("another run begins")
            self._machine.note(OpeningTurn.DURABLE)
            return ""
        admission = admit(self._pipeline, self._ledger, amend=self._amend)
        if not admission.refusal and reading:
            self._machine.turn(OpeningTurn.SUBMITTED)
            applied = PipelineApplied(self._version, self._pipeline.to_dict())
            if admission.anew:
                self._leadership.submit(EpochRaised("begun anew"), Removed("nothing was kept"), applied)
            else:
                reason = "created" if not self._ledger.pipeline else "amended"
                self._leadership.submit(applied, EpochRaised(reason))
        return admission.refusal

    def is_ready(self, now: float, *, fit_workers: bool) -> bool:
        """Whether tasks can be planned: the pipeline is applied, its epoch stands, and the workers are there."""
        if self._machine.state in (OpeningState.READING, OpeningState.APPLYING):
            return False
        if self._inherited is None and (self._waits_for_workers(now) or not fit_workers):
            return False
        return self._epoch.take_up()

    def first_plan(self, plan: Callable[[], Plan], now: float) -> Plan | None:
        """The plan of an earlier leader, without what only it suspected, or a new one; None while there is none.

        The workers could hold it when it was asked for. Some may have gone since, and come back: PipelineError when
        that has taken too long.
        """
        if self._inherited is None:
            try:
                made = plan()
            except PipelineError:
                self._give_up_at = now + WORKER_AWAY_S_MAX if self._give_up_at is None else self._give_up_at
                if now >= self._give_up_at:
                    raise
                return None
            self._give_up_at = None
            return made
        return replace(self._inherited, tasks=tuple(task for task in self._inherited.tasks if not task.alone))

    def _waits_for_workers(self, now: float) -> bool:
        """Whether workers of an earlier leader, which had not planned the run yet, may still come to this one."""
        if self._machine.state is OpeningState.WAITED:
            return False
        if not self._awaited():
            self._machine.note(OpeningTurn.WORKERS_BACK)
            return False
        if self._machine.state is OpeningState.APPLIED:
            self._machine.turn(OpeningTurn.WORKERS_AWAY)
            self._plan_by = now + REJOIN_S
        if now < self._plan_by:
            return True
        self._machine.turn(OpeningTurn.TIME_OVER)
        return False


class Adoption:
    """From an earlier leader's tasks to this one's."""

    def __init__(
        self,
        run: str,
        version: str,
        ledger: LedgerState,
        workers: Workers,
        intake: Intake,
        listing: Listing,
        sweeps: Sweeps,
        reported: ReportedTasks,
        tasks: RunTasks,
    ) -> None:
        self._run, self._version, self._ledger, self._workers = run, version, ledger, workers
        self._intake, self._listing, self._sweeps = intake, listing, sweeps
        self._reported, self._tasks = reported, tasks
        #: When workers that are absent are taken for lost.
        self.rejoin_at: float | None = None

    def begin(self, term: int, now: float, *, inherited: bool) -> list[Command]:
        """Nothing is started yet: adopt what lives, and wait for the workers of an inherited plan."""
        self._listing.number = self._intake.sweep = term * NUMBERS_A_TERM
        self._listing.handed = None if inherited else set()
        commands: list[Command] = []
        # Also of workers that the plan does not name: nobody else would end what they have of this run.
        for worker in sorted(self._workers.present):
            commands += self.adopt(worker, now)
        if inherited and self._absent():
            self.rejoin_at = now + REJOIN_S
        if self.rejoin_at is not None or any(task.state is not TaskPhase.WAITING for task in self._tasks):
            self._intake.inherit()
            self._tasks.links.inherit(term)
            self._sweeps.missed()
        return commands

    def adopt(self, worker: str, now: float) -> list[Command]:
        """Go on with the tasks of one worker that fit the plan; end those that do not."""
        reported = self._reported.take(self._run, worker)
        self._tasks.links.reported(self._tasks.plan, worker, reported.links)
        identity, found = (self._version, self._ledger.epoch), sorted(reported.tasks.items())
        fit = {name: item for (name, _), item in found if (item.version, item.epoch) == identity}
        for task in self._tasks.waiting_on(worker):
            item = fit.get(task.plan.name)
            # A name may have come again with other stages, by a plan that this leader does not know.
            same = item is not None and item.stages in ((), task.plan.stages)
            if item is not None and same and self._tasks.adopt(task, item, now):
                self._intake.distrust()
        commands: list[Command] = []
        for item in reported.tasks.values():
            current = self._tasks.current(item.task, item.attempt)
            if current is None or current.plan.worker != worker:
                commands.append(KillTask(worker, item.task, item.attempt, "another attempt takes its place"))
        return commands

    def given_up(self, now: float) -> list[WorkerLost]:
        """The workers that have not come back in time, as lost."""
        if self.rejoin_at is None:
            return []
        absent = self._absent()
        if absent and now < self.rejoin_at:
            return []
        self.rejoin_at = None
        return [WorkerLost(worker, "it did not come back to the new leader") for worker in sorted(absent)]

    def _absent(self) -> set[str]:
        """Workers that the plan names and that are not there."""
        return {task.plan.worker for task in self._tasks} - self._workers.present.keys()
