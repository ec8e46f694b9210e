"""What the counters of a run say at one moment, and what they say between two.

A reading comes from tasks, or over a network from a controller: each number is judged before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

#: Largest counter and largest number of seconds, bytes or cores in a reading; groups and stages of one.
NUMBER_MAX, ROWS_MAX = 2.0**60, 65_536
#: Records that the sources have read between two readings, below which nothing is said of a run.
RECORDS_MIN = 20


class ReadingError(ValueError):
    """A reading that cannot be, or two that say nothing of a run."""


@dataclass(frozen=True, slots=True)
class StageCounters:
    """What a stage did since the run began. `records` came to it, of which it `dropped` some.

    Of `busy_s` a core worked for `cpu_s`. `bytes` are those of input that its batches cover.
    """

    stage: str
    records: float = 0
    busy_s: float = 0.0
    cpu_s: float = 0.0
    dropped: float = 0
    bytes: float = 0
    #: Bytes of stored input; of a source alone.
    stored_bytes: float = 0

    def since(self, before: StageCounters) -> StageCounters:
        """What it did since then. ReadingError where sums have fallen."""
        made = StageCounters(
            self.stage,
            self.records - before.records,
            self.busy_s - before.busy_s,
            self.cpu_s - before.cpu_s,
            self.dropped - before.dropped,
            self.bytes - before.bytes,
            self.stored_bytes - before.stored_bytes,
        )
        # What a task was at is estimated between its words: such a sum may fall by a moment.
        if min(made.records, made.stored_bytes, made.busy_s + 1.0, made.cpu_s + 1.0) < 0:
            raise ReadingError(f"the sums of stage {self.stage!r} have fallen: the run began anew")
        return made


@dataclass(frozen=True, slots=True)
class Edge:
    """Records go from one stage to another. `past`: they are decided about on the way by a stage that is asked."""

    before: str
    behind: str
    past: bool = False


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """The tasks of one fused chain. `cores` and `memory_bytes` are what one of them reserves."""

    stages: tuple[str, ...]
    replicas: int
    cores: float = 0.0
    memory_bytes: float = 0
    #: Whether it keeps its number of tasks: a stage that decides alone.
    fixed: bool = False
    #: Bytes on their way to it.
    queued_bytes: float = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ScalingLimits:
    """What a run may use. 0: not known, and so no limit. Bandwidths in bytes a second, `nic_bytes_s` of each host."""

    cores: float
    memory_bytes: float = 0
    hosts: int = 1
    #: Whether there are more cores, which are others': tasks do not wait for cores, so nothing but their number binds.
    shared: bool = False
    store_bytes_s: float = 0.0
    nic_bytes_s: float = 0.0
    #: Processes that hold a model for the tasks of a host, by the stage that asks them.
    model_hosts: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters of a run at `at`, in seconds of any clock. `cores` are those of workers that have its tasks."""

    at: float
    sources: tuple[str, ...]
    stages: tuple[StageCounters, ...]
    groups: tuple[TaskGroup, ...]
    edges: tuple[Edge, ...]
    limits: ScalingLimits
    cores: float
    input_bytes: float = 0
    #: Bytes that sinks and sources moved from and to the store, and bytes that links moved between hosts.
    store_bytes: float = 0
    network_bytes: float = 0
    fragments_open: float = 0

    def within(self, cores: float | None) -> Reading:
        """The reading of a run that may use no more than so many cores; None: as many as there are."""
        if cores is None or cores >= self.limits.cores:
            return self
        return replace(self, limits=replace(self.limits, cores=cores, shared=True))

    def check(self) -> None:
        """ReadingError for numbers that no run has."""
        if len(self.stages) > ROWS_MAX or len(self.groups) > ROWS_MAX:
            raise ReadingError(f"a reading of more than {ROWS_MAX} stages or groups")
        numbers = [self.at, self.cores, self.input_bytes, self.store_bytes, self.network_bytes, self.fragments_open]
        for stage in self.stages:
            numbers += [stage.records, stage.busy_s, stage.cpu_s, stage.dropped, stage.bytes, stage.stored_bytes]
        for group in self.groups:
            numbers += [group.replicas, group.cores, group.memory_bytes, group.queued_bytes]
        limits = self.limits
        numbers += [limits.cores, limits.memory_bytes, limits.hosts, limits.store_bytes_s, limits.nic_bytes_s]
        numbers += limits.model_hosts.values()
        if not all(math.isfinite(number) and 0 <= number <= NUMBER_MAX for number in numbers):
            raise ReadingError("a reading with a number that is negative, too large, or none")
        names = [name for group in self.groups for name in group.stages]
        if len(set(names)) != len(names):
            raise ReadingError("a reading in which a stage has two groups of tasks")
        if not set(self.sources) <= {stage.stage for stage in self.stages}:
            raise ReadingError("a reading without what its sources did")


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """What happened between two readings of the same tasks: `costs` are busy and core seconds for a record of input.

    Sources may read ahead: `records_s` is what all stages keep up with.
    """

    seconds: float
    records_s: float
    #: Stored bytes, bytes of the store and bytes between hosts a record of input.
    stored_bytes: float
    store_bytes: float
    network_bytes: float
    costs: Mapping[str, tuple[float, float]]


def window_of(before: Reading, after: Reading) -> MeasuredWindow:
    """What happened between them. ReadingError where that says nothing: too little was read, or sums have fallen."""
    seconds = after.at - before.at
    old = {stage.stage: stage for stage in before.stages}
    # A stage that the graph has lost has done something too, and does nothing now.
    there = {*after.sources, *(name for group in after.groups for name in group.stages)}
    now = {stage.stage: stage for stage in after.stages if stage.stage in there}
    made = {name: stage.since(old.get(name, StageCounters(name))) for name, stage in now.items()}
    read = sum(made[name].records for name in after.sources)
    whole = sum(now[name].records for name in after.sources)
    if seconds <= 0 or whole < RECORDS_MIN:
        raise ReadingError(f"{whole:.0f} records were read: too few to say anything")
    visits = _visits(after, now, made)
    rates: list[float] = []
    costs: dict[str, tuple[float, float]] = {}
    for name, share in visits.items():
        stage = made[name] if made[name].records > 0 else now[name]
        if stage.records <= 0:
            if share * whole >= RECORDS_MIN:
                raise ReadingError(f"no record has come to stage {name!r} yet")
            continue
        costs[name] = (share * max(0.0, stage.busy_s) / stage.records, share * max(0.0, stage.cpu_s) / stage.records)
        if share * whole >= RECORDS_MIN:
            rates.append(made[name].records / share / seconds)
    rate = min(rates, default=0.0)
    if rate * seconds < RECORDS_MIN:
        raise ReadingError(f"{rate * seconds:.0f} records went through in {seconds:.0f} s: too few to say anything")
    moved = max(0.0, after.store_bytes - before.store_bytes), max(0.0, after.network_bytes - before.network_bytes)
    stored = sum(now[name].stored_bytes for name in after.sources) / whole
    counted = max(read, rate * seconds)
    return MeasuredWindow(seconds, rate, stored, moved[0] / counted, moved[1] / counted, costs)


def _visits(reading: Reading, now: Mapping[str, StageCounters], made: Mapping[str, StageCounters]) -> dict[str, float]:
    """The records that come to each stage for one of input.

    What a stage lets go on is told by what it dropped, since the stage behind it may be late. One that makes several of
    a record is told by those that came, and so is one that asks another stage.
    """
    whole = sum(now[name].records for name in reading.sources)
    found = {name: now[name].records / whole for name in reading.sources}
    flows = [flow for flow in reading.edges if flow.before in now and flow.behind in now]
    # As often as a way may have stages: a graph has no circle, and what says so is not believed.
    for _ in range(len(now)):
        for name in now:
            feeding = [flow for flow in flows if flow.behind == name and flow.before in found]
            if name in reading.sources or not feeding:
                continue
            came = sum(now[flow.before].records for flow in feeding)
            share = 0.0
            for flow in feeding:
                stage = made[flow.before] if made[flow.before].records > 0 else now[flow.before]
                kept = 1.0 - stage.dropped / stage.records if stage.records > 0 else 0.0
                counted = now[name].records / came if came > 0 else 0.0
                share += found[flow.before] * (counted if flow.past else max(0.0, kept, counted))
            found[name] = share
    for name, stage in now.items():
        # What is asked, or stands where no flow is known: told by what came.
        found.setdefault(name, stage.records / whole)
    return found


def bytes_left(reading: Reading) -> float:
    """Bytes of stored input that no sink has had, about."""
    read = sum(stage.stored_bytes for stage in reading.stages if stage.stage in reading.sources)
    queued = sum(group.queued_bytes for group in reading.groups)
    return max(0.0, reading.input_bytes - max(0.0, read - queued))
