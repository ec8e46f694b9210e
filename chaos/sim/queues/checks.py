"""What must hold where pipelines share a cluster, asked of each entry of the cluster's log before it is folded.

25: no queue has more cores than its quota, and all together no more than the cluster has, when one is given some.
26: who gives way has sealed before its cores are another's, and neither ends nor begins anew by it.
27: a run of a queue begins with all the tasks that it asked for.
28: nobody gets cores while somebody who comes before it waits, and lacks nothing.
29: whoever waits is told a place of its own, behind those of its user who came before, and of a higher priority.

What each pipeline loses or reads twice is judged by its own `Checker`, as if it were alone. A leader decides by what it
has folded and who is back with it, which may change while its decision is on its way to the log: so a rule counts for
some entries after it was changed, and cores for some seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from headrace.chaos.sim.checks import Asked, Assignments, Checker, Folding, OperatorRequest
from headrace.chaos.sim.nodes import SimulatedController
from headrace.chaos.sim.storage import SimulatedLog
from headrace.chaos.sim.world import CLUSTER, FILTER, ViolationError, World
from headrace.controller.core.cluster import Queues, plan_from_plain
from headrace.controller.core.log import Fence, LeaderState
from headrace.controller.core.messages import messages as core
from headrace.controller.core.run import Run
from headrace.store.ledger import (
    ClusterState,
    Entry,
    Led,
    QueueSet,
    RunBegun,
    RunEnded,
    RunHeld,
    RunPlanned,
    RunQueued,
    RunUnqueued,
    WorkerDrainAsked,
    WorkerJoined,
    WorkerLeft,
)

#: Seconds in which a run that begins has places for its tasks, or gives up: a minute, and a lost store besides.
PLANNED_S = 75.0


class JudgedTenant(Protocol):
    """One pipeline of the cluster."""

    checker: Checker
    demands: bool

    def holds(self, run: Run) -> str:
        """What of it is not sealed."""
        ...


class QueueUsers(Protocol):
    """Those who apply, and stop what they applied."""

    def stopped(self, name: str, token: object) -> bool:
        """Whether somebody has stopped that application."""
        ...


class JudgedCluster(Protocol):
    """The cluster."""

    world: World
    log: SimulatedLog
    controllers: list[SimulatedController]

    @property
    def tenants(self) -> Mapping[str, JudgedTenant]:
        """Its pipelines."""
        ...

    @property
    def operator(self) -> QueueUsers:
        """Its users."""
        ...

    def of(self, about: str, /) -> JudgedTenant:
        """The pipeline of a task, or of a dataset's log."""
        ...


@dataclass(slots=True)
class _Claim:
    """A pipeline in its queue, by the log alone."""

    options: Mapping[str, Any]
    since: int
    begun: bool = False
    held: bool = False
    planned: bool = False
    begun_at: float = 0.0


def _rank(options: Mapping[str, Any]) -> int:
    """Minus the priority of a pipeline in its queue."""
    return -int(options.get("priority", 0))


@dataclass(frozen=True, slots=True)
class _Rules:
    """The queues and the cores as the log has them at one moment."""

    queues: Mapping[str, QueueSet] = field(default_factory=dict[str, QueueSet])
    cores: int = 0

    def of(self, claim: _Claim) -> int:
        """The cores that a claim is for."""
        quota = self.queues[claim.options["queue"]].cores
        return int(claim.options["cores"]) or max(1, min(self.cores, quota or self.cores))


class QueueJudge:
    """The judge of a cluster in queues."""

    def __init__(self, cluster: JudgedCluster) -> None:
        self._cluster = cluster
        self._log = Assignments(cluster.log)
        #: The fold of all that is durable in the cluster's log.
        self.ledger: ClusterState = self._log.history.ledger
        self._claims: dict[str, _Claim] = {}
        self._queues: dict[str, QueueSet] = {}
        self._workers: dict[str, int] = {}
        self._drained: set[str] = set()
        #: What held before the first entry and after each one.
        self._history: list[_Rules] = [_Rules()]
        #: Of each life of a controller, how long that was when its log was quiet last: what it has written since, it
        #: decided since.
        self._quiet_at: dict[str, int] = {}
        self._stirred: list[Folding] = []
        #: The least cores of the workers that were with each life of a controller since then.
        self._present: dict[str, int] = {}
        #: When places were lost last.
        self._disturbed_at = 0.0
        #: How often a run gave way, went on, and began, so that a test sees that it happens.
        self.held = self.gone_on = self.begun = 0

    # -- as the judge of every pipeline --

    def stirred(self, controller: Folding) -> None:
        """See `Judge`."""
        self._stirred.append(controller)
        for tenant in self._cluster.tenants.values():
            tenant.checker.stirred(controller)

    def check(self) -> None:
        """1: what leaders hold is what the log says, of queues too."""
        stirred, self._stirred = self._stirred, []
        for controller in stirred:
            self._log.compare(controller)
            self._compare_queues(controller)
            identity, cores = controller.identity, controller.core.queues.cores
            if controller.core.log is None or controller.core.log.quiet:
                self._quiet_at[identity], self._present[identity] = len(self._history) - 1, cores
            self._present[identity] = min(self._present.get(identity, cores), cores)
        for tenant in self._cluster.tenants.values():
            tenant.checker.check()

    def write_asked(self, controller: Asked, command: core.WriteEntry, data: bytes) -> None:
        """See `Judge`."""
        history = self._log.history if command.log == CLUSTER else self._cluster.of(command.log).checker.dataset
        history.write_asked(controller, command, data)

    def commanded(self, controller: Asked, command: core.Command, given: Fence) -> None:
        """See `Judge`."""
        self._log.commanded(controller, command, given.term)
        if given.log:
            self._cluster.of(given.log).checker.commanded(controller, command, given)

    def obeyed(self, worker: str, life: int, given: Fence) -> None:
        """See `Judge`."""
        if given.log:
            self._cluster.of(given.log).checker.obeyed(worker, life, given)

    def said(self, worker: str, event: core.Event) -> None:
        """See `Judge`."""
        if isinstance(event, core.TaskEvent):
            self._cluster.of(event.task).checker.said(worker, event)

    def granted(self, controller: Asked, request: OperatorRequest) -> None:
        """3: what somebody was told is accepted stands in the log."""
        self._log.granted(controller, request)

    def finish(self) -> None:
        """What must hold at the end, of the cluster and of each pipeline."""
        self._log.history.finish()
        for tenant in self._cluster.tenants.values():
            tenant.checker.finish()

    def _compare_queues(self, controller: Folding) -> None:
        log, queues = controller.core.log, controller.core.queues
        if log is None or log.state is not LeaderState.LEADING or not log.quiet:
            return
        rules = {name: (rule.weight, rule.cores, rule.priority) for name, rule in queues.rules.items()}
        known = {name: (item.weight, item.cores, item.priority) for name, item in log.ledger.queues.items()}
        if rules != known:
            raise ViolationError(1, f"{controller.name} has queues {rules}, the cluster's log {known}")
        if queues.waiting.keys() != log.ledger.queued.keys():
            raise ViolationError(
                1, f"{controller.name} has {sorted(queues.waiting)} wait, the log {sorted(log.ledger.queued)}"
            )

        self._check_places(controller.name, queues, log.ledger)

    def _check_places(self, leader: str, queues: Queues, ledger: ClusterState) -> None:
        """29, of the pipelines that have not begun, the oldest first."""
        told = [(name, item.options, queues.place(name)) for name, item in ledger.queued.items()]
        for (name, mine, first), (other, its, second) in itertools.combinations(told, 2):
            if first is None or second is None or mine["queue"] != its["queue"]:
                continue
            ahead = _rank(its) - _rank(mine)
            wrong = first.number > second.number if ahead > 0 else first.number < second.number if ahead < 0 else False
            same = mine.get("by") == its.get("by") and not ahead
            if first.number == second.number or wrong or (same and first.number > second.number):
                raise ViolationError(29, f"{leader} tells {name} {first} and {other}, which came later, {second}")

    # -- the entries --

    def durable(self, number: int, entry: Entry, writer: str) -> None:
        """25 to 28: an entry is durable, and not folded yet."""
        for change in entry.changes:
            self._change(number, change, writer)
        self._check_whole(number)
        self._history.append(self._rules())
        self._log.durable(number, entry, writer)

    def _change(self, number: int, change: object, writer: str) -> None:
        match change:
            case QueueSet():
                self._queues[change.name] = change
            case WorkerJoined():
                self._workers[change.worker] = change.cores
            case Led():
                self._disturbed_at = self._cluster.world.now
            case WorkerLeft():
                self._disturbed_at = self._cluster.world.now
                self._workers.pop(change.worker, None)
            case WorkerDrainAsked():
                self._disturbed_at = self._cluster.world.now
                (self._drained.discard if change.back else self._drained.add)(change.worker)
            case RunQueued():
                self._claims[change.name] = _Claim(change.options, len(self._history))
            case RunUnqueued():
                self._claims.pop(change.name, None)
            case RunEnded():
                self._ended(number, change)
            case RunPlanned():
                self._planned(number, change)
            case RunBegun():
                self._given(number, change.name, writer)
            case RunHeld():
                self._moved(number, change, writer)
            case _:
                pass

    def _moved(self, number: int, change: RunHeld, writer: str) -> None:
        claim = self._claims.get(change.name)
        if claim is not None and change.held:
            claim.held = True
            self.held += 1
        elif claim is not None and claim.held:
            self.gone_on += 1
            self._given(number, change.name, writer)

    def _ended(self, number: int, change: RunEnded) -> None:
        claim = self._claims.pop(change.name, None)
        asked = claim is not None and self._cluster.operator.stopped(change.name, claim.options["token"])
        if claim is not None and claim.held and not asked and change.outcome != "completed":
            raise ViolationError(
                26, f"entry {number} ends {change.name}, which gives way, as {change.outcome}: {change.reason}"
            )

    def _planned(self, number: int, change: RunPlanned) -> None:
        claim = self._claims.get(change.name)
        if claim is None or claim.planned:
            return
        claim.planned = True
        tasks = [task for task in plan_from_plain(change.plan).tasks if FILTER in task.stages]
        wanted = int(claim.options["cores"])
        if wanted and len(tasks) != wanted:
            raise ViolationError(
                27, f"entry {number} has {change.name} begin with {len(tasks)} tasks that filter, it asked for {wanted}"
            )

    def _check_whole(self, number: int) -> None:
        """27: whoever has begun has its tasks soon, where no worker was lost since."""
        for name, claim in self._claims.items():
            since = self._cluster.world.now - max(claim.begun_at, self._disturbed_at)
            if claim.begun and not claim.planned and not claim.held and since > PLANNED_S:
                raise ViolationError(
                    27, f"entry {number}: {name} has cores for {since:.0f} s, and no place for its tasks"
                )

    def _given(self, number: int, name: str, writer: str) -> None:
        """A pipeline gets cores: it begins, or goes on."""
        claim = self._claims.get(name)
        if claim is None:
            raise ViolationError(28, f"entry {number} begins {name}, which no queue has")
        lately = [*self._history[self._quiet_at.get(writer, 0) :], self._rules()]
        least = self._present.get(writer, 0)
        self._check_order(number, name, claim, writer, [replace(item, cores=min(item.cores, least)) for item in lately])
        self.begun += not claim.begun
        claim.begun_at = claim.begun_at if claim.begun else self._cluster.world.now
        claim.begun, claim.held = True, False
        using = self._using(writer)
        ways: tuple[tuple[str, Callable[[_Rules], int]], ...] = (
            (f"queue {claim.options['queue']}", lambda rules: rules.queues[claim.options["queue"]].cores),
            ("the cluster", lambda rules: rules.cores),
        )
        for what, most_of in ways:
            mine = [item for item in using if what == "the cluster" or item.options["queue"] == claim.options["queue"]]
            seen = [(sum(map(rules.of, mine)), most_of(rules)) for rules in lately if self._knows(rules, mine)]
            if not any(not most or used <= most for used, most in seen):
                raise ViolationError(25, f"entry {number} gives {name} cores, and {what} uses of its most: {seen}")

    def _using(self, writer: str) -> list[_Claim]:
        """The claims that use cores: 26, those that give way until all that they held is sealed."""
        leader = next(item for item in self._cluster.controllers if item.identity == writer)
        using: list[_Claim] = []
        for name, claim in self._claims.items():
            run = leader.core.runs.get(name)
            open_still = run is not None and self._cluster.tenants[name].holds(run)
            if claim.begun and (not claim.held or open_still):
                using.append(claim)
        return using

    def _check_order(self, number: int, name: str, claim: _Claim, writer: str, lately: list[_Rules]) -> None:
        """28, of those who wait for their first cores, whose place no other pipeline of their queue decides."""
        for other_name, other in self._claims.items():
            tenant = self._cluster.tenants[other_name]
            if other_name == name or other.begun or other.since > self._quiet_at.get(writer, 0) or tenant.demands:
                continue
            if self._cluster.operator.stopped(other_name, other.options["token"]):
                continue
            queue = other.options["queue"]
            beside = [item for item in self._claims.values() if item.options["queue"] == queue]
            waiting = [item for item in beside if not item.begun or item.held]
            if len(waiting) == 1 and all(self._comes_before(other, claim, rules) for rules in lately):
                raise ViolationError(
                    28, f"entry {number} gives {name} cores, and {other_name} waits, is before it, and lacks nothing"
                )

    def _comes_before(self, other: _Claim, claim: _Claim, rules: _Rules) -> bool:
        """Whether a claim is in a queue of a higher priority, and there are cores for it, in its queue too."""
        begun = [item for item in self._claims.values() if item.begun]
        if not self._knows(rules, [other, claim, *begun]):
            return False
        mine, its = rules.queues[claim.options["queue"]], rules.queues[other.options["queue"]]
        wanted, used = rules.of(other), sum(map(rules.of, begun))
        of_queue = sum(rules.of(item) for item in begun if item.options["queue"] == other.options["queue"])
        fits = wanted + used <= rules.cores and (not its.cores or wanted + of_queue <= its.cores)
        return its.priority > mine.priority and fits

    def _knows(self, rules: _Rules, claims: list[_Claim]) -> bool:
        return all(item.options["queue"] in rules.queues for item in claims)

    def _rules(self) -> _Rules:
        cores = sum(cores for worker, cores in self._workers.items() if worker not in self._drained)
        return _Rules(dict(self._queues), cores)
