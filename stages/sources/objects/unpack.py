"""Compressed streams as pieces of plain bytes, each of which is the same however the stream is read.

gzip is undone by zlib, member by member. Zeros may follow a member, as gzip(1) and Python have it: what was written
onto tape, or in blocks, is filled up with them. bzip2 is undone by bz2, stream by stream. zstd is undone by Arrow,
since `zstandard`'s stream reader takes a frame that is cut short for one that has ended; but Arrow refuses windows
above 128 MiB, which are left to `zstandard`'s decompressor of single frames.
"""

from __future__ import annotations

import abc
import bz2
import zlib
from typing import Any, Protocol

import pyarrow as pa

#: Bytes of a piece, but for the last. Fixed, so that what can be read of a damaged stream is always the same.
STEP_BYTES = 128 << 10
#: Bytes that zlib and bz2 are given at a time.
_GZIP_BYTES = 64 << 10
#: Bytes that `zstandard` is given at a time. It gives back all that they come to, at most 128 KiB for four of them.
_FRAME_BYTES = 1 << 10
#: Bytes that are read for it at a time.
_FRAME_READ_BYTES = 16 << 10
#: zlib's word for a member of gzip, with its header and checksum.
_GZIP_WBITS = 31


class Truncated(OSError):  # noqa: N818 (named for what is so)
    """The stream ends before it says so."""


class WindowTooLarge(OSError):  # noqa: N818
    """A frame asks for a window above the limit."""


class Raw(Protocol):
    """The stored bytes. `read` returns some of them, none only at their end."""

    def read(self, size: int = ..., /) -> bytes:
        """Up to `size` bytes."""
        ...

    def tell(self) -> int:
        """The position in bytes."""
        ...


class UpTo:
    """The stored bytes before `end`."""

    def __init__(self, raw: Raw, end: int) -> None:
        self.tell = raw.tell
        self._raw, self._end = raw, end

    def read(self, size: int = STEP_BYTES, /) -> bytes:
        """Up to `size` bytes, none only at the end."""
        return self._raw.read(max(0, min(size, self._end - self._raw.tell()))) or b""


class Unpacker(Protocol):
    """A stream that is read once, from front to back."""

    def read(self) -> bytes:
        """The next piece, none at the end. Raises OSError where the bytes are not sound."""
        ...


class Pieces(abc.ABC):
    """Puts what a decompressor gives together until it is a piece; a fault behind it is raised when its turn comes."""

    def __init__(self, raw: Raw) -> None:
        self._raw = raw
        #: stored bytes that are not decompressed yet
        self._data = b""
        self._fault: Exception | None = None

    def read(self) -> bytes:
        """See Unpacker."""
        if self._fault is not None:
            raise self._fault
        parts: list[bytes] = []
        left = STEP_BYTES
        while left > 0:
            try:
                part = self._some(left)
            except Exception as error:
                if not parts:
                    raise
                self._fault = error
                break
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @abc.abstractmethod
    def _some(self, size: int) -> bytes:
        """The bytes that come next, about `size` at most; none at the end. Raises OSError."""


class Gzip(Pieces):
    """The members of a gzip stream, end to end; of one that goes on `behind` a member there may be none."""

    def __init__(self, raw: Raw, *, behind: bool = False) -> None:
        super().__init__(raw)
        #: The member that is read; None behind one.
        self._member: Any = None if behind else zlib.decompressobj(_GZIP_WBITS)

    def _some(self, size: int) -> bytes:
        found = b""
        while not found:
            self._data = self._data or self._raw.read(_GZIP_BYTES)
            if not self._data:
                if self._member is not None:
                    raise Truncated
                break
            if self._member is None:
                self._data = self._data.lstrip(b"\0")
                if not self._data:
                    continue
                self._member = zlib.decompressobj(_GZIP_WBITS)
            try:
                found = self._member.decompress(self._data, size)
            except zlib.error as error:
                raise OSError(str(error)) from error
            self._data = self._member.unconsumed_tail
            if self._member.eof:
                self._data, self._member = self._member.unused_data, None
        return found


class Bzip2(Pieces):
    """The streams of a bzip2 file, end to end; of one that goes on `behind` a stream there may be none."""

    def __init__(self, raw: Raw, *, behind: bool = False) -> None:
        super().__init__(raw)
        #: The stream that is read; None behind one.
        self._stream: bz2.BZ2Decompressor | None = None if behind else bz2.BZ2Decompressor()

    def _some(self, size: int) -> bytes:
        found = b""
        while not found:
            if self._stream is None or self._stream.needs_input:
                self._data = self._data or self._raw.read(_GZIP_BYTES)
                if not self._data:
                    if self._stream is not None:
                        raise Truncated
                    break
            self._stream = self._stream or bz2.BZ2Decompressor()
            given, self._data = self._data, b""
            found = self._stream.decompress(given, size)
            if self._stream.eof:
                self._data, self._stream = self._stream.unused_data, None
        return found


class Zstd:
    """The frames of a zstd stream, with windows of at most WINDOW_BYTES."""

    def __init__(self, raw: Raw) -> None:
        borrowed: Any = _Borrowed(raw)
        self._stream: Any = pa.CompressedInputStream(pa.PythonFile(borrowed, "r"), "zstd")

    def read(self) -> bytes:
        """See Unpacker."""
        try:
            # Arrow's `read` keeps what it set aside for ever where the stream is damaged.
            found: bytes = self._stream.read_buffer(STEP_BYTES).to_pybytes()
        except OSError as error:
            if "Truncated" in str(error):
                raise Truncated(str(error)) from error
            if "requires too much memory" in str(error):
                raise WindowTooLarge(str(error)) from error
            raise
        return found


class WideZstd(Pieces):
    """The frames of a zstd stream, with windows of at most `window_bytes`, which it may take as memory."""

    def __init__(self, raw: Raw, window_bytes: int) -> None:
        super().__init__(raw)
        import zstandard  # here, since few streams ask for it

        self._error = zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=window_bytes)
        #: The frame that is read; None behind one.
        self._frame: Any = self._decompressor.decompressobj()

    def _some(self, size: int) -> bytes:  # noqa: ARG002 - a piece is what _FRAME_BYTES come to
        found = b""
        while not found:
            self._data = self._data or self._raw.read(_FRAME_READ_BYTES)
            if not self._data:
                if self._frame is not None:
                    raise Truncated
                break
            if self._frame is None:
                self._frame = self._decompressor.decompressobj()
            given, self._data = self._data[:_FRAME_BYTES], self._data[_FRAME_BYTES:]
            try:
                found = self._frame.decompress(given)
            except self._error as error:
                kind = WindowTooLarge if "requires too much memory" in str(error) else OSError
                raise kind(str(error)) from error
            if self._frame.eof:
                self._data, self._frame = self._frame.unused_data + self._data, None
        return found


class _Borrowed:
    """A file that Arrow reads and must not close."""

    closed = False

    def __init__(self, raw: Raw) -> None:
        self.read = raw.read
        self.tell = raw.tell

    def close(self) -> None:
        """Nothing: the owner closes it."""
