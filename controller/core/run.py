"""One run of a pipeline: the machine that turns a request into a dataset whose every record is accounted for.

It owns the leadership of the dataset's log, the roster of tasks, the intake of fragments and the proposals. Its door
is `handle(event, now)`; what it has learned comes out as commands, and time comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from headrace.controller.core.commit import Committer
from headrace.controller.core.intake import Intake
from headrace.controller.core.leadership import InvalidTransitionError, Leadership, LeaderState
from headrace.controller.core.messages import (
    AnswerProposal,
    AnswerRequest,
    Command,
    EntryRefused,
    EntryUnresolved,
    EntryWritten,
    FragmentWasRead,
    KillTask,
    ListSource,
    LogRead,
    MakeLink,
    ManifestWritten,
    Outcome,
    ReadFragment,
    ReportRun,
    SealSink,
    ShardProposed,
    SourceListed,
    StartTask,
    StopRequested,
    StopTask,
    SweepTask,
    TaskExited,
    TaskFailed,
    TaskReady,
    TaskSwept,
    TimePassed,
    WorkerLost,
    WriteManifest,
)
from headrace.controller.core.planner import Plan, WorkerFacts, move, plan
from headrace.controller.core.roster import DEATHS_MAX, Roster, Task, TaskState, TaskTurn
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline, StageKind, difference
from headrace.store.entries import (
    Closed,
    Entry,
    EpochRaised,
    Fragment,
    FragmentEnded,
    FragmentsListed,
    PipelineApplied,
    VersionPublished,
)


class RunState(Enum):
    """Where a run stands."""

    OPENING = "opening"
    RUNNING = "running"
    DRAINING = "draining"
    EMPTIED = "emptied"
    PUBLISHING = "publishing"
    COMPLETED = "completed"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"


class RunTurn(Enum):
    """What moves a run."""

    PIPELINE_ACCEPTED = "pipeline accepted"
    STOP_ASKED = "stop asked"
    CANCEL_ASKED = "cancel asked"
    ALL_CLOSED = "all closed"
    SINKS_EMPTY = "sinks empty"
    RESIGNED = "resigned"
    FAULT = "fault"


TRANSITIONS: dict[tuple[RunState, RunTurn], RunState] = {
    (RunState.OPENING, RunTurn.PIPELINE_ACCEPTED): RunState.RUNNING,
    (RunState.OPENING, RunTurn.FAULT): RunState.FAILED,
    (RunState.OPENING, RunTurn.CANCEL_ASKED): RunState.CANCELLED,
    (RunState.RUNNING, RunTurn.STOP_ASKED): RunState.DRAINING,
    (RunState.RUNNING, RunTurn.CANCEL_ASKED): RunState.CANCELLED,
    (RunState.RUNNING, RunTurn.ALL_CLOSED): RunState.PUBLISHING,
    (RunState.RUNNING, RunTurn.FAULT): RunState.FAILED,
    (RunState.DRAINING, RunTurn.CANCEL_ASKED): RunState.CANCELLED,
    (RunState.DRAINING, RunTurn.SINKS_EMPTY): RunState.EMPTIED,
    (RunState.EMPTIED, RunTurn.RESIGNED): RunState.STOPPED,
    (RunState.EMPTIED, RunTurn.CANCEL_ASKED): RunState.CANCELLED,
    (RunState.EMPTIED, RunTurn.FAULT): RunState.FAILED,
    (RunState.DRAINING, RunTurn.ALL_CLOSED): RunState.PUBLISHING,
    (RunState.DRAINING, RunTurn.FAULT): RunState.FAILED,
    (RunState.PUBLISHING, RunTurn.RESIGNED): RunState.COMPLETED,
    (RunState.PUBLISHING, RunTurn.CANCEL_ASKED): RunState.CANCELLED,
    (RunState.PUBLISHING, RunTurn.FAULT): RunState.FAILED,
}

ENDED = (RunState.COMPLETED, RunState.STOPPED, RunState.CANCELLED, RunState.FAILED)


class Run:
    """The state machine of one pipeline's run."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        identity: Mapping[str, Any],
        workers: Sequence[WorkerFacts],
        request: int = 0,
        amend: bool = False,
        fuse: bool = True,
        replicas: int = 0,
        standby: bool = False,
    ) -> None:
        self.pipeline = pipeline
        self.version = pipeline.version()
        self.state = RunState.OPENING
        self.reason = ""
        self.leadership = Leadership(pipeline.dataset, identity, standby=standby)
        self.ledger = self.leadership.ledger
        self.sinks = tuple(stage.name for stage in pipeline.of_kind(StageKind.SINK))
        self.sources = tuple(stage.name for stage in pipeline.of_kind(StageKind.SOURCE))
        self.records_resumed = 0
        self._amend, self._fuse, self._replicas = amend, fuse, replicas
        self._request: int | None = request
        self._workers = {worker.name: worker for worker in workers}
        self.plan: Plan | None = None
        self.roster: Roster | None = None
        self.intake = Intake(self.ledger, self.sinks)
        self.committer = Committer(self.ledger)
        self._links: dict[str, tuple[int, int]] = {}
        self._listing: dict[str, str] = {}
        self._listed: dict[str, bool] = dict.fromkeys(self.sources, False)
        #: Fragments in this run's listing.
        self.seen: set[bytes] = set()
        self._submitted_fragments: set[bytes] = set()
        self._submitted_ends: set[bytes] = set()
        self._dirty = False
        self._settled = False
        self._halted = False
        self._shards_at_start = 0

    # -- the door --

    def open(self) -> list[Command]:
        """Begin: look at the dataset's log."""
        return self.leadership.open()

    def handle(self, event: object, now: float) -> list[Command]:
        """Take one event; give the commands that follow from it."""
        if self.state in ENDED:
            return self._after_the_end(event, now)
        commands = self._dispatch(event, now)
        for _, entry in self.leadership.committed():
            commands += self._committed(entry, now)
        if self.leadership.state in (LeaderState.DENIED, LeaderState.DEPOSED) and self.state not in ENDED:
            commands += self._fail(self._why_not_leading())
        if self.state not in ENDED:
            commands += self._advance(now)
        commands += self.leadership.flush(now)
        return commands

    def _after_the_end(self, event: object, now: float) -> list[Command]:
        """Only the log matters still: what was being written, and the resignation."""
        if not isinstance(event, (LogRead, EntryWritten, EntryRefused, EntryUnresolved, TimePassed)):
            return []
        commands = self.leadership.handle(event, now)
        for _, entry in self.leadership.committed():
            for change in entry.changes:
                if isinstance(change, Closed):
                    self.committer.durable(change)
        return [*commands, *self.leadership.flush(now)]

    @property
    def over(self) -> bool:
        """The run has ended and its log is handed over."""
        return self.state in ENDED and self.leadership.state in (
            LeaderState.RESIGNED,
            LeaderState.DENIED,
            LeaderState.DEPOSED,
            LeaderState.READING,
            LeaderState.WATCHING,
        )

    def wake_at(self) -> float | None:
        """When `handle(TimePassed())` is wanted next; None: only on an event."""
        if self.state in ENDED:
            return None if self.over else self.leadership.wake_at()
        times = [self.leadership.wake_at(), self.roster.wake_at() if self.roster else None]
        return min((time for time in times if time is not None), default=None)

    def _dispatch(self, event: object, now: float) -> list[Command]:
        match event:
            case LogRead() | EntryWritten() | EntryRefused() | EntryUnresolved():
                first = isinstance(event, LogRead) and self.leadership.state is LeaderState.READING
                return self._opened(event, now) if first else self.leadership.handle(event, now)
            case TimePassed():
                return self.leadership.handle(event, now)
            case TaskReady():
                return self._ready(event, now)
            case TaskExited():
                return self._exited(event, now)
            case TaskFailed():
                return self._task_failed(event, now)
            case SourceListed():
                return self._source_listed(event)
            case FragmentWasRead():
                return self._was_read(event)
            case ShardProposed():
                return self._proposed(event)
            case TaskSwept():
                return self._swept(event)
            case WorkerLost():
                return self._worker_lost(event, now)
            case StopRequested():
                return self._stop(event)
            case ManifestWritten():
                return self._manifest_written(event)
            case _:
                raise TypeError(f"a run knows no {type(event).__name__}")

    # -- opening --

    def _opened(self, event: object, now: float) -> list[Command]:
        """The log was read for the first time: may this pipeline go on with this dataset?"""
        commands = self.leadership.handle(event, now)
        if self.leadership.state is LeaderState.DENIED:
            return []
        changed: list[str] = []
        if self.ledger.pipeline:
            earlier = Pipeline.from_dict(self.ledger.pipeline)
            changed = difference(earlier.identity(), self.pipeline.identity())
            if changed and not self._amend:
                reason = (
                    f"dataset {self.pipeline.dataset} was made by another pipeline; write to a new dataset, or add "
                    "--amend to process what is still open with this one"
                )
                return self._refuse(reason, tuple(changed))
            fixed = [line for line in changed if line.split(".", 1)[0] in self.sinks and self.ledger.shards]
            if fixed:
                reason = (
                    f"dataset {self.pipeline.dataset} holds shards of another form, and --amend cannot change them: "
                    "write to a new dataset"
                )
                return self._refuse(reason, tuple(fixed))
            if not changed and earlier.environment != self.pipeline.environment:
                lines = difference(earlier.environment, self.pipeline.environment)
                self._accept(commands, tuple(f"environment differs: {line}" for line in lines))
        if not self._workers:
            return self._refuse("no worker is registered: start one with `headrace worker`", ())
        try:
            self.plan = plan(self.pipeline, list(self._workers.values()), fuse=self._fuse, replicas=self._replicas)
        except PipelineError as error:
            return self._refuse(str(error), ())
        self._accept(commands, ())
        self._shards_at_start = len(self.ledger.shards)
        counts = self.ledger.counts.get(self.sinks[0])
        self.records_resumed = counts.records if counts else 0
        return commands

    def _accept(self, commands: list[Command], warnings: tuple[str, ...]) -> None:
        if self._request is not None:
            commands.append(AnswerRequest(self._request, accepted=True, warnings=warnings))
            self._request = None

    def _refuse(self, reason: str, differences: tuple[str, ...]) -> list[Command]:
        request, self._request = self._request, None
        self._turn(RunTurn.FAULT)
        self.reason = reason
        commands: list[Command] = [ReportRun(self.pipeline.name, self.state.value, reason)]
        if request is not None:
            commands.insert(0, AnswerRequest(request, accepted=False, reason=reason, differences=differences))
        return commands

    def _why_not_leading(self) -> str:
        leader = self.ledger.leader
        who = f"process {leader.get('pid', '?')} on host {leader.get('host', '?')} (term {self.ledger.term})"
        if self.leadership.state is LeaderState.DENIED:
            return f"dataset {self.pipeline.dataset} is being written by {who}: stop it, or write to another dataset"
        return f"dataset {self.pipeline.dataset} has been taken over by {who}; this run has stepped down"

    # -- what became durable --

    def _committed(self, entry: Entry, now: float) -> list[Command]:
        commands: list[Command] = []
        if self.leadership.state is LeaderState.LEADING and self.state is RunState.OPENING:
            if self.ledger.pipeline_version == self.version and self.ledger.epoch:
                commands += self._begin(now)
            elif not any(isinstance(change, PipelineApplied) for change in entry.changes):
                reason = "created" if not self.ledger.pipeline else "amended"
                self.leadership.submit(PipelineApplied(self.version, self.pipeline.to_dict()), EpochRaised(reason))
        for change in entry.changes:
            match change:
                case FragmentsListed():
                    for fragment in change.fragments:
                        self.intake.admit(fragment.id)
                case FragmentEnded():
                    self.intake.settle((change.fragment,))
                case Closed():
                    self.intake.settle(item.fragment for item in change.ranges)
                    for waiter in self.committer.durable(change):
                        commands += self._answer(waiter.task, waiter.attempt, waiter.proposal, Outcome.ACCEPTED)
                case VersionPublished():
                    commands.append(WriteManifest(self.pipeline.dataset))
                case _:
                    pass
        if self.leadership.state is LeaderState.RESIGNED and self.state not in ENDED:
            commands += self._resigned()
        return commands

    def _begin(self, now: float) -> list[Command]:
        assert self.plan is not None
        self._turn(RunTurn.PIPELINE_ACCEPTED)
        self.roster = Roster(self.plan)
        return self._start_due(now)

    # -- tasks --

    def _start_due(self, now: float) -> list[Command]:
        if self.roster is None:
            return []
        description = self.pipeline.to_dict()
        return [
            StartTask(
                worker=task.plan.worker,
                task=task.plan.name,
                attempt=task.attempt,
                stages=task.plan.stages,
                pipeline=description,
                version=self.version,
                epoch=self.ledger.epoch,
                replica=task.plan.replica,
            )
            for task in self.roster.due(now)
        ]

    def _ready(self, event: TaskReady, now: float) -> list[Command]:
        task = self.roster.current(event.task, event.attempt) if self.roster else None
        if task is None or task.state is TaskState.READY:
            return []
        task.turn(TaskTurn.BECAME_READY)
        task.ready_at = now
        return self._make_links()

    def _make_links(self) -> list[Command]:
        assert self.plan is not None
        assert self.roster is not None
        commands: list[Command] = []
        for link in self.plan.links:
            sender, receiver = self.roster.tasks[link.sender], self.roster.tasks[link.receiver]
            pair = (sender.attempt, receiver.attempt)
            ready = sender.state is TaskState.READY and receiver.state is TaskState.READY
            if not ready or self._links.get(link.name) == pair:
                continue
            self._links[link.name] = pair
            commands.append(
                MakeLink(
                    worker=sender.plan.worker,
                    link=link.name,
                    transport=link.transport,
                    sender=link.sender,
                    sender_attempt=sender.attempt,
                    sender_stage=link.sender_stage,
                    receiver=link.receiver,
                    receiver_attempt=receiver.attempt,
                    receiver_stage=link.receiver_stage,
                    epoch=self.ledger.epoch,
                )
            )
        return commands

    def _exited(self, event: TaskExited, now: float) -> list[Command]:
        task = self.roster.current(event.task, event.attempt) if self.roster else None
        if task is None or self.roster is None:
            return []
        signal = f"signal {-event.code}" if event.code < 0 else f"exit code {event.code}"
        story = f"{signal}: {event.story.strip()}" if event.story.strip() else signal
        return self._lost(task, story, now)

    def _lost(self, task: Task, story: str, now: float) -> list[Command]:
        assert self.roster is not None
        again = self.roster.died(task, story, now)
        self.intake.task_died(task.plan.name)
        for stage, lister in list(self._listing.items()):
            if lister == task.plan.name:
                del self._listing[stage]
        self._dirty, self._settled = True, False
        if not again:
            return self._fail(f"task {task.plan.name} died {DEATHS_MAX} times in a row; the last time by {story}")
        return []

    def _task_failed(self, event: TaskFailed, now: float) -> list[Command]:
        task = self.roster.current(event.task, event.attempt) if self.roster else None
        if task is None:
            return []
        if event.final:
            return self._fail(event.error)
        kill = KillTask(task.plan.worker, task.plan.name, task.attempt, event.error)
        return [*self._lost(task, event.error, now), kill]

    def _worker_lost(self, event: WorkerLost, now: float) -> list[Command]:
        self._workers.pop(event.worker, None)
        if self.roster is None or self.plan is None:
            return []
        commands: list[Command] = []
        for task in self.roster:
            alive = task.state in (TaskState.STARTING, TaskState.READY)
            if alive and task.plan.worker == event.worker and self.state not in ENDED:
                commands += self._lost(task, f"worker {event.worker} was lost: {event.reason}", now)
        if self._workers and self.state not in ENDED:
            tasks = self.plan.tasks
            target = min(self._workers, key=lambda name: (sum(task.worker == name for task in tasks), name))
            self.plan = move(self.plan, event.worker, target)
            for task in self.roster:
                task.plan = self.plan.task(task.plan.name)
        elif self.state not in ENDED:
            commands += self._fail(f"worker {event.worker} was lost ({event.reason}) and there is no other")
        return commands

    def worker_joined(self, worker: WorkerFacts) -> None:
        """A worker can take tasks from now on."""
        self._workers[worker.name] = worker

    # -- input --

    def _source_listed(self, event: SourceListed) -> list[Command]:
        if self._listing.get(event.stage) != event.task:
            return []
        if event.error:
            return self._fail(event.error)
        fresh: list[Fragment] = []
        for fragment in event.fragments:
            self.seen.add(fragment.id)
            if fragment.id in self.ledger.fragments:
                self.intake.admit(fragment.id)
            elif fragment.id not in self._submitted_fragments:
                self._submitted_fragments.add(fragment.id)
                fresh.append(fragment)
        if fresh:
            self.leadership.submit(FragmentsListed(tuple(fresh)))
        if event.last:
            self._listed[event.stage] = True
            return self._check_vanished(event.stage)
        return []

    def _check_vanished(self, stage: str) -> list[Command]:
        for state in self.ledger.fragments.values():
            fragment = state.fragment
            if fragment.stage == stage and fragment.id not in self.seen and not state.done(self.sinks):
                return self._fail(
                    f"{fragment.uri} was listed in an earlier run, is not read to its end, and has changed or vanished "
                    f"since (then: {fragment.version}); put the old object back, or write to a new dataset"
                )
        return []

    def _was_read(self, event: FragmentWasRead) -> list[Command]:
        if event.error:
            return self._fail(event.error)
        if self.intake.was_read(event.task, event.fragment, event.count) and event.count >= 0:
            state = self.ledger.fragments[event.fragment]
            if state.count is None and event.fragment not in self._submitted_ends:
                self._submitted_ends.add(event.fragment)
                self.leadership.submit(FragmentEnded(event.fragment, event.count))
        return []

    def _proposed(self, event: ShardProposed) -> list[Command]:
        judgement = self.committer.judge(event, self.version, self.ledger.epoch)
        if judgement.closed is not None:
            self.leadership.submit(judgement.closed)
        if judgement.outcome is None:
            return []
        answer = self._answer(event.task, event.attempt, event.proposal, judgement.outcome)
        return [
            AnswerProposal(
                item.worker, item.task, item.attempt, item.proposal, item.outcome, judgement.overlaps, judgement.reason
            )
            for item in answer
        ]

    def _answer(self, task: str, attempt: int, proposal: int, outcome: Outcome) -> list[AnswerProposal]:
        current = self.roster.current(task, attempt) if self.roster else None
        if current is None:
            return []
        return [AnswerProposal(current.plan.worker, task, attempt, proposal, outcome)]

    # -- what comes next --

    def _advance(self, now: float) -> list[Command]:
        commands = self._start_due(now) if self.state in (RunState.RUNNING, RunState.DRAINING) else []
        if self.state is RunState.RUNNING:
            commands += self._list_sources()
            commands += self._assign()
        if self.state in (RunState.RUNNING, RunState.DRAINING):
            commands += self._sweep_if_due()
        if self.state in (RunState.RUNNING, RunState.DRAINING) and all(self._listed.values()):  # noqa: SIM102
            if self.intake.done and self._everything_submitted_is_durable():
                return [*commands, *self._publish(RunTurn.ALL_CLOSED)]
        if self.state is RunState.DRAINING and self._halted and not self._dirty and self.intake.held_are_closed():
            commands += self._publish_what_is_closed()
        return commands

    def _everything_submitted_is_durable(self) -> bool:
        return self.leadership.quiet and self.committer.empty

    def _list_sources(self) -> list[Command]:
        assert self.roster is not None
        commands: list[Command] = []
        for stage, done in self._listed.items():
            if done or stage in self._listing:
                continue
            for task in self.roster:
                if stage in task.plan.stages and task.state is TaskState.READY:
                    self._listing[stage] = task.plan.name
                    commands.append(ListSource(task.plan.worker, task.plan.name, task.attempt, stage))
                    break
        return commands

    def _assign(self) -> list[Command]:
        assert self.roster is not None
        if self._links_missing():
            return []
        commands: list[Command] = []
        for task in self.roster:
            head = task.plan.stages[0]
            if head not in self._listed or task.state is not TaskState.READY:
                continue
            for fragment, gaps in self.intake.assign(head, task.plan.name):
                self._settled = False
                commands.append(ReadFragment(task.plan.worker, task.plan.name, task.attempt, fragment, gaps))
        return commands

    def _links_missing(self) -> bool:
        """Before the first links stand, a source would read and have nowhere to send."""
        return self.plan is not None and len(self._links) < len(self.plan.links)

    def _sweep_if_due(self) -> list[Command]:
        assert self.roster is not None
        if self.intake.sweeping or not self.roster.stable or self._links_missing():
            return []
        drained = self.state is RunState.RUNNING and all(self._listed.values()) and self.intake.idle
        finish = drained and not self._settled and self.leadership.quiet and not self.intake.done
        halt = self.state is RunState.DRAINING and not self._halted
        if not (self._dirty or finish or halt):
            return []
        self._dirty = False
        number = self.intake.begin_sweep(task.plan.name for task in self.roster)
        return [
            SweepTask(task.plan.worker, task.plan.name, task.attempt, number, self.state is RunState.DRAINING)
            for task in self.roster
        ]

    def _swept(self, event: TaskSwept) -> list[Command]:
        if self.roster is None or self.roster.current(event.task, event.attempt) is None:
            return []
        if not self.intake.swept(event):
            return []
        if self.state is RunState.DRAINING:
            self._halted = True
            return self._seal("stop")
        lost = self.intake.requeue_lost()
        if lost == 0 and self.intake.idle and all(self._listed.values()):
            self._settled = True
            return self._seal("end")
        return []

    def _seal(self, reason: str) -> list[Command]:
        assert self.roster is not None
        return [
            SealSink(task.plan.worker, task.plan.name, task.attempt, reason)
            for task in self.roster
            if task.plan.stages[-1] in self.sinks
        ]

    # -- the end --

    def _publish(self, turn: RunTurn) -> list[Command]:
        self._turn(turn)
        fresh = len(self.ledger.shards) > self._shards_at_start or self.ledger.version == 0
        if fresh:
            self.leadership.submit(VersionPublished(self.ledger.version + 1, "completed"))
        return [] if fresh else [WriteManifest(self.pipeline.dataset)]

    def _publish_what_is_closed(self) -> list[Command]:
        """After a stop: the sinks hold nothing any more."""
        self._turn(RunTurn.SINKS_EMPTY)
        self.leadership.submit(VersionPublished(self.ledger.version + 1, "stopped"))
        return []

    def _manifest_written(self, event: ManifestWritten) -> list[Command]:
        """Only now hand the log over: who sees the run end shall find the manifest."""
        if self.state not in (RunState.PUBLISHING, RunState.EMPTIED):
            return []
        if event.error:
            return self._fail(f"all is committed, but the manifest could not be written: {event.error}; run it again")
        self.leadership.resign()
        return []

    def _resigned(self) -> list[Command]:
        self._turn(RunTurn.RESIGNED)
        return [*self._stop_tasks(self.state.value), ReportRun(self.pipeline.name, self.state.value, self.reason)]

    def _stop(self, event: StopRequested) -> list[Command]:
        if event.cancel or self.state is RunState.OPENING:
            self._turn(RunTurn.CANCEL_ASKED)
            self.reason = "cancelled"
            self.leadership.resign()
            stop = self._stop_tasks("cancelled")
            return [*stop, ReportRun(self.pipeline.name, self.state.value, self.reason)]
        if self.state is RunState.RUNNING:
            self._turn(RunTurn.STOP_ASKED)
            self.intake.drop_queue()
            self.intake.abort_sweep()
        return []

    def _fail(self, reason: str) -> list[Command]:
        if self.state in ENDED:
            return []
        request, self._request = self._request, None
        self.leadership.resign()
        self._turn(RunTurn.FAULT)
        self.reason = reason
        commands: list[Command] = []
        if request is not None:
            commands.append(AnswerRequest(request, accepted=False, reason=reason))
        return [*commands, *self._stop_tasks(reason), ReportRun(self.pipeline.name, self.state.value, reason)]

    def give_up(self, reason: str) -> list[Command]:
        """The shell met what the core cannot mend: an unreadable log, a store that is not there."""
        return self._fail(reason)

    def _stop_tasks(self, reason: str) -> list[Command]:
        commands: list[Command] = []
        for task in self.roster or ():
            if task.state in (TaskState.STARTING, TaskState.READY):
                commands.append(StopTask(task.plan.worker, task.plan.name, task.attempt, reason))
            if task.state is not TaskState.STOPPED:
                task.turn(TaskTurn.STOP_ASKED)
        return commands

    def _turn(self, turn: RunTurn) -> None:
        target = TRANSITIONS.get((self.state, turn))
        if target is None:
            raise InvalidTransitionError(f"run of {self.pipeline.name}: {self.state.value} on {turn.value!r}")
        self.state = target
