"""Links between tasks: frames, credit and one module a transport."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.transport.contract import (
        LinkEnd as LinkEnd,
        LinkStatistics as LinkStatistics,
        Receiver as Receiver,
        Sender as Sender,
    )
    from headrace.transport.core.errors import (
        CreditError as CreditError,
        FrameError as FrameError,
        FrameKindError as FrameKindError,
        FrameOversizeError as FrameOversizeError,
        LinkAborted as LinkAborted,
        LinkClosed as LinkClosed,
        LinkCorruptError as LinkCorruptError,
        LinkRefusedError as LinkRefusedError,
        TransportError as TransportError,
    )
    from headrace.transport.wait import wait_any as wait_any
else:
    __getattr__ = door(__name__)
