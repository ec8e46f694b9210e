"""A task: one process that runs one attempt of a fused chain of stages."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.worker.task.chain import Chain as Chain
    from headrace.worker.task.core import sink as sink_core  # noqa: F401 - `sink` is the shell of it
    from headrace.worker.task.core.dedup_client import ASK_AGAIN_S as ASK_AGAIN_S, Asking as Asking
    from headrace.worker.task.core.sink import (
        HELD_TIMES_MAX as HELD_TIMES_MAX,
        NEED_BYTES as NEED_BYTES,
        AskNeeds as AskNeeds,
        Gathering as Gathering,
        NeedsAnswered as NeedsAnswered,
        ShardOverlapped as ShardOverlapped,
    )
    from headrace.worker.task.core.source import Reading as Reading
    from headrace.worker.task.core.sweep import Sweeping as Sweeping
    from headrace.worker.task.dependencies import Leaning as Leaning, recall_verdicts as recall_verdicts
    from headrace.worker.task.forkserver_main import main as main
    from headrace.worker.task.isolation import KILLED as KILLED
else:
    __getattr__ = door(__name__)
