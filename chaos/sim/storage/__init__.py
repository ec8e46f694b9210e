"""The simulated object store and its log."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.chaos.sim.storage import log as log
    from headrace.chaos.sim.storage.log import (
        CALM as CALM,
        TROUBLE as TROUBLE,
        SimulatedLog as SimulatedLog,
        twin as twin,
    )
    from headrace.chaos.sim.storage.objects import (
        SHARD as SHARD,
        SimulatedManifest as SimulatedManifest,
        SimulatedObjects as SimulatedObjects,
    )
else:
    __getattr__ = door(__name__)
