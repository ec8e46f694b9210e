"""Reading and writing frames on the pipe's descriptors: the thread of a sender, the buffers of a receiver."""

import mmap
import os
import select
import threading
import time
from collections import deque
from contextlib import suppress

from headrace.transport.frame import HEADER_BYTES, Frame, frame_size

#: What one read takes in at most ahead of the frame it belongs to, in bytes.
READ_AHEAD_BYTES = 64 << 10
#: Buffers of frames are a multiple of this, so that frames of about one size share them.
_BUFFER_UNIT_BYTES = 256 << 10
#: How long the thread waits for a pipe that stays full before it looks whether it is still wanted, in seconds.
_LOOK_S = 1.0


class PipeWriter:
    """Writes byte strings to a non-blocking pipe, in order; what the pipe does not take at once goes by a thread."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self._name = name
        self._queue: deque[memoryview] = deque()
        self._changed = threading.Condition()
        #: One of these ends the thread: all is written and no more will come, or it is not wanted any more.
        self._finished = False
        self._dropped = False
        self._broken = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def write(self, data: bytes) -> bool:
        """Write `data`, or queue what is left of it. False if the reader is gone."""
        rest = memoryview(data)
        with self._changed:
            if self._broken or self._dropped:
                return False
            if not self._queue:
                written = self._try_write(rest)
                if written is None:
                    return False
                rest = rest[written:]
            if rest:
                self._queue.append(rest)
                self._start()
                self._changed.notify()
        return True

    def finish(self) -> None:
        """No more will come: the descriptor is closed once all is written."""
        with self._changed:
            self._finished = True
            if not self._queue:
                self._close()
            self._changed.notify()

    def drop(self) -> None:
        """Forget what is not written yet, and close the descriptor."""
        with self._changed:
            self._dropped = True
            self._queue.clear()
            self._changed.notify()
            if self._thread is None:
                self._close()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all is written. False after `timeout_s` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue or self._broken, timeout_s)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"pipe {self._name}", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        while True:
            with self._changed:
                while not self._queue and not (self._finished or self._dropped or self._broken):
                    self._changed.wait(_LOOK_S)
                if not self._queue:
                    self._close()
                    return
            poll.poll(_LOOK_S * 1000)
            self._advance()

    def _advance(self) -> None:
        with self._changed:
            if not self._queue:
                return
            rest = self._queue[0]
            written = self._try_write(rest)
            if written is None:
                self._queue.clear()
            elif written == rest.nbytes:
                self._queue.popleft()
            else:
                self._queue[0] = rest[written:]
            self._changed.notify()

    def _try_write(self, data: memoryview) -> int | None:
        """Return the bytes that the pipe took, None if its reader is gone."""
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:
            return 0
        except OSError:
            self._broken = True
            return None

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)


class FrameReader:
    """Cuts a pipe into encoded frames. Reads no more than one frame, and READ_AHEAD_BYTES, beyond what was asked."""

    def __init__(self, descriptor: int, name: str, limit_bytes: int, window_bytes: int) -> None:
        self._descriptor = descriptor
        self._name = name
        self._limit_bytes = limit_bytes
        self._window_bytes = window_bytes
        self._ahead = memoryview(_memory(READ_AHEAD_BYTES))
        self._start = self._stop = 0
        #: The large frame that is being read, and how much of it is there.
        self._frame: memoryview | None = None
        self._filled = 0
        self._spare: list[mmap.mmap] = []
        self._spare_bytes = 0
        self._closed = False
        #: Whether the writer has closed the pipe.
        self.ended = False
        #: Whether another frame may have been read ahead: the pipe says nothing about that one.
        self.may_have_more = False

    def read(self) -> memoryview | None:
        """Return the next encoded frame, or None if it is not there yet. Raises FrameError for no frame."""
        while True:
            raw = self._large() if self._frame is not None else self._small()
            self.may_have_more = raw is not None
            if raw is not None:
                return raw
            if not self._fill():
                return None

    def reuse(self, frame: Frame, buffer: memoryview) -> None:
        """Keep the memory of a released frame, if nothing refers to it any more."""
        memory = buffer.obj
        for view in (frame.metadata, frame.body, buffer):
            with suppress(BufferError):
                if isinstance(view, memoryview):
                    view.release()
        if isinstance(memory, mmap.mmap) and self._spare_bytes + len(memory) <= self._window_bytes:
            try:
                # Changes nothing, and is refused while anybody holds a view of it: an Arrow batch, for instance.
                memory.resize(len(memory))
            except BufferError:
                return
            self._spare.append(memory)
            self._spare_bytes += len(memory)

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)

    def _small(self) -> memoryview | None:
        """Cut a frame from what was read ahead; a large one that begins there becomes `_frame`."""
        there = self._stop - self._start
        if there < HEADER_BYTES:
            return None
        size = frame_size(self._ahead[self._start : self._start + HEADER_BYTES], self._limit_bytes)
        if size <= there:
            raw = memoryview(bytes(self._ahead[self._start : self._start + size]))
            self._start += size
            return raw
        if size > READ_AHEAD_BYTES // 2:
            self._frame = self._buffer(size)
            self._frame[:there] = self._ahead[self._start : self._stop]
            self._filled, self._start, self._stop = there, 0, 0
        return None

    def _large(self) -> memoryview | None:
        frame = self._frame
        if frame is None or self._filled < frame.nbytes:
            return None
        self._frame = None
        return frame

    def _fill(self) -> bool:
        """Read once. False if nothing is there."""
        if self._frame is not None:
            count = self._read_into([self._frame[self._filled :], self._ahead])
            rest = min(count, self._frame.nbytes - self._filled)
            self._filled += rest
            self._start, self._stop = 0, count - rest
            return count > 0
        there = self._stop - self._start
        if self._start:
            self._ahead[:there] = bytes(self._ahead[self._start : self._stop])
            self._start, self._stop = 0, there
        count = self._read_into([self._ahead[there:]])
        self._stop += count
        return count > 0

    def _read_into(self, buffers: list[memoryview]) -> int:
        try:
            count = os.readv(self._descriptor, buffers)
        except BlockingIOError:
            return 0
        self.ended = count == 0
        return count

    def _buffer(self, size: int) -> memoryview:
        for index, memory in enumerate(self._spare):
            if len(memory) >= size and len(memory) <= 2 * size + _BUFFER_UNIT_BYTES:
                del self._spare[index]
                self._spare_bytes -= len(memory)
                return memoryview(memory)[:size]
        rounded = -(-size // _BUFFER_UNIT_BYTES) * _BUFFER_UNIT_BYTES
        return memoryview(_memory(rounded))[:size]


def _memory(size_bytes: int) -> mmap.mmap:
    """Return page-aligned memory, as Arrow likes it."""
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
