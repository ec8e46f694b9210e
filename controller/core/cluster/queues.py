"""The queues of the cluster: pipelines that wait for cores, and runs that give theirs to another.

`Scheduler` decides; here its decisions become entries of the cluster's log, and what is durable is done. Without a log
it is done at once and forgotten with the process. A run that gives way seals: sources let go of what they have not
sent, sinks commit what they hold, and its tasks stay, so that nothing is read twice and no index begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from headrace.controller.core.cluster.records import options_of, request_of
from headrace.controller.core.cluster.scheduler import (
    QUEUED_MAX,
    QUEUES_MAX,
    Begin,
    Claim,
    ClaimState,
    ClaimTurn,
    GoOn,
    Hold,
    QueueDecision,
    QueuePlace,
    QueueRule,
    QueueUse,
    Scheduler,
    why_no_claim,
    why_no_rule,
)
from headrace.controller.core.messages import (
    AnswerRequest,
    Command,
    HoldDecided,
    PipelineRequested,
    QueueRequested,
)
from headrace.controller.core.plan import TaskPlan
from headrace.controller.core.run import REJOIN_S, RunState
from headrace.pipeline import PipelineError
from headrace.store import counted
from headrace.store.ledger import (
    ENDED_RUNS_MAX,
    ClusterState,
    QueueRemoved,
    QueueSet,
    RunHeld,
    RunQueued,
    RunUnqueued,
)

if TYPE_CHECKING:
    from headrace.controller.core.cluster.controller import Controller

#: The queue of who names none.
DEFAULT = "default"
QueueChange = QueueSet | QueueRemoved | RunQueued | RunUnqueued | RunHeld


class Queues:
    """The queues of one leadership."""

    def __init__(self, cluster: Controller) -> None:
        self._cluster = cluster
        self._scheduler = Scheduler()
        #: Requests that wait, by pipeline.
        self.waiting: dict[str, PipelineRequested] = {}
        #: Of a controller without a log: pipelines that waited and were stopped.
        self.dropped: dict[str, PipelineRequested] = {}
        #: Requests that are on their way to the log, by what they are about.
        self._asked: dict[str, QueueRequested | PipelineRequested] = {}
        self._begun: set[str] = set()
        self._numbers = 0
        self._seen: object = None
        #: When `look` is wanted next: missing workers are waited for no more then; None: not yet known, or over.
        self.wake_at: float | None = None
        self._took_over = False

    # -- what people ask --

    def why_not(self, event: PipelineRequested) -> str:
        """Why a pipeline cannot wait where it asks to; empty if it can, or need not wait."""
        name, queue = str(event.pipeline["name"]), self.queue_of(event)
        rules = self._scheduler.rules
        if not queue:
            there = ", ".join(sorted(rules))
            return f"this cluster has queues: name one with --queue: {there}" if rules else ""
        if queue not in rules:
            return f"no queue {queue[:64]!r}; there are: {', '.join(sorted(rules)) or 'none'}"
        if len(self.waiting) >= QUEUED_MAX:
            return f"{QUEUED_MAX} pipelines wait already, which is the limit"
        return why_no_claim(name, rules[queue], event.cores, event.priority)

    def queue_of(self, event: PipelineRequested) -> str:
        """The queue that a request is for; empty where there is none."""
        return event.queue or (DEFAULT if DEFAULT in self._scheduler.rules else "")

    def comes(self, name: str) -> bool:
        """Whether a pipeline is about to wait, once the log says so."""
        return isinstance(self._asked.get(name), PipelineRequested)

    def of_others(self, event: PipelineRequested) -> list[PipelineRequested]:
        """Requests that wait, or are about to, but for this one itself."""
        coming = [item for item in self._asked.values() if isinstance(item, PipelineRequested)]
        return [item for item in (*coming, *self.waiting.values()) if item is not event]

    def apply(self, event: PipelineRequested, now: float) -> list[Command]:
        """Have a pipeline wait, which may be for no time at all."""
        name = str(event.pipeline["name"])
        event = replace(event, queue=self.queue_of(event), replicas=event.replicas or event.cores)
        self._asked[name] = event
        return self._submit(RunQueued(name, event.pipeline, options_of(event)), now)

    def handle(self, event: QueueRequested, now: float) -> list[Command]:
        """Set or remove a queue."""
        rules = self._scheduler.rules
        wrong = self._why_not_removed(event.name) if event.remove else ""
        if not event.remove:
            wrong = why_no_rule(event.name, event.weight, event.cores, event.priority)
            if not wrong and event.name not in rules and len(rules) >= QUEUES_MAX:
                wrong = f"{QUEUES_MAX} queues are there already, which is the limit"
        if wrong:
            return [AnswerRequest(event.request, accepted=False, reason=wrong)]
        earlier = self._asked.get(f"/{event.name}")
        answers: list[Command] = []
        if earlier is not None:
            answers.append(AnswerRequest(earlier.request, accepted=False, reason="somebody else asked meanwhile"))
        self._asked[f"/{event.name}"] = event
        return [*answers, *self._submit(_change(event), now)]

    def stop(self, name: str, now: float) -> list[Command]:
        """A pipeline that waits is not begun any more."""
        self._scheduler.note(name, ClaimTurn.ENDED)
        return self._submit(RunUnqueued(name, "cancelled", "it was stopped while it waited in its queue"), now)

    def begun(self, name: str) -> None:
        """The run of a pipeline is there."""
        self._begun.discard(name)

    def _why_not_removed(self, name: str) -> str:
        if name not in self._scheduler.rules:
            return f"no queue {name[:64]!r}; there are: {', '.join(sorted(self._scheduler.rules)) or 'none'}"
        left = sorted(claim.name for claim in self._scheduler.claims.values() if claim.queue == name)
        if left:
            return f"queue {name} has {counted(len(left), 'pipeline')}, such as {left[0]!r}: stop them first"
        return ""

    # -- what is durable --

    def durable(self, change: QueueChange, now: float) -> list[Command]:
        """A change is in the log, or there is no log: do it, and answer."""
        self._seen = None
        match change:
            case QueueSet():
                self._scheduler.rules[change.name] = _rule(change)
                return self._answer(change)
            case QueueRemoved():
                self._scheduler.rules.pop(change.name, None)
                return self._answer(change)
            case RunQueued():
                return self._queued(change, now)
            case RunUnqueued():
                event = self.waiting.pop(change.name, None)
                if event is not None and self._cluster.log is None:
                    self.dropped[change.name] = event
                    for old in list(self.dropped)[: max(0, len(self.dropped) - ENDED_RUNS_MAX)]:
                        del self.dropped[old]
                return []
            case RunHeld():
                run = self._cluster.runs.get(change.name)
                return run.handle(HoldDecided(change.name, change.held), now) if run is not None else []

    def _queued(self, change: RunQueued, now: float) -> list[Command]:
        event = self._asked.pop(change.name, None)
        if not isinstance(event, PipelineRequested):
            return []
        self._numbers += 1
        number = self._cluster.log.ledger.queued[change.name].since if self._cluster.log is not None else self._numbers
        self._take(change.name, event, number, ClaimState.WAITING)
        self.waiting[change.name] = event
        self.dropped.pop(change.name, None)
        commands = self.look(now)
        if change.name in self.waiting:
            place = self.place(change.name)
            words = place.words(event.queue) if place is not None else f"queue {event.queue}"
            commands.append(AnswerRequest(event.request, accepted=True, waits=words))
        return commands

    def _take(self, name: str, event: PipelineRequested, number: int, state: ClaimState) -> None:
        self._scheduler.claims[name] = Claim(name, event.queue, number, event.cores, event.priority, event.by, state)

    def _answer(self, change: QueueSet | QueueRemoved) -> list[Command]:
        """Answer who asked for this change; what somebody else asked for since is still on its way to the log."""
        event = self._asked.get(f"/{change.name}")
        if not isinstance(event, QueueRequested) or _change(event) != change:
            return []
        del self._asked[f"/{change.name}"]
        return [AnswerRequest(event.request, accepted=True)]

    def _submit(self, change: QueueChange, now: float) -> list[Command]:
        if self._cluster.log is None:
            return self.durable(change, now)
        self._cluster.log.submit(change)
        return []

    # -- leaderships --

    def take_over(self, ledger: ClusterState) -> None:
        """Go on with the queues as the log has them."""
        self._scheduler.rules = {name: _rule(item) for name, item in ledger.queues.items()}
        for name, record in ledger.queued.items():
            event = request_of(record.pipeline, record.options)
            self.waiting[name] = event
            self._take(name, event, record.since, ClaimState.WAITING)
        for name, record in ledger.going_on().items():
            event = request_of(record.pipeline, record.options)
            if event.queue:
                state = ClaimState.SEALING if record.held else ClaimState.GRANTED
                self._take(name, event, record.since, state)
        self._took_over, self._seen = True, None

    def drop(self, reason: str) -> list[Command]:
        """This controller leads no more: forget, and have people ask the one that does."""
        answers: list[Command] = [
            AnswerRequest(event.request, accepted=False, reason=reason) for event in self._asked.values()
        ]
        self._scheduler.clear()
        for kept in (self.waiting, self._asked, self._begun):
            kept.clear()
        self._seen, self.wake_at, self._took_over = None, None, False
        return answers

    # -- decisions --

    def look(self, now: float) -> list[Command]:
        """What follows from how things stand."""
        if not self._scheduler.claims:
            self.wake_at = None
            return []
        self._note_runs()
        if self._waits_for_workers(now):
            return []
        claims = self._scheduler.claims.values()
        workers = tuple(name for name in self._cluster.workers if name not in self._cluster.drained)
        seen = self.cores, self.outside, workers, tuple((claim.name, claim.state) for claim in claims)
        if seen == self._seen:
            return []
        decisions = self._scheduler.decide(self.cores, self.outside, self._why_not_placed)
        self._seen = seen if not decisions else None
        return [command for decision in decisions for command in self._do(decision, now)]

    def _note_runs(self) -> None:
        """What became of the runs that have cores, or give them away."""
        for claim in list(self._scheduler.claims.values()):
            if claim.state is ClaimState.WAITING or claim.name in self._begun:
                continue
            run = self._cluster.runs.get(claim.name)
            # One that a person has paused may go on before it hears that it gives way.
            stands = run is not None and run.reconfiguration.held and run.state is RunState.PAUSED
            if self._has_ended(claim.name):
                self._scheduler.note(claim.name, ClaimTurn.ENDED)
            elif stands and claim.state is ClaimState.SEALING:
                self._scheduler.note(claim.name, ClaimTurn.SEALED)

    def _has_ended(self, name: str) -> bool:
        """Whether a run is over, by the log where there is one: until its end is durable, a next leader goes on."""
        if self._cluster.log is not None:
            record = self._cluster.log.ledger.runs.get(name)
            return record is None or bool(record.outcome)
        run = self._cluster.runs.get(name)
        return run is None or run.ended

    def _waits_for_workers(self, now: float) -> bool:
        """Whether workers of an earlier leader may still come to this one: fewer cores are no reason to decide."""
        if self._took_over:
            self._took_over, self.wake_at = False, now + REJOIN_S
        if self.wake_at is not None and (now >= self.wake_at or not self._cluster.missing):
            self.wake_at = None
        return self.wake_at is not None

    def _do(self, decision: QueueDecision, now: float) -> list[Command]:
        match decision:
            case Begin(name):
                event = self.waiting.pop(name)
                self._begun.add(name)
                return self._cluster.applications.begin(event)
            case Hold(name, reason):
                return self._submit(RunHeld(name, True, reason), now)
            case GoOn(name):
                return self._submit(RunHeld(name, False, ""), now)

    def _why_not_placed(self, name: str, released: frozenset[str]) -> str:
        """Why the tasks of a pipeline that waits cannot all be placed at once."""
        event = self.waiting[name]
        try:
            made = self._cluster.applications.planned(event, released)
        except PipelineError as error:
            return str(error)
        declared = sum(task.need.cores for task in made.tasks)
        wanted = self._scheduler.cores_of(self._scheduler.claims[name], self.cores)
        if declared > wanted:
            more = f"apply it with --cores {ceil(declared)}"
            return f"its tasks reserve {declared:g} cores, and it asks for {wanted}: {more}"
        return ""

    # -- what others see --

    @property
    def cores(self) -> int:
        """Cores of the workers that may have tasks."""
        drained = self._cluster.drained
        return sum(item.cores for item in self._cluster.workers.values() if item.worker not in drained)

    @property
    def outside(self) -> int:
        """Cores that runs outside of all queues use: of each task what it reserves, else one."""
        claims = self._scheduler.claims
        runs = [name for name, run in self._cluster.runs.items() if name not in claims and not run.ended]
        tasks = (task for name in runs for task in self._tasks_of(name) if not task.alone)
        return min(ceil(sum(max(1.0, task.need.cores) for task in tasks)), self.cores)

    def _tasks_of(self, name: str) -> Iterable[TaskPlan]:
        """The tasks that a run has, or is about to go on with: those of an earlier leader run meanwhile."""
        run, plan = self._cluster.runs[name], self._cluster.plans.get(name)
        if run.tasks is not None:
            return [task.plan for task in run.tasks]
        return plan.tasks if plan is not None else ()

    @property
    def rules(self) -> Mapping[str, QueueRule]:
        """The queues."""
        return self._scheduler.rules

    def place(self, name: str) -> QueuePlace | None:
        """Where a pipeline stands in its queue; None for one that does not wait."""
        claim = self._scheduler.claims.get(name)
        return self._scheduler.places(self.cores).get(name) if claim is not None else None

    def waits(self, name: str) -> str:
        """What a pipeline waits for in its queue, in words; empty if it does not."""
        place, claim = self.place(name), self._scheduler.claims.get(name)
        return place.words(claim.queue) if place is not None and claim is not None else ""

    def uses(self) -> list[QueueUse]:
        """What each queue has."""
        return self._scheduler.uses(self.cores, self.outside)

    def grant(self, name: str) -> int | None:
        """The cores that its queue gives a run as things stand; None for a run outside of all queues."""
        claim = self._scheduler.claims.get(name)
        return self._scheduler.cores_of(claim, self.cores) if claim is not None else None

    def released(self, name: str) -> bool:
        """Whether a run has given its cores to another."""
        claim = self._scheduler.claims.get(name)
        return claim is not None and claim.state is ClaimState.HELD


def _change(event: QueueRequested) -> QueueSet | QueueRemoved:
    if event.remove:
        return QueueRemoved(event.name, event.by)
    return QueueSet(event.name, event.weight, event.cores, event.priority, event.by)


def _rule(change: QueueSet) -> QueueRule:
    return QueueRule(change.name, change.weight, change.cores, change.priority)
