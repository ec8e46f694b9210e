"""Reading and writing frames on the pipe's descriptors: the thread of a sender, the buffers of a receiver."""

import mmap
import os
import select
import threading
from collections.abc import Sequence
from contextlib import suppress

from headrace.daemon import threads
from headrace.transport.core import HEADER_BYTES, Bytes, Frame, frame_size

#: What one read takes in at most ahead of the frame it belongs to, in bytes.
READ_AHEAD_BYTES = 64 << 10
#: Buffers of frames are a multiple of this, so that frames of about one size share them.
_BUFFER_UNIT_BYTES = 256 << 10
#: How long an owner may stay away before the thread writes the rest for it, in seconds.
TICK_S = 2e-3
#: How long the thread waits for a pipe that stays full before it looks whether it is still wanted, in seconds.
_LOOK_S = 1.0


class PipeWriter:
    """Writes to a non-blocking pipe, in order. What the pipe does not take at once is the *rest*: at most one frame.

    Each verb of the owner tries to write the rest, and so does a thread when the owner does not come for TICK_S.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self._name = name
        self._rest = memoryview(b"")
        self._changed = threading.Condition()
        #: Counts the owner's verbs, for the thread to see that the owner is about.
        self._verbs = 0
        #: All is written that ever will be; the descriptor is closed after the rest.
        self._finished = False
        #: The reader is gone, or the rest is not wanted any more.
        self._broken = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._thread_sleeps = False

    def flush(self) -> bool:
        """Write what the pipe takes of the rest. True if none is left."""
        if not self._rest:
            return True
        with self._changed:
            self._verbs += 1
            return self._advance()

    def write(self, parts: Sequence[Bytes]) -> bool:
        """Write the parts, and keep a copy of what the pipe does not take. False if the reader is gone.

        To be called when `flush` says that no rest is left.
        """
        with self._changed:
            self._verbs += 1
            assert not self._rest
            written = 0 if self._broken else self._try_write(parts)
            if self._broken:
                return False
            self._rest = _after(parts, written)
            if self._rest:
                self._wake_thread()
        return True

    def finish(self) -> None:
        """No more will come: the descriptor is closed once all is written."""
        with self._changed:
            self._finished = True
            if self._advance():
                self._close()
            else:
                self._wake_thread()

    def drop(self) -> None:
        """Forget what is not written yet, and close the descriptor."""
        with self._changed:
            self._broken = self._finished = True
            self._rest = memoryview(b"")
            self._close()
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all is written. False after `timeout_s` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._rest, timeout_s)

    def _wake_thread(self) -> None:
        if self._thread is None:
            self._thread = threads.start(f"pipe {self._name}", self._run)
        elif self._thread_sleeps or self._finished:
            self._changed.notify_all()

    def _run(self) -> None:
        verbs = -1
        with self._changed:
            while not self._broken and not (self._finished and not self._rest):
                if not self._rest:
                    self._thread_sleeps = True
                    self._changed.wait()
                    self._thread_sleeps = False
                elif self._verbs != verbs and not self._finished:
                    verbs = self._verbs
                    self._changed.wait(TICK_S)
                else:
                    self._write_rest()
            # Where the reader is gone before the owner was done, the owner may be watching the descriptor.
            if self._finished:
                self._close()
            self._changed.notify_all()

    def _write_rest(self) -> None:
        """Wait for room and write, as the owner is busy elsewhere. The lock is given up for the wait."""
        descriptor = os.dup(self._descriptor)
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        self._changed.release()
        try:
            poll.poll(_LOOK_S * 1000)
        finally:
            os.close(descriptor)
            self._changed.acquire()
        self._advance()

    def _advance(self) -> bool:
        if self._rest and not self._broken:
            self._rest = self._rest[self._try_write([self._rest]) :]
        if self._broken:
            self._rest = memoryview(b"")
        return not self._rest

    def _try_write(self, parts: Sequence[Bytes]) -> int:
        """Return the bytes that the pipe took."""
        try:
            return os.writev(self._descriptor, parts)
        except BlockingIOError:
            return 0
        except OSError:
            self._broken = True
            return 0

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
        # The last one first: it is the one most likely to be in the cache.
        for index in reversed(range(len(self._spare))):
            memory = self._spare[index]
            if len(memory) >= size and len(memory) <= 2 * size + _BUFFER_UNIT_BYTES:
                del self._spare[index]
                self._spare_bytes -= len(memory)
                return memoryview(memory)[:size]
        rounded = -(-size // _BUFFER_UNIT_BYTES) * _BUFFER_UNIT_BYTES
        return memoryview(_memory(rounded))[:size]


def _after(parts: Sequence[Bytes], written: int) -> memoryview:
    """Return a copy of all bytes of `parts` after the first `written`."""
    left: list[memoryview] = []
    for part in parts:
        view = memoryview(part)
        if written < view.nbytes:
            left.append(view[written:])
        written = max(0, written - view.nbytes)
    return memoryview(b"".join(left))


def _memory(size_bytes: int) -> mmap.mmap:
    """Return page-aligned memory, as Arrow likes it."""
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
