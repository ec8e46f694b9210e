"""A run as a flow, in virtual time: what its tasks get through on workers that differ, and what its counters say.

It is the other side of the model by which stages are scaled, and not made of it: tasks share the cores of their
worker, those of a slow worker take longer, costs change on the way, a change of tasks pauses the flow, counters are
inexact. Batches are not simulated: a group gets through what its tasks do together.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.controller.core.scaling import (
    Answered,
    Autoscaler,
    Edge,
    Measured,
    Reading,
    Rescale,
    ScalingCommand,
    ScalingLimits,
    StageCounters,
    TaskGroup,
)

#: Tasks that a core of a worker may have.
TASKS_A_CORE = 16
#: Rounds in which tasks that wait for cores and the rate come to agree; how far each goes.
ROUNDS, STEP = 40, 0.5


@dataclass(frozen=True, slots=True)
class FlowStage:
    """What a record costs at a stage: seconds of a core of speed 1, seconds of waiting; and how many it lets go on."""

    name: str
    cpu_s: float = 0.0
    wait_s: float = 0.0
    kept: float = 1.0


@dataclass(frozen=True, slots=True)
class FlowWorker:
    """A worker: cores, and their speed."""

    cores: int = 1
    speed: float = 1.0


@dataclass(slots=True)
class Flow:
    """A run of groups of stages, one behind the other."""

    workers: list[FlowWorker]
    chains: tuple[tuple[FlowStage, ...], ...]
    replicas: list[int]
    #: Groups that keep their number of tasks.
    fixed: tuple[int, ...] = ()
    #: Relative error of what counters say of a moment.
    noise: float = 0.0
    seed: int = 0
    #: Share of one worker's tasks in the input of all, beyond its own: 0 is even.
    skew: float = 0.0
    #: Records a second that something lets through of which no counter tells.
    capped: float = math.inf
    #: Cores that it may use of those that there are; nothing binds its tasks to them.
    granted: float = math.inf
    records_left: float = 1e12
    now: float = 0.0
    paused_until: float = 0.0
    _sums: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    _rate: float = -1.0
    _best: float = -1.0
    _stretch: float = 1.0

    def rate(self) -> float:
        """Records of input a second, with these replicas."""
        if self._rate < 0:
            self._rate, self._stretch = self._balanced(self.replicas)
            # Tasks that something else holds back do not wait for cores.
            self._stretch = max(1.0, self._stretch * min(1.0, self.capped / self._rate))
        return min(self.capped, self._rate)

    def rate_with(self, replicas: Sequence[int]) -> float:
        """The same with other replicas."""
        return min(self.capped, self._balanced(replicas)[0])

    def cores_used(self) -> float:
        """Cores that its tasks are busy on, with these replicas."""
        return self.rate() * sum(visits * stage.cpu_s / self._speed() for stage, visits in self._visits())

    def best(self) -> float:
        """The largest rate that any replicas reach, as far as a search finds it."""
        if self._best < 0:
            self._best = self._search()
        return self._best

    def _search(self) -> float:
        free = [index for index in range(len(self.chains)) if index not in self.fixed]
        cores = sum(worker.cores for worker in self.workers)
        best, found = list(self.replicas), self.rate()
        for index in free:
            best[index] = max(best[index], cores)
        best = best if sum(best) <= TASKS_A_CORE * cores else list(self.replicas)
        found = max(found, self.rate_with(best))
        step = 2.0
        while step > 1.01:
            tried = [
                [
                    max(1, round(count * factor)) if index == one or one < 0 else count
                    for index, count in enumerate(best)
                ]
                for one in (*free, -1)
                for factor in (step, 1 / step)
            ]
            tried = [[self.replicas[i] if i in self.fixed else n for i, n in enumerate(counts)] for counts in tried]
            tried = [counts for counts in tried if sum(counts) <= TASKS_A_CORE * cores] or [best]
            better = max(tried, key=self.rate_with)
            if self.rate_with(better) > found * 1.001:
                best, found = better, self.rate_with(better)
            else:
                step = step**0.5
        return found

    def changed(self) -> None:
        """Workers or chains are otherwise from now on."""
        self._rate = self._best = -1.0

    def rescale(self, counts: Mapping[str, int], pause_s: float) -> None:
        """Other replicas, behind a pause."""
        self.replicas = [counts.get(chain[0].name, self.replicas[index]) for index, chain in enumerate(self.chains)]
        self.paused_until = self.now + pause_s
        self._rate = -1.0

    def pass_time(self, seconds: float) -> None:
        """Let records flow."""
        flowing = max(0.0, self.now + seconds - max(self.now, self.paused_until))
        self.now += seconds
        records = min(self.records_left, self.rate() * flowing)
        self.records_left -= records
        for stage, visits in self._visits():
            sums = self._sums.setdefault(stage.name, [0.0, 0.0, 0.0])
            cpu = records * visits * stage.cpu_s / self._speed()
            sums[0] += records * visits
            sums[1] += records * visits * stage.wait_s + cpu * self._stretch
            sums[2] += cpu

    def reading(self) -> Reading:
        """What the counters say now."""
        rng = random.Random(f"{self.seed} {self.now}")
        cores = sum(worker.cores for worker in self.workers)

        def said(value: float) -> float:
            return max(0.0, value + rng.gauss(0.0, self.noise) * self._a_second(value))

        stages: list[StageCounters] = []
        for stage, _ in self._visits():
            records, busy_s, cpu_s = self._sums.get(stage.name, [0.0, 0.0, 0.0])
            dropped = said(records) * (1.0 - stage.kept)
            stages.append(StageCounters(stage.name, said(records), said(busy_s), said(cpu_s), dropped))
        first = stages[0]
        return Reading(
            at=self.now,
            sources=(first.stage,),
            stages=(replace(first, stored_bytes=first.records), *stages[1:]),
            groups=tuple(
                TaskGroup(tuple(stage.name for stage in chain), self.replicas[index], fixed=index in self.fixed)
                for index, chain in enumerate(self.chains)
            ),
            edges=tuple(Edge(before.stage, behind.stage) for before, behind in itertools.pairwise(stages)),
            limits=ScalingLimits(cores, hosts=len(self.workers)),
            cores=cores,
            input_bytes=first.records + self.records_left,
        ).within(self.granted)

    def _a_second(self, value: float) -> float:
        """What a sum grows by in a second, so that an error of it does not grow with it."""
        return value / self.now if self.now > 0 else 0.0

    def _visits(self) -> list[tuple[FlowStage, float]]:
        share, found = 1.0, list[tuple[FlowStage, float]]()
        for stage in (stage for chain in self.chains for stage in chain):
            found.append((stage, share))
            share *= stage.kept
        return found

    def _speed(self) -> float:
        cores = sum(worker.cores for worker in self.workers)
        return sum(worker.cores * worker.speed for worker in self.workers) / cores

    def _balanced(self, replicas: Sequence[int]) -> tuple[float, float]:
        """The rate, and how much longer tasks take than they would with cores of their own."""
        visits = {stage.name: share for stage, share in self._visits()}
        kinds: dict[tuple[FlowWorker, tuple[int, ...]], int] = {}
        for index, worker in enumerate(self.workers):
            held = tuple(_share(count, index, len(self.workers)) for count in replicas)
            kinds[worker, held] = kinds.get((worker, held), 0) + 1
        stretch = dict.fromkeys(kinds, 1.0)
        rate = 0.0
        for _ in range(ROUNDS):
            able: list[float] = []
            parts: list[dict[tuple[FlowWorker, tuple[int, ...]], float]] = []
            for index, chain in enumerate(self.chains):
                part: dict[tuple[FlowWorker, tuple[int, ...]], float] = {}
                for kind in kinds:
                    worker, held = kind
                    took = sum(
                        visits[stage.name] * (stage.wait_s + stage.cpu_s / worker.speed * stretch[kind])
                        for stage in chain
                    )
                    part[kind] = held[index] / took if took else 1e18 * held[index]
                parts.append(part)
                able.append(sum(part[kind] * many for kind, many in kinds.items()) * (1.0 - self.skew))
            rate = min(able)
            for kind in kinds:
                worker, _ = kind
                used = sum(
                    rate / able[index] * parts[index][kind] * visits[stage.name] * stage.cpu_s / worker.speed
                    for index, chain in enumerate(self.chains)
                    for stage in chain
                    if able[index]
                )
                wanted = max(1.0, stretch[kind] * used / worker.cores)
                stretch[kind] += STEP * (wanted - stretch[kind])
        many = sum(kinds.values())
        return rate, sum(stretch[kind] * count for kind, count in kinds.items()) / many


def _share(count: int, index: int, workers: int) -> int:
    """How many of so many tasks one of the workers has."""
    return count // workers + (1 if index < count % workers else 0)


@dataclass(slots=True)
class ScaledFlow:
    """A flow that an autoscaler drives: what it decided, and the rates in between."""

    flow: Flow
    scaler: Autoscaler
    pause_s: float = 8.0
    look_s: float = 5.0
    apart: Sequence[tuple[int, int]] = ()
    #: Replicas behind each change, with when it was asked for.
    changes: list[tuple[float, tuple[int, ...]]] = field(default_factory=list[tuple[float, tuple[int, ...]]])

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        until = self.flow.now + seconds
        while self.flow.now < until:
            self.flow.pass_time(self.look_s)
            flows = self.flow.now > self.flow.paused_until
            self._do(self.scaler.handle(Measured(self.flow.reading(), flows, self.apart), self.flow.now))

    def _do(self, commands: Sequence[ScalingCommand]) -> None:
        for command in commands:
            if isinstance(command, Rescale):
                self.flow.rescale(command.replicas, self.pause_s)
                self.changes.append((self.flow.now, tuple(self.flow.replicas)))
                self._do(self.scaler.handle(Answered(accepted=True), self.flow.now))

    def decisions_until_best(self, share: float = 0.9) -> int:
        """How many changes it took to reach this share of the best rate; -1: it is not reached."""
        best = self.flow.best()
        for number, (_, replicas) in enumerate(self.changes, 1):
            if self.flow.rate_with(replicas) >= share * best:
                return number
        return 0 if self.flow.rate() >= share * best else -1

    def oscillations(self, first: Sequence[int]) -> int:
        """How often a group's tasks went up behind going down, or the other way round."""
        found, before = 0, list(first)
        last = [0] * len(before)
        for _, replicas in self.changes:
            for index, count in enumerate(replicas):
                way = (count > before[index]) - (count < before[index])
                found += way * last[index] < 0
                last[index] = way or last[index]
            before = list(replicas)
        return found
