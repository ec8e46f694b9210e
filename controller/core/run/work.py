"""A run that has tasks: what they say goes to the part that knows about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from headrace.controller.core.log import Leadership
from headrace.controller.core.messages import Command, DecisionAsked, DecisionMade, messages as m
from headrace.controller.core.run.input import Intake, Listing
from headrace.controller.core.run.losses import RunLosses
from headrace.controller.core.run.opening import Adoption, EpochRaise
from headrace.controller.core.run.proposals import Committer, Proposals
from headrace.controller.core.run.reading import ChangedFragments, InputReading
from headrace.controller.core.run.states import WORKING, RunState
from headrace.controller.core.run.sweeps import Sweeps, SweepScope
from headrace.controller.core.run.tasks import AttemptFacts, ReportedTasks, RunTask, RunTasks, Workers
from headrace.pipeline import Pipeline, StageKind
from headrace.store.ledger import LedgerState

RunEvent: TypeAlias = (
    m.LogEvent
    | m.TaskEvent
    | m.TimePassed
    | m.WorkerLost
    | m.StopRequested
    | m.SteerRequested
    | m.SteerAdmitted
    | m.WorkerDrained
    | m.HoldDecided
    | m.ManifestWritten
    | m.PipelineRequested
    | m.AmendRecorded
    | m.GateRecorded
    | m.DatasetAudited
)
#: Commands, and why the run fails; empty if it goes on.
Step: TypeAlias = tuple[list[Command], str]


@dataclass(frozen=True, slots=True)
class Parts:
    """What the versions of a run have in common."""

    leadership: Leadership[LedgerState]
    workers: Workers
    reported: ReportedTasks
    listing: Listing
    intake: Intake
    sweeps: Sweeps
    changed: ChangedFragments
    committer: Committer
    epoch: EpochRaise


class Work:
    """The parts of a run that belong to one version of its pipeline, which has tasks."""

    def __init__(self, pipeline: Pipeline, tasks: RunTasks, parts: Parts) -> None:
        leadership, workers, reported = parts.leadership, parts.workers, parts.reported
        listing, intake, sweeps, changed = parts.listing, parts.intake, parts.sweeps, parts.changed
        committer = parts.committer
        version, ledger = pipeline.version(), leadership.ledger
        sinks = tuple(stage.name for stage in pipeline.of_kind(StageKind.SINK))
        self.pipeline, self.version = pipeline, version
        self.tasks, self._workers, self._ledger = tasks, workers, ledger
        self._epoch, self._sweeps = parts.epoch, sweeps
        alone = () if any(pipeline.of_kind(StageKind.STATEFUL)) else sinks
        self.reading = InputReading(leadership, committer.queued, listing, intake, sweeps, changed, tasks, alone)
        self.proposals = Proposals(version, leadership, committer, intake, sweeps, changed, tasks)
        self.losses = RunLosses(pipeline, ledger, sinks, workers, intake, listing, sweeps, tasks)
        self.adoption = Adoption(pipeline.name, version, ledger, workers, intake, listing, sweeps, reported, tasks)

    def handle(self, event: m.TaskEvent, now: float, state: RunState) -> Step:
        """Take what a task says, but for answers to sweeps. A proposal is judged whether its attempt lives or not."""
        match event:
            case m.TaskReady():
                return self.tasks.ready(event, now, self._ledger.epoch, self._workers.present), ""
            case m.SourceListed():
                if wrong := self.reading.impossible_page(event):
                    return self._says_what_cannot_be(event, wrong, now, state)
                return [], self.reading.source_listed(event)
            case m.FragmentWasRead():
                return self._were_read((event,), now, state)
            case m.FragmentsWereRead():
                return self._were_read(event.reads, now, state)
            case m.TaskSwept():
                raise ValueError("a sweep goes through all works")
            case m.TaskExited() | m.TaskFailed() | m.LinkLost():
                return self._lost(event, now) if state in WORKING else ([], "")
            case m.ShardProposed() | m.NeedsAsked() | m.VerdictsLetGo() | DecisionAsked() | DecisionMade():
                return (self._asked(event) if state in WORKING else []), ""
            case _:
                assert_never(event)

    def _were_read(self, reads: Iterable[m.FragmentWasRead], now: float, state: RunState) -> Step:
        for read in reads:
            if wrong := self.reading.impossible(read):
                return self._says_what_cannot_be(read, wrong, now, state)
            if wrong := self.reading.was_read(read):
                return [], wrong
        return [], ""

    def _says_what_cannot_be(self, event: m.TaskEvent, wrong: str, now: float, state: RunState) -> Step:
        """A task that does has failed."""
        failed = m.TaskFailed(event.task, event.attempt, f"it says what cannot be: {wrong}", final=False)
        return self._lost(failed, now) if state in WORKING else ([], "")

    def _asked(
        self, event: m.ShardProposed | m.NeedsAsked | m.VerdictsLetGo | DecisionAsked | DecisionMade
    ) -> list[Command]:
        match event:
            case m.ShardProposed():
                return [] if self._epoch.raising or self.tasks.ahead else self.proposals.proposed(event)
            case m.NeedsAsked():
                return self.proposals.needs_asked(event)
            case m.VerdictsLetGo():
                if self.tasks.current(event.task, event.attempt) is not None:
                    self._sweeps.more()
                return []
            case DecisionAsked() | DecisionMade():
                return self.proposals.passed_on(event)
            case _:
                assert_never(event)

    def _lost(self, event: m.TaskExited | m.TaskFailed | m.LinkLost, now: float) -> Step:
        task = self.tasks.current(event.task, event.attempt)
        if task is None:
            return [], ""
        if isinstance(event, m.LinkLost):
            return [], self.losses.link_lost(event, now)
        if isinstance(event, m.TaskExited):
            return [], self.losses.exited(task, event, now)
        if event.final:
            return [], event.error
        kill = m.KillTask(task.plan.worker, task.plan.name, task.attempt, event.error)
        return [kill], self.losses.failed(task, event.error, now)


class Works:
    """The work of the version in force and, while the graph is changed, that of the next one.

    Until the next version is in the log it is on trial: what it loses is no loss of the run (`wrong`).
    """

    def __init__(self, work: Work, parts: Parts) -> None:
        self.in_force, self._parts = work, parts
        self.next: Work | None = None
        #: The one that input is handed to.
        self.reader = work
        self.on_trial = False
        #: Why the next version cannot be taken up.
        self.wrong = ""

    def __iter__(self) -> Iterator[Work]:
        yield self.in_force
        if self.next is not None:
            yield self.next

    @property
    def leaving(self) -> frozenset[str]:
        """The tasks that get no input any more."""
        if self.reader is self.in_force:
            return frozenset()
        stay = self.reader.tasks.table.tasks
        return frozenset(task.plan.name for task in self.in_force.tasks if task.plan.name not in stay)

    def of(self, task: str) -> Work:
        """The work that has a task in its care."""
        found = (work for work in self if task in work.tasks.table.tasks and task not in work.tasks.guests)
        return next(found, self.in_force)

    def _concerned(self, event: m.TaskEvent) -> Work:
        """The work that takes what a task says: of a link, or of another's question, by that."""
        match event:
            case m.LinkLost():
                return next((work for work in self if work.tasks.links.knows(event.link)), self.in_force)
            case DecisionMade():
                return self.of(event.asking_task)
            case _:
                return self.of(event.task)

    def current(self, name: str, attempt: int) -> RunTask | None:
        """The task if `attempt` is its living attempt; None for news of the dead."""
        return self.of(name).tasks.current(name, attempt)

    def attempt(self, name: str, attempt: int) -> AttemptFacts | None:
        """Whom an attempt was given to, dead or alive; None for one that nobody was given here."""
        return self.of(name).tasks.attempt(name, attempt)

    def handle(self, event: m.TaskEvent, now: float, state: RunState) -> Step:
        """Take what a task says."""
        if not isinstance(event, m.TaskEvent):  # pyright: ignore[reportUnnecessaryIsInstance]
            assert_never(event)
        work = self._concerned(event)
        if isinstance(event, m.TaskSwept):
            return self._swept(event, work, state), ""
        commands, wrong = work.handle(event, now, state)
        return commands, self._judged(work, wrong)

    def worker_lost(self, event: m.WorkerLost, now: float) -> str:
        """A worker is gone with its tasks; why the run fails, if it does."""
        reasons = [self._judged(work, work.losses.worker_lost(event, now)) for work in self]
        return next(filter(None, reasons), "")

    def joined(self, worker: str, now: float) -> Step:
        """A worker comes with what it has: plan what lost workers had on those that are there."""
        commands = self.in_force.adoption.adopt(worker, now)
        reasons = [self._judged(work, work.losses.settle_away()) for work in self]
        return commands, next(filter(None, reasons), "")

    def waited_too_long(self, now: float) -> str:
        """Why the run waits for a lost worker no more; empty if it does, or for none."""
        reasons = [self._judged(work, work.losses.waited_too_long(now)) for work in self]
        return next(filter(None, reasons), "")

    def late(self, now: float) -> list[m.TaskFailed]:
        """The tasks that have not become ready in time, as if they had said so."""
        return [late for work in self for late in work.tasks.late(now)]

    def start_due(self, now: float) -> list[Command]:
        """Start the tasks, and make the links, whose time has come."""
        epoch, present = self._parts.leadership.ledger.epoch, self._parts.workers.present
        commands: list[Command] = []
        for work in self:
            commands += [*work.tasks.start_due(now, epoch, present), *work.tasks.join(now, epoch, present)]
        return commands

    def begin_sweep_if_due(self, *, all_read: bool, finish: bool) -> list[Command]:
        """Begin a sweep through all tasks that have had input."""
        return self._parts.sweeps.begin_if_due(self._passed(), all_read=all_read, finish=finish)

    def wake_times(self) -> list[float | None]:
        """When something of it is due."""
        times: list[float | None] = [self.in_force.adoption.rejoin_at]
        for work in self:
            times += [work.tasks.wake_at(self._parts.workers.present), *work.losses.wake_times()]
        return times

    def stop(self, reason: str) -> list[Command]:
        """Ask every living task to end, and start none again."""
        return [command for work in self for command in work.tasks.stop(reason)]

    def kill(self, reason: str) -> list[Command]:
        """Kill every living task: a run that has no term left them to another leader, which will not come."""
        return [command for work in self for command in work.tasks.kill(reason)]

    def _swept(self, event: m.TaskSwept, work: Work, state: RunState) -> list[Command]:
        parts, passed = self._parts, self._passed()
        task = work.tasks.current(event.task, event.attempt)
        if task is None:
            return []
        if event.fenced:
            work.tasks.found_fenced(task)
        if event.task in passed.leaving and event.sweep == parts.intake.sweep:
            parts.intake.let_go(event.task)
        halted_for = "stop" if state is RunState.DRAINING else "pause"
        return parts.sweeps.swept(event, passed, listed=parts.listing.done, halted_for=halted_for)

    def _passed(self) -> SweepScope:
        """The tasks that have had input.

        One that stays awaits the markers of those that ask it, also of next tasks that are still warming: a sweep of
        that time ends when they are lost, or is begun again when they get input.
        """
        return SweepScope(tuple(dict.fromkeys((self.in_force.tasks, self.reader.tasks))), self.leaving)

    def _judged(self, work: Work, reason: str) -> str:
        """Why the run fails: not for what a version on trial loses."""
        if not reason or not self.on_trial or work is not self.next:
            return reason
        self.wrong = self.wrong or reason
        return ""
