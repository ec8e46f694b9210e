"""The clusters that a run with faults goes through: one of its own, or one that runs already."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.chaos.live.clusters.attached import (
        AttachedCluster as AttachedCluster,
        living as living,
        permit as permit,
    )
    from headrace.chaos.live.clusters.dataset_place import Place as Place, place_for as place_for
    from headrace.chaos.live.clusters.standing_cluster import VICTIMS as VICTIMS, Burnt as Burnt, burn as burn
    from headrace.chaos.live.clusters.test_cluster import (
        OWNER as OWNER,
        LocalCluster as LocalCluster,
        layout_options as layout_options,
        places_in as places_in,
    )
else:
    __getattr__ = door(__name__)
