"""One run of a pipeline: the machine that turns a request into a dataset whose every record is accounted for.

It owns the leadership of the dataset's log, the roster of tasks, the intake of fragments and the proposals. Its door
is `handle(event, now)`; what it has learned comes out as commands, and time comes in as an argument.
"""

from __future__ import annotations

from headrace.controller.core.cluster import LOST, LeaderState
from headrace.controller.core.messages import (
    LOG_EVENTS,
    Command,
    DecisionAsked,
    DecisionMade,
    EntryUnresolved,
    FragmentsWereRead,
    FragmentWasRead,
    LinkLost,
    LogRead,
    LogUnreadable,
    ManifestWritten,
    Outcome,
    ShardProposed,
    SourceListed,
    SteerAdmitted,
    SteerRequested,
    StopRequested,
    TaskExited,
    TaskFailed,
    TaskReady,
    TaskSwept,
    TimePassed,
    WorkerDrained,
    WorkerLost,
    WriteManifest,
)
from headrace.controller.core.plan import WorkerFacts
from headrace.controller.core.run.needs import NeedsAsked, VerdictsLetGo
from headrace.controller.core.run.run_base import OPENING_S_MAX, WORKING
from headrace.controller.core.run.run_changes import Changes
from headrace.controller.core.run.run_ending import Ending
from headrace.controller.core.run.run_input import Input
from headrace.controller.core.run.run_states import RunState, RunTurn
from headrace.controller.core.run.run_tasks import WORKER_AWAY_S_MAX
from headrace.store.ledger import (
    Closed,
    Entry,
    FragmentDropped,
    FragmentEnded,
    FragmentsListed,
    VersionPublished,
    VersionSeen,
)


class Run(Changes, Input, Ending):
    """The state machine of one pipeline's run."""

    def open(self) -> list[Command]:
        """Begin: look at the dataset's log."""
        return self.leadership.open()

    def handle(self, event: object, now: float) -> list[Command]:
        """Take one event; give the commands that follow from it."""
        if self.ended:
            return self._after_the_end(event, now)
        commands = self._dispatch(event, now)
        for _, entry in self.leadership.committed():
            commands += self._committed(entry)
        waited_s, trouble = self.leadership.trouble(now)
        if self.state is RunState.OPENING and waited_s >= OPENING_S_MAX and not self.leadership.stalled:
            commands += self._fail(f"the ledger of {self.pipeline.dataset} cannot be written: {trouble}")
        if self.leadership.state in LOST and not self.ended:
            commands += self._fail(self.leadership.why_not_leading())
        if not self.ended:
            commands += self._advance(now)
        commands += self.leadership.flush(now)
        return commands

    def worker_joined(self, worker: WorkerFacts, now: float) -> list[Command]:
        """A worker can take tasks from now on, and brings those that it still has."""
        self._workers[worker.name] = worker
        joined = [*self._adopt(worker.name, now), *self._settle_away()] if self.crew and self.state in WORKING else []
        return [*joined, *self.handle(TimePassed(), now)]

    def trouble(self, now: float) -> str:
        """Why the ledger or the manifest is not written just now, for people; "" if nothing is in the way."""
        return self.leadership.trouble(now)[1] or (self._manifest_trouble if not self.ended else "")

    def wake_at(self) -> float | None:
        """When `handle(TimePassed())` is wanted next; None: only on an event."""
        if self.ended:
            return None if self.over else self.leadership.wake_at()
        times = [self.leadership.wake_at(), self._manifest_at]
        if self.state is RunState.OPENING:
            times.append(self._plan_by)
        if self.crew and self.state in WORKING:
            # Who has not come back matters while there is work: behind it a moment that has passed would be waited for
            # without end.
            times += [self.crew.wake_at(self._workers), self._rejoin_at]
            times += [since + WORKER_AWAY_S_MAX for since, _ in self._away.values()]
        return min((time for time in times if time is not None), default=None)

    def _dispatch(self, event: object, now: float) -> list[Command]:
        if isinstance(event, LOG_EVENTS):
            return self._log_said(event, now)
        match event:
            case TimePassed():
                return self.leadership.handle(event, now)
            case TaskReady():
                return self.crew.ready(event, now, self.ledger.epoch, self._workers) if self.crew else []
            case TaskExited():
                return self._exited(event, now)
            case TaskFailed():
                return self._task_failed(event, now)
            case SourceListed():
                return self._source_listed(event)
            case FragmentWasRead() | FragmentsWereRead():
                return self._were_read(event)
            case ShardProposed() | NeedsAsked() | VerdictsLetGo() | DecisionAsked() | DecisionMade():
                return self._asked(event) if self.state in WORKING else []
            case TaskSwept():
                return self._swept(event)
            case LinkLost():
                return self._link_lost(event, now)
            case WorkerLost():
                return self._worker_lost(event, now)
            case StopRequested() | SteerRequested() | SteerAdmitted() | WorkerDrained():
                return self._wished(event)
            case ManifestWritten():
                return self._manifest_written(event, now)
            case _:
                raise TypeError(f"a run knows no {type(event).__name__}")

    def _log_said(self, event: object, now: float) -> list[Command]:
        if isinstance(event, LogRead) and self.leadership.state is LeaderState.READING:
            return self._opened(event, now)
        if isinstance(event, LogUnreadable) and not self._standby:
            return self._fail(event.error)
        commands = self.leadership.handle(event, now)
        if isinstance(event, EntryUnresolved) and event.refused:
            commands += self._fail(event.error)
        return commands

    def _wished(self, event: StopRequested | SteerRequested | SteerAdmitted | WorkerDrained) -> list[Command]:
        match event:
            case StopRequested():
                return self._stop(event)
            case SteerRequested():
                return self._steer(event)
            case SteerAdmitted():
                return self._see_to(event)
            case WorkerDrained():
                return self._leave(event)

    def _after_the_end(self, event: object, now: float) -> list[Command]:
        """Only the log matters still: what was being written, and the resignation."""
        if not isinstance(event, (*LOG_EVENTS, TimePassed)):
            return []
        commands = self.leadership.handle(event, now)
        for _, entry in self.leadership.committed():
            for change in entry.changes:
                if isinstance(change, Closed):
                    self.committer.durable(change)
        return [*commands, *self.leadership.flush(now)]

    def _committed(self, entry: Entry) -> list[Command]:
        commands: list[Command] = []
        if self.leadership.state is LeaderState.LEADING and self.state is RunState.OPENING:
            commands += self._apply()
        for change in entry.changes:
            match change:
                case FragmentsListed():
                    for fragment in change.fragments:
                        self.intake.admit(fragment.id)
                case VersionSeen():
                    self._version_seen(change)
                case FragmentDropped():
                    self.listing.settle((change.fragment,))
                case FragmentEnded():
                    self.listing.copies.note(self.ledger.fragments[change.fragment].fragment, change.checksum)
                    self._settle((change.fragment,))
                case Closed():
                    self._settle([item.fragment for item in change.ranges])
                    for waiter in self.committer.durable(change):
                        commands += self._answer(waiter, Outcome.ACCEPTED)
                case VersionPublished():
                    commands.append(WriteManifest(self.pipeline.dataset))
                case _:
                    pass
        if self.leadership.state is LeaderState.RESIGNED and not self.ended:
            commands += self._resigned()
        return commands

    def _advance(self, now: float) -> list[Command]:
        commands = self._begin_if_ready(now)
        commands += [*self._rejoin_over(now), *self._manifest_again(now)]
        if self.crew and self.state in WORKING:
            commands += self._given_up(now)
        self._relist_if_due()
        if self.crew and self.state in WORKING:
            commands += self._change_if_due(now)
            commands += self.crew.start_due(now, self.ledger.epoch, self._workers)
            commands += self.crew.join(now, self.ledger.epoch, self._workers)
            for late in self.crew.late(now):
                commands += self._task_failed(late, now)
        if self.state is RunState.RUNNING:
            commands += self.listing.ask(self.crew or ())
            commands += self._assign()
        if self.state in WORKING:
            commands += self._sweep_if_due()
        everything = self.listing.done and self.intake.done and self.leadership.quiet and self.committer.empty
        excess = self._allowance.excess(self.ledger, self.pipeline.dataset, at_end=everything)
        if self.state in WORKING and excess:
            return [*commands, *self._fail(excess)]
        if self.state is RunState.RUNNING and everything and self._changed:
            # What sinks held of a changed fragment when all had been sent is good, and closed first.
            settled = self._settled and self.intake.held_are_closed()
            return [*commands, *(self._settle_changed() if settled else [])]
        if self.state in WORKING and everything and self._altered:
            return [*commands, *self._fail(self._why_altered())]
        if self.state in WORKING and everything and not self._changed:
            return [*commands, *self._publish(RunTurn.ALL_CLOSED)]
        if self.state is RunState.DRAINING and self._empty:
            commands += self._publish_what_is_closed()
        return commands
