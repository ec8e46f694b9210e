"""Pure: workers, requests, and what a controller believes of an event."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.core.cluster.controller import Controller as Controller
    from headrace.controller.core.cluster.event_checks import (
        NUMBER_MAX as NUMBER_MAX,
        TEXT_MAX as TEXT_MAX,
        registration_fault as registration_fault,
    )
    from headrace.controller.core.cluster.members import (
        OLD_KEY as OLD_KEY,
        SPENT as SPENT,
        Members as Members,
        all_spent as all_spent,
        why_not_expelled as why_not_expelled,
    )
    from headrace.controller.core.cluster.queues import Queues as Queues
    from headrace.controller.core.cluster.records import plan_from_plain as plan_from_plain
    from headrace.controller.core.cluster.requests import Requests as Requests
    from headrace.controller.core.cluster.scheduler import (
        Claim as Claim,
        ClaimState as ClaimState,
        ClaimTurn as ClaimTurn,
        GoOn as GoOn,
        QueuePlace as QueuePlace,
        QueueUse as QueueUse,
        Scheduler as Scheduler,
    )
else:
    __getattr__ = door(__name__)
