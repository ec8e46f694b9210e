"""Frames out of a stream of bytes that comes in pieces of any size. Pure, and total."""

from collections.abc import Callable

from headrace.transport.core import HEADER_BYTES, frame_size


class FrameAssembler:
    """Cuts a stream into encoded frames.

    `admit` is called with the size of each frame as soon as its header is there, before any memory is taken for the
    rest, and raises where that frame may not come. No frame over `limit_bytes` is begun.
    """

    def __init__(self, limit_bytes: int, admit: Callable[[int], None]) -> None:
        self._limit_bytes = limit_bytes
        self._admit = admit
        self._head = bytearray()
        self._frame: memoryview | None = None
        self._filled = 0

    @property
    def is_empty(self) -> bool:
        """Whether the stream may end here: not in the middle of a frame."""
        return self._frame is None and not self._head

    def feed(self, data: bytes) -> list[memoryview]:
        """Take the next bytes and return the frames that they complete.

        Raises a FrameError for what cannot be a frame (the checksum is not looked at), and what `admit` raises.
        """
        rest = memoryview(data)
        done: list[memoryview] = []
        while rest:
            rest = rest[self._take_head(rest) :] if self._frame is None else rest[self._take_body(rest) :]
            if self._frame is not None and self._filled == self._frame.nbytes:
                done.append(self._frame)
                self._frame = None
        return done

    def _take_head(self, data: memoryview) -> int:
        count = min(HEADER_BYTES - len(self._head), data.nbytes)
        self._head += data[:count]
        if len(self._head) == HEADER_BYTES:
            size = frame_size(self._head, self._limit_bytes)
            self._admit(size)
            self._frame = memoryview(bytearray(size))
            self._frame[:HEADER_BYTES] = self._head
            self._filled = HEADER_BYTES
            self._head.clear()
        return count

    def _take_body(self, data: memoryview) -> int:
        assert self._frame is not None
        count = min(self._frame.nbytes - self._filled, data.nbytes)
        self._frame[self._filled : self._filled + count] = data[:count]
        self._filled += count
        return count
