"""The rules of docs/design/queues.md, recomputed from what the cluster's log says: the judge asks nothing of the core.

A leader decides by what it has folded, and by its decisions that are on their way. So of a decision there is asked: is
there a moment since its log was quiet last at which the rules allow it? Of a leader at rest: do they demand another?
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from headrace.chaos.sim.nodes import SimulatedController
from headrace.controller.core.cluster import plan_from_plain
from headrace.store.ledger import (
    Change,
    QueueRemoved,
    QueueSet,
    RunBegun,
    RunEnded,
    RunHeld,
    RunQueued,
    RunUnqueued,
)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A pipeline in its queue, by the log alone."""

    name: str
    queue: str
    cores: int
    priority: int
    by: str
    since: int
    begun: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True)
class LoggedQueues:
    """The queues, and who is in them, behind one change of the log."""

    queues: Mapping[str, QueueSet] = field(default_factory=dict[str, QueueSet])
    claims: Mapping[str, Claimed] = field(default_factory=dict[str, Claimed])

    def after(self, number: int, change: Change) -> LoggedQueues:
        """The same behind another change."""
        match change:
            case QueueSet():
                return replace(self, queues={**self.queues, change.name: change})
            case QueueRemoved():
                return replace(self, queues={name: item for name, item in self.queues.items() if name != change.name})
            case RunQueued(options=options):
                queue, cores, priority = options["queue"], int(options["cores"]), int(options["priority"])
                made = Claimed(change.name, queue, cores, priority, str(options["by"]), number)
                return replace(self, claims={**self.claims, change.name: made})
            case RunBegun() if change.name in self.claims:
                return self._with(replace(self.claims[change.name], begun=True, held=False))
            case RunHeld() if change.name in self.claims:
                return self._with(replace(self.claims[change.name], held=change.held))
            case RunUnqueued() | RunEnded():
                return replace(self, claims={name: one for name, one in self.claims.items() if name != change.name})
            case _:
                return self

    def _with(self, claim: Claimed) -> LoggedQueues:
        return replace(self, claims={**self.claims, claim.name: claim})


@dataclass(frozen=True, slots=True)
class View:
    """A standing, as a leader may see it: with so many cores, of which so many are used outside of all queues, and
    with those that give way and have not sealed yet.
    """

    standing: LoggedQueues
    cores: int
    outside: int
    sealing: frozenset[str] = frozenset()

    def uses(self, claim: Claimed) -> bool:
        """Whether its cores are its own, or still are."""
        return claim.begun and (not claim.held or claim.name in self.sealing)

    def wanted(self, claim: Claimed) -> int:
        """The cores that a claim is for."""
        quota = self.standing.queues[claim.queue].cores
        return claim.cores or max(1, min(self.cores, quota or self.cores))

    def used(self, queue: str | None = None, by: str | None = None) -> int:
        """The cores that are used, of a queue or of all, by one user or all."""
        using = (item for item in self.standing.claims.values() if self.uses(item))
        return sum(self.wanted(item) for item in using if queue in (None, item.queue) and by in (None, item.by))

    @property
    def free(self) -> int:
        """The cores that nobody uses."""
        return self.cores - self.outside - self.used()

    def room(self, queue: str) -> int:
        """The cores that a queue's quota leaves."""
        quota = self.standing.queues[queue].cores
        return quota - self.used(queue) if quota else self.cores

    def lacks(self, claim: Claimed) -> bool:
        """Whether there are too few cores for it."""
        return self.wanted(claim) > min(self.free, self.room(claim.queue))

    def never(self, claim: Claimed) -> bool:
        """Whether it can have no cores, whoever gives way."""
        quota = self.standing.queues[claim.queue].cores
        return self.wanted(claim) > min(self.cores - self.outside, quota or self.cores)

    def rank(self, claim: Claimed) -> tuple[Fraction | int, ...]:
        """Whoever has the least comes first."""
        queue = self.standing.queues[claim.queue]
        of_queue = Fraction(self.used(claim.queue), queue.weight)
        return -queue.priority, of_queue, -claim.priority, self.used(claim.queue, claim.by), claim.since

    def waiting(self) -> list[Claimed]:
        """Those that wait for cores, the first first."""
        return sorted((item for item in self.standing.claims.values() if not self.uses(item)), key=self.rank)

    def share(self, queue: str) -> Fraction:
        """The fair share of a queue beside those of its priority, of what queues of a higher one leave."""
        mine, queues = self.standing.queues[queue], self.standing.queues
        wanting = {item.queue for item in self.standing.claims.values()} | {queue}
        left = (
            self.cores - self.outside - sum(self.used(one) for one in wanting if queues[one].priority > mine.priority)
        )
        weights = sum(queues[one].weight for one in wanting if queues[one].priority == mine.priority)
        return Fraction(max(0, left) * mine.weight, weights)

    def outranks(self, claim: Claimed, victim: Claimed) -> bool:
        """Whether its priority lets it take the cores of another."""
        mine, its = self.standing.queues[claim.queue].priority, self.standing.queues[victim.queue].priority
        return victim.priority < claim.priority if claim.queue == victim.queue else its < mine

    def may_take(self, claim: Claimed, victim: Claimed) -> bool:
        """Whether it may take the cores of another: by priority, or as a fair share of a queue that keeps its own."""
        return self.outranks(claim, victim) or self.wanted(victim) <= self._slack(claim, victim.queue)

    def _slack(self, claim: Claimed, queue: str) -> Fraction:
        """What another queue of its priority has above its fair share, where the claim stays within its own."""
        queues = self.standing.queues
        within = self.used(claim.queue) + self.wanted(claim) <= self.share(claim.queue)
        if queue == claim.queue or queues[queue].priority != queues[claim.queue].priority or not within:
            return Fraction(-1)
        return self.used(queue) - self.share(queue)

    def suffices(self, claim: Claimed) -> bool:
        """Whether those whose cores it may take have surely enough, in whichever order they are asked."""
        running = [item for item in self.standing.claims.values() if item.begun and not item.held]
        below = [item for item in running if self.outranks(claim, item)]
        own = sum(self.wanted(item) for item in below if item.queue == claim.queue)
        gains = sum(map(self.wanted, below))
        for queue in self.standing.queues:
            slack = self._slack(claim, queue)
            sizes = [self.wanted(item) for item in running if item.queue == queue and self.wanted(item) <= slack]
            gains += _least(sizes, slack)
        wanted = self.wanted(claim)
        return wanted <= self.free + gains and wanted <= self.room(claim.queue) + own

    # -- the two questions --

    def allows(self, name: str, lacks_nothing_else: Callable[[Claimed], bool]) -> bool:
        """Whether a pipeline may get cores: whoever comes before it can have none, or stands in a queue that is full.

        A queue is full when its quota has no room for the first of it that waits: nobody overtakes that one there.
        """
        claim = self.standing.claims.get(name)
        if claim is None or self.uses(claim):
            return False
        full: set[str] = set()
        for other in self.waiting():
            if self.rank(other) >= self.rank(claim):
                break
            if self.never(other) or not lacks_nothing_else(other):
                continue
            if self.wanted(other) > self.room(other.queue):
                full.add(other.queue)
            if other.queue not in full or other.queue == claim.queue:
                return False
        return True

    def allows_hold(self, name: str) -> bool:
        """Whether a run may give way to somebody who waits, lacks cores and has a right to them."""
        victim = self.standing.claims.get(name)
        return victim is not None and any(
            self.may_take(claim, victim) for claim in self.waiting() if claim.name != name and self.lacks(claim)
        )

    def owed(self, lacks_nothing_else: Callable[[Claimed], bool]) -> str:
        """Who ought to have cores, or those of others, as things stand; empty for nobody for sure."""
        waiting = self.waiting()
        ranks = [self.rank(item) for item in waiting]
        closed: set[str] = set()
        for claim, rank in zip(waiting, ranks, strict=True):
            if claim.queue in closed or self.never(claim):
                continue
            if not lacks_nothing_else(claim) or ranks.count(rank) > 1:
                return ""
            if not self.lacks(claim):
                return f"{claim.name} waits for {self.wanted(claim)} cores, and {self.free} are free"
            if self.sealing:
                return ""
            if self.suffices(claim):
                return f"{claim.name} waits for {self.wanted(claim)} cores, and those that it may take are not taken"
            beside = (item for item in self.standing.claims.values() if item.begun and item.queue == claim.queue)
            if self.wanted(claim) <= self.room(claim.queue) or any(self.outranks(claim, item) for item in beside):
                return ""
            closed.add(claim.queue)
        return ""


def _least(sizes: list[int], slack: Fraction) -> int:
    """What is given at least where one after the other gives its own as long as all that is given is within `slack`."""
    if not sizes or sum(sizes) <= slack:
        return sum(sizes)
    return max(min(sizes), math.floor(slack - max(sizes)) + 1)


class QueueHistory:
    """Every standing of a log, and since which each life of a controller may have decided by it."""

    def __init__(self) -> None:
        self._standings = [LoggedQueues()]
        self._changes: list[tuple[int, Change]] = []
        #: Of each life of a controller, the standing when its log was quiet last, and since then the cores of its
        #: workers, with those used outside of all queues.
        self._quiet_at: dict[str, int] = {}
        self._cores: dict[str, set[tuple[int, int]]] = {}
        #: The newest.
        self.now = self._standings[0]

    def changed(self, number: int, change: Change) -> None:
        """Another change is in the log."""
        self.now = self.now.after(number, change)
        self._standings.append(self.now)
        self._changes.append((number, change))

    def note(self, controller: SimulatedController) -> None:
        """Something happened at a controller, or is about to."""
        identity, cores = controller.identity, cores_of(controller)
        if controller.core.log is None or controller.core.log.quiet:
            self._quiet_at[identity], self._cores[identity] = len(self._standings) - 1, set()
        self._cores.setdefault(identity, set()).add(cores)

    def since(self, writer: str) -> Iterator[View]:
        """What a leader may have seen when it decided on the change that comes next."""
        for index in range(self._quiet_at.get(writer, 0), len(self._standings)):
            behind = self._changes[index:]
            for known in ((RunBegun, RunHeld), (RunBegun, RunHeld, RunEnded, RunUnqueued)):
                standing = self._standings[index]
                for number, change in behind:
                    standing = standing.after(number, change) if isinstance(change, known) else standing
                for cores, outside in self._cores.get(writer, ()):
                    yield from views(standing, cores, outside, frozenset())


def views(standing: LoggedQueues, cores: int, outside: int, sealed: frozenset[str]) -> Iterator[View]:
    """A standing with each guess at who has not sealed yet, but for those that surely have."""
    held = [name for name, item in standing.claims.items() if item.held and name not in sealed]
    for count in range(len(held) + 1):
        for sealing in itertools.combinations(held, count):
            yield View(standing, cores, outside, frozenset(sealing))


def cores_of(controller: SimulatedController) -> tuple[int, int]:
    """The cores of the workers that are with a controller, and of them those used outside of all queues."""
    core = controller.core
    cores = sum(item.cores for name, item in core.workers.items() if name not in core.drained)
    runs = [(name, run) for name, run in core.runs.items() if not run.request.queue and not run.ended]
    known = core.log.ledger.going_on() if core.log is not None else {}
    tasks = [task.plan for _, run in runs for task in run.tasks or ()]
    for name, run in runs:
        if run.tasks is None and name in known and (plan := known[name].plan) is not None:
            tasks += plan_from_plain(plan).tasks
    return cores, min(cores, math.ceil(sum(max(1.0, task.need.cores) for task in tasks if not task.alone)))
