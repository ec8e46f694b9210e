"""One run of a pipeline: the machine that turns a request into a dataset whose every record is accounted for.

It owns the leadership of the dataset's log, the roster of tasks, the intake of fragments and the proposals. Its door
is `handle(event, now)`; what it has learned comes out as commands, and time comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.controller.core.admission import admit
from headrace.controller.core.allowance import ANY_LOSS, Allowance
from headrace.controller.core.commit import Committer, Waiter
from headrace.controller.core.crew import Crew
from headrace.controller.core.intake import Intake
from headrace.controller.core.leadership import InvalidTransitionError, Leadership, LeaderState
from headrace.controller.core.listing import Listing
from headrace.controller.core.messages import (
    AnswerProposal,
    AnswerRequest,
    Command,
    EntryRefused,
    EntryUnresolved,
    EntryWritten,
    FragmentWasRead,
    KillTask,
    LogRead,
    ManifestWritten,
    Outcome,
    ReadFragment,
    ReportRun,
    ShardProposed,
    SourceListed,
    StopRequested,
    TaskExited,
    TaskFailed,
    TaskReady,
    TaskSwept,
    TimePassed,
    WorkerLost,
    WriteManifest,
)
from headrace.controller.core.planner import Plan, WorkerFacts, plan
from headrace.controller.core.roster import DEATHS_MAX, Task, TaskState
from headrace.controller.core.run_states import ENDED, TRANSITIONS, RunState, RunTurn
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline, StageKind
from headrace.store.entries import (
    Closed,
    Entry,
    EpochRaised,
    FragmentEnded,
    FragmentsListed,
    PipelineApplied,
    Range,
    VersionPublished,
)

#: Seconds that a run may wait for a store that does not take its first entry. Once it leads, it waits on.
OPENING_S_MAX = 10.0
_WORKING = (RunState.RUNNING, RunState.DRAINING)
_HANDED_OVER = (LeaderState.RESIGNED, LeaderState.DENIED, LeaderState.DEPOSED)


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
        allowance: Allowance = ANY_LOSS,
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
        #: Records and bytes that were closed before this run.
        self.records_resumed = 0
        self.bytes_resumed = 0
        self._amend, self._fuse, self._replicas, self._allowance = amend, fuse, replicas, allowance
        self._request: int | None = request
        self._standby = standby
        self._workers = {worker.name: worker for worker in workers}
        self.plan: Plan | None = None
        self.crew: Crew | None = None
        self.intake = Intake(self.ledger, self.sinks)
        self.committer = Committer(self.ledger)
        self.listing = Listing(self.ledger, self.sources, self.sinks)
        self._submitted_ends: set[bytes] = set()
        self._submitted_pipeline = False
        self._dirty = self._settled = self._halted = False
        self._shards_at_start = 0

    # -- the door --

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
        if self.state is RunState.OPENING and waited_s >= OPENING_S_MAX:
            commands += self._fail(f"the ledger of {self.pipeline.dataset} cannot be written: {trouble}")
        if self.leadership.state in (LeaderState.DENIED, LeaderState.DEPOSED) and not self.ended:
            commands += self._fail(self.leadership.why_not_leading())
        if not self.ended:
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
        return self.ended and self.leadership.state in _HANDED_OVER

    @property
    def ended(self) -> bool:
        """The run goes on no more; its log may still be on its way to being handed over."""
        return self.state in ENDED

    def wake_at(self) -> float | None:
        """When `handle(TimePassed())` is wanted next; None: only on an event."""
        if self.ended:
            return None if self.over else self.leadership.wake_at()
        starts = self.crew.roster.wake_at() if self.crew and self.state in _WORKING else None
        times = [self.leadership.wake_at(), starts]
        return min((time for time in times if time is not None), default=None)

    def _dispatch(self, event: object, now: float) -> list[Command]:
        match event:
            case LogRead() | EntryWritten() | EntryRefused() | EntryUnresolved():
                first = isinstance(event, LogRead) and self.leadership.state is LeaderState.READING
                return self._opened(event, now) if first else self.leadership.handle(event, now)
            case TimePassed():
                return self.leadership.handle(event, now)
            case TaskReady():
                return self.crew.ready(event, now, self.ledger.epoch) if self.crew else []
            case TaskExited():
                return self._exited(event, now)
            case TaskFailed():
                return self._task_failed(event, now)
            case SourceListed():
                return self._source_listed(event)
            case FragmentWasRead():
                return self._was_read(event)
            case ShardProposed():
                return self._proposed(event) if self.state in _WORKING else []
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
        admission = admit(self.pipeline, self.ledger, amend=self._amend)
        if admission.refusal:
            return self._refuse(admission.refusal, admission.differences)
        if not self._standby:
            # A standby has no workers yet: they attend the leader, and come here when it is gone.
            try:
                self._plan()
            except PipelineError as error:
                return self._refuse(str(error), ())
        self._accept(commands, admission.warnings)
        return commands

    def _plan(self) -> Plan:
        return plan(self.pipeline, list(self._workers.values()), fuse=self._fuse, replicas=self._replicas)

    def _accept(self, commands: list[Command], warnings: tuple[str, ...]) -> None:
        if self._request is not None:
            commands.append(AnswerRequest(self._request, accepted=True, warnings=warnings))
            self._request = None

    def _refuse(self, reason: str, differences: tuple[str, ...]) -> list[Command]:
        request, self._request = self._request, None
        self.leadership.drop_campaign()
        self._turn(RunTurn.FAULT)
        self.reason = reason
        commands: list[Command] = [ReportRun(self.pipeline.name, self.state.value, reason)]
        if request is not None:
            commands.insert(0, AnswerRequest(request, accepted=False, reason=reason, differences=differences))
        return commands

    # -- what became durable --

    def _committed(self, entry: Entry) -> list[Command]:
        commands: list[Command] = []
        if self.leadership.state is LeaderState.LEADING and self.state is RunState.OPENING:
            commands += self._apply()
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
                        commands += self._answer(waiter, Outcome.ACCEPTED)
                case VersionPublished():
                    commands.append(WriteManifest(self.pipeline.dataset))
                case _:
                    pass
        if self.leadership.state is LeaderState.RESIGNED and not self.ended:
            commands += self._resigned()
        return commands

    def _apply(self) -> list[Command]:
        """A leader makes its pipeline the dataset's. The log may have grown since it was read first: look again."""
        if self._applied:
            return []
        admission = admit(self.pipeline, self.ledger, amend=self._amend)
        if admission.refusal:
            return self._fail(admission.refusal)
        if not self._submitted_pipeline:
            self._submitted_pipeline = True
            reason = "created" if not self.ledger.pipeline else "amended"
            self.leadership.submit(PipelineApplied(self.version, self.pipeline.to_dict()), EpochRaised(reason))
        return []

    @property
    def _applied(self) -> bool:
        return self.ledger.pipeline_version == self.version and self.ledger.epoch > 0

    def _begin_if_ready(self, now: float) -> list[Command]:
        leads = self.leadership.state is LeaderState.LEADING
        if self.state is not RunState.OPENING or not leads or not self._applied or not self._workers:
            return []
        try:
            self.plan = self._plan()
        except PipelineError as error:
            return self._fail(str(error))
        self._turn(RunTurn.PIPELINE_ACCEPTED)
        self._shards_at_start = len(self.ledger.shards)
        counts = self.ledger.counts.get(self.sinks[0])
        self.records_resumed = counts.records if counts else 0
        self.bytes_resumed = sum(state.of(self.sinks[0]).bytes for state in self.ledger.fragments.values())
        self.crew = Crew(self.plan, self.pipeline, self.version, self.leadership.term)
        return self.crew.start_due(now, self.ledger.epoch)

    # -- tasks --

    def _exited(self, event: TaskExited, now: float) -> list[Command]:
        task = self.crew.current(event.task, event.attempt) if self.crew else None
        if task is None or self.state not in _WORKING:
            return []
        return self._lost(task, event.words(), now)

    def _lost(self, task: Task, story: str, now: float, *, blamed: bool = True) -> list[Command]:
        """A task's attempt is dead: what it alone held is to be found and read again."""
        assert self.crew is not None
        again = self.crew.roster.died(task, story, now, blamed=blamed)
        self.intake.task_died(task.plan.name)
        self.listing.task_died(task.plan.name)
        self._dirty, self._settled = True, False
        often = f"task {task.plan.name} died {DEATHS_MAX} times in a row; the last time by {story}"
        return [] if again else self._fail(often)

    def _task_failed(self, event: TaskFailed, now: float) -> list[Command]:
        task = self.crew.current(event.task, event.attempt) if self.crew else None
        if task is None or self.state not in _WORKING:
            return []
        if event.final:
            return self._fail(event.error)
        kill = KillTask(task.plan.worker, task.plan.name, task.attempt, event.error)
        return [*self._lost(task, event.error, now), kill]

    def _worker_lost(self, event: WorkerLost, now: float) -> list[Command]:
        self._workers.pop(event.worker, None)
        if self.crew is None or self.state not in _WORKING:
            return []
        for task in self.crew.on_worker(event.worker):
            self._lost(task, f"worker {event.worker} was lost: {event.reason}", now, blamed=False)
        if not self._workers:
            return self._fail(f"worker {event.worker} was lost ({event.reason}) and there is no other")
        self.crew.move(event.worker, sorted(self._workers))
        return []

    def worker_joined(self, worker: WorkerFacts, now: float) -> list[Command]:
        """A worker can take tasks from now on."""
        self._workers[worker.name] = worker
        return self.handle(TimePassed(), now)

    # -- input --

    def _source_listed(self, event: SourceListed) -> list[Command]:
        current = self.crew.current(event.task, event.attempt) if self.crew else None
        if current is None or not self.listing.expects(event):
            return []
        if event.error:
            return self._fail(event.error)
        fresh, known = self.listing.take(event)
        for fragment in known:
            self.intake.admit(fragment.id)
        if fresh:
            self.leadership.submit(FragmentsListed(tuple(fresh)))
        gone = self.listing.vanished(event.stage) if event.last else None
        if gone is not None:
            return self._fail(
                f"{gone.uri} was listed in an earlier run, is not read to its end, and has changed or vanished since "
                f"(then: {gone.version}); put the old object back, or write to a new dataset"
            )
        return []

    def _was_read(self, event: FragmentWasRead) -> list[Command]:
        if self.crew is None or self.crew.current(event.task, event.attempt) is None:
            return []
        if event.error:
            return self._fail(event.error)
        if self.intake.was_read(event.task, event.fragment, event.count) and event.count >= 0:
            state = self.ledger.fragments[event.fragment]
            if state.count is None and event.fragment not in self._submitted_ends:
                self._submitted_ends.add(event.fragment)
                self.leadership.submit(FragmentEnded(event.fragment, event.count))
        return []

    def _proposed(self, event: ShardProposed) -> list[Command]:
        """Judge a proposal: only who leads knows all that is closed. A sink that hears nothing proposes again."""
        judgement = self.committer.judge(event, self.version, self.ledger.epoch)
        if judgement.closed is not None:
            self.leadership.submit(judgement.closed)
        if judgement.outcome is None:
            return []
        to = Waiter(event.task, event.attempt, event.proposal)
        return self._answer(to, judgement.outcome, judgement.overlaps, judgement.reason)

    def _answer(
        self, to: Waiter, outcome: Outcome, overlaps: tuple[Range, ...] = (), reason: str = ""
    ) -> list[Command]:
        if (current := self.crew.current(to.task, to.attempt) if self.crew else None) is None:
            return []
        return [AnswerProposal(current.plan.worker, to.task, to.attempt, to.proposal, outcome, overlaps, reason)]

    # -- what comes next --

    def _advance(self, now: float) -> list[Command]:
        commands = self._begin_if_ready(now)
        if self.crew and self.state in _WORKING:
            commands += self.crew.start_due(now, self.ledger.epoch)
            for late in self.crew.late(now):
                commands += self._task_failed(late, now)
        if self.state is RunState.RUNNING:
            commands += self.listing.ask(self.crew or ())
            commands += self._assign()
        if self.state in _WORKING:
            commands += self._sweep_if_due()
        everything = self.listing.done and self.intake.done and self.leadership.quiet and self.committer.empty
        if self.state in _WORKING and (excess := self._allowance.excess(self.ledger, at_end=everything)):
            return [*commands, *self._fail(excess)]
        if self.state in _WORKING and everything:
            return [*commands, *self._publish(RunTurn.ALL_CLOSED)]
        if self.state is RunState.DRAINING and self._halted and not self._dirty and self.intake.held_are_closed():
            commands += self._publish_what_is_closed()
        return commands

    def _assign(self) -> list[Command]:
        if self.crew is None or self.crew.links_missing:
            return []
        commands: list[Command] = []
        for task in self.crew:
            head = task.plan.stages[0]
            if not self.listing.is_source(head) or task.state is not TaskState.READY:
                continue
            for fragment, gaps in self.intake.assign(head, task.plan.name):
                self._settled = False
                commands.append(ReadFragment(task.plan.worker, task.plan.name, task.attempt, fragment, gaps))
        return commands

    def _sweep_if_due(self) -> list[Command]:
        assert self.crew is not None
        if self.intake.sweeping or not self.crew.roster.stable or self.crew.links_missing:
            return []
        drained = self.state is RunState.RUNNING and self.listing.done and self.intake.idle
        finish = drained and not self._settled and self.leadership.quiet and not self.intake.done
        halt = self.state is RunState.DRAINING and not self._halted
        if not (self._dirty or finish or halt):
            return []
        self._dirty = False
        number = self.intake.begin_sweep(task.plan.name for task in self.crew)
        return self.crew.sweep(number, halt=self.state is RunState.DRAINING)

    def _swept(self, event: TaskSwept) -> list[Command]:
        if self.crew is None or self.crew.current(event.task, event.attempt) is None:
            return []
        if not self.intake.swept(event):
            return []
        if self.state is RunState.DRAINING:
            self._halted = True
            return self.crew.seal(self.sinks, "stop")
        lost = self.intake.requeue_lost()
        if lost == 0 and self.intake.idle and self.listing.done:
            self._settled = True
            return self.crew.seal(self.sinks, "end")
        return []

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
        stop = self.crew.stop(self.state.value) if self.crew else []
        return [*stop, ReportRun(self.pipeline.name, self.state.value, self.reason)]

    def _stop(self, event: StopRequested) -> list[Command]:
        if event.cancel or self.state is RunState.OPENING:
            self._turn(RunTurn.CANCEL_ASKED)
            self.reason = "cancelled"
            self.leadership.resign()
            stop = self.crew.stop("cancelled") if self.crew else []
            return [*stop, ReportRun(self.pipeline.name, self.state.value, self.reason)]
        if self.state is RunState.RUNNING:
            self._turn(RunTurn.STOP_ASKED)
            self.intake.drop_queue()
            self.intake.abort_sweep()
        return []

    def _fail(self, reason: str) -> list[Command]:
        if self.ended:
            return []
        request, self._request = self._request, None
        self.leadership.resign()
        self._turn(RunTurn.FAULT)
        self.reason = reason
        answer = [] if request is None else [AnswerRequest(request, accepted=False, reason=reason)]
        stop = self.crew.stop(reason) if self.crew else []
        return [*answer, *stop, ReportRun(self.pipeline.name, self.state.value, reason)]

    def give_up(self, reason: str) -> list[Command]:
        """The shell met what the core cannot mend: an unreadable log, a store that is not there."""
        return self._fail(reason)

    def _turn(self, turn: RunTurn) -> None:
        target = TRANSITIONS.get((self.state, turn))
        if target is None:
            raise InvalidTransitionError(f"run of {self.pipeline.name}: {self.state.value} on {turn.value!r}")
        self.state = target
