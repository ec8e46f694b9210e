"""Pure: which pipeline of which queue has the cluster's cores, and which waits."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.core.queue.claims import (
        Claim as Claim,
        ClaimState as ClaimState,
        ClaimTurn as ClaimTurn,
    )
    from headrace.controller.core.queue.rules import (
        QUEUED_MAX as QUEUED_MAX,
        QUEUES_MAX as QUEUES_MAX,
        QueueRule as QueueRule,
        why_no_claim as why_no_claim,
        why_no_rule as why_no_rule,
    )
    from headrace.controller.core.queue.scheduler import (
        Begin as Begin,
        GoOn as GoOn,
        Hold as Hold,
        QueueDecision as QueueDecision,
        QueuePlace as QueuePlace,
        QueueUse as QueueUse,
        Scheduler as Scheduler,
    )
else:
    __getattr__ = door(__name__)
