"""Chaos on the real system: faults drawn from a scenario, a run under them, and a checker that compares datasets."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.chaos.live.conductor import Fired as Fired, Outcome as Outcome
    from headrace.chaos.live.run import Request as Request, chaos_run as chaos_run
    from headrace.chaos.live.scenario import (
        FAULT_S_MAX as FAULT_S_MAX,
        NETWORK as NETWORK,
        SLOW_RUNS_S as SLOW_RUNS_S,
        SLOW_TURN_S as SLOW_TURN_S,
        STORE as STORE,
        Clocks as Clocks,
        Cluster as Cluster,
        Kind as Kind,
        Planned as Planned,
        Scenario as Scenario,
    )
else:
    __getattr__ = door(__name__)
