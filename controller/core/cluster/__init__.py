"""Pure: workers, leadership, fencing, and what a controller believes of an event."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.core.cluster.claims import Claims as Claims
    from headrace.controller.core.cluster.controller import Controller as Controller
    from headrace.controller.core.cluster.event_checks import (
        TEXT_MAX as TEXT_MAX,
        Born as Born,
        Said as Said,
        registration_fault as registration_fault,
    )
    from headrace.controller.core.cluster.fencing import Authority as Authority, authority as authority
    from headrace.controller.core.cluster.leader import (
        CHANGES_MAX as CHANGES_MAX,
        LOG_LIMITS as LOG_LIMITS,
        LOST as LOST,
        OVER as OVER,
        SNAPSHOT_ENTRIES as SNAPSHOT_ENTRIES,
        InvalidTransitionError as InvalidTransitionError,
        Leadership as Leadership,
        LeaderState as LeaderState,
        LogLimits as LogLimits,
        Turn as Turn,
        Write as Write,
    )
    from headrace.controller.core.cluster.members import (
        OLD_KEY as OLD_KEY,
        SPENT as SPENT,
        ExpelRequested as ExpelRequested,
        Members as Members,
        TokenOffered as TokenOffered,
        why_not_expelled as why_not_expelled,
    )
    from headrace.controller.core.cluster.records import plan_from_plain as plan_from_plain
    from headrace.controller.core.cluster.steering import Steering as Steering
else:
    __getattr__ = door(__name__)
