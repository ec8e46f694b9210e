"""The controller's machine: the workers that there are, and the runs that they carry.

`handle(event, now)` is its door. It routes an event to the run that it concerns and keeps the registry of workers. With
a cluster's log it acts only while it leads that log (docs/design/failover.md): a request is an entry before it is
done, and who leads next goes on with the runs that have not ended. Without one it leads for itself and forgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.controller.core.cluster.attempts import Witness
from headrace.controller.core.cluster.claims import Claims
from headrace.controller.core.cluster.leader import LOG_LIMITS, LOST, UNREADABLE_S, Leadership, LeaderState, LogLimits
from headrace.controller.core.cluster.members import ExpelRequested, Members, TokenOffered
from headrace.controller.core.cluster.one_dataset import taken, writer_asked, writer_that_runs
from headrace.controller.core.cluster.records import options_of, plan_from_plain, plan_to_plain, request_of, wished_of
from headrace.controller.core.cluster.steering import Steering, turned_away
from headrace.controller.core.messages import (
    LOG_EVENTS,
    TASK_EVENTS,
    AnswerRequest,
    ClearRequested,
    Command,
    DrainRequested,
    KillTask,
    LogEvent,
    ManifestWritten,
    PipelineRequested,
    ReportRun,
    ShutdownAsked,
    SteerRequested,
    StepDown,
    StopRequested,
    TimePassed,
    WorkerLost,
    WorkerRegistered,
)
from headrace.controller.core.plan import Need, Plan, Wished, plan, reserved
from headrace.controller.core.run import ENDED, Run, RunState
from headrace.controller.core.run.tasks import Deaths
from headrace.pipeline import Pipeline, PipelineError, validate
from headrace.store import counted
from headrace.store.ledger import (
    ENDED_RUNS_MAX,
    Beat,
    ClusterState,
    Led,
    MemberExpelled,
    RunBegun,
    RunChanged,
    RunEnded,
    RunPlanned,
    RunRecord,
    RunsCleared,
    RunSteered,
    RunStopAsked,
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
        self.lost = Deaths()
        self.runs: dict[str, Run] = {}
        self._log_limits = log_limits
        self.log = self._leadership(log, ClusterState()) if log else None
        #: Workers that get no task.
        self.drained: set[str] = set()
        self._standby = standby
        #: Requests whose `RunBegun` is on its way.
        self._asked: dict[str, PipelineRequested] = {}
        #: The plans that the cluster's log has or gets.
        self._planned: dict[str, Plan] = {}
        #: Runs whose dataset another controller of this cluster has taken.
        self._usurpations: set[str] = set()
        self._members = Members(expelled)
        self._steering = Steering(self)
        #: What workers brought of runs that are not begun here.
        self._claims = Claims()
        #: Judges what workers say.
        self.witness = Witness(self.runs, self._claims)
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

    def gathers(self, pipeline: str, worker: str) -> bool:
        """Whether a wish of this pipeline or this worker is to be asked again: not all is here yet that was before."""
        run = self.runs.get(pipeline)
        away = self._known.keys() - self.workers.keys()
        return not self.leads or worker in away or self._nobody_is_back or (run is not None and run.gathers)

    @property
    def _known(self) -> Mapping[str, object]:
        """The workers that attend by the word of the log; those that have not come back to this leader among them."""
        return self.log.ledger.workers if self.log is not None else {}

    @property
    def _nobody_is_back(self) -> bool:
        return bool(self._known) and not self.workers

    def handle(self, event: object, now: float, worker: str = "") -> list[Command]:
        """Take one event; give the commands that follow from it. `worker` is whose session it came by, if by one."""
        commands = self._dispatch(event, now, worker)
        if self.log is None:
            return [*commands, *self._see_to_claims(now)]
        for _, entry in self.log.committed():
            if self.log.state is LeaderState.LEADING:
                for change in entry.changes:
                    commands += self._committed(change, now)
        if self.leads:
            commands = [*self._recorded(commands, now), *self._see_to_claims(now)]
        elif self.log.state in LOST:
            commands += self._step_down(now)
        return [*commands, *self.log.flush(now)]

    def wake_at(self) -> float | None:
        """When `handle(TimePassed())` is wanted next."""
        times = [run.wake_at() for run in self.runs.values()]
        times += self._orphans.values()
        if self.log is not None:
            times.append(self.log.wake_at())
        return min((time for time in times if time is not None), default=None)

    def _dispatch(self, event: object, now: float, worker: str) -> list[Command]:
        if isinstance(event, LOG_EVENTS):
            return self._on_log(event, now)
        if isinstance(event, TASK_EVENTS):
            self._claims.heard(event, worker)
            run = self.runs.get(event.task.split("/", 1)[0])
            return run.handle(event, now) if run else []
        match event:
            case WorkerRegistered():
                return self._registered(event, now)
            case WorkerLost():
                return self._worker_lost(event, now)
            case PipelineRequested():
                return self._requested(event)
            case StopRequested() | SteerRequested() | DrainRequested() | ClearRequested():
                return self._steering.handle(event, now) if self.leads else turned_away(event, self._elsewhere())
            case ManifestWritten():
                writer = self._by_log(event.log)
                return writer.handle(event, now) if writer else []
            case TokenOffered() | ExpelRequested():
                return self._of_members(event)
            case ShutdownAsked():
                if self.log is not None:
                    self.log.resign()
                return []
            case TimePassed():
                return self._on_time(event, now)
            case _:
                raise TypeError(f"the controller knows no {type(event).__name__}")

    # -- logs --

    def _on_log(self, event: LogEvent, now: float) -> list[Command]:
        if self.log is not None and event.log == self.log.log:
            return self.log.handle(event, now)
        writer = self._by_log(event.log)
        return writer.handle(event, now) if writer else []

    def _by_log(self, log: str) -> Run | None:
        """The newest run on a log; an older one has handed it over."""
        for run in reversed(self.runs.values()):
            if run.leadership.log == log:
                return run
        return None

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
                event = self._asked.pop(change.name, None)
                return self._open_run(event) if event is not None else []
            case RunStopAsked():
                run = self.runs.get(change.name)
                return run.handle(StopRequested(change.name, change.cancel), now) if run else []
            case TokenSpent() | MemberExpelled():
                return self._members.durable(change, self.log.ledger)
            case RunSteered() | WorkerDrainAsked() | RunsCleared():
                return self._steering.durable(now)
            case Led():
                return self._take_over()
            case Beat() if self._usurpations:
                return self._open_again()
            case _:
                return []

    def _take_over(self) -> list[Command]:
        """Go on with every run that has not ended, with the plan that its tasks were started by."""
        assert self.log is not None
        self.drained |= self.log.ledger.drained
        self._members.take_over(self.log)
        commands: list[Command] = []
        for name, record in self.log.ledger.going_on().items():
            plan = plan_from_plain(record.plan) if record.plan is not None else None
            if plan is not None:
                self._planned[name] = plan
            commands += self._resume(record, plan)
        return commands

    def _open_again(self) -> list[Command]:
        """This controller leads the cluster still, so it takes back the datasets that were taken from it."""
        assert self.log is not None
        commands: list[Command] = []
        for name, record in self.log.ledger.going_on().items():
            if name in self._usurpations:
                commands += self._resume(record, self._planned.get(name))
        self._usurpations.clear()
        return commands

    def _recorded(self, commands: list[Command], now: float) -> list[Command]:
        """Write down what a successor has to know, and see to stops that an earlier leader was asked for."""
        assert self.log is not None
        going_on = self.log.ledger.going_on()
        for name, run in list(self.runs.items()):
            record = going_on.get(name)
            if record is None or record.stop_asked is None:
                continue
            if run.state is RunState.RUNNING or (record.stop_asked and run.state is RunState.OPENING):
                commands = [*commands, *run.handle(StopRequested(name, record.stop_asked), now)]
        for command in [command for command in commands if isinstance(command, ReportRun)]:
            record = going_on.get(command.pipeline)
            if record is None:
                continue
            if self._usurped(command.pipeline):
                # By who leads the cluster now, or by one who woke late: an entry of ours tells which.
                commands.remove(command)
                self._usurpations.add(command.pipeline)
                self.log.submit(Beat(self.log.term))
                continue
            self.log.submit(RunEnded(command.pipeline, command.outcome, command.reason))
            self._planned.pop(command.pipeline, None)
        for name, run in self.runs.items():
            plan = run.crew.plan if run.crew is not None and not run.ended else None
            if plan is not None and run.seen_to and name in going_on:
                self._planned[name] = plan
                self.log.submit(*(RunChanged(name, plan_to_plain(plan), made) for made in run.seen_to))
            run.seen_to.clear()
            if plan is not None and self._planned.get(name) != plan and name in going_on:
                self._planned[name] = plan
                self.log.submit(RunPlanned(name, plan_to_plain(plan)))
        return commands

    def _usurped(self, name: str) -> bool:
        """Whether a dataset was taken by one who led this cluster before, woke late, and will not keep it."""
        run = self.runs.get(name)
        if run is None or run.leadership.state is not LeaderState.DEPOSED:
            return False
        return run.leadership.is_heir

    def _step_down(self, now: float) -> list[Command]:
        """Another leads, or nobody can: forget what was decided here, and watch."""
        assert self.log is not None
        reason = self.log.why_not_leading()
        commands: list[Command] = [
            AnswerRequest(event.request, accepted=False, reason=reason) for event in self._asked.values()
        ]
        commands += self._members.drop(reason) + self._steering.drop(reason)
        self.drained.clear()
        self.runs.clear()
        self.workers.clear()
        self.lost = Deaths()
        self._asked.clear()
        self._planned.clear()
        self._usurpations.clear()
        self._orphans.clear()
        self._claims.clear()
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
        self._claims.register(event)
        facts = event.facts()
        commands = [command for run in self.runs.values() for command in run.worker_joined(facts, now)]
        joined = WorkerJoined(event.worker, event.host, event.cores)
        if self.log is not None and self.log.ledger.workers.get(event.worker) != joined:
            self.log.submit(joined)
        return commands

    def _see_to_claims(self, now: float) -> list[Command]:
        """End what a run has not taken up when it began, or ended without having begun."""
        commands: list[Command] = []
        for name in sorted(self._claims.runs() - self._usurpations):
            known = self.runs.get(name)
            if known is None and self.log is None:
                # With a cluster's log every run is known; without one somebody may come and apply it again.
                self._orphans.setdefault(name, now + ORPHAN_S)
            elif known is None or known.state is not RunState.OPENING:
                commands += self._kill_orphans(name)
        return commands

    def _kill_orphans(self, run: str) -> list[Command]:
        reason = "nobody knows its run any more"
        return [KillTask(worker, task.task, task.attempt, reason) for worker, task in self._claims.take_run(run)]

    def _worker_lost(self, event: WorkerLost, now: float) -> list[Command]:
        known = self.workers.pop(event.worker, None)
        self.lost.note("worker", event.worker, event.reason)
        self._claims.drop(event.worker)
        if self.log is not None and known is not None:
            self.log.submit(WorkerLeft(event.worker, event.reason))
        return [command for run in self.runs.values() for command in run.handle(event, now)]

    # -- what people ask --

    def _requested(self, event: PipelineRequested) -> list[Command]:
        if (known := self._asked_before(event)) is not None:
            return known
        reason = self._refusal(event)
        if reason:
            return [AnswerRequest(event.request, accepted=False, reason=reason)]
        if self.log is None:
            return self._open_run(event)
        name = str(event.pipeline["name"])
        self._asked[name] = event
        self.log.submit(RunBegun(name, event.pipeline, options_of(event)))
        return []

    def _asked_before(self, event: PipelineRequested) -> list[Command] | None:
        """The answer to a request that is known: whoever asked had none, since a leader died. None for a new one."""
        name = str(event.pipeline.get("name", ""))
        record = self.log.ledger.runs.get(name) if self.log is not None and self.leads else None
        run = self.runs.get(name)
        begun = (run is not None and run.token, record is not None and record.options.get("token"))
        if not event.token or event.token not in begun:
            return None
        if run is not None and not run.ended:
            return run.answer_to(event.request)
        reason = run.reason if run is not None else record.reason if record is not None else ""
        failed = (run.state.value if run is not None else record.outcome if record is not None else "") == "failed"
        return [AnswerRequest(event.request, accepted=not failed, reason=reason if failed else "")]

    def _elsewhere(self) -> str:
        leader = self.leader.get("address")
        return f"this controller is on standby: {f'the one at {leader} leads' if leader else 'nobody leads yet'}"

    def _of_members(self, event: TokenOffered | ExpelRequested) -> list[Command]:
        if not self.leads:
            return [AnswerRequest(event.request, accepted=False, reason=self._elsewhere())]
        return self._members.handle(event, self.log)

    def _refusal(self, event: PipelineRequested) -> str:
        """Why a pipeline cannot be taken up; empty if it can."""
        if not self.leads:
            return self._elsewhere()
        try:
            pipeline = Pipeline.from_dict(event.pipeline)
            validate(pipeline)
        except PipelineError as error:
            return str(error)
        if self._nobody_is_back:
            return (
                f"of {counted(len(self._known), 'worker')} none is back at this controller yet: see `headrace status`"
            )
        if pipeline.name in self._asked:
            return f"pipeline {pipeline.name!r} is being applied by somebody else"
        going_on = [run for run in self.runs.values() if not (run.state in ENDED and run.over)]
        for run in going_on:
            if run.pipeline.name == pipeline.name:
                return f"pipeline {pipeline.name!r} is {run.state.value}: stop it first"
        writers = [*map(writer_asked, self._asked.values()), *map(writer_that_runs, going_on)]
        return taken(event.place, pipeline.dataset, writers)

    def planned(self, event: PipelineRequested) -> Plan:
        """The plan that a request would lead to; nothing is changed. PipelineError, with the reason, if to none."""
        if refusal := self._refusal(event):
            raise PipelineError(refusal)
        pipeline = Pipeline.from_dict(event.pipeline)
        return plan(
            pipeline,
            [worker.facts() for worker in self.workers.values() if worker.worker not in self.drained],
            fuse=event.fuse,
            replicas=event.replicas,
            places=event.places,
            transports=event.transports,
            taken=self.reserved_beside(pipeline.name),
        )

    def _resume(self, record: RunRecord, inherited: Plan | None) -> list[Command]:
        """Go on with a run of an earlier leader, as people wished it since it was applied."""
        again = request_of(record.pipeline, record.options)
        return self._open_run(again, inherited=inherited, resumes=True, wished=wished_of(record))

    def _open_run(
        self,
        event: PipelineRequested,
        *,
        inherited: Plan | None = None,
        resumes: bool = False,
        wished: Wished | None = None,
    ) -> list[Command]:
        pipeline = Pipeline.from_dict(event.pipeline)
        self.runs.pop(pipeline.name, None)
        self._forget_old()
        cluster = self.log.ledger.origin if self.log is not None else ""
        run = Run(
            pipeline,
            identity={**self.identity, "cluster": cluster, "run": pipeline.name} if cluster else self.identity,
            workers=[worker.facts() for worker in self.workers.values()],
            claims=self._claims,
            request=None if resumes else event.request,
            amend=event.amend,
            fuse=event.fuse,
            replicas=event.replicas,
            allowance=event.allowance,
            places=event.places,
            transports=event.transports,
            seal=event.seal,
            limits=event.limits,
            standby=self._standby or resumes,
            cluster=cluster,
            inherited=inherited,
            log_limits=self._log_limits,
            changed_input=event.changed_input,
            drained=self.drained,
            beside=lambda: self.reserved_beside(pipeline.name),
            wished=wished,
            token=event.token,
            place=event.place,
            awaited=lambda: resumes and bool(self._known.keys() - self.workers.keys()),
        )
        self.runs[pipeline.name] = run
        return run.open()

    def reserved_beside(self, pipeline: str) -> dict[str, Need]:
        """What the tasks of all other runs reserve, by worker."""
        others = (run for name, run in self.runs.items() if name != pipeline and not run.ended)
        return reserved(run.crew.plan for run in others if run.crew is not None)

    def _forget_old(self) -> None:
        ended = [name for name, run in self.runs.items() if run.over]
        for name in ended[: max(0, len(ended) - ENDED_RUNS_MAX)]:
            del self.runs[name]
