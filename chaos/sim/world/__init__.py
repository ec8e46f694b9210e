"""Virtual time, the parts of a simulated cluster, and its input."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.chaos.sim.world.cluster import SimulatedCluster as SimulatedCluster
    from headrace.chaos.sim.world.corpus import (
        CLUSTER as CLUSTER,
        DATASET as DATASET,
        DEDUP as DEDUP,
        FILTER as FILTER,
        PIPELINE as PIPELINE,
        RECORD_BYTES as RECORD_BYTES,
        SOURCE as SOURCE,
        Part as Part,
        keys_of as keys_of,
        make_pipeline as make_pipeline,
        ordinals as ordinals,
    )
    from headrace.chaos.sim.world.inputs import InputReader as InputReader
    from headrace.chaos.sim.world.parts import (
        Asked as Asked,
        Attendant as Attendant,
        Cluster as Cluster,
        Folding as Folding,
        Host as Host,
        Member as Member,
        Wish as Wish,
    )
    from headrace.chaos.sim.world.texts import Name as Name, Texts as Texts
    from headrace.chaos.sim.world.world import ViolationError as ViolationError, World as World
else:
    __getattr__ = door(__name__)
