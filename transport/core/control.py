"""What the two ends of a link say to each other, as frames without a body. Pure.

For the transports that have no memory in common (pipe, QUIC). Decoding is total: any bytes give a message or a
FrameError.
"""

from dataclasses import dataclass
from typing import assert_never

from headrace.transport.core.errors import FrameError, FrameKindError
from headrace.transport.core.frame import Bytes, Frame, FrameKind, decode, encode

#: A reason is cut to this many bytes of UTF-8.
REASON_LIMIT_BYTES = 480
#: No control message is larger, in bytes.
CONTROL_LIMIT_BYTES = 4096

_NO_FRAGMENT = bytes(16)


@dataclass(frozen=True, slots=True)
class Granted:
    """The receiver gives `size_bytes` of credit back."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Aborted:
    """The peer gave the link `link` up (0 where the channel belongs to one link)."""

    link: int
    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The sender has ended the link in order after `frames` frames."""

    frames: int


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The receiver takes the link, with a window of `window_bytes` and frames of at most `limit_bytes`."""

    window_bytes: int
    limit_bytes: int


Control = Granted | Aborted | Finished | Welcomed


def encode_control(message: Control) -> bytes:
    """Return the message as the bytes of one frame, at most CONTROL_LIMIT_BYTES."""
    match message:
        case Granted(size_bytes):
            return _encode(FrameKind.GRANT, first=size_bytes)
        case Aborted(link, reason):
            return _encode(FrameKind.ABORT, first=link, metadata=reason.encode("utf-8", "replace")[:REASON_LIMIT_BYTES])
        case Finished(frames):
            return _encode(FrameKind.CLOSE, first=frames)
        case Welcomed(window_bytes, limit_bytes):
            return _encode(FrameKind.HELLO, first=window_bytes, count=limit_bytes)
        case _:
            assert_never(message)


def decode_control(buffer: Bytes) -> Control:
    """Read the one message that `buffer` is. Raises a subclass of FrameError for anything else."""
    frame = decode(buffer, CONTROL_LIMIT_BYTES)
    match frame.kind:
        case FrameKind.GRANT:
            if not frame.first:
                raise FrameError("a grant of nothing")
            return Granted(frame.first)
        case FrameKind.ABORT:
            return Aborted(frame.first, bytes(frame.metadata[:REASON_LIMIT_BYTES]).decode("utf-8", "replace"))
        case FrameKind.CLOSE:
            return Finished(frame.first)
        case FrameKind.HELLO:
            return Welcomed(frame.first, frame.count)
        case _:
            raise FrameKindError(f"a frame of kind {frame.kind.name} where only control messages may stand")


def _encode(kind: FrameKind, first: int, count: int = 0, metadata: bytes = b"") -> bytes:
    return encode(Frame(kind, 0, _NO_FRAGMENT, first, count, metadata, b""))
