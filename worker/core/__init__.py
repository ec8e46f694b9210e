"""The pure state machines of the worker and its tasks: events in, commands out."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.worker.core import supervisor as supervisor
    from headrace.worker.core.doubt import Doubt as Doubt
    from headrace.worker.core.supervisor import Fencing as Fencing, LiveTasks as LiveTasks
    from headrace.worker.core.watchdog import (
        LOOK_S as LOOK_S,
        MEMORY_SHARE as MEMORY_SHARE,
        RECORD_S as RECORD_S,
        Held as Held,
        Memory as Memory,
        StageInHand as StageInHand,
        TaskLimits as TaskLimits,
        fault as fault,
    )
else:
    __getattr__ = door(__name__)
