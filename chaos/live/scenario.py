"""A scenario: what is to go wrong, to whom and when; and the schedule that one seed draws from it.

A scenario is a TOML file (docs/chaos.md). Numbers may be given as a range `[low, high]`; `draw` turns every range and
every choice into one value, so that a scenario and a seed name one schedule.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from headrace.cli.errors import UsageError

#: Limits of a scenario: firings in all, and seconds that one fault may last.
FIRINGS_MAX = 1_000
FAULT_S_MAX = 3_600.0
TARGETS = ("task", "sink", "stage:NAME", "worker", "controller", "command", "everything")
_PLAIN_TARGETS = frozenset(TARGETS) - {"stage:NAME"}
_RUN_KEYS = frozenset({"fuse", "replicas"})
_MOMENT_KEYS = frozenset({"after_commits", "after_s", "every_commits", "every_s", "count", "follows"})
_FAULT_KEYS = frozenset({"kind", "target", "for_s"}) | _MOMENT_KEYS


class Kind(Enum):
    """What is done to a target."""

    #: SIGKILL.
    KILL = "kill"
    #: SIGTERM; whoever supervises it starts it again.
    RESTART = "restart"
    #: SIGSTOP for `for_s` seconds, then SIGCONT.
    FREEZE = "freeze"
    #: Stopped for most of each tenth of a second, for `for_s` seconds.
    SLOW = "slow"
    #: No byte can be written to the output for `for_s` seconds.
    FULL_DISK = "full_disk"


class Unit(Enum):
    """What a moment is counted in."""

    #: Entries that close records: heartbeats and listings do not count.
    COMMITS = "commits"
    SECONDS = "seconds"


#: The kinds that last, and their length in seconds where the scenario gives none.
LASTING = {Kind.FREEZE: 2.0, Kind.SLOW: 5.0, Kind.FULL_DISK: 2.0}


@dataclass(frozen=True, slots=True)
class Span:
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

    `follows` is the number of the fault whose firings this one's are counted from; -1: none.
    """

    kind: Kind
    target: str
    unit: Unit
    after: Span
    every: Span
    count: int
    for_s: Span
    follows: int = -1


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario as its file declares it."""

    name: str
    about: str
    faults: tuple[Fault, ...]
    fuse: bool = True
    replicas: int = 0

    @property
    def fills_disk(self) -> bool:
        """Whether the output must lie on a disk that can be filled."""
        return any(fault.kind is Kind.FULL_DISK for fault in self.faults)


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

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "fault": self.fault,
            "nth": self.nth,
            "kind": self.kind.value,
            "target": self.target,
            "after": round(self.after, 3),
            "base": None if self.base is None else list(self.base),
            "unit": self.unit.value,
            "for_s": round(self.for_s, 3),
            "pick": round(self.pick, 6),
        }


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
            planned.append(
                Planned(number, nth, fault.kind, fault.target, fault.unit, after, for_s, chance.random(), base)
            )
    return tuple(planned)


def read_scenario(path: Path) -> Scenario:
    """The scenario in a TOML file. Raises UsageError, which names the table and the key."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"scenario {str(path)!r} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"scenario {path.name} is not TOML: {error}") from error
    return scenario_of(data, path.name)


def scenario_of(data: Mapping[str, Any], where: str) -> Scenario:
    """The scenario that a decoded file declares. Raises UsageError."""
    _only(data, frozenset({"name", "about", "run", "fault"}), where)
    run = data.get("run", {})
    tables = data.get("fault", [])
    if not isinstance(run, dict) or not isinstance(tables, list) or not tables:
        raise UsageError(f"{where}: a scenario has one [[fault]] or more, and may have a table [run]")
    _only(run, _RUN_KEYS, f"{where}, [run]")
    faults = tuple(_fault(table, f"{where}, fault {number}") for number, table in enumerate(tables))
    for number, fault in enumerate(faults):
        if fault.follows >= number or (fault.follows >= 0 and fault.count > faults[fault.follows].count):
            raise UsageError(
                f"{where}, fault {number}: follows is {fault.follows}; it names a fault further up, counted from 0, "
                "that is fired as often or more"
            )
    firings = sum(fault.count for fault in faults)
    if firings > FIRINGS_MAX:
        raise UsageError(f"{where}: {firings} firings, the limit is {FIRINGS_MAX}; lower `count`")
    fuse, replicas = run.get("fuse", True), run.get("replicas", 0)
    if not isinstance(fuse, bool) or not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        raise UsageError(f"{where}, [run]: fuse is true or false, replicas a number from 0 (as many as cores)")
    return Scenario(str(data.get("name", where)), str(data.get("about", "")), faults, fuse, replicas)


def _fault(table: Any, where: str) -> Fault:
    if not isinstance(table, dict):
        raise UsageError(f"{where}: write it as a table [[fault]]")
    _only(table, _FAULT_KEYS, where)
    try:
        kind = Kind(table.get("kind"))
    except ValueError:
        known = ", ".join(item.value for item in Kind)
        raise UsageError(f"{where}: kind is {table.get('kind')!r}; it is one of {known}") from None
    target = table.get("target", "everything" if kind is Kind.FULL_DISK else None)
    if target not in _PLAIN_TARGETS and not (
        isinstance(target, str) and target.removeprefix("stage:") not in ("", target)
    ):
        raise UsageError(f"{where}: target is {target!r}; it is one of {', '.join(TARGETS)}")
    unit = _unit(table, where)
    key = "commits" if unit is Unit.COMMITS else "s"
    after = _span(table.get(f"after_{key}"), f"{where}: after_{key}")
    every = _span(table.get(f"every_{key}", table.get(f"after_{key}")), f"{where}: every_{key}")
    count = table.get("count", 1)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= FIRINGS_MAX:
        raise UsageError(f"{where}: count is {count!r}, expected a whole number from 1 to {FIRINGS_MAX}")
    if kind not in LASTING and "for_s" in table:
        raise UsageError(f"{where}: for_s means nothing for {kind.value!r}, which is over at once")
    for_s = _span(table.get("for_s", LASTING.get(kind, 0.0)), f"{where}: for_s")
    if for_s.high > FAULT_S_MAX:
        raise UsageError(f"{where}: for_s is {for_s.high:g}, the limit is {FAULT_S_MAX:g} s")
    follows = table.get("follows", -1)
    if not isinstance(follows, int) or isinstance(follows, bool):
        raise UsageError(f"{where}: follows is {follows!r}, expected the number of a fault further up, from 0")
    return Fault(kind, str(target), unit, after, every, count, for_s, follows)


def _unit(table: Mapping[str, Any], where: str) -> Unit:
    given = [key for key in ("after_commits", "after_s") if key in table]
    if len(given) != 1:
        raise UsageError(f"{where}: give one of after_commits and after_s, a number or [low, high]")
    unit = Unit.COMMITS if given == ["after_commits"] else Unit.SECONDS
    wrong = "every_s" if unit is Unit.COMMITS else "every_commits"
    if wrong in table:
        raise UsageError(f"{where}: {wrong} does not go with {given[0]}; count both in the same")
    return unit


def _span(value: Any, where: str) -> Span:
    ends = value if isinstance(value, list) else [value, value]
    if len(ends) != 2 or any(isinstance(end, bool) or not isinstance(end, (int, float)) for end in ends):
        raise UsageError(f"{where} is {value!r}, expected a number or [low, high]")
    low, high = float(ends[0]), float(ends[1])
    if not 0 <= low <= high:
        raise UsageError(f"{where} is {value!r}, expected 0 <= low <= high")
    return Span(low, high)


def _only(table: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    unknown = sorted(table.keys() - known)
    if unknown:
        raise UsageError(f"{where} has no key {unknown[0]!r}; it takes {', '.join(sorted(known))}")
