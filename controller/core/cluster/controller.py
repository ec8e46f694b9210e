"""The controller's machine: the workers that are connected, and their runs.

`handle(event, now)` is its door. It routes an event to the run that it concerns and keeps the registry of workers. With
a cluster's log it acts only while it leads that log (docs/design/failover.md): a request is an entry before it is done,
and the next leader goes on with the runs that have not ended. Without one it leads for itself and forgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, assert_never

from headrace.controller.core.cluster.applications import Applications
from headrace.controller.core.cluster.event_checks import Witness
from headrace.controller.core.cluster.members import Members
from headrace.controller.core.cluster.queues import Queues
from headrace.controller.core.cluster.records import (
    amended_of,
    plan_from_plain,
    plan_to_plain,
    request_of,
    requested_of,
)
from headrace.controller.core.cluster.requests import Requests, turned_away
from headrace.controller.core.log import LOG_LIMITS, LOST, UNREADABLE_S, Leadership, LeaderState, LogLimits
from headrace.controller.core.messages import (
    AmendRecorded,
    AnswerRequest,
    ClearRequested,
    Command,
    DatasetAudited,
    DrainRequested,
    Event,
    ExpelRequested,
    GateRecorded,
    KillTask,
    LogEvent,
    ManifestWritten,
    PipelineRequested,
    QueueRequested,
    ScalingDecided,
    ShutdownAsked,
    SteerRequested,
    StepDown,
    StopRequested,
    TaskEvent,
    TimePassed,
    TokenOffered,
    WorkerLost,
    WorkerRegistered,
)
from headrace.controller.core.plan import Need, Plan, reserved, total
from headrace.controller.core.run import Inheritance, Run, RunState, Surroundings
from headrace.controller.core.run.tasks import DeathCounts, ReportedTasks, Workers
from headrace.store.ledger import (
    ENDED_RUNS_MAX,
    Beat,
    ClusterState,
    Led,
    MemberExpelled,
    QueueRemoved,
    QueueSet,
    RunAmended,
    RunBegun,
    RunChanged,
    RunEnded,
    RunGated,
    RunHeld,
    RunPlanned,
    RunQueued,
    RunRecord,
    RunScaled,
    RunsCleared,
    RunSteered,
    RunStopAsked,
    RunUnqueued,
    TokenSpent,
    WorkerDrainAsked,
    WorkerJoined,
    WorkerLeft,
)

#: Seconds for which tasks of a run that this controller does not know may wait for somebody to apply it again.
ORPHAN_S = 20.0


class Controller:
    """All that the controller knows, apart from what its shell does for it.

    `log` is the URI of the cluster's log; without one nothing outlives this process but the datasets.
    """

    def __init__(
        self,
        identity: Mapping[str, Any],
        *,
        standby: bool = False,
        log: str = "",
        log_limits: LogLimits = LOG_LIMITS,
        expelled: Mapping[str, Sequence[str]] = {},
    ) -> None:
        self.identity = dict(identity)
        self.workers: dict[str, WorkerRegistered] = {}
        #: Workers that were lost since this controller leads.
        self.lost = DeathCounts()
        self.runs: dict[str, Run] = {}
        self._log_limits = log_limits
        self.log = self._leadership(log, ClusterState()) if log else None
        #: Workers that get no task.
        self.drained: set[str] = set()
        #: Those of them that are about to end, by their own word.
        self.leaving: set[str] = set()
        self._standby = standby
        #: The plans that the cluster's log has or gets.
        self.plans: dict[str, Plan] = {}
        #: Runs whose end is recorded, or on its way to the log.
        self._recorded: set[str] = set()
        #: Runs whose dataset another controller of this cluster has taken, and that are to be taken back.
        self.usurpations: set[str] = set()
        self._members = Members(expelled)
        self.queues = Queues(self)
        self.applications = Applications(self)
        self._requests = Requests(self)
        #: What workers brought of runs that are not begun here.
        self._reported = ReportedTasks()
        #: Workers whose leaving was submitted: the fold may not know it yet when they are back.
        self._left: set[str] = set()
        #: Judges what workers say.
        self.witness = Witness(self.runs, self._reported)
        #: Runs that nobody here knows and workers have tasks of, and until when these may stay.
        self._orphans: dict[str, float] = {}

    def open(self) -> list[Command]:
        """Begin: read the cluster's log, if there is one."""
        if self.log is not None:
            self.log.identity = dict(self.identity)
        return self.log.open() if self.log is not None else []

    @property
    def leads(self) -> bool:
        """Whether workers and people may be answered."""
        return self.log is None or self.log.state is LeaderState.LEADING

    @property
    def leader(self) -> Mapping[str, Any]:
        """Who leads the cluster, as far as is known: its `address` among the rest."""
        return self.identity if self.log is None or self.leads else self.log.ledger.leader

    @property
    def expelled(self) -> Mapping[str, Sequence[str]]:
        """Members that were expelled, as role/name, and the keys that were let in under that name since."""
        return self.log.ledger.expelled if self.log is not None else self._members.noted

    @property
    def logs(self) -> set[str]:
        """The logs that it goes on with: the cluster's, and those of runs that are not over."""
        own = {self.log.log} if self.log is not None else set[str]()
        return own | {run.leadership.log for run in self.runs.values() if not run.over}

    def gathers(self, pipeline: str, worker: str) -> bool:
        """Whether a request of this pipeline or worker is to be asked again: not all is here yet that was before."""
        run = self.runs.get(pipeline)
        away = self.known.keys() - self.workers.keys()
        if pipeline in self.usurpations or worker in away:
            return True
        return not self.leads or self._nobody_is_back or (run is not None and run.gathers)

    @property
    def known(self) -> Mapping[str, object]:
        """The workers that attend by the word of the log; those that have not come back to this leader among them."""
        return self.log.ledger.workers if self.log is not None else {}

    @property
    def missing(self) -> bool:
        """Whether some of these are not back."""
        return bool(self.known.keys() - self.workers.keys())

    @property
    def _nobody_is_back(self) -> bool:
        return bool(self.known) and not self.workers

    def handle(self, event: Event, now: float, worker: str = "") -> list[Command]:
        """Take one event; give the commands that follow. `worker` is the one by whose session it came, if by one."""
        commands = self._dispatch(event, now, worker)
        if self.log is None:
            return [*commands, *self.queues.look(now), *self._end_unclaimed(now)]
        for _, entry in self.log.committed():
            if self.log.state is LeaderState.LEADING:
                for change in entry.changes:
                    commands += self._committed(change, now)
        if self.leads:
            commands += [*self.queues.look(now), *self._record(now), *self._end_unclaimed(now)]
        elif self.log.state in LOST:
            commands += self._step_down(now)
        return [*commands, *self.log.flush(now)]

    def wake_at(self) -> float | None:
        """When `handle(TimePassed())` is wanted next."""
        times = [run.wake_at() for run in self.runs.values()]
        times += [*self._orphans.values(), self.queues.wake_at if self.leads else None]
        if self.log is not None:
            times.append(self.log.wake_at())
        return min((time for time in times if time is not None), default=None)

    def _dispatch(self, event: Event, now: float, worker: str) -> list[Command]:
        if isinstance(event, LogEvent):
            return self._on_log(event, now)
        if isinstance(event, TaskEvent):
            self._reported.heard(event, worker)
            run = self.runs.get(event.task.split("/", 1)[0])
            return run.handle(event, now) if run else []
        match event:
            case WorkerRegistered():
                return self._registered(event, now)
            case WorkerLost():
                return self._worker_lost(event, now)
            case PipelineRequested():
                return self._requested(event, now)
            case StopRequested() | SteerRequested() | DrainRequested() | ClearRequested() | QueueRequested():
                return self._requests.handle(event, now) if self.leads else turned_away(event, self.elsewhere)
            case ManifestWritten() | DatasetAudited():
                writer = self._by_log(event.log)
                return writer.handle(event, now) if writer else []
            case TokenOffered() | ExpelRequested():
                return self._of_members(event)
            case ScalingDecided():
                if self.log is not None and self.leads and event.pipeline in self.log.ledger.going_on():
                    self.log.submit(RunScaled(event.pipeline, event.decision))
                return []
            case ShutdownAsked():
                if self.log is not None:
                    self.log.resign()
                return []
            case TimePassed():
                return self._on_time(event, now)
            case _:
                assert_never(event)

    # -- logs --

    def _on_log(self, event: LogEvent, now: float) -> list[Command]:
        if self.log is not None and event.log == self.log.log:
            return self.log.handle(event, now)
        writer = self._by_log(event.log)
        return writer.handle(event, now) if writer else []

    def _by_log(self, log: str) -> Run | None:
        """The newest run on a log; an older one has handed it over."""
        return next((run for run in reversed(self.runs.values()) if run.leadership.log == log), None)

    def _on_time(self, event: TimePassed, now: float) -> list[Command]:
        commands = [command for run in self.runs.values() for command in run.handle(event, now)]
        if self.log is not None:
            commands += self.log.handle(event, now)
        for run in [run for run, until in self._orphans.items() if now >= until]:
            del self._orphans[run]
            commands += self._kill_orphans(run) if run not in self.runs else []
        return commands

    def _committed(self, change: object, now: float) -> list[Command]:
        """A change of this leader's own is durable: now it is done."""
        assert self.log is not None
        match change:
            case RunBegun():
                return [*self.applications.durable(change), *self._requests.begun(now)]
            case RunQueued():
                return [*self.queues.durable(change, now), *self._requests.begun(now)]
            case QueueSet() | QueueRemoved() | RunHeld():
                return self.queues.durable(change, now)
            case RunUnqueued():
                return [*self.queues.durable(change, now), *self._requests.durable(now)]
            case TokenSpent() | MemberExpelled():
                return self._members.durable(change, self.log.ledger)
            case RunGated():
                run = self.runs.get(change.name)
                return run.handle(GateRecorded(change.name), now) if run else []
            case RunAmended():
                run = self.runs.get(change.name)
                return run.handle(AmendRecorded(change.name), now) if run else []
            case RunStopAsked() | RunSteered() | WorkerDrainAsked() | RunsCleared():
                return self._requests.durable(now)
            case Led():
                return self._take_over()
            case Beat() if self.usurpations:
                return self._open_again()
            case _:
                return []

    def _take_over(self) -> list[Command]:
        """Go on with every run that has not ended, with the plan that its tasks were started by."""
        assert self.log is not None
        self.drained |= self.log.ledger.drained
        self.leaving |= self.log.ledger.leaving
        self._members.take_over(self.log)
        self.queues.take_over(self.log.ledger)
        commands: list[Command] = []
        for name, record in self.log.ledger.going_on().items():
            plan = plan_from_plain(record.plan) if record.plan is not None else None
            if plan is not None:
                self.plans[name] = plan
            commands += self._resume(record, plan)
        return commands

    def _open_again(self) -> list[Command]:
        """This controller leads the cluster still, so it takes back the datasets that were taken from it."""
        assert self.log is not None
        commands: list[Command] = []
        for name, record in self.log.ledger.going_on().items():
            if name in self.usurpations:
                # The plan on record may lack tasks that were to take the place of others.
                works = self.runs[name].works
                commands += works.kill("its dataset was taken from this controller, and is taken back") if works else []
                commands += self._resume(record, self.plans.get(name))
        self.usurpations.clear()
        return commands

    def _record(self, now: float) -> list[Command]:
        """Write down what a successor has to know, and act on stops that an earlier leader was asked for."""
        assert self.log is not None
        going_on = self.log.ledger.going_on()
        commands: list[Command] = []
        known = [(name, run, going_on[name]) for name, run in self.runs.items() if name in going_on]
        for name, run, record in known:
            if record.stop_asked is None:
                continue
            if run.state is RunState.RUNNING or (record.stop_asked and run.state is RunState.OPENING):
                commands += run.handle(StopRequested(name, record.stop_asked), now)
        for name, run, _ in known:
            if not run.ended or name in self._recorded:
                continue
            self._recorded.add(name)
            if run.usurped:
                # By the leader of the cluster, or by one that woke late: an entry of ours tells which.
                self.usurpations.add(name)
                self.log.submit(Beat(self.log.term))
                continue
            self.log.submit(RunEnded(name, run.state.value, run.reason))
            self.plans.pop(name, None)
        for name, run, _ in known:
            if (broken := run.reconfiguration.gate_to_record()) and not run.ended:
                self.log.submit(RunGated(name, broken))
            if run.amendment.recording and not run.ended:
                for amended in amended_of(name, run):
                    self.log.submit(amended)
                continue
            plan, outcomes = run.tasks.plan if run.tasks else None, run.reconfiguration.outcomes
            if plan is not None and not run.ended and outcomes:
                self.plans[name] = plan
                self.log.submit(*(RunChanged(name, plan_to_plain(plan), made) for made in outcomes))
            elif plan is not None and not run.ended and self.plans.get(name) != plan:
                self.plans[name] = plan
                self.log.submit(RunPlanned(name, plan_to_plain(plan)))
        for run in self.runs.values():
            run.reconfiguration.outcomes.clear()
        return commands

    def _step_down(self, now: float) -> list[Command]:
        """Another leads, or nobody can: forget what was decided here, and watch."""
        assert self.log is not None
        reason = self.log.why_not_leading()
        commands = [*self.applications.drop(reason), *self.queues.drop(reason)]
        commands += self._members.drop(reason) + self._requests.drop(reason)
        for known in (self.drained, self.leaving, self.runs, self.workers, self._left, self.plans, self._recorded):
            known.clear()
        for of_runs in (self.usurpations, self._orphans, self._reported):
            of_runs.clear()
        self.lost = DeathCounts()
        broken = self.log.state is LeaderState.BROKEN
        self.log = self._leadership(self.log.log, self.log.ledger)
        if broken:
            # What could not be written may fail again: not at once.
            self.log.open_at(now + UNREADABLE_S)
            return [*commands, StepDown(reason)]
        return [*commands, StepDown(reason), *self.log.open()]

    def _leadership(self, log: str, known: ClusterState) -> Leadership[ClusterState]:
        return Leadership(log, self.identity, known, standby=True, limits=self._log_limits)

    # -- workers --

    def _registered(self, event: WorkerRegistered, now: float) -> list[Command]:
        self.workers[event.worker] = event
        self._reported.register(event)
        commands = [command for run in self.runs.values() for command in run.worker_joined(event.facts(), now)]
        joined = WorkerJoined(event.worker, event.host, event.cores)
        if self.log is not None and (event.worker in self._left or self.log.ledger.workers.get(event.worker) != joined):
            self._left.discard(event.worker)
            self.log.submit(joined)
        if event.leaves or event.worker in self.leaving:
            commands += self._leaves(event.worker, now, back=not event.leaves, request=event.request)
        return commands

    def _leaves(self, worker: str, now: float, *, back: bool, request: int = 0) -> list[Command]:
        """A worker is about to end, maybe by what it told an earlier leader; or has ended, or comes anew."""
        asked = DrainRequested(request, worker, back, leaves=True)
        return self._requests.handle(asked, now) if self.leads else turned_away(asked, self.elsewhere)

    def _end_unclaimed(self, now: float) -> list[Command]:
        """End what a run has not taken up when it began, or ended without having begun."""
        commands: list[Command] = []
        for name in sorted(self._reported.runs() - self.usurpations):
            known = self.runs.get(name)
            if known is None and self.log is None:
                # With a cluster's log every run is known; without one somebody may come and apply it again.
                self._orphans.setdefault(name, now + ORPHAN_S)
            elif known is None or known.state is not RunState.OPENING:
                commands += self._kill_orphans(name)
        return commands

    def _kill_orphans(self, run: str) -> list[Command]:
        reason = "nobody knows its run any more"
        return [KillTask(worker, task.task, task.attempt, reason) for worker, task in self._reported.take_run(run)]

    def _worker_lost(self, event: WorkerLost, now: float) -> list[Command]:
        known = self.workers.pop(event.worker, None)
        self.lost.note("worker", event.worker, event.reason)
        self._reported.drop(event.worker)
        if self.log is not None and known is not None:
            self._left.add(event.worker)
            self.log.submit(WorkerLeft(event.worker, event.reason))
        commands = [command for run in self.runs.values() for command in run.handle(event, now)]
        return commands + (self._leaves(event.worker, now, back=True) if event.worker in self.leaving else [])

    # -- what people ask --

    def _requested(self, event: PipelineRequested, now: float) -> list[Command]:
        if (known := self._requests.asked_before(event)) is not None:
            return known
        return self.applications.handle(event, now)

    def owner(self, pipeline: str) -> str | None:
        """Who applied a pipeline, as far as is known; None where there is none of that name."""
        run, waiting = self.runs.get(pipeline), self.queues.waiting.get(pipeline)
        record = self.log.ledger.runs.get(pipeline) if self.log is not None else None
        if waiting is not None or run is not None:
            return waiting.by if waiting is not None else run.request.by if run is not None else ""
        return None if record is None else str(record.options.get("by", ""))

    @property
    def elsewhere(self) -> str:
        """Who leads, for people, where this controller does not."""
        leader = self.leader.get("address")
        return f"this controller is on standby: {f'the one at {leader} leads' if leader else 'nobody leads yet'}"

    def _of_members(self, event: TokenOffered | ExpelRequested) -> list[Command]:
        if not self.leads:
            return [AnswerRequest(event.request, accepted=False, reason=self.elsewhere)]
        return self._members.handle(event, self.log)

    def _resume(self, record: RunRecord, plan: Plan | None) -> list[Command]:
        """Go on with a run of an earlier leader, as people requested it since it was applied."""
        inheritance = Inheritance(plan, requested_of(record), lambda: self.missing)
        return self.open_run(request_of(record.pipeline, record.options), inheritance)

    def open_run(self, request: PipelineRequested, inheritance: Inheritance | None = None) -> list[Command]:
        """Begin a run, or go on with one of an earlier leader."""
        name = str(request.pipeline["name"])
        self.runs.pop(name, None)
        self._recorded.discard(name)
        self.queues.begun(name)
        self._forget_old()
        cluster = self.log.ledger.origin if self.log is not None else ""
        workers = [worker.facts() for worker in self.workers.values()]
        surroundings = Surroundings(
            identity={**self.identity, "cluster": cluster, "run": name} if cluster else self.identity,
            workers=Workers(workers, self.drained, lambda: self.reserved_by_others(name)),
            reported=self._reported,
            standby=self._standby,
            cluster=cluster,
            log_limits=self._log_limits,
        )
        run = self.runs[name] = Run(request, surroundings, inheritance)
        return run.open()

    def reserved_by_others(self, pipeline: str, released: frozenset[str] = frozenset()) -> dict[str, Need]:
        """What the tasks of all other runs reserve, by worker; of those whose cores are another's, memory alone."""
        taken: list[dict[str, Need]] = []
        for name, run in self.runs.items():
            if name == pipeline or run.ended:
                continue
            own = reserved(one.plan for one in run.task_sets)
            if name in released or self.queues.released(name):
                own = {worker: replace(need, cores=0.0) for worker, need in own.items()}
            taken.append(own)
        workers = {worker for own in taken for worker in own}
        return {worker: total([own[worker] for own in taken if worker in own]) for worker in workers}

    def _forget_old(self) -> None:
        ended = [name for name, run in self.runs.items() if run.over]
        for name in ended[: max(0, len(ended) - ENDED_RUNS_MAX)]:
            del self.runs[name]
