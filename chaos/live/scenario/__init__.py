"""A scenario: its file, the schedule drawn from it, and the outcome of a run under it."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.chaos.live.scenario.outcome import (
        NOTHING_YET as NOTHING_YET,
        FaultTimeline as FaultTimeline,
        Fired as Fired,
        ScenarioOutcome as ScenarioOutcome,
        Start as Start,
    )
    from headrace.chaos.live.scenario.scenario import (
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
        Unit as Unit,
        draw as draw,
    )
    from headrace.chaos.live.scenario.scenario_file import read_scenario as read_scenario
else:
    __getattr__ = door(__name__)
