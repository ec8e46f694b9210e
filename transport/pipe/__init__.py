"""Links through a pipe of the kernel."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.transport.pipe.pipe import (
        PIPE_BYTES as PIPE_BYTES,
        PipeHandles as PipeHandles,
        PipeReceiver as PipeReceiver,
        PipeSender as PipeSender,
        create_pipe as create_pipe,
    )
else:
    __getattr__ = door(__name__)
