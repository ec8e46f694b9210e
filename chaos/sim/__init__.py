"""The simulator: the production cores in virtual time, from one seed."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.chaos.sim.cluster import SimulatedCluster as SimulatedCluster
    from headrace.chaos.sim.mutants import MUTANTS as MUTANTS, planted as planted
    from headrace.chaos.sim.node_faults import NodeFaults as NodeFaults
    from headrace.chaos.sim.planting import Patch as Patch, around as around, says as says
    from headrace.chaos.sim.simulator import (
        CLOSE_S as CLOSE_S,
        EVENTS_MAX as EVENTS_MAX,
        VACATE_S as VACATE_S,
        SimulationOutcome as SimulationOutcome,
        outcome_of as outcome_of,
        simulate as simulate,
        until as until,
        vacated as vacated,
        without_garbage as without_garbage,
    )
else:
    __getattr__ = door(__name__)
