"""The file of a scenario: TOML, read with errors that name the table and the key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.chaos.live.scenario.scenario import (
    CABLE_TARGETS,
    DELAYS,
    FAULT_S_MAX,
    FIRINGS_MAX,
    LASTING,
    NETWORK,
    NETWORK_TARGETS,
    PROCESS_TARGETS,
    SHARES,
    STORE,
    Clocks,
    Cluster,
    Fault,
    Kind,
    NumberRange,
    Scenario,
    Unit,
)
from headrace.client import UsageError
from headrace.pipeline import secret_in

#: Bytes of a scenario's file.
FILE_BYTES_MAX = 1 << 20
#: Commits, or seconds, before a fault, and what else a number of a scenario is at most.
NUMBER_MAX = 1e9
#: Daemons of one role that a scenario may bring.
DAEMONS_MAX = 16
#: How wrong a clock may be: seconds ahead or behind, and how fast.
OFFSET_S_MAX = 10 * 365 * 86400.0
RATE_MIN, RATE_MAX = 0.25, 4.0
_RUN_KEYS = frozenset({"fuse", "replicas", "place"})
_CLUSTER_COUNTS = frozenset({"controllers", "workers", "cores"})
_CLUSTER_KEYS = _CLUSTER_COUNTS | {"spread", "namespaces", "place"}
_MOMENT_KEYS = frozenset({"after_commits", "after_s", "every_commits", "every_s", "count", "follows"})
_FAULT_KEYS = frozenset({"kind", "target", "for_s", "share", "delay_s", "optional"}) | _MOMENT_KEYS


def read_scenario(path: Path) -> Scenario:
    """The scenario in a TOML file. Raises UsageError, which names the table and the key."""
    try:
        with path.open("rb") as file:
            found = file.read(FILE_BYTES_MAX + 1)
        text = found.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"scenario {str(path)!r} cannot be read: {why}") from error
    if len(found) > FILE_BYTES_MAX:
        raise UsageError(f"scenario {path.name} has more than {FILE_BYTES_MAX} bytes, the limit of a scenario")
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # some numbers and nestings are more than the library takes
        raise UsageError(f"scenario {path.name} is not TOML: {error}") from error
    return scenario_of(data, path.name)


def scenario_of(data: Mapping[str, Any], where: str) -> Scenario:
    """The scenario that a decoded file declares. Raises UsageError."""
    if found := secret_in(data):
        raise UsageError(f"{where}: {found} carries a secret, and a scenario stands in its report")
    _only(data, frozenset({"name", "about", "run", "cluster", "clocks", "fault"}), where)
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
        if fault.follows >= 0 and faults[fault.follows].optional and not fault.optional:
            raise UsageError(
                f"{where}, fault {number}: it follows fault {fault.follows}, which is optional; without that one it is "
                "never fired: say optional = true here too, or there no more"
            )
    firings = sum(fault.count for fault in faults)
    if firings > FIRINGS_MAX:
        raise UsageError(f"{where}: {firings} firings, the limit is {FIRINGS_MAX}; lower `count`")
    fuse, replicas = run.get("fuse", True), run.get("replicas", 0)
    if not isinstance(fuse, bool) or not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        raise UsageError(f"{where}, [run]: fuse is true or false, replicas a number from 0 (as many as cores)")
    cluster = _cluster(data["cluster"], f"{where}, [cluster]") if "cluster" in data else None
    clocks = _clocks(data["clocks"], f"{where}, [clocks]") if "clocks" in data else None
    if clocks is not None and cluster is None:
        raise UsageError(f"{where}: [clocks] needs a table [cluster]: they are the clocks of its daemons")
    name, about = str(data.get("name", where)), str(data.get("about", ""))
    place = run.get("place", {})
    if not isinstance(place, dict) or not all(isinstance(item, str) for item in place.values()):
        raise UsageError(f"{where}: write place as a table [run.place], a worker or a label for each stage")
    if place and cluster is not None:
        raise UsageError(f"{where}: [run.place] is for a cluster that lives; with [cluster] write [cluster.place]")
    scenario = Scenario(name, about, faults, fuse, replicas, cluster, clocks, place)
    namespaces = cluster is not None and cluster.namespaces
    if namespaces and scenario.has(NETWORK):
        raise UsageError(f"{where}: with namespaces = true there are no gates; the fault of the network is unplug")
    if not namespaces and scenario.has(frozenset({Kind.UNPLUG})):
        raise UsageError(f"{where}: unplug needs a table [cluster] with namespaces = true: a gate has no cable")
    return scenario


def _cluster(table: Any, where: str) -> Cluster:
    if not isinstance(table, dict):
        raise UsageError(f"{where}: write it as a table")
    _only(table, _CLUSTER_KEYS, where)
    for key in sorted(_CLUSTER_COUNTS & table.keys()):
        value = table[key]
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= DAEMONS_MAX:
            raise UsageError(f"{where}: {key} is {value!r}, expected a whole number from 1 to {DAEMONS_MAX}")
    for key in ("spread", "namespaces"):
        if not isinstance(table.get(key, False), bool):
            raise UsageError(f"{where}: {key} is true or false")
    cluster = Cluster(**table)
    _check_places(cluster, where)
    return cluster


def _check_places(cluster: Cluster, where: str) -> None:
    workers = cluster.worker_names
    if not isinstance(cluster.place, dict):
        raise UsageError(f"{where}: write place as a table [cluster.place], a worker for each stage")
    for stage, worker in cluster.place.items():
        if worker not in workers:
            raise UsageError(f"{where}: place of {stage!r} is {worker!r}; the workers are {', '.join(workers)}")
    if cluster.spread and (cluster.place or len(workers) < 2):
        raise UsageError(f"{where}: spread needs two workers or more, and no table [cluster.place]")


def _clocks(table: Any, where: str) -> Clocks:
    if not isinstance(table, dict):
        raise UsageError(f"{where}: write it as a table")
    _only(table, frozenset({"offset_s", "rate"}), where)
    offset_s = _span(table.get("offset_s", 0.0), f"{where}: offset_s", least=-OFFSET_S_MAX)
    rate = _span(table.get("rate", 1.0), f"{where}: rate", least=RATE_MIN)
    if offset_s.high > OFFSET_S_MAX or rate.high > RATE_MAX:
        raise UsageError(f"{where}: offset_s is at most {OFFSET_S_MAX:g} s, rate at most {RATE_MAX:g}")
    return Clocks(offset_s, rate)


def _fault(table: Any, where: str) -> Fault:
    if not isinstance(table, dict):
        raise UsageError(f"{where}: write it as a table [[fault]]")
    _only(table, _FAULT_KEYS, where)
    try:
        kind = Kind(table.get("kind"))
    except ValueError:
        known = ", ".join(item.value for item in Kind)
        raise UsageError(f"{where}: kind is {table.get('kind')!r}; it is one of {known}") from None
    target = _target(table, kind, where)
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
    optional = table.get("optional", False)
    if not isinstance(optional, bool):
        raise UsageError(f"{where}: optional is {optional!r}, expected true or false")
    share, delay_s = _share(table, kind, where), _delay(table, kind, where)
    return Fault(kind, target, unit, after, every, count, for_s, follows, share, delay_s, optional)


def _target(table: Mapping[str, Any], kind: Kind, where: str) -> str:
    if kind is Kind.FULL_DISK or kind in STORE:
        target = table.get("target", "everything")
        if target != "everything":
            raise UsageError(f"{where}: target means nothing for {kind.value!r}, which affects the output of all")
        return "everything"
    known = NETWORK_TARGETS if kind in NETWORK else CABLE_TARGETS if kind is Kind.UNPLUG else PROCESS_TARGETS
    target = table.get("target")
    is_stage = isinstance(target, str) and "stage:NAME" in known and target.removeprefix("stage:") not in ("", target)
    if not isinstance(target, str) or (target not in set(known) - {"stage:NAME"} and not is_stage):
        raise UsageError(f"{where}: target is {target!r}; it is one of {', '.join(known)}")
    return str(target)


def _share(table: Mapping[str, Any], kind: Kind, where: str) -> NumberRange:
    if "share" not in table:
        return NumberRange(SHARES.get(kind, 1.0), SHARES.get(kind, 1.0))
    if kind not in SHARES:
        raise UsageError(f"{where}: share means nothing for {kind.value!r}, which affects everything")
    share = _span(table["share"], f"{where}: share")
    if share.high > 1:
        raise UsageError(f"{where}: share is {share.high:g}, it is a part of what passes, from 0 to 1")
    return share


def _delay(table: Mapping[str, Any], kind: Kind, where: str) -> NumberRange:
    if kind not in DELAYS and "delay_s" in table:
        raise UsageError(f"{where}: delay_s means nothing for {kind.value!r}")
    delay_s = _span(table.get("delay_s", DELAYS.get(kind, 0.0)), f"{where}: delay_s")
    if delay_s.high > FAULT_S_MAX:
        raise UsageError(f"{where}: delay_s is {delay_s.high:g}, the limit is {FAULT_S_MAX:g} s")
    return delay_s


def _unit(table: Mapping[str, Any], where: str) -> Unit:
    given = [key for key in ("after_commits", "after_s") if key in table]
    if len(given) != 1:
        raise UsageError(f"{where}: give one of after_commits and after_s, a number or [low, high]")
    unit = Unit.COMMITS if given == ["after_commits"] else Unit.SECONDS
    wrong = "every_s" if unit is Unit.COMMITS else "every_commits"
    if wrong in table:
        raise UsageError(f"{where}: {wrong} does not go with {given[0]}; count both in the same")
    return unit


def _span(value: Any, where: str, *, least: float = 0.0) -> NumberRange:
    ends = value if isinstance(value, list) else [value, value]
    if len(ends) != 2 or any(isinstance(end, bool) or not isinstance(end, (int, float)) for end in ends):
        raise UsageError(f"{where} is {value!r}, expected a number or [low, high]")
    if not least <= ends[0] <= ends[1] <= NUMBER_MAX:
        raise UsageError(f"{where} is {str(value)[:80]}, expected {least:g} <= low <= high <= {NUMBER_MAX:g}")
    return NumberRange(float(ends[0]), float(ends[1]))


def _only(table: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    unknown = sorted(table.keys() - known)
    if unknown:
        raise UsageError(f"{where} has no key {unknown[0]!r}; it takes {', '.join(sorted(known))}")
