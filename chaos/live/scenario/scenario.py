"""A scenario: faults, targets and times, and the schedule that one seed draws from it.

A scenario is a TOML file (docs/guide/chaos.md; `scenario_file.py` reads it). A number may be a range `[low, high]`;
`draw` turns every range and every choice into one value, so that a scenario and a seed name one schedule.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

#: Limits of a scenario: firings in all, and seconds that one fault may last.
FIRINGS_MAX = 1_000
FAULT_S_MAX = 3_600.0
#: A slow process is stopped for most of each turn, seconds, and runs for the rest.
SLOW_TURN_S = 0.1
SLOW_RUNS_S = 0.02
#: What a fault of processes may be done to.
PROCESS_TARGETS = ("task", "sink", "stage:NAME", "worker", "controller", "command", "everything")
#: And a fault of the network: a kind of way, or every way of one worker or controller.
NETWORK_TARGETS = ("links", "control", "worker", "controller")
#: Whose cable can be pulled out.
CABLE_TARGETS = ("worker",)


class Kind(Enum):
    """What is done to a target."""

    #: SIGKILL.
    KILL = "kill"
    #: SIGTERM; its supervisor restarts it.
    RESTART = "restart"
    #: SIGSTOP for `for_s` seconds, then SIGCONT.
    FREEZE = "freeze"
    #: Stopped for most of each tenth of a second, for `for_s` seconds.
    SLOW = "slow"
    #: No byte can be written to the output for `for_s` seconds.
    FULL_DISK = "full_disk"
    #: The network, in the gates of a cluster of our own: `share` of what passes on the target's ways.
    DELAY = "delay"
    LOSS = "loss"
    REORDER = "reorder"
    DUPLICATE = "duplicate"
    CORRUPT = "corrupt"
    PARTITION = "partition"
    #: The cable of a worker that has a network namespace of its own.
    UNPLUG = "unplug"
    #: The store, in a proxy before an S3 server: `share` of the requests.
    STORE_ERRORS = "store_errors"
    STORE_SLOW = "store_slow"
    STORE_OUTAGE = "store_outage"
    STORE_TORN = "store_torn"
    STORE_LOST_ANSWERS = "store_lost_answers"


class Unit(Enum):
    """What a moment is counted in."""

    #: Entries that close records: heartbeats and listings do not count.
    COMMITS = "commits"
    SECONDS = "seconds"


NETWORK = frozenset({Kind.DELAY, Kind.LOSS, Kind.REORDER, Kind.DUPLICATE, Kind.CORRUPT, Kind.PARTITION})
STORE = frozenset({Kind.STORE_ERRORS, Kind.STORE_SLOW, Kind.STORE_OUTAGE, Kind.STORE_TORN, Kind.STORE_LOST_ANSWERS})
#: The kinds that last, and their length in seconds where the scenario gives none.
LASTING = {
    Kind.FREEZE: 2.0,
    Kind.SLOW: 5.0,
    Kind.FULL_DISK: 2.0,
    **dict.fromkeys(NETWORK, 5.0),
    Kind.UNPLUG: 5.0,
    **dict.fromkeys(STORE, 3.0),
}
#: The part that is affected where the scenario gives none; the other kinds that have a share affect all.
SHARES = {
    Kind.LOSS: 0.05,
    Kind.REORDER: 0.1,
    Kind.DUPLICATE: 0.05,
    Kind.CORRUPT: 0.02,
    Kind.STORE_ERRORS: 0.3,
    Kind.STORE_TORN: 0.3,
    Kind.STORE_LOST_ANSWERS: 0.3,
}
#: The kinds that make late, and by how many seconds where the scenario does not say.
DELAYS = {Kind.DELAY: 0.05, Kind.STORE_SLOW: 0.3}


@dataclass(frozen=True, slots=True)
class NumberRange:
    """A number between two, both included."""

    low: float
    high: float

    def draw(self, chance: random.Random, *, whole: bool) -> float:
        """One of them."""
        if whole:
            return float(chance.randint(int(self.low), int(self.high)))
        return chance.uniform(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Fault:
    """One table `[[fault]]` of a scenario. `after` and `every` are in `unit`.

    `follows` is the number of the fault whose firings this one's are counted from; -1: none. A run passes without the
    firings of an `optional` one.
    """

    kind: Kind
    target: str
    unit: Unit
    after: NumberRange
    every: NumberRange
    count: int
    for_s: NumberRange
    follows: int = -1
    share: NumberRange = NumberRange(1.0, 1.0)
    delay_s: NumberRange = NumberRange(0.0, 0.0)
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """The daemons of a scenario that brings a cluster of its own; `cores` are what each worker offers.

    `place` names the worker of a stage; with `spread` each stage stands on another worker than the one before it.
    With `namespaces` each worker has a network namespace of its own, and no gates.
    """

    controllers: int = 2
    workers: int = 2
    cores: int = 1
    spread: bool = False
    namespaces: bool = False
    place: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def worker_names(self) -> tuple[str, ...]:
        """The workers, as `place` names them."""
        return tuple(f"w{number}" for number in range(self.workers))


@dataclass(frozen=True, slots=True)
class Clocks:
    """How far the clocks of the daemons go wrong: seconds that they are ahead, and how fast they run."""

    offset_s: NumberRange = NumberRange(0.0, 0.0)
    rate: NumberRange = NumberRange(1.0, 1.0)

    def draw(self, seed: int, names: Sequence[str]) -> dict[str, tuple[float, float]]:
        """The clock of each daemon, offset and rate; the same for the same seed and names."""
        chance = random.Random(f"{seed} clocks")
        return {name: (self.offset_s.draw(chance, whole=False), self.rate.draw(chance, whole=False)) for name in names}


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario as its file declares it; without a cluster the run is an embedded one, or on a cluster that lives."""

    name: str
    about: str
    faults: tuple[Fault, ...]
    fuse: bool = True
    replicas: int = 0
    cluster: Cluster | None = None
    clocks: Clocks | None = None
    #: The worker, or the label of workers, of a stage, on a cluster that lives.
    place: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def fills_disk(self) -> bool:
        """Whether the output must lie on a disk that can be filled."""
        return self.has(frozenset({Kind.FULL_DISK}))

    def has(self, kinds: frozenset[Kind]) -> bool:
        """Whether a fault of one of these kinds is among them."""
        return any(fault.kind in kinds for fault in self.faults)


#: Digits of what was drawn, in a report.
_DIGITS = {"after": 3, "for_s": 3, "pick": 6, "share": 6, "delay_s": 6}


@dataclass(frozen=True, slots=True)
class Planned:
    """One firing of a schedule.

    `after` counts from the firing `base`, a fault and its nth; where there is none, from the start of the run.
    `pick` in [0, 1) chooses among the processes that match the target when the moment comes.
    """

    fault: int
    nth: int
    kind: Kind
    target: str
    unit: Unit
    after: float
    for_s: float
    pick: float
    base: tuple[int, int] | None = None
    share: float = 1.0
    delay_s: float = 0.0
    optional: bool = False

    def words(self) -> str:
        """The fault, the number of the firing, and its planned time."""
        times = f"{self.after:g} {self.unit.value}" if self.unit is Unit.COMMITS else f"{self.after:.1f} s"
        since = "the start" if self.base is None else f"firing {self.base[1] + 1} of fault {self.base[0]}"
        return f"fault {self.fault}, firing {self.nth + 1}: {self.kind.value} of {self.target}, {times} after {since}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        base = None if self.base is None else list(self.base)
        plain = asdict(self) | {"kind": self.kind.value, "base": base, "unit": self.unit.value}
        return plain | {name: round(plain[name], digits) for name, digits in _DIGITS.items()}


def draw(scenario: Scenario, seed: int) -> tuple[Planned, ...]:
    """The schedule that `seed` draws; the same for the same two, whatever the machine."""
    chance = random.Random(seed)
    planned: list[Planned] = []
    for number, fault in enumerate(scenario.faults):
        whole = fault.unit is Unit.COMMITS
        for nth in range(fault.count):
            span = fault.every if nth and fault.follows < 0 else fault.after
            after, for_s = span.draw(chance, whole=whole), fault.for_s.draw(chance, whole=False)
            base = (fault.follows, nth) if fault.follows >= 0 else (number, nth - 1) if nth else None
            pick, share = chance.random(), fault.share.draw(chance, whole=False)
            delay_s = fault.delay_s.draw(chance, whole=False)
            planned.append(
                Planned(
                    number,
                    nth,
                    fault.kind,
                    fault.target,
                    fault.unit,
                    after,
                    for_s,
                    pick,
                    base,
                    share,
                    delay_s,
                    fault.optional,
                )
            )
    return tuple(planned)
