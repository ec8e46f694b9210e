"""The frame: one batch, or one message about batches, as bytes. Pure.

A frame is a header of 72 bytes, the metadata, zeros up to the next multiple of 64, and the body. All
integers are little endian.

    offset  size  field
         0     4  magic "HRF1"
         4     1  format version
         5     1  kind
         6     2  flags
         8     8  epoch
        16    16  fragment
        32     8  first record (ordinal in the fragment)
        40     8  count of records
        48     4  metadata length in bytes
        52     1  coverage: 0 the checksum is over all bytes, 1 it stops before the body
        53     3  reserved, zero
        56     8  body length in bytes
        64     8  xxh3-64 of the 64 bytes before this field, then all bytes after it (to the body, with coverage 1)
        72        metadata (msgpack), padding, body (Arrow IPC)

So the checksum covers every byte but itself: a flipped bit in kind or flags is found as well as one in the
body. Coverage 1 is for memory that both ends map
(`docs/decisions/0009-the-ring-leaves-the-body-out-of-the-checksum`): a reader takes such a frame only where it says
that it trusts the medium.

The body starts at a multiple of 64 from the start of the frame, so in a buffer that is itself aligned (the ring's
records are) Arrow reads its arrays in place with the alignment that it recommends.

Metadata and body are opaque here. Decoding is total: any bytes give a frame or a `FrameError`, and nothing is
allocated that grows with the lengths in the header.

What the two ends of a link say to each other, as frames without a body. Pure. For the transports that have no memory
in common (pipe, QUIC). Decoding is total: any bytes give a message or a FrameError.
"""

import struct
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, assert_never

import xxhash

from headrace.transport.core.errors import (
    FrameChecksumError,
    FrameCoverageError,
    FrameError,
    FrameKindError,
    FrameMagicError,
    FrameOversizeError,
    FrameTrailingError,
    FrameTruncatedError,
    FrameVersionError,
)

#: What a frame's parts may be: anything flat that has the buffer protocol and these types' slicing.
Bytes = bytes | bytearray | memoryview

MAGIC = b"HRF1"
FORMAT_VERSION = 1
#: No frame on any link is larger than this, header included, in bytes.
FRAME_LIMIT_BYTES = 64 << 20
FRAGMENT_BYTES = 16
BODY_ALIGNMENT_BYTES = 64

_HEADER = struct.Struct("<4sBBHQ16sQQIB3sQ")
_CHECKSUM = struct.Struct("<Q")
_CHECKSUM_AT = _HEADER.size
#: The size of the header with its checksum, and so of the smallest frame, in bytes.
HEADER_BYTES = _HEADER.size + _CHECKSUM.size
_ZEROS = bytes(BODY_ALIGNMENT_BYTES)
_RESERVED = bytes(3)
#: Up to here a copy is cheaper than two calls of the checksum, in bytes.
_ONE_CALL_BYTES = 4096


class FrameKind(Enum):
    """What a frame is for. Values are on the wire and never change their meaning."""

    DATA = 1
    SWEEP = 2
    END = 3
    #: This one and those below are between the ends of a link, and never reach its users.
    ABORT = 4
    GRANT = 5
    HELLO = 6
    CLOSE = 7


class ChecksumCoverage(Enum):
    """How far the checksum reaches. Values are on the wire."""

    ALL = 0
    HEAD = 1


_KINDS = {kind.value: kind for kind in FrameKind}
_ALL = ChecksumCoverage.ALL.value
_HEAD = ChecksumCoverage.HEAD.value
# An attribute of an Enum, or of its member, costs more than to compare with it, so that frames have their own names.
_ONLY_HEAD = ChecksumCoverage.HEAD


class Unwritten(Protocol):
    """A body that is yet to be written: a link that has memory of its own has it written there, and nowhere before."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes: exactly what `write_into` writes."""
        ...

    def write_into(self, place: memoryview) -> None:
        """Write it into the `nbytes` bytes of `place`, and keep no reference to them. May be called again."""
        ...


class Frame(NamedTuple):
    """A batch on its way: the range `first .. first + count` of `fragment`, its metadata and its rows.

    `fragment` has 16 bytes; `epoch`, `first` and `count` are unsigned 64-bit, `flags` unsigned 16-bit.
    `metadata` (msgpack) and `body` (Arrow IPC) are one flat buffer each. A frame that came from a link holds
    views of that link's memory: see `contract`. A sender may give what is `unwritten` in place of a body, and leaves
    what that is made of alone until the frame is sent; a frame that came from a link has none. A tuple, since a frozen
    dataclass sets each of its fields by a call: 0.6 microseconds a frame, where everything else about sending one
    takes 2.
    """

    kind: FrameKind
    epoch: int
    fragment: bytes
    first: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name, which nobody wants of a frame
    metadata: Bytes
    body: Bytes
    flags: int = 0
    unwritten: Unwritten | None = None


def encoded_size(frame: Frame) -> int:
    """Return the size of the encoded frame in bytes."""
    return _body_offset(_size(frame.metadata)) + body_size(frame)


def body_size(frame: Frame) -> int:
    """Return the size of the body in bytes, written or not."""
    unwritten = frame.unwritten
    return _size(frame.body) if unwritten is None else unwritten.nbytes


def encode(frame: Frame, coverage: ChecksumCoverage = ChecksumCoverage.ALL) -> bytes:
    """Return the frame as bytes. Raises as `encode_parts` does."""
    return b"".join(encode_parts(frame, coverage))


def encode_parts(frame: Frame, coverage: ChecksumCoverage = ChecksumCoverage.ALL) -> tuple[bytes, memoryview]:
    """Return the encoded frame as its head (header, metadata and padding) and its body, which is not copied.

    A body that is yet to be written is written into new memory. `coverage` says what the checksum is over. Raises
    FrameOversizeError for a frame over FRAME_LIMIT_BYTES, and FrameError for a field out of range.
    """
    body = body_view(frame)
    return encode_head(frame, len(body), None if coverage is _ONLY_HEAD else body), body


def body_view(frame: Frame) -> memoryview:
    """Return the body as unsigned bytes: as it is, or written into new memory."""
    if frame.unwritten is None:
        return _flat(frame.body)
    body = memoryview(bytearray(frame.unwritten.nbytes))
    frame.unwritten.write_into(body)
    return body


def let_go(frame: Frame) -> bool:
    """Give up the body's view of a link's memory; False, and nothing is done, while its buffer is still in use."""
    if isinstance(frame.body, memoryview):
        try:
            frame.body.release()
        except BufferError:
            return False
    return True


def encode_head(frame: Frame, body_bytes: int, body: memoryview | None) -> bytes:
    """Return what stands before a body of `body_bytes` bytes: header, metadata and padding.

    The checksum is over `body` as well, or with None over these bytes only (coverage 1). Raises as `encode_parts` does.
    """
    kind, epoch, fragment, first, count, metadata, _, flags, _ = frame
    metadata_bytes = _size(metadata)
    body_start = _body_offset(metadata_bytes)
    if body_start + body_bytes > FRAME_LIMIT_BYTES:
        raise FrameOversizeError(
            f"frame of {body_start + body_bytes} bytes: the limit is {FRAME_LIMIT_BYTES}; cut smaller batches"
        )
    # "16s" would pad or cut a fragment in silence.
    if len(fragment) != FRAGMENT_BYTES:
        raise FrameError(f"fragment of {len(fragment)} bytes: it has {FRAGMENT_BYTES}")
    covered = _HEAD if body is None else _ALL
    try:
        header = _HEADER.pack(
            MAGIC,
            FORMAT_VERSION,
            kind._value_,
            flags,
            epoch,
            fragment,
            first,
            count,
            metadata_bytes,
            covered,
            _RESERVED,
            body_bytes,
        )
    except struct.error as error:
        raise FrameError(
            f"frame field out of range: epoch {epoch}, first {first}, count {count}, flags {flags}: {error}"
        ) from error
    rest = b"".join((metadata, _ZEROS[: body_start - HEADER_BYTES - metadata_bytes]))
    if body is None:
        checksum = xxhash.xxh3_64_intdigest(header + rest)
    else:
        digest = xxhash.xxh3_64(header + rest)
        digest.update(body)
        checksum = digest.intdigest()
    return header + _CHECKSUM.pack(checksum) + rest


def frame_size(header: Bytes, limit_bytes: int = FRAME_LIMIT_BYTES) -> int:
    """Return the size in bytes of the frame that begins with `header`, for who reads from a stream.

    Raises the FrameError that `decode` would raise for these first HEADER_BYTES bytes; the checksum is not yet
    looked at, so the answer is a claim, but never one above `limit_bytes`.
    """
    if len(header) < HEADER_BYTES:
        raise FrameTruncatedError(f"{len(header)} bytes, and a header alone has {HEADER_BYTES}")
    magic, version, _, _, _, _, _, _, metadata_bytes, _, _, body_bytes = _HEADER.unpack_from(header)
    return _checked_size(magic, version, metadata_bytes, body_bytes, limit_bytes)


def decode(
    buffer: Bytes, limit_bytes: int = FRAME_LIMIT_BYTES, *, verify: bool = True, trust_body: bool = False
) -> Frame:
    """Read the one frame that `buffer` is, from its first byte to its last.

    Metadata and body of the result are views into `buffer`; nothing is copied. `verify=False` skips the checksum
    and is for a reader that has checked it already. `trust_body` takes frames of coverage 1 too, and is for memory that
    the writer could change after the check anyway. Raises a subclass of FrameError for anything else than a frame
    of at most `limit_bytes`.
    """
    view = buffer if type(buffer) is memoryview else memoryview(buffer)
    size = view.nbytes
    if size < HEADER_BYTES:
        raise FrameTruncatedError(f"{size} bytes, and a header alone has {HEADER_BYTES}")
    (magic, version, kind_value, flags, epoch, fragment, first, count, metadata_bytes, coverage, _, body_bytes) = (
        _HEADER.unpack_from(view)
    )
    total = _checked_size(magic, version, metadata_bytes, body_bytes, limit_bytes)
    if size < total:
        raise FrameTruncatedError(f"{size} bytes of a frame of {total}")
    if size > total:
        raise FrameTrailingError(f"{size - total} bytes after a frame of {total}")
    if verify:
        _verify(view, total, total if _covers_body(coverage, trust_body) else total - body_bytes)
    kind = _KINDS.get(kind_value)
    if kind is None:
        raise FrameKindError(f"frame of unknown kind {kind_value}; the peer may be a newer release")
    metadata = view[HEADER_BYTES : HEADER_BYTES + metadata_bytes]
    return Frame(kind, epoch, fragment, first, count, metadata, view[total - body_bytes :], flags)


def _covers_body(coverage: int, trust_body: bool) -> bool:
    if coverage == _ALL:
        return True
    if coverage != _HEAD:
        raise FrameCoverageError(f"frame of unknown coverage {coverage}; the peer may be a newer release")
    if not trust_body:
        raise FrameCoverageError("frame whose checksum leaves its body out: only shared memory may carry one")
    return False


def _verify(view: memoryview, total: int, covered: int) -> None:
    expected: int = _CHECKSUM.unpack_from(view, _CHECKSUM_AT)[0]
    actual = _checksum(view, covered)
    if actual != expected:
        raise FrameChecksumError(f"frame of {total} bytes: checksum {actual:016x}, the header says {expected:016x}")


def _checked_size(magic: bytes, version: int, metadata_bytes: int, body_bytes: int, limit_bytes: int) -> int:
    if magic != MAGIC:
        raise FrameMagicError(f"no frame: it begins with {magic!r}, not {MAGIC!r}")
    if version != FORMAT_VERSION:
        raise FrameVersionError(f"frame format version {version}; this release reads {FORMAT_VERSION}")
    total = _body_offset(metadata_bytes) + body_bytes
    if total > limit_bytes:
        raise FrameOversizeError(
            f"frame of {total} bytes ({metadata_bytes} metadata, {body_bytes} body): the limit is {limit_bytes}"
        )
    return total


def _checksum(buffer: memoryview, covered: int) -> int:
    if covered <= _ONE_CALL_BYTES:
        return xxhash.xxh3_64_intdigest(b"".join((buffer[:_CHECKSUM_AT], buffer[HEADER_BYTES:covered])))
    digest = xxhash.xxh3_64(buffer[:_CHECKSUM_AT])
    digest.update(buffer[HEADER_BYTES:covered])
    return digest.intdigest()


def _body_offset(metadata_bytes: int) -> int:
    return (HEADER_BYTES + metadata_bytes + BODY_ALIGNMENT_BYTES - 1) & -BODY_ALIGNMENT_BYTES


def _size(data: Bytes) -> int:
    return len(data) if type(data) is bytes else memoryview(data).nbytes


def _flat(data: Bytes) -> memoryview:
    view = data if type(data) is memoryview else memoryview(data)
    # Arrow's buffers are signed bytes to Python, and a slice takes only its own format.
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


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
