"""What must hold where pipelines share a cluster, asked of each entry of the cluster's log before it is folded.

25: no queue has more cores than its quota, and all together no more than the cluster has, when one is given some.
26: who gives way has sealed before its cores are another's, and neither ends nor begins anew by it.
27: a run of a queue begins with all the tasks that it asked for.
28: nobody gets cores while somebody who comes before it waits, and lacks nothing.
29: whoever waits is told a place of its own, behind those of its user who came before, and of a higher priority.
31: nobody waits at a leader at rest for cores that are free, or that it may take.
32: nobody gives way but to somebody who waits, lacks cores, and may take them.
33: nobody stops what another user has applied.

What each pipeline loses or reads twice is judged by its own `Checker`, as if it were alone. A leader decides by what it
has folded and who is back with it, which may change while its decision is on its way to the log: `QueueHistory`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.chaos.sim.checks import Assignments, OperatorRequest
from headrace.chaos.sim.nodes import SimulatedController
from headrace.chaos.sim.queues.standing import Claimed, QueueHistory, View, cores_of, views
from headrace.chaos.sim.world import CLUSTER, FILTER, ViolationError
from headrace.controller.core.cluster import Queues, plan_from_plain
from headrace.controller.core.log import Fence, LeaderState
from headrace.controller.core.messages import messages as core
from headrace.controller.core.run import Run, RunState
from headrace.store.ledger import (
    Change,
    ClusterState,
    Entry,
    Led,
    RunBegun,
    RunEnded,
    RunHeld,
    RunPlanned,
    RunQueued,
    RunStopAsked,
    RunUnqueued,
    WorkerDrainAsked,
    WorkerLeft,
)

if TYPE_CHECKING:
    from headrace.chaos.sim.queues.tenants import TenantCluster

#: Seconds in which a run that begins has places for its tasks, or gives up: a minute, and a lost store besides.
PLANNED_S = 75.0


@dataclass(slots=True)
class _Claim:
    """A pipeline in its queue, by the log alone."""

    options: Mapping[str, Any]
    begun: bool = False
    held: bool = False
    planned: bool = False
    begun_at: float = 0.0


def _rank(options: Mapping[str, Any]) -> int:
    """Minus the priority of a pipeline in its queue."""
    return -int(options.get("priority", 0))


class QueueJudge:
    """The judge of a cluster in queues."""

    def __init__(self, cluster: TenantCluster) -> None:
        self._cluster = cluster
        self._log = Assignments(cluster.log)
        #: The fold of all that is durable in the cluster's log.
        self.ledger: ClusterState = self._log.history.ledger
        self._claims: dict[str, _Claim] = {}
        self._queue_history = QueueHistory()
        #: What was asked of each leader at rest last, so that it is asked once.
        self._asked: dict[str, object] = {}
        self._stirred: list[SimulatedController] = []
        #: When places were lost last.
        self._disturbed_at = 0.0
        #: How often a run gave way, went on, and began, so that a test sees that it happens.
        self.held = self.gone_on = self.begun = 0

    # -- as the judge of every pipeline --

    def stirred(self, controller: SimulatedController) -> None:
        """See `Checker`."""
        self._queue_history.note(controller)
        self._stirred.append(controller)
        for tenant in self._cluster.tenants.values():
            tenant.checker.stirred(controller)

    def check(self) -> None:
        """1: what leaders hold is what the log says, of queues too."""
        stirred, self._stirred = self._stirred, []
        for controller in stirred:
            self._log.compare(controller)
            self._compare_queues(controller)
            self._queue_history.note(controller)
        for tenant in self._cluster.tenants.values():
            tenant.checker.check()

    def write_asked(self, controller: SimulatedController, command: core.WriteEntry, data: bytes) -> None:
        """See `Checker`."""
        history = self._log.history if command.log == CLUSTER else self._cluster.of(command.log).checker.dataset
        history.write_asked(controller, command, data)

    def commanded(self, controller: SimulatedController, command: core.Command, given: Fence) -> None:
        """See `Checker`."""
        self._log.commanded(controller, command, given.term)
        if given.log:
            self._cluster.of(given.log).checker.commanded(controller, command, given)

    def obeyed(self, worker: str, life: int, given: Fence) -> None:
        """See `Checker`."""
        if given.log:
            self._cluster.of(given.log).checker.obeyed(worker, life, given)

    def said(self, worker: str, event: core.Event) -> None:
        """See `Checker`."""
        if isinstance(event, core.TaskEvent):
            self._cluster.of(event.task).checker.said(worker, event)

    def granted(self, controller: SimulatedController, request: OperatorRequest) -> None:
        """3: what somebody was told is accepted stands in the log."""
        self._log.granted(controller, request)

    def finish(self) -> None:
        """What must hold at the end, of the cluster and of each pipeline."""
        self._log.history.finish()
        for tenant in self._cluster.tenants.values():
            tenant.checker.finish()

    def _compare_queues(self, controller: SimulatedController) -> None:
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
        self._check_rest(controller)

    def _check_rest(self, controller: SimulatedController) -> None:
        """31, of a leader that knows all that is durable and waits for no worker."""
        core = controller.core
        known = core.log is not None and core.log.ledger.number == len(self._cluster.log.entries) - 1
        if not known or core.queues.wake_at is not None:
            return
        cores, outside = cores_of(controller)
        runs = {name: core.runs.get(name) for name, item in self._queue_history.now.claims.items() if item.held}
        sealed = frozenset(name for name, run in runs.items() if run is not None and _stands(run))
        asked = self._queue_history.now, cores, outside, sealed
        if self._asked.get(controller.identity) == asked:
            return
        self._asked[controller.identity] = asked
        owed = [view.owed(self._lacks_nothing_else) for view in views(*asked)]
        if all(owed):
            raise ViolationError(31, f"{controller.name} is at rest, and {owed[0]}")

    def _lacks_nothing_else(self, claim: Claimed) -> bool:
        """Whether a claim waits for cores alone, and nobody has stopped it."""
        return (claim.begun or not self._cluster.tenants[claim.name].demands) and not self._is_stopped(claim.name)

    def _is_stopped(self, name: str) -> bool:
        claim = self._claims.get(name)
        return claim is not None and bool(self._cluster.operator.stoppers(name, claim.options["token"]))

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
        """25 to 28, 32: an entry is durable, and not folded yet."""
        for change in entry.changes:
            self._change(number, change, writer)
            self._queue_history.changed(number, change)
        self._check_whole(number)
        self._log.durable(number, entry, writer)

    def _change(self, number: int, change: Change, writer: str) -> None:
        match change:
            case Led() | WorkerLeft() | WorkerDrainAsked():
                self._disturbed_at = self._cluster.world.now
            case RunQueued():
                self._claims[change.name] = _Claim(change.options)
            case RunStopAsked() | RunUnqueued():
                self._stopped(number, change.name)
                if isinstance(change, RunUnqueued):
                    self._claims.pop(change.name, None)
            case RunEnded():
                self._ended(number, change)
                self._claims.pop(change.name, None)
            case RunPlanned():
                self._planned(number, change)
            case RunBegun():
                if change.options["queue"]:
                    self._given(number, change.name, writer)
            case RunHeld():
                self._moved(number, change, writer)
            case _:
                pass

    def _moved(self, number: int, change: RunHeld, writer: str) -> None:
        claim = self._claims.get(change.name)
        if claim is not None and change.held:
            if not any(view.allows_hold(change.name) for view in self._queue_history.since(writer)):
                raise ViolationError(32, f"entry {number} has {change.name} give way to nobody who may have its cores")
            claim.held = True
            self.held += 1
        elif claim is not None and claim.held:
            self.gone_on += 1
            self._given(number, change.name, writer)

    def _ended(self, number: int, change: RunEnded) -> None:
        claim = self._claims.get(change.name)
        asked = self._is_stopped(change.name)
        # One that has no tasks yet may find no place for them, whoever gets its cores meanwhile.
        if claim is not None and claim.held and claim.planned and not asked and change.outcome != "completed":
            raise ViolationError(
                26, f"entry {number} ends {change.name}, which gives way, as {change.outcome}: {change.reason}"
            )

    def _stopped(self, number: int, name: str) -> None:
        """33, of the application that goes on."""
        claim, record = self._claims.get(name), self.ledger.going_on().get(name)
        options = claim.options if claim is not None else record.options if record is not None else None
        if options is not None and options["by"] not in (
            users := self._cluster.operator.stoppers(name, options["token"])
        ):
            raise ViolationError(33, f"entry {number} stops {name} of {options['by']}, as {sorted(users)} asked for it")

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
        self.begun += not claim.begun
        claim.begun_at = claim.begun_at if claim.begun else self._cluster.world.now
        claim.begun, claim.held = True, False
        using = self._using(writer)
        lately = [view for view in self._queue_history.since(writer) if view.standing.claims.keys() >= using.keys()]
        if not any(self._within(view, using, claim.options["queue"]) for view in lately):
            raise ViolationError(25, f"entry {number} gives {name} cores, and {sorted(using)} use more than there are")
        if not any(view.allows(name, self._lacks_nothing_else) for view in lately):
            raise ViolationError(28, f"entry {number} gives {name} cores, and who comes before it waits")

    def _within(self, view: View, using: Collection[str], queue: str) -> bool:
        """25: whether what these use is within the cores, and within the quota of a queue."""
        claims = [item for name, item in view.standing.claims.items() if name in using]
        most = view.standing.queues[queue].cores
        of_queue = sum(view.wanted(item) for item in claims if item.queue == queue)
        return (not most or of_queue <= most) and sum(map(view.wanted, claims)) + view.outside <= view.cores

    def _using(self, writer: str) -> dict[str, _Claim]:
        """The claims that use cores: 26, those that give way until all that they held is sealed."""
        leader = next(item for item in self._cluster.controllers if item.identity == writer)
        using: dict[str, _Claim] = {}
        for name, claim in self._claims.items():
            run = leader.core.runs.get(name)
            open_still = run is not None and self._cluster.tenants[name].holds(run)
            if claim.begun and (not claim.held or open_still):
                using[name] = claim
        return using


def _stands(run: Run) -> bool:
    """Whether it has given its cores away, and sealed."""
    return run.reconfiguration.held and run.state is RunState.PAUSED
