"""A run that has tasks: what they say goes to the part that knows about it."""

from __future__ import annotations

from typing import TypeAlias, assert_never

from headrace.controller.core.log import Leadership
from headrace.controller.core.messages import Command, DecisionAsked, DecisionMade, messages as m
from headrace.controller.core.run.changed_input import ChangedFragments
from headrace.controller.core.run.input import Intake, Listing
from headrace.controller.core.run.losses import Losses
from headrace.controller.core.run.opening import Adoption, EpochRaise
from headrace.controller.core.run.proposals import Committer, Proposals
from headrace.controller.core.run.reading import Reading
from headrace.controller.core.run.states import WORKING, RunState
from headrace.controller.core.run.sweeps import Sweeps
from headrace.controller.core.run.tasks import ReportedTasks, RunTasks, Workers
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
    | m.ManifestWritten
)
#: Commands, and why the run fails; empty if it goes on.
Step: TypeAlias = tuple[list[Command], str]


class Work:
    """The parts of a run that has tasks."""

    def __init__(
        self,
        pipeline: Pipeline,
        leadership: Leadership[LedgerState],
        tasks: RunTasks,
        workers: Workers,
        reported: ReportedTasks,
        *,
        listing: Listing,
        intake: Intake,
        sweeps: Sweeps,
        changed: ChangedFragments,
        committer: Committer,
        epoch: EpochRaise,
    ) -> None:
        version, ledger = pipeline.version(), leadership.ledger
        sinks = tuple(stage.name for stage in pipeline.of_kind(StageKind.SINK))
        self.tasks, self._workers, self._ledger = tasks, workers, ledger
        self._listing, self._sweeps, self._epoch = listing, sweeps, epoch
        self.reading = Reading(leadership, listing, intake, sweeps, changed, tasks)
        self.proposals = Proposals(version, leadership, committer, intake, sweeps, changed, tasks)
        self.losses = Losses(pipeline, ledger, sinks, workers, intake, listing, sweeps, tasks)
        self.adoption = Adoption(pipeline.name, version, ledger, workers, intake, listing, sweeps, reported, tasks)

    def handle(self, event: m.TaskEvent, now: float, state: RunState) -> Step:
        """Take what a task says. A proposal is judged whether its attempt lives or not."""
        match event:
            case m.TaskReady():
                return self.tasks.ready(event, now, self._ledger.epoch, self._workers.present), ""
            case m.SourceListed():
                return [], self.reading.source_listed(event)
            case m.FragmentWasRead():
                return [], self.reading.was_read(event)
            case m.FragmentsWereRead():
                return [], next((wrong for read in event.reads if (wrong := self.reading.was_read(read))), "")
            case m.TaskSwept():
                if self.tasks.current(event.task, event.attempt) is None:
                    return [], ""
                halted_for = "stop" if state is RunState.DRAINING else "pause"
                return self._sweeps.swept(event, self.tasks, listed=self._listing.done, halted_for=halted_for), ""
            case m.TaskExited() | m.TaskFailed() | m.LinkLost():
                return self._lost(event, now) if state in WORKING else ([], "")
            case m.ShardProposed() | m.NeedsAsked() | m.VerdictsLetGo() | DecisionAsked() | DecisionMade():
                return (self._asked(event) if state in WORKING else []), ""
            case _:
                assert_never(event)

    def _asked(
        self, event: m.ShardProposed | m.NeedsAsked | m.VerdictsLetGo | DecisionAsked | DecisionMade
    ) -> list[Command]:
        match event:
            case m.ShardProposed():
                return [] if self._epoch.raising else self.proposals.proposed(event)
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
