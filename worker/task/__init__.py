"""A task: one process that runs one attempt of a fused chain of stages; its control channel and in-flight page."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.worker.task.chain import Chain as Chain
    from headrace.worker.task.channel import Channel as Channel, ChannelClosed as ChannelClosed, write_on as write_on
    from headrace.worker.task.consultation import PartitionRequests as PartitionRequests
    from headrace.worker.task.core import held as held, messages as messages, sink as sink_core, task as task_core  # noqa: F401
    from headrace.worker.task.core.asked import AskedBatches as AskedBatches
    from headrace.worker.task.core.held import Duplicates as Duplicates, HeldBatches as HeldBatches
    from headrace.worker.task.core.ranges import (
        Columns as Columns,
        Ordinals as Ordinals,
        Ranges as Ranges,
        runs as runs,
    )
    from headrace.worker.task.core.sink import (
        HELD_TIMES_MAX as HELD_TIMES_MAX,
        NEED_BYTES as NEED_BYTES,
        AskNeeds as AskNeeds,
        Gathering as Gathering,
        NeedsAnswered as NeedsAnswered,
        SealAsked as SealAsked,
        SealPolicy as SealPolicy,
        ShardOverlapped as ShardOverlapped,
    )
    from headrace.worker.task.core.source import ReadQueue as ReadQueue
    from headrace.worker.task.core.task import (
        ORDER as ORDER,
        DedupRole as DedupRole,
        TaskCore as TaskCore,
        TaskState as TaskState,
        epoch_fault as epoch_fault,
    )
    from headrace.worker.task.dependencies import (
        DuplicateDependencies as DuplicateDependencies,
        KeyWriter as KeyWriter,
        recall_verdicts as recall_verdicts,
    )
    from headrace.worker.task.forkserver_main import main as main
    from headrace.worker.task.sink import TaskSink as TaskSink
else:
    __getattr__ = door(__name__)
