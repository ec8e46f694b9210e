"""One model of a run: what a record of input costs at each stage, and what follows from it.

True rates as of DS2 (OSDI 2018): a task gets through as many records as it has seconds for, and the seconds a record
are those that its stages were busy. Input is bounded and always waiting, so there is no rate to reach: the best
replicas are those of the largest rate x that meets every limit,

    x * busy_g <= replicas_g          for each group of tasks g
    x * sum(cpu_g) <= cores           and likewise for the store, the network and what holds models
    sum(replicas_g * memory_g) <= memory, and likewise for reserved cores and for tasks

The least replicas for a rate grow with it, so the largest rate is found by bisection (Plumber, MLSys 2022, has the
same program for one host).

Where cores are short, tasks wait for them while they count as busy. How much is told by the stage that waits least:
its seconds beyond those of a core are taken for waiting, of all stages alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.controller.core.scaling.readings import MeasuredWindow, Reading, ScalingLimits, TaskGroup

#: Share of the cores in use from which tasks are taken to wait for them.
CORES_SHORT = 0.85
#: A stage with less than this share of the processor time says nothing of waiting.
WAITING_SHARE_MIN = 0.05
#: What is measured over what the model says for the same tasks: bounds of what it is believed to be.
FIT_MIN, FIT_MAX = 0.25, 2.0
#: A part of a task that is not worth another one: what is measured is not exact.
SPARE = 0.05
#: Where cores, store or network are the limit, tasks wait for one another: so many more than can be at work at once.
HEADROOM = (1.3, 1.2, 1.1)
#: How sharply the rate turns from one bound to the other.
SHARP = 6.0
#: Tasks for a core, and bytes of memory that a task takes where it reserves none.
TASKS_A_CORE_MAX, TASK_BYTES = 16, 192 << 20
#: Steps of the bisection: the rate is exact to 2**-STEPS of its limit.
STEPS = 48


@dataclass(frozen=True, slots=True)
class Cost:
    """What a stage takes for a record of input: seconds of its tasks, and of these seconds of a core."""

    busy_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """A rate, and what is in the way of a larger one."""

    records_s: float
    bottleneck: str


NOTHING_MEASURED = Prediction(0.0, "nothing was measured")


@dataclass(frozen=True, slots=True)
class ThroughputModel:
    """A run as the model has it. `fit` is what was measured over what it says for the tasks that were measured."""

    costs: Mapping[str, Cost]
    groups: tuple[TaskGroup, ...]
    limits: ScalingLimits
    #: Stored bytes of input, bytes of the store and bytes between hosts a record.
    stored_bytes: float
    store_bytes: float
    network_bytes: float
    #: Fragments that nobody has read: no more tasks than these read.
    fragments_open: float = 0
    sources: tuple[str, ...] = ()
    fit: float = 1.0
    #: What was measured, on the cores that the tasks have.
    measured: Prediction = NOTHING_MEASURED

    def busy_s(self, group: TaskGroup) -> float:
        """Seconds of its tasks for a record of input."""
        return sum(self.costs[name].busy_s for name in group.stages if name in self.costs)

    def predict(self) -> Prediction:
        """The rate of these groups under these limits."""
        shared = min(self._flows(), default=(math.inf, ""), key=lambda bound: bound[0])
        tasks = [_of_group(self, group, group.replicas) for group in self.groups]
        rate, why = min([shared, *tasks], key=lambda bound: bound[0])
        if rate > 0 and math.isfinite(shared[0]) and math.isfinite(least := min(bound for bound, _ in tasks)):
            # Near both bounds tasks wait for one another by chance.
            rate /= ((rate / shared[0]) ** SHARP + (rate / least) ** SHARP) ** (1 / SHARP)
        return Prediction(self.fit * rate, why) if math.isfinite(rate) else NOTHING_MEASURED

    def with_replicas(self, replicas: Mapping[str, int]) -> ThroughputModel:
        """The model with so many tasks of the groups that have these stages."""
        return replace(self, groups=tuple(_with(group, replicas) for group in self.groups))

    def without(self, stage: str) -> ThroughputModel:
        """The model with a stage that takes nothing."""
        return replace(self, costs={name: cost for name, cost in self.costs.items() if name != stage})

    def with_speed(self, stage: str, times: float) -> ThroughputModel:
        """The model with a stage that is so many times as fast."""
        costs = {
            name: Cost(cost.busy_s / times, cost.cpu_s / times) if name == stage else cost
            for name, cost in self.costs.items()
        }
        return replace(self, costs=costs)

    def solved(self, apart: Sequence[tuple[int, int]] = (), *, keeps: bool = False) -> ThroughputModel:
        """The model with the replicas of the largest rate; with `keeps` no group gets fewer where there is room.

        Groups of a pair in `apart` never get the same number.
        """
        least = {index: 1 for index, group in enumerate(self.groups) if not group.fixed}
        if not self.holds(least):
            return self
        flows = min((rate for rate, _ in self._flows()), default=math.inf)
        fixed = [_of_group(self, group, group.replicas)[0] for group in self.groups if group.fixed]
        readers = [
            self.fragments_open / busy
            for group in self.groups
            if self.fragments_open and set(group.stages) & {*self.sources} and (busy := self.busy_s(group)) > 0
        ]
        high = min([flows, *fixed, *readers])
        if not math.isfinite(high):
            return self
        low = 0.0
        if self.holds(self._least(high)):
            low = high
        for _ in range(STEPS if low < high else 0):
            middle = (low + high) / 2
            low, high = (middle, high) if self.holds(self._least(middle)) else (low, middle)
        rooms: tuple[float, ...] = HEADROOM if low == flows else ()
        if self.limits.shared and rooms:
            low, rooms = self._whole(low), ()
        counts = self._least(low)
        present = {index: self.groups[index].replicas for index in counts}
        tried = [self._least(low * room) for room in rooms]
        tried = [self._even(one) for one in tried] + tried
        tried.append(counts)
        if keeps:
            tried = [{index: max(count, present[index]) for index, count in one.items()} for one in tried] + tried
        return self._given(self.kept_apart(next(filter(self.holds, tried), counts), apart))

    def _flows(self) -> Iterable[tuple[float, str]]:
        """The largest rate by each limit that all tasks share."""
        costs, limits = self.costs, self.limits
        used = [
            (sum(cost.cpu_s for cost in costs.values()), limits.cores, "cores"),
            (self.store_bytes if limits.store_bytes_s else 0.0, limits.store_bytes_s, "store"),
            (self.network_bytes if limits.nic_bytes_s else 0.0, limits.nic_bytes_s * limits.hosts, "network"),
        ]
        for stage, hosts in limits.model_hosts.items():
            used.append((costs[stage].busy_s if stage in costs else 0.0, hosts, f"model of {stage}"))
        return [(limit / use, name) for use, limit, name in used if use > 0]

    def _whole(self, rate: float) -> float:
        """The largest rate below one at which the tasks of one group are all at work."""
        busy = [self.busy_s(group) for group in self.groups if not group.fixed]
        return max((math.floor(rate * seconds) / seconds for seconds in busy if rate * seconds >= 1), default=rate)

    def _least(self, rate: float) -> dict[int, int]:
        """The least replicas for a rate, by group."""
        return {
            index: max(1, math.ceil(rate * self.busy_s(group) - SPARE))
            for index, group in enumerate(self.groups)
            if not group.fixed
        }

    def holds(self, counts: Mapping[int, int]) -> bool:
        """Whether workers have room for so many tasks."""
        tasks = cores = memory = 0.0
        for index, group in enumerate(self.groups):
            count = counts.get(index, group.replicas)
            tasks += count
            cores += count * group.cores
            memory += count * (group.memory_bytes or TASK_BYTES)
        limits = self.limits
        return (
            tasks <= max(1.0, limits.cores) * TASKS_A_CORE_MAX
            and cores <= limits.cores + 1e-9
            and (not limits.memory_bytes or memory <= limits.memory_bytes)
        )

    def _even(self, counts: Mapping[int, int]) -> dict[int, int]:
        """As many on each host, so that none has more to do than others; not of groups that few hosts have."""
        hosts = max(1, self.limits.hosts)
        return {
            index: math.ceil(count / hosts) * hosts if 2 * count >= hosts else count for index, count in counts.items()
        }

    def kept_apart(self, counts: dict[int, int], apart: Sequence[tuple[int, int]]) -> dict[int, int]:
        """Equal numbers would fuse two groups into one, whose tasks then have the work of both."""
        for before, behind in apart:
            if before not in counts or behind not in counts or counts[before] != counts[behind]:
                continue
            more = {**counts, behind: counts[behind] + 1}
            if self.holds(more):
                counts = more
            elif counts[behind] > 1:
                counts = {**counts, behind: counts[behind] - 1}
        return counts

    def _given(self, counts: Mapping[int, int]) -> ThroughputModel:
        groups = enumerate(self.groups)
        return replace(
            self, groups=tuple(replace(group, replicas=counts.get(index, group.replicas)) for index, group in groups)
        )


def model_of(reading: Reading, window: MeasuredWindow) -> ThroughputModel:
    """The model of a run from what happened in a window that ends with a reading."""
    costs = {name: Cost(busy, min(cpu, busy)) for name, (busy, cpu) in window.costs.items()}
    used = window.records_s * sum(cost.cpu_s for cost in costs.values())
    short = reading.cores > 0 and used >= CORES_SHORT * reading.cores
    costs = _without_waiting(costs) if short else costs
    model = ThroughputModel(
        costs,
        reading.groups,
        replace(reading.limits, cores=reading.cores),
        window.stored_bytes,
        window.store_bytes,
        window.network_bytes,
        reading.fragments_open,
        reading.sources,
    )
    said = model.predict()
    fit = min(FIT_MAX, max(FIT_MIN, window.records_s / said.records_s)) if said.records_s > 0 else 1.0
    measured = Prediction(window.records_s, said.bottleneck)
    return replace(model, limits=reading.limits, fit=fit, measured=measured)


def _without_waiting(costs: Mapping[str, Cost]) -> dict[str, Cost]:
    """The costs without what tasks waited for cores."""
    whole = sum(cost.cpu_s for cost in costs.values())
    shares = [cost.busy_s / cost.cpu_s for cost in costs.values() if cost.cpu_s > WAITING_SHARE_MIN * whole]
    stretch = max(1.0, min(shares, default=1.0))
    return {
        name: Cost(max(cost.cpu_s, cost.busy_s - (stretch - 1.0) * cost.cpu_s), cost.cpu_s)
        for name, cost in costs.items()
    }


def _of_group(model: ThroughputModel, group: TaskGroup, replicas: int) -> tuple[float, str]:
    """The largest rate by the tasks of a group."""
    busy, name = model.busy_s(group), "+".join(group.stages)
    reads = model.fragments_open > 0 and bool(set(group.stages) & {*model.sources})
    if reads and model.fragments_open < replicas:
        return (model.fragments_open / busy if busy > 0 else math.inf), f"open fragments for {name}"
    return (replicas / busy if busy > 0 else math.inf), f"tasks of {name}"


def _with(group: TaskGroup, replicas: Mapping[str, int]) -> TaskGroup:
    asked = [count for stage, count in replicas.items() if stage in group.stages]
    return replace(group, replicas=asked[-1]) if asked else group


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What is to be otherwise; None or 0: as it is. Bandwidths in bytes a second."""

    cores: float | None = None
    without: tuple[str, ...] = ()
    replicas: Mapping[str, int] = field(default_factory=dict[str, int])
    #: How many times as fast stages are.
    speed: Mapping[str, float] = field(default_factory=dict[str, float])
    store_bytes_s: float = 0.0
    nic_bytes_s: float = 0.0
    model_hosts: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Forecast:
    """A rate with what follows from it: `replicas` by chain, seconds and core-seconds until the input is read."""

    prediction: Prediction
    replicas: Mapping[str, int]
    cores: float
    left_s: float | None

    @property
    def left_core_s(self) -> float | None:
        """Core-seconds until the input is read."""
        return None if self.left_s is None else self.left_s * self.cores


@dataclass(frozen=True, slots=True)
class ForecastAnswer:
    """The run as it is, as it would be, and with the replicas that would be best then."""

    now: Forecast
    then: Forecast
    best: Forecast


def what_if(model: ThroughputModel, asked: WhatIf, left_bytes: float) -> ForecastAnswer:
    """Ask the model. Replicas are as they are, or as asked for; other cores get the replicas that are best for them.

    ValueError for a stage that the run has not, and for fused stages of which other numbers are asked.
    """
    known = [name for group in model.groups for name in group.stages]
    for stage in (*asked.without, *asked.replicas, *asked.speed, *asked.model_hosts):
        if stage not in known:
            raise ValueError(f"the run has no stage {stage!r}; it has {', '.join(known)}")
    for group in model.groups:
        if group.fixed and not asked.replicas.keys().isdisjoint(group.stages):
            raise ValueError(f"stage {group.stages[0]!r} decides alone: the number of its tasks is not changed")
        if len({asked.replicas[stage] for stage in group.stages if stage in asked.replicas}) > 1:
            raise ValueError(f"stages {', '.join(group.stages)} are fused and have the same tasks: give one number")
        if {*group.stages} & {*model.sources} & {*asked.without}:
            raise ValueError("a run without its source reads nothing")
    changed = model
    for stage in asked.without:
        changed = changed.without(stage)
    for stage, times in asked.speed.items():
        changed = changed.with_speed(stage, times)
    limits = model.limits
    cores = limits.cores if asked.cores is None else asked.cores
    more = cores / limits.cores if limits.cores else 1.0
    limits = replace(
        limits,
        cores=cores,
        memory_bytes=limits.memory_bytes * more,
        store_bytes_s=asked.store_bytes_s or limits.store_bytes_s,
        nic_bytes_s=asked.nic_bytes_s or limits.nic_bytes_s,
        model_hosts={**limits.model_hosts, **asked.model_hosts},
    )
    changed = replace(changed, limits=limits)
    best = changed.solved()
    changed = best if asked.cores is not None else changed
    changed = changed.with_replicas(asked.replicas)
    then, there = (_forecast(one, one.predict(), left_bytes) for one in (changed, best))
    return ForecastAnswer(_forecast(model, model.measured, left_bytes), then, there)


def _forecast(model: ThroughputModel, prediction: Prediction, left_bytes: float) -> Forecast:
    rate = prediction.records_s * model.stored_bytes
    replicas = {"+".join(group.stages): group.replicas for group in model.groups}
    return Forecast(prediction, replicas, model.limits.cores, left_bytes / rate if rate > 0 else None)
