"""The throughput of a run after a change, predicted by its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.controller.core.scaling.model import Prediction, ThroughputModel


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
