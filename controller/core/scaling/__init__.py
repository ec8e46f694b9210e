"""Pure: how fast a run is and could be, and how many tasks its stages should have."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.core.scaling.autoscaler import (
        LOOK_AT_TRIAL_S as LOOK_AT_TRIAL_S,
        Answered as Answered,
        Autoscaler as Autoscaler,
        Measured as Measured,
        Note as Note,
        Rescale as Rescale,
        ScalingCommand as ScalingCommand,
        ScalingMode as ScalingMode,
    )
    from headrace.controller.core.scaling.model import (
        Forecast as Forecast,
        ForecastAnswer as ForecastAnswer,
        ThroughputModel as ThroughputModel,
        WhatIf as WhatIf,
        model_of as model_of,
        what_if as what_if,
    )
    from headrace.controller.core.scaling.readings import (
        Edge as Edge,
        Reading as Reading,
        ReadingError as ReadingError,
        ScalingLimits as ScalingLimits,
        StageCounters as StageCounters,
        TaskGroup as TaskGroup,
        bytes_left as bytes_left,
        window_of as window_of,
    )
    from headrace.controller.core.scaling.sizing import (
        Sized as Sized,
        SizingError as SizingError,
        size_cluster as size_cluster,
        too_small as too_small,
    )
else:
    __getattr__ = door(__name__)
