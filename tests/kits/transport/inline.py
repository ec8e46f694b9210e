"""The inline link, the reference of the conformance suite: both ends in one process, frames passed by reference.

The ends may be in different threads; a lock guards what they share and is held for a few operations only. The sender
must not write into a body after it was sent.
"""

import threading
from collections import deque
from enum import Enum

from headrace.transport.contract import LinkStatistics
from headrace.transport.core import FRAME_LIMIT_BYTES, CreditReceiver, CreditSender, Frame, body_view, encoded_size
from headrace.transport.core.errors import FrameOversizeError, LinkAborted, LinkClosed
from headrace.transport.quic.links import Wake


class _LinkState(Enum):
    OPEN = "open"
    CLOSED = "closed"
    ABORTED = "aborted"


def create_inline(
    name: str, window_bytes: int, limit_bytes: int = FRAME_LIMIT_BYTES
) -> tuple["InlineSender", "InlineReceiver"]:
    """Make a link named `name` with a window of `window_bytes`, and return its two ends."""
    link = _InlineLink(name, window_bytes, limit_bytes)
    return InlineSender(link), InlineReceiver(link)


class _InlineLink:
    """What the two ends share; every field is used under `lock`."""

    def __init__(self, name: str, window_bytes: int, limit_bytes: int) -> None:
        self.name = name
        self.limit_bytes = min(limit_bytes, FRAME_LIMIT_BYTES)
        self.lock = threading.Lock()
        self.queue: deque[tuple[Frame, int]] = deque()
        self.sender_credit = CreditSender(window_bytes)
        self.receiver_credit = CreditReceiver(window_bytes)
        self.state = _LinkState.OPEN
        self.aborted_by = ""
        self.reason = ""
        self.sender_wake = Wake()
        self.receiver_wake = Wake()
        #: Grants given so far: how a sender knows that there was one since it last looked.
        self.grants = 0

    def abort(self, by: str, reason: str) -> None:
        with self.lock:
            if self.state is not _LinkState.ABORTED:
                self.state, self.aborted_by, self.reason = _LinkState.ABORTED, by, reason
                self.queue.clear()
            self.sender_wake.ring()
            self.receiver_wake.ring()

    def check_not_aborted(self) -> None:
        if self.state is _LinkState.ABORTED:
            raise LinkAborted(self.name, self.aborted_by, self.reason)


class InlineSender:
    """The sending end; see `contract.Sender`."""

    def __init__(self, link: _InlineLink) -> None:
        self._link = link
        self._frames = 0
        self._frame_bytes = 0
        self._blocked = 0
        self._grants_seen = 0

    @property
    def name(self) -> str:
        """The name of the link."""
        return self._link.name

    @property
    def limit_bytes(self) -> int:
        """The largest encoded frame, in bytes."""
        return self._link.limit_bytes

    def credit_bytes(self) -> int:
        """Return the bytes of credit left."""
        link = self._link
        with link.lock:
            link.check_not_aborted()
            self._grants_seen = link.grants
            return link.sender_credit.available

    def try_send(self, frame: Frame) -> bool:
        """Pass the frame on by reference, or return False for want of credit."""
        link = self._link
        if frame.unwritten is not None:
            frame = frame._replace(body=body_view(frame), unwritten=None)
        size_bytes = encoded_size(frame)
        if size_bytes > link.limit_bytes:
            raise FrameOversizeError(
                f'link "{link.name}": frame of {size_bytes} bytes, the limit is {link.limit_bytes}; cut smaller batches'
            )
        with link.lock:
            link.check_not_aborted()
            if link.state is _LinkState.CLOSED:
                raise LinkClosed(f'link "{link.name}": this end has closed it; nothing can be sent any more')
            self._grants_seen = link.grants
            if not link.sender_credit.can_send(size_bytes):
                self._blocked += 1
                return False
            link.sender_credit.sent(size_bytes)
            link.queue.append((frame, size_bytes))
            link.receiver_wake.ring()
        self._frames += 1
        self._frame_bytes += size_bytes
        return True

    def fileno(self) -> int:
        """Return the descriptor that is readable after a grant."""
        return self._link.sender_wake.descriptor

    def has_news(self) -> bool:
        """Say whether credit came since this end last looked."""
        link = self._link
        return link.grants != self._grants_seen or link.state is _LinkState.ABORTED

    def arm(self) -> bool:
        """Ask to be woken at the next grant; False if there was one since this end last looked."""
        link = self._link
        with link.lock:
            sleep = link.state is not _LinkState.ABORTED and link.grants == self._grants_seen
            link.sender_wake.waiting = sleep
            return sleep

    def disarm(self) -> None:
        """Take the wish to be woken back."""
        with self._link.lock:
            self._link.sender_wake.drain()

    def close(self) -> None:
        """End the link after what was sent."""
        link = self._link
        with link.lock:
            if link.state is _LinkState.OPEN:
                link.state = _LinkState.CLOSED
            link.receiver_wake.ring()

    def abort(self, reason: str) -> None:
        """Give the link up."""
        self._link.abort("sender", reason)

    def statistics(self) -> LinkStatistics:
        """Return the counts of this end."""
        link = self._link
        with link.lock:
            in_flight, wakes = link.sender_credit.in_flight_bytes, link.receiver_wake.count
        return LinkStatistics(self._frames, self._frame_bytes, self._blocked, in_flight, wakes)

    def detach(self) -> None:
        """Nothing to let go of: the garbage collector has it when both ends are gone."""


class InlineReceived:
    """A frame on loan; see `contract.Received`."""

    __slots__ = ("_frame", "_link", "_size_bytes")

    def __init__(self, link: _InlineLink, frame: Frame, size_bytes: int) -> None:
        self._link = link
        self._frame: Frame | None = frame
        self._size_bytes = size_bytes

    @property
    def frame(self) -> Frame:
        """The frame, as the sender made it."""
        if self._frame is None:
            raise RuntimeError(f'link "{self._link.name}": the frame was released; copy what is needed before release')
        return self._frame

    def try_release(self) -> bool:
        """Release it: a body that is still in use is in memory of its own, which nobody writes again."""
        self.release()
        return True

    def release(self) -> None:
        """Drop the reference and give the credit back."""
        if self._frame is None:
            return
        self._frame = None
        link = self._link
        with link.lock:
            grant_bytes = link.receiver_credit.released(self._size_bytes)
            if grant_bytes:
                link.sender_credit.granted(grant_bytes)
                link.grants += 1
                link.sender_wake.ring()


class InlineReceiver:
    """The receiving end; see `contract.Receiver`."""

    def __init__(self, link: _InlineLink) -> None:
        self._link = link
        self._frames = 0
        self._frame_bytes = 0
        self._blocked = 0

    @property
    def name(self) -> str:
        """The name of the link."""
        return self._link.name

    def try_receive(self) -> InlineReceived | None:
        """Return the next frame, or None."""
        link = self._link
        with link.lock:
            link.check_not_aborted()
            if not link.queue:
                if link.state is _LinkState.CLOSED:
                    raise LinkClosed(f'link "{link.name}": closed by its sender after {self._frames} frames')
                self._blocked += 1
                return None
            frame, size_bytes = link.queue.popleft()
            link.receiver_credit.received(size_bytes)
        self._frames += 1
        self._frame_bytes += size_bytes
        return InlineReceived(link, frame, size_bytes)

    def fileno(self) -> int:
        """Return the descriptor that is readable after a frame was sent."""
        return self._link.receiver_wake.descriptor

    def has_news(self) -> bool:
        """Say whether a frame waits, or the link has ended."""
        return bool(self._link.queue) or self._link.state is not _LinkState.OPEN

    def arm(self) -> bool:
        """Ask to be woken at the next frame; False if there is one, or the link has ended."""
        link = self._link
        with link.lock:
            sleep = link.state is _LinkState.OPEN and not link.queue
            link.receiver_wake.waiting = sleep
            return sleep

    def disarm(self) -> None:
        """Take the wish to be woken back."""
        with self._link.lock:
            self._link.receiver_wake.drain()

    def abort(self, reason: str) -> None:
        """Give the link up."""
        self._link.abort("receiver", reason)

    def statistics(self) -> LinkStatistics:
        """Return the counts of this end."""
        link = self._link
        with link.lock:
            held, wakes = link.receiver_credit.held_bytes, link.sender_wake.count
        return LinkStatistics(self._frames, self._frame_bytes, self._blocked, held, wakes)

    def detach(self) -> None:
        """Nothing to let go of: the garbage collector has it when both ends are gone."""
