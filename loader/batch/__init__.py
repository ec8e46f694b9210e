"""Batches: where segments lie, the compiled loops, and the buffers that are filled."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.loader.batch.assemble import IGNORED_LABEL as IGNORED_LABEL
    from headrace.loader.batch.buffers import Buffers as Buffers
    from headrace.loader.batch.compiled import KERNELS as KERNELS
    from headrace.loader.batch.fields import (
        FIELDS as FIELDS,
        NOTHING as NOTHING,
        Batch as Batch,
        chosen_fields as chosen_fields,
    )
    from headrace.loader.batch.producer import (
        BatchTask as BatchTask,
        Iteration as Iteration,
        Made as Made,
        Share as Share,
        prefetch_of as prefetch_of,
    )
else:
    __getattr__ = door(__name__)
