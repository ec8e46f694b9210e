"""Virtual time, the input of a run, and what becomes of its records."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.chaos.sim.world.corpus import (
        ASKERS as ASKERS,
        BATCH_RECORDS_MAX as BATCH_RECORDS_MAX,
        CLUSTER as CLUSTER,
        CLUSTER_SHARE as CLUSTER_SHARE,
        DATASET as DATASET,
        DEDUPS as DEDUPS,
        FILTER as FILTER,
        GHOST_PROPOSALS as GHOST_PROPOSALS,
        HELD_BYTES as HELD_BYTES,
        PIPELINE as PIPELINE,
        RECORD_BYTES as RECORD_BYTES,
        SOURCE as SOURCE,
        TIERS as TIERS,
        Corpus as Corpus,
        Name as Name,
        Part as Part,
        SimulatedTexts as SimulatedTexts,
        keys_of as keys_of,
        make_pipeline as make_pipeline,
        ordinals as ordinals,
    )
    from headrace.chaos.sim.world.inputs import InputObjects as InputObjects, InputReader as InputReader
    from headrace.chaos.sim.world.world import ViolationError as ViolationError, World as World
else:
    __getattr__ = door(__name__)
