"""The forkserver and the processes of tasks."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.worker.processes.forkserver_start import (
        Forkserver as Forkserver,
        environment as environment,
        fork_forkserver as fork_forkserver,
        hear as hear,
        start_forkserver as start_forkserver,
    )
    from headrace.worker.processes.processes import Processes as Processes, TaskProcess as TaskProcess
else:
    __getattr__ = door(__name__)
