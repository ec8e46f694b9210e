"""Pure: leadership of one log, and the fences of commands."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.core.log.fencing import Fence as Fence, fence_of as fence_of
    from headrace.controller.core.log.leader import (
        CHANGES_MAX as CHANGES_MAX,
        LOG_LIMITS as LOG_LIMITS,
        LOST as LOST,
        OVER as OVER,
        SNAPSHOT_ENTRIES as SNAPSHOT_ENTRIES,
        UNREADABLE_S as UNREADABLE_S,
        InvalidTransitionError as InvalidTransitionError,
        Leadership as Leadership,
        LeaderState as LeaderState,
        LogLimits as LogLimits,
        Turn as Turn,
        Write as Write,
    )
else:
    __getattr__ = door(__name__)
