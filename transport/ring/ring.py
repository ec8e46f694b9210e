"""The ring: a single-producer, single-consumer queue of frames in shared memory. (`ring_memory` has the layout.)

**Positions.** Head and tail are 64-bit positions that only grow; a position modulo the capacity is an offset. The
sender owns head, the receiver owns tail, each copies the other's. A record is a length word in a unit of 64 bytes,
then the frame, then padding to 64. A record is contiguous: where it does not fit before the end of the memory the
sender writes a skip marker instead of a length, and the record starts at the next multiple of the capacity. If the
receiver still holds the front, the skip is published alone: the receiver moves over it, and once it has let go of
everything a frame as large as the whole ring fits. So any frame up to the limit passes in the end.

**Soft wrap.** A ring as large as the largest frame would stream through 64 MiB of memory, always cold. So where a
record would end beyond `soft_bytes` and fits at the front, the sender wraps early: a receiver that keeps up keeps
the ring in the cache. One that does not keep up lets it grow to its capacity.

**Credit.** The window bounds the bytes of frames in flight, by `credit`. Grants are not messages here: the receiver
moves tail when a grant is due, and the sender reads from tail which of its frames have come back. Frames may be
released in any order; tail moves over those at the front.

**Publishing.** The record is written, then its length, then head, each cursor by one aligned 8-byte store
(`memoryview.cast("Q")`). Never `struct.pack_into`: a reader in another process was seen to read a transient 0.
On x86-64 stores become visible in order and loads are made in order, which is all that this needs. **ARM** orders
neither: it would need a release store (STLR, or DMB ISH before the store) for head, tail and states, and an acquire
load (LDAR) where they are read. Python reaches neither, so an end refuses to attach on another machine.

**Sleeping.** The one pattern that x86 does not order: each end stores (its flag, or its cursor), then loads the
other's. Both loads may run before either store is seen, and the wake is lost. A full barrier stands between; an
uncontended `threading.Lock` is the cheapest one in Python's reach (a locked instruction, some 40 ns).

**What a peer can do.** Everything that is read from shared memory is read once into a Python integer and checked
against bounds that are ours. A peer that writes nonsense gives LinkCorruptError, FrameError or CreditError; never an
access outside the mapping, whose size is sealed. The receiver maps the records read-only.

**Weaknesses.** A sender that stops between record and head is invisible until its worker aborts the ring. A peer may
change a frame after its checksum was verified; it runs our user's code as we do, so this is no boundary of trust. For
the same reason the checksum stops before the body (`docs/decisions/0009-the-ring-leaves-the-body-out-of-the-checksum`).
A view that outlives its `release` reads what was written there since; `try_release` does not let it. Prior art: LMAX
Disruptor, io_uring's rings, the bipartite buffer.
"""

import mmap
import os
import platform
import threading
from collections import deque
from contextlib import suppress

from headrace.transport import FrameOversizeError, LinkClosed, LinkCorruptError, LinkRefusedError, LinkStatistics
from headrace.transport.core import (
    FRAME_LIMIT_BYTES,
    HEADER_BYTES,
    CreditReceiver,
    CreditSender,
    Frame,
    body_size,
    body_view,
    decode,
    encode_head,
    encoded_size,
    let_go,
)
from headrace.transport.ring.memory import (
    HEADER_PAGE_BYTES,
    RECORD_ALIGNMENT_BYTES,
    RECORD_PREFIX_BYTES,
    WORD_HEAD,
    WORD_RECEIVER_WAITING,
    WORD_SENDER_WAITING,
    WORD_TAIL,
    HeaderPage,
    Party,
    RingHandles,
    RingState,
)

#: Instead of a length: go on at the next multiple of the capacity.
_SKIP = (1 << 64) - 1
_ORDERED_MACHINES = ("x86_64", "AMD64")
# An attribute of an Enum's member costs more than the load it is for.
_OWNER_STATE_WORD = Party.OWNER.state_word
_SENDER_STATE_WORD = Party.SENDER.state_word
_RECEIVER_STATE_WORD = Party.RECEIVER.state_word
_OPEN = RingState.OPEN.value
_CLOSED = RingState.CLOSED.value
_ABORTED = RingState.ABORTED.value


#: The label of a worker that plans no rings; the controller's plan knows it.
WEAK_MEMORY = "memory=weak"


def memory_labels() -> tuple[str, ...]:
    """What a worker of this machine says of its memory: rings were shown right only where stores stay in order."""
    return () if platform.machine() in _ORDERED_MACHINES else (WEAK_MEMORY,)


class _RingEnd:
    """What both ends share: the mapping, the flags and the waking."""

    def __init__(self, handles: RingHandles, party: Party) -> None:
        if memory_labels():
            raise LinkRefusedError(
                f'ring "{handles.name}": memory of {platform.machine()} is weakly ordered and the ring needs x86-64; '
                "let the planner choose: it takes a pipe"
            )
        self._party = party
        self.name = handles.name
        self._capacity = handles.capacity_bytes
        self.limit_bytes = min(FRAME_LIMIT_BYTES, self._capacity - RECORD_PREFIX_BYTES)
        self._page = HeaderPage(handles)
        self._page.claim(party)
        self._words = self._page.words
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if party is Party.SENDER else 0)
        self._map = mmap.mmap(handles.memory_fd, self._capacity, prot=protection, offset=HEADER_PAGE_BYTES)
        self._data = memoryview(self._map)
        self._lengths = self._data.cast("Q")
        sender = party is Party.SENDER
        self._own_fd, self._peer_fd = (
            (handles.sender_fd, handles.receiver_fd) if sender else (handles.receiver_fd, handles.sender_fd)
        )
        self._own_flag = WORD_SENDER_WAITING if sender else WORD_RECEIVER_WAITING
        self._peer_flag = WORD_RECEIVER_WAITING if sender else WORD_SENDER_WAITING
        self._barrier = threading.Lock()
        self._frames = self._frame_bytes = self._blocked = self._wakes = 0

    def fileno(self) -> int:
        """Return the eventfd that the peer writes to."""
        return self._own_fd

    def arm(self) -> bool:
        """Ask to be woken; False if there is news since this end last looked."""
        self._words[self._own_flag] = 1
        with self._barrier:
            pass
        if self.has_news():
            self._words[self._own_flag] = 0
            return False
        return True

    def disarm(self) -> None:
        """Take the wish to be woken back and empty the eventfd."""
        self._words[self._own_flag] = 0
        with suppress(BlockingIOError):
            os.eventfd_read(self._own_fd)

    def abort(self, reason: str) -> None:
        """Give the link up; the peer learns the reason."""
        self._page.set_aborted(self._party, reason)
        self._wake()

    def detach(self) -> None:
        """Let go of the mapping. Where views of frames are still in use it stays until they are gone."""
        self._page.unmap()
        self._lengths.release()
        with suppress(BufferError):
            self._data.release()
            self._map.close()

    def has_news(self) -> bool:
        """Look for news since this end last looked, without a system call."""
        raise NotImplementedError

    def _any_aborted(self) -> bool:
        words = self._words
        return (
            words[_OWNER_STATE_WORD] == _ABORTED
            or words[_SENDER_STATE_WORD] == _ABORTED
            or words[_RECEIVER_STATE_WORD] == _ABORTED
        )

    def _publish(self, word: int, position: int) -> None:
        words, barrier = self._words, self._barrier
        words[word] = position
        # As in `_wake`, without a call and a `with`: this is done for each frame.
        barrier.acquire()
        barrier.release()
        if words[self._peer_flag]:
            self._write_wake()

    def _wake(self) -> None:
        with self._barrier:
            pass
        if self._words[self._peer_flag]:
            self._write_wake()

    def _write_wake(self) -> None:
        self._wakes += 1
        with suppress(BlockingIOError):
            os.eventfd_write(self._peer_fd, 1)

    def _corrupt(self, what: str) -> LinkCorruptError:
        return LinkCorruptError(f'ring "{self.name}": {what}; the peer writes what no correct one does, abort the link')


class RingSender(_RingEnd):
    """The sending end; see `contract.Sender`. Raises LinkRefusedError where the handles do not match the memory."""

    def __init__(self, handles: RingHandles) -> None:
        super().__init__(handles, Party.SENDER)
        self._soft = handles.soft_bytes
        self._credit = CreditSender(handles.window_bytes)
        self._head = 0
        self._tail = 0
        #: (position after the record, bytes of the frame) of what was sent and has not come back.
        self._in_flight: deque[tuple[int, int]] = deque()

    def credit_bytes(self) -> int:
        """Return the bytes of credit left."""
        self._check_open()
        self._collect()
        return self._credit.available

    def try_send(self, frame: Frame) -> bool:
        """Copy the frame into the ring, or write it there, or return False for want of credit or space."""
        self._check_open()
        unwritten = frame.unwritten
        body_bytes = body_size(frame)
        try:
            head = encode_head(frame, body_bytes, None)
        except FrameOversizeError:
            raise self._oversize(encoded_size(frame)) from None
        head_bytes = len(head)
        size_bytes = head_bytes + body_bytes
        if size_bytes > self.limit_bytes:
            raise self._oversize(size_bytes)
        self._collect()
        record_bytes = _record_bytes(size_bytes)
        if not self._credit.can_send(size_bytes) or (start := self._place(record_bytes)) is None:
            self._blocked += 1
            return False
        offset = start % self._capacity
        frame_at = offset + RECORD_PREFIX_BYTES
        body_at = frame_at + head_bytes
        data, lengths = self._data, self._lengths
        data[frame_at:body_at] = head
        if unwritten is None:
            data[body_at : frame_at + size_bytes] = body_view(frame)
        else:
            unwritten.write_into(data[body_at : frame_at + size_bytes])
        lengths[offset // 8] = size_bytes
        if start != self._head:
            lengths[self._head % self._capacity // 8] = _SKIP
        self._head = end = start + record_bytes
        self._credit.sent(size_bytes)
        self._in_flight.append((end, size_bytes))
        self._frames += 1
        self._frame_bytes += size_bytes
        self._publish(WORD_HEAD, end)
        return True

    def _oversize(self, size_bytes: int) -> FrameOversizeError:
        return FrameOversizeError(
            f'ring "{self.name}": frame of {size_bytes} bytes, the limit is {self.limit_bytes}; '
            "cut smaller batches or give the ring more capacity"
        )

    def close(self) -> None:
        """End the link after what was sent."""
        if self._words[_SENDER_STATE_WORD] == _OPEN:
            self._page.set_state(Party.SENDER, RingState.CLOSED)
        self._wake()

    def statistics(self) -> LinkStatistics:
        """Return the counts of this end. Credit that has come back is counted and not taken: it is news still."""
        tail, in_flight_bytes = self._words[WORD_TAIL], self._credit.in_flight_bytes
        for end, size_bytes in self._in_flight:
            if end > tail:
                break
            in_flight_bytes -= size_bytes
        return LinkStatistics(self._frames, self._frame_bytes, self._blocked, in_flight_bytes, self._wakes)

    def _check_open(self) -> None:
        words = self._words
        if (
            words[_SENDER_STATE_WORD] == _OPEN
            and words[_OWNER_STATE_WORD] != _ABORTED
            and words[_RECEIVER_STATE_WORD] != _ABORTED
        ):
            return
        if self._any_aborted():
            self._page.raise_aborted()
        if words[_SENDER_STATE_WORD] == _CLOSED:
            raise LinkClosed(f'ring "{self.name}": this end has closed it; nothing can be sent any more')

    def has_news(self) -> bool:
        """Look for news since this end last looked, without a system call."""
        return self._words[WORD_TAIL] != self._tail or self._any_aborted()

    def _collect(self) -> None:
        """Take the credit back of all frames that tail has passed."""
        tail = self._words[WORD_TAIL]
        if tail == self._tail:
            return
        if not self._tail < tail <= self._head or tail % RECORD_ALIGNMENT_BYTES:
            raise self._corrupt(f"tail moved from {self._tail} to {tail}, with head at {self._head}")
        self._tail = tail
        in_flight = self._in_flight
        granted_bytes = 0
        while in_flight and in_flight[0][0] <= tail:
            granted_bytes += in_flight.popleft()[1]
        if granted_bytes:
            self._credit.granted(granted_bytes)

    def _place(self, record_bytes: int) -> int | None:
        """Return the position for a record: here, or at the next lap; None if there is no space yet."""
        head, free_end = self._head, self._tail + self._capacity
        offset = head % self._capacity
        next_lap = head - offset + self._capacity
        fits_before_end = offset + record_bytes <= self._capacity
        fits_at_front = offset > 0 and next_lap + record_bytes <= free_end
        if fits_at_front and (not fits_before_end or record_bytes <= self._soft < offset + record_bytes):
            return next_lap
        if fits_before_end:
            return head if head + record_bytes <= free_end else None
        if next_lap <= free_end:
            self._lengths[offset // 8] = _SKIP
            self._head = next_lap
            self._publish(WORD_HEAD, next_lap)
        return None


class RingReceived:
    """A frame on loan; see `contract.Received`. Its views are read-only."""

    __slots__ = ("_frame", "_receiver", "end", "size_bytes")

    def __init__(self, receiver: "RingReceiver", frame: Frame, size_bytes: int, end: int) -> None:
        self._receiver = receiver
        self._frame: Frame | None = frame
        self.size_bytes = size_bytes
        #: The position that tail may move to when this one and all before it are released.
        self.end = end

    @property
    def frame(self) -> Frame:
        """The frame, in the ring's memory."""
        if self._frame is None:
            raise RuntimeError(f'ring "{self._receiver.name}": the frame was released; copy what is needed before')
        return self._frame

    @property
    def released(self) -> bool:
        """Whether `release` was called."""
        return self._frame is None

    def try_release(self) -> bool:
        """Release it, unless something still refers to the body: it would be written over."""
        if self._frame is not None and not let_go(self._frame):
            return False
        self.release()
        return True

    def release(self) -> None:
        """Give memory and credit back; the views of the frame become unusable where nothing else refers to them."""
        frame, self._frame = self._frame, None
        if frame is None:
            return
        for view in (frame.metadata, frame.body):
            # Arrow may still refer to it. Then it is the caller who promises to be finished.
            with suppress(BufferError):
                if isinstance(view, memoryview):
                    view.release()
        self._receiver.collect_released()


class RingReceiver(_RingEnd):
    """The receiving end; see `contract.Receiver`. Raises LinkRefusedError where the handles do not match the memory."""

    def __init__(self, handles: RingHandles) -> None:
        super().__init__(handles, Party.RECEIVER)
        self._credit = CreditReceiver(handles.window_bytes)
        #: Up to here records were handed out.
        self._position = 0
        #: Up to here they are released; published as tail when a grant is due.
        self._released_to = 0
        self._tail = 0
        self._held: deque[RingReceived] = deque()

    def try_receive(self) -> RingReceived | None:
        """Return the next frame in place, or None."""
        if self._any_aborted():
            self._page.raise_aborted()
        # The state first: what was published before the close is then seen.
        closed = self._words[_SENDER_STATE_WORD] == _CLOSED
        head = self._checked_head()
        length = self._next_length(head)
        if length is None:
            if closed:
                raise LinkClosed(f'ring "{self.name}": closed by its sender after {self._frames} frames')
            self._blocked += 1
            return None
        frame_at = self._position % self._capacity + RECORD_PREFIX_BYTES
        frame = decode(self._data[frame_at : frame_at + length], self.limit_bytes, trust_body=True)
        self._credit.received(length)
        self._position += _record_bytes(length)
        received = RingReceived(self, frame, length, self._position)
        self._held.append(received)
        self._frames += 1
        self._frame_bytes += length
        return received

    def collect_released(self) -> None:
        """Move tail over what is released at the front, if a grant is due. Called by `RingReceived.release`."""
        held = self._held
        released_bytes = 0
        while held and held[0].released:
            received = held.popleft()
            self._released_to = received.end
            released_bytes += received.size_bytes
        # One call for all of them: tail must move over exactly what the credit machine counts as granted.
        if released_bytes and self._credit.released(released_bytes):
            self._publish_tail()

    def statistics(self) -> LinkStatistics:
        """Return the counts of this end."""
        return LinkStatistics(self._frames, self._frame_bytes, self._blocked, self._credit.held_bytes, self._wakes)

    def _publish_tail(self) -> None:
        self._tail = self._released_to
        self._publish(WORD_TAIL, self._tail)

    def has_news(self) -> bool:
        """Look for news since this end last looked, without a system call."""
        return (
            self._words[WORD_HEAD] != self._position or self._words[_SENDER_STATE_WORD] != _OPEN or self._any_aborted()
        )

    def _checked_head(self) -> int:
        head = self._words[WORD_HEAD]
        if not self._position <= head <= self._tail + self._capacity or head % RECORD_ALIGNMENT_BYTES:
            raise self._corrupt(f"head at {head}, with {self._position} received and {self._tail} released")
        return head

    def _next_length(self, head: int) -> int | None:
        """Return the checked length of the frame at `_position`, moving over a skip; None if there is none yet."""
        for _ in range(2):
            if self._position == head:
                return None
            offset = self._position % self._capacity
            length = self._lengths[offset // 8]
            if length != _SKIP:
                return self._checked_length(length, offset, head)
            self._skip(offset, head)
        raise self._corrupt(f"two skips in a row before {self._position}")

    def _skip(self, offset: int, head: int) -> None:
        next_lap = self._position - offset + self._capacity
        if offset == 0 or next_lap > head:
            raise self._corrupt(f"a skip at {self._position}, with head at {head}")
        self._position = next_lap
        if self._held:
            self._held[-1].end = next_lap
        else:
            self._released_to = next_lap
            self._publish_tail()

    def _checked_length(self, length: int, offset: int, head: int) -> int:
        end = _record_bytes(length)
        fits = offset + end <= self._capacity and self._position + end <= head
        if not HEADER_BYTES <= length <= self.limit_bytes or not fits:
            raise self._corrupt(f"a frame of {length} bytes at {self._position}, with head at {head}")
        return length


def _record_bytes(frame_bytes: int) -> int:
    return RECORD_PREFIX_BYTES + (frame_bytes + RECORD_ALIGNMENT_BYTES - 1) & -RECORD_ALIGNMENT_BYTES
