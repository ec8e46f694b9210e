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
    from headrace.transport.errors import (
        CreditError as CreditError,
        FrameChecksumError as FrameChecksumError,
        FrameCoverageError as FrameCoverageError,
        FrameError as FrameError,
        FrameKindError as FrameKindError,
        FrameMagicError as FrameMagicError,
        FrameOversizeError as FrameOversizeError,
        FrameTrailingError as FrameTrailingError,
        FrameTruncatedError as FrameTruncatedError,
        FrameVersionError as FrameVersionError,
        LinkAborted as LinkAborted,
        LinkClosed as LinkClosed,
        LinkCorruptError as LinkCorruptError,
        LinkRefusedError as LinkRefusedError,
        TransportError as TransportError,
    )
    from headrace.transport.relay import Relay as Relay
    from headrace.transport.wait import wait_any as wait_any
    from headrace.transport.wake import Wake as Wake
else:
    __getattr__ = door(__name__)
