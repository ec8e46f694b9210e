"""The forkserver, the processes of tasks, and the channel to each."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.worker.processes.channel import Channel as Channel, ChannelClosed as ChannelClosed
    from headrace.worker.processes.forkserver_start import (
        Forkserver as Forkserver,
        environment as environment,
        fork_forkserver as fork_forkserver,
        hear as hear,
        start_forkserver as start_forkserver,
    )
    from headrace.worker.processes.in_flight import STAGES as STAGES, WRITER as WRITER, InFlightPage as InFlightPage
    from headrace.worker.processes.processes import Processes as Processes, TaskProcess as TaskProcess
    from headrace.worker.processes.writing import write_on as write_on
else:
    __getattr__ = door(__name__)
