"""Pure: the tasks of a run and the links between them."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.core.run.tasks.deaths import Deaths as Deaths
    from headrace.controller.core.run.tasks.run_links import Joints as Joints
    from headrace.controller.core.run.tasks.run_tasks import Crew as Crew
    from headrace.controller.core.run.tasks.task_table import (
        DEATHS_MAX as DEATHS_MAX,
        Task as Task,
        TaskState as TaskState,
    )
else:
    __getattr__ = door(__name__)
