"""Pure: the tasks of a run and the links between them."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.core.run.tasks.run_links import RunLinks as RunLinks
    from headrace.controller.core.run.tasks.run_tasks import RunTasks as RunTasks
    from headrace.controller.core.run.tasks.task_table import (
        DEATHS_MAX as DEATHS_MAX,
        AttemptFacts as AttemptFacts,
        DeathCounts as DeathCounts,
        RunTask as RunTask,
        TaskPhase as TaskPhase,
    )
    from headrace.controller.core.run.tasks.workers import ReportedTasks as ReportedTasks, Workers as Workers
else:
    __getattr__ = door(__name__)
