"""Who has the cores: a pure decision over queues and claims; see docs/design/queues.md.

One claim is decided after the other, in this order: the queue's priority, the queue that has the least for its
weight, the pipeline's priority, the user who has the least of that queue, who came first. Nobody overtakes who waits
for cores alone, so nothing starves. Who lacks cores may take those of a queue of lower priority, of a pipeline of
lower priority in its own queue, or of a queue that has more than its fair share and keeps it. None of these can take
them back, so the decisions come to rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from headrace.store import counted

#: Queues of a cluster, and pipelines that wait in all of them.
QUEUES_MAX = 64
QUEUED_MAX = 1024
WEIGHT_MAX = 1000
#: Priorities lie between minus and plus this.
PRIORITY_MAX = 100
#: Cores of a quota or a claim.
CORES_MAX = 1 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class QueueRule:
    """One queue: its share of the cores beside others is by weight, its quota in cores (0: none) is never exceeded."""

    name: str
    weight: int = 1
    cores: int = 0
    priority: int = 0


#: What a queue is that nobody has said more of.
QUEUE_RULE = QueueRule("")


def why_no_rule(name: str, weight: int, cores: int, priority: int) -> str:
    """Why there can be no such queue; empty if there can."""
    if not _NAME.fullmatch(name):
        return f"queue {name[:64]!r}: a name is 1 to 63 of the letters a to z, digits, dots, dashes and underscores"
    if not 1 <= weight <= WEIGHT_MAX:
        return f"queue {name}: a weight of {weight}: give 1 to {WEIGHT_MAX}"
    if not 0 <= cores <= CORES_MAX:
        return f"queue {name}: a quota of {cores} cores: give 1 to {CORES_MAX:,}, or 0 for none"
    return why_no_priority(f"queue {name}", priority)


def why_no_priority(what: str, priority: int) -> str:
    """Why something cannot have this priority; empty if it can."""
    if -PRIORITY_MAX <= priority <= PRIORITY_MAX:
        return ""
    return f"{what}: a priority of {priority}: give -{PRIORITY_MAX} to {PRIORITY_MAX}"


def why_no_claim(name: str, rule: QueueRule, cores: int, priority: int) -> str:
    """Why a pipeline cannot ask a queue for so many cores; empty if it can. 0: all that there are."""
    if not 0 <= cores <= CORES_MAX:
        return f"pipeline {name!r} asks for {cores} cores: give 1 to {CORES_MAX:,}, or 0 for all"
    if rule.cores and cores > rule.cores:
        return f"pipeline {name!r} asks for {cores} cores, and queue {rule.name} has a quota of {rule.cores}"
    return why_no_priority(f"pipeline {name!r}", priority)


class ClaimState(Enum):
    """Where a claim stands."""

    #: It waits for cores, and has no tasks.
    WAITING = "waiting"
    #: It has its cores.
    GRANTED = "granted"
    #: Another gets its cores: its sinks commit what they hold.
    SEALING = "sealing"
    #: It stands still with everything committed, and waits for cores.
    HELD = "held"
    GONE = "gone"


class ClaimTurn(Enum):
    """What moves a claim."""

    BEGUN = "begun"
    HOLD_DECIDED = "hold decided"
    SEALED = "sealed"
    GO_ON_DECIDED = "go on decided"
    ENDED = "ended"


TRANSITIONS: dict[tuple[ClaimState, ClaimTurn], ClaimState] = {
    (ClaimState.WAITING, ClaimTurn.BEGUN): ClaimState.GRANTED,
    (ClaimState.WAITING, ClaimTurn.ENDED): ClaimState.GONE,
    (ClaimState.GRANTED, ClaimTurn.HOLD_DECIDED): ClaimState.SEALING,
    (ClaimState.GRANTED, ClaimTurn.ENDED): ClaimState.GONE,
    (ClaimState.SEALING, ClaimTurn.SEALED): ClaimState.HELD,
    (ClaimState.SEALING, ClaimTurn.ENDED): ClaimState.GONE,
    (ClaimState.HELD, ClaimTurn.GO_ON_DECIDED): ClaimState.GRANTED,
    (ClaimState.HELD, ClaimTurn.ENDED): ClaimState.GONE,
}

#: It waits for cores.
WAITS = (ClaimState.WAITING, ClaimState.HELD)
#: Its cores are its own, or still are.
USES = (ClaimState.GRANTED, ClaimState.SEALING)


@dataclass(slots=True)
class Claim:
    """What one pipeline asks of a queue. `cores` 0: all that there are; `number` says who came first."""

    name: str
    queue: str
    number: int
    cores: int = 0
    priority: int = 0
    by: str = ""
    state: ClaimState = ClaimState.WAITING

    def turn(self, turn: ClaimTurn) -> bool:
        """Move along the table; whether it has such a step."""
        target = TRANSITIONS.get((self.state, turn))
        self.state = self.state if target is None else target
        return target is not None


@dataclass(frozen=True, slots=True)
class Begin:
    """There are cores for a pipeline that waits: begin its run."""

    name: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Have a run commit what its sinks hold and stand still, since another gets its cores."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class GoOn:
    """There are cores again for a run that stands still."""

    name: str


QueueDecision = Begin | Hold | GoOn
#: Why the tasks of a pipeline that waits cannot all be placed once these give up their cores; empty if they can.
Fits = Callable[[str, frozenset[str]], str]


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Where a pipeline that waits stands in its queue, and what it waits for, in words."""

    number: int
    of: int
    waits_for: str

    def words(self, queue: str) -> str:
        """For people."""
        return f"queue {queue}: place {self.number} of {self.of}: {self.waits_for}"


@dataclass(frozen=True, slots=True)
class QueueUse:
    """What a queue has: cores in use, its fair share of them, pipelines with cores and without, the next first."""

    rule: QueueRule
    cores: int
    share: float
    granted: tuple[str, ...]
    waiting: tuple[str, ...]


class Scheduler:
    """The queues and the claims of one cluster."""

    def __init__(self) -> None:
        self.rules: dict[str, QueueRule] = {}
        self.claims: dict[str, Claim] = {}
        #: Why those wait that waited when it was decided last, by name.
        self._why: dict[str, str] = {}

    def clear(self) -> None:
        """Forget everything."""
        self.rules.clear()
        self.claims.clear()
        self._why.clear()

    def note(self, name: str, turn: ClaimTurn) -> None:
        """Something happened to a claim; one that is gone is forgotten."""
        claim = self.claims.get(name)
        if claim is not None and claim.turn(turn) and claim.state is ClaimState.GONE:
            del self.claims[name]

    def cores_of(self, claim: Claim, cores: int) -> int:
        """The cores that a claim is for: what it names, else all that its queue may have."""
        return claim.cores or max(1, min(cores, self._rule(claim).cores or cores))

    def decide(self, cores: int, outside: int, fits: Fits) -> list[QueueDecision]:
        """What is to be done. `cores` of workers that may have tasks, `outside` of them used outside of all queues."""
        decisions: list[QueueDecision] = []
        skipped: set[str] = set()
        closed: set[str] = set()
        self._why.clear()
        while (claim := self._next(cores, skipped, closed)) is not None:
            wanted, free, room = (
                self.cores_of(claim, cores),
                cores - outside - self._used(cores),
                self._room(claim, cores),
            )
            holds = self._holds(claim, cores, outside) if wanted > min(free, room) else []
            self._why[claim.name] = wrong = self._why_never(claim, wanted, cores, outside, holds, fits)
            if wrong:
                skipped.add(claim.name)
            elif wanted <= min(free, room):
                waited = claim.state is ClaimState.WAITING
                claim.turn(ClaimTurn.BEGUN if waited else ClaimTurn.GO_ON_DECIDED)
                decisions.append(Begin(claim.name) if waited else GoOn(claim.name))
            else:
                left = f"{max(0, free)} are free" if wanted > free else f"{max(0, room)} of the queue's quota are left"
                self._why[claim.name] = f"asks for {counted(wanted, 'core')}, and {left}"
                for victim in holds or ():
                    victim.turn(ClaimTurn.HOLD_DECIDED)
                    decisions.append(Hold(victim.name, f"pipeline {claim.name} of queue {claim.queue} gets its cores"))
                if holds is not None or wanted <= room:
                    break
                closed.add(claim.queue)
        return decisions

    def _why_never(
        self, claim: Claim, wanted: int, cores: int, outside: int, holds: list[Claim] | None, fits: Fits
    ) -> str:
        """Why a claim gets no cores, whoever gives way; it holds up nobody. Empty if it may get some."""
        if wanted > cores - outside:
            taken = f", {outside} of them used outside of all queues" if outside else ""
            return f"asks for {counted(wanted, 'core')}, and the cluster has {cores}{taken}"
        quota = self._rule(claim).cores
        if quota and wanted > quota:
            return f"asks for {counted(wanted, 'core')}, and the queue has a quota of {quota}"
        if claim.state is not ClaimState.WAITING or holds is None:
            return ""
        sealing = (item for item in self.claims.values() if item.state is ClaimState.SEALING)
        return fits(claim.name, frozenset(item.name for item in (*sealing, *holds)))

    def places(self, cores: int) -> dict[str, QueuePlace]:
        """Where those who wait stand, by name."""
        found: dict[str, QueuePlace] = {}
        for queue in self.rules:
            waiting = self._waiting(queue, cores)
            for number, claim in enumerate(waiting, 1):
                first = "others are before it"
                found[claim.name] = QueuePlace(number, len(waiting), self._why.get(claim.name, first))
        return found

    def uses(self, cores: int, outside: int) -> list[QueueUse]:
        """What each queue has."""
        return [
            QueueUse(
                rule,
                self._used(cores, name),
                self._share(rule, cores, outside),
                tuple(item.name for item in self.claims.values() if item.queue == name and item.state in USES),
                tuple(item.name for item in self._waiting(name, cores)),
            )
            for name, rule in sorted(self.rules.items())
        ]

    # -- the order --

    def _next(self, cores: int, skipped: set[str], closed: set[str]) -> Claim | None:
        waiting = [
            claim
            for claim in self.claims.values()
            if claim.state in WAITS and claim.name not in skipped and claim.queue not in closed
        ]
        return min(waiting, key=lambda claim: self._key(claim, cores), default=None)

    def _key(self, claim: Claim, cores: int) -> tuple[float, ...]:
        rule = self._rule(claim)
        by_user = sum(
            self.cores_of(item, cores)
            for item in self.claims.values()
            if item.state in USES and (item.queue, item.by) == (claim.queue, claim.by)
        )
        has = self._used(cores, claim.queue) / rule.weight
        return (-rule.priority, has, -claim.priority, by_user, claim.number)

    def _waiting(self, queue: str, cores: int) -> list[Claim]:
        waiting = [claim for claim in self.claims.values() if claim.queue == queue and claim.state in WAITS]
        return sorted(waiting, key=lambda claim: self._key(claim, cores))

    # -- the cores --

    def _rule(self, claim: Claim) -> QueueRule:
        return self.rules.get(claim.queue, QUEUE_RULE)

    def _used(self, cores: int, queue: str | None = None) -> int:
        using = (item for item in self.claims.values() if item.state in USES and queue in (None, item.queue))
        return sum(self.cores_of(item, cores) for item in using)

    def _room(self, claim: Claim, cores: int) -> int:
        """What the quota of a claim's queue leaves."""
        quota = self._rule(claim).cores
        return quota - self._used(cores, claim.queue) if quota else cores

    def _share(self, rule: QueueRule, cores: int, outside: int) -> float:
        """The fair share of a queue: by weight, of what queues of higher priority leave to those that want some."""
        wanting = {claim.queue for claim in self.claims.values()} | {rule.name}
        rules = [self.rules[name] for name in wanting if name in self.rules]
        higher = sum(self._used(cores, other.name) for other in rules if other.priority > rule.priority)
        weights = sum(other.weight for other in rules if other.priority == rule.priority)
        return max(0, cores - outside - higher) * rule.weight / max(1, weights)

    # -- who gives way --

    def _holds(self, claim: Claim, cores: int, outside: int) -> list[Claim] | None:
        """Who gives its cores to a claim, beside those that do so already; None where that is not enough."""
        chosen = [item for item in self.claims.values() if item.state is ClaimState.SEALING]
        sealing = list(chosen)
        for victim in self._victims(claim, cores, outside):
            if not any(self._lacks(claim, chosen, cores, outside)):
                break
            if self._may_take(claim, victim, chosen[len(sealing) :], cores, outside):
                chosen.append(victim)
        if any(self._lacks(claim, chosen, cores, outside)):
            return None
        for victim in reversed(chosen[len(sealing) :]):
            fewer = [item for item in chosen if item is not victim]
            if not any(self._lacks(claim, fewer, cores, outside)):
                chosen = fewer
        return chosen[len(sealing) :]

    def _lacks(self, claim: Claim, given: Iterable[Claim], cores: int, outside: int) -> tuple[int, int]:
        """The cores that are missing in all, and in the claim's queue, once those give theirs."""
        given = list(given)
        wanted = self.cores_of(claim, cores)
        free = cores - outside - self._used(cores) + sum(self.cores_of(item, cores) for item in given)
        own = sum(self.cores_of(item, cores) for item in given if item.queue == claim.queue)
        return max(0, wanted - free), max(0, wanted - self._room(claim, cores) - own)

    def _victims(self, claim: Claim, cores: int, outside: int) -> list[Claim]:
        """Those that might give way, first who loses least: where the quota is missing its own queue comes first."""
        quota = self._lacks(claim, (), cores, outside)[1] > 0
        running = [item for item in self.claims.values() if item.state is ClaimState.GRANTED]
        return sorted(
            running,
            key=lambda item: (
                quota and item.queue != claim.queue,
                self._rule(item).priority,
                item.priority,
                -item.number,
            ),
        )

    def _may_take(self, claim: Claim, victim: Claim, chosen: list[Claim], cores: int, outside: int) -> bool:
        mine, its = self._rule(claim), self._rule(victim)
        if claim.queue == victim.queue:
            return victim.priority < claim.priority
        if mine.priority != its.priority:
            return its.priority < mine.priority
        gives = sum(self.cores_of(item, cores) for item in (*chosen, victim) if item.queue == victim.queue)
        has = self._used(cores, claim.queue) + self.cores_of(claim, cores)
        keeps = self._used(cores, victim.queue) - gives
        return has <= self._share(mine, cores, outside) and keeps >= self._share(its, cores, outside)
