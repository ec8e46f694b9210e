"""The order of samples: shuffle, mixtures, passes. Pure."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.loader.order.errors import (
        DatasetGrew as DatasetGrew,
        Difference as Difference,
        LoaderClosed as LoaderClosed,
        LoaderError as LoaderError,
        SourceGrew as SourceGrew,
        StateMismatch as StateMismatch,
    )
    from headrace.loader.order.mixture import (
        SCHEDULE as SCHEDULE,
        Growth as Growth,
        Mixture as Mixture,
        Shuffle as Shuffle,
    )
    from headrace.loader.order.order import (
        BLOCK_ROWS_DEFAULT as BLOCK_ROWS_DEFAULT,
        CONSTRUCTION as CONSTRUCTION,
        I64 as I64,
        U64 as U64,
        WINDOW_BLOCKS_DEFAULT as WINDOW_BLOCKS_DEFAULT,
        Loops as Loops,
        Order as Order,
        OrderMode as OrderMode,
        SampleLayout as SampleLayout,
        Windowed as Windowed,
        distinct as distinct,
    )
    from headrace.loader.order.plan import (
        POSITION_MAX as POSITION_MAX,
        POSITIONS_MAX as POSITIONS_MAX,
        Cut as Cut,
        Event as Event,
        Grew as Grew,
        Hosted as Hosted,
        LastBatch as LastBatch,
        Offered as Offered,
        Recut as Recut,
        Revised as Revised,
        Reweighted as Reweighted,
        Skipped as Skipped,
        Timeline as Timeline,
        pass_max as pass_max,
        recut as recut,
        versions_at as versions_at,
    )
    from headrace.loader.order.schedule import (
        WEIGHT_MAX as WEIGHT_MAX,
        WeightSchedule as WeightSchedule,
        changes_of as changes_of,
        replaced as replaced,
        shares_of_weights as shares_of_weights,
        weights_at as weights_at,
    )
else:
    __getattr__ = door(__name__)
