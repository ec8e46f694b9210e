"""Pure: which tasks a pipeline becomes, where they run, and by which links they meet."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.core.plan.locality import QUIC as QUIC, WorkerFacts as WorkerFacts, places_of as places_of
    from headrace.controller.core.plan.placement import (
        NOTHING as NOTHING,
        PLACEMENT_FACTS as PLACEMENT_FACTS,
        Need as Need,
        size as size,
        total as total,
    )
    from headrace.controller.core.plan.planner import (
        beside as beside,
        groups as groups,
        move as move,
        plan as plan,
        roles_of as roles_of,
    )
    from headrace.controller.core.plan.plans import (
        SOLITARY as SOLITARY,
        Change as Change,
        LinkPlan as LinkPlan,
        Plan as Plan,
        RequestedChanges as RequestedChanges,
        Route as Route,
        TaskPlan as TaskPlan,
        reserved as reserved,
        stages_on as stages_on,
    )
else:
    __getattr__ = door(__name__)
