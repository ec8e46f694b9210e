"""The two ends of a link over QUIC: what a task's thread and the driver's thread share.

A link is one stream in both directions. The sender opens it with a HELLO frame that carries the link's key and ticket;
the receiver answers with a welcome that says window and limit; then frames flow one way and grants the other. The end
of the stream is the close. An abort is a notice on a stream of its own, so that it overtakes what it cuts.

Every field that both threads use is used under the link's lock, which is held for a few operations at a time.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

import xxhash

from headrace.cluster import Peer
from headrace.transport import (
    FrameOversizeError,
    LinkAborted,
    LinkClosed,
    LinkCorruptError,
    LinkStatistics,
)
from headrace.transport.core import (
    FRAME_LIMIT_BYTES,
    Control,
    CreditReceiver,
    CreditSender,
    Frame,
    Granted,
    Welcomed,
    decode,
    decode_control,
    encode_control,
    encode_parts,
    encoded_size,
)
from headrace.transport.quic.stream_frames import FrameAssembler

Address = tuple[str, int] | tuple[str, int, int, int]
#: Judges a ticket: why the link is refused, or None.
CheckTicket = Callable[[bytes, Peer], str | None]


class Wake:
    """Wakes one thread from another: a flag of the sleeper and an eventfd. Use it under the lock that both share."""

    def __init__(self) -> None:
        self.waiting = False
        #: How often it was written to.
        self.count = 0
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self.descriptor)

    def ring(self) -> None:
        """Wake the end, if it wishes to be woken."""
        if self.waiting:
            self.count += 1
            os.eventfd_write(self.descriptor, 1)

    def drain(self) -> None:
        """Take the wish back and empty the descriptor."""
        self.waiting = False
        with suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)


class LinkState(Enum):
    """What has become of a link, as one end sees it."""

    #: Not yet welcomed, or nobody has come yet.
    OPENING = "opening"
    OPEN = "open"
    CLOSED = "closed"
    ABORTED = "aborted"


def link_key(name: str) -> bytes:
    """Return the 16 bytes by which the two ends of a link find each other; the ticket proves that they belong."""
    return xxhash.xxh3_128_digest(name.encode())


class QuicLink:
    """What both ends have. `post` asks the driver to look at this end; it may be called on any thread."""

    role = "owner"

    def __init__(self, name: str, post: Callable[["QuicLink"], None]) -> None:
        self.name = name
        self._post = post
        self.lock = threading.Lock()
        self.wake = Wake()
        self.state = LinkState.OPENING
        #: Whether the driver has been asked to look and has not yet.
        self.posted = False
        #: Set by an end of ours that gave up: the driver tells the peer.
        self.abort_unsaid: str | None = None
        self.detached = False
        #: Where the link runs, once it does; the driver's alone.
        self.connection: int | None = None
        self.stream: int | None = None
        self._aborted: LinkAborted | None = None
        #: How often something changed for this end, and how often it has looked.
        self._news = self._news_seen = 0
        self._frames = self._frame_bytes = self._blocked = 0

    def fileno(self) -> int:
        """Return the descriptor that becomes readable after a wake."""
        return self.wake.descriptor

    def has_news(self) -> bool:
        """Say whether something has changed since this end last looked."""
        return self._news != self._news_seen or self._aborted is not None

    def arm(self) -> bool:
        """Ask to be woken; False if there is news."""
        with self.lock:
            self.wake.waiting = not self.has_news()
            return self.wake.waiting

    def disarm(self) -> None:
        """Take the wish to be woken back."""
        with self.lock:
            self.wake.drain()

    def abort(self, reason: str) -> None:
        """Give the link up; the peer learns the reason."""
        with self.lock:
            if self._aborted is None:
                self.abort_unsaid = reason
                self._cut(self.role, reason)
        self.post()

    def cut(self, by: str, reason: str) -> None:
        """The driver learned that the link is over."""
        with self.lock:
            if self._aborted is None:
                self._cut(by, reason)

    def detach(self) -> None:
        """Let go of the link. One that is neither closed nor aborted is given up."""
        with self.lock:
            self.detached = True
            over = self.state in (LinkState.CLOSED, LinkState.ABORTED)
        if over:
            self.post()
        else:
            self.abort(f"its {self.role} has gone")

    def post(self) -> None:
        """Have the driver look at this end."""
        with self.lock:
            posted, self.posted = self.posted, True
        if not posted:
            self._post(self)

    def _cut(self, by: str, reason: str) -> None:
        self.state = LinkState.ABORTED
        self._aborted = LinkAborted(self.name, by, reason)
        self._changed()

    def _changed(self) -> None:
        self._news += 1
        self.wake.ring()

    def _look(self) -> None:
        self._news_seen = self._news
        if self._aborted is not None:
            raise self._aborted


class QuicSender(QuicLink):
    """The sending end; see `contract.Sender`. It may be used at once: there is no credit until it is welcomed."""

    role = "sender"

    def __init__(
        self, name: str, ticket: bytes, post: Callable[[QuicLink], None], peer_name: str | None = None
    ) -> None:
        super().__init__(name, post)
        self.ticket = ticket
        #: Who must be at the other end; None for any node of the cluster.
        self.peer_name = peer_name
        #: Where the receiver was found, as the endpoint's socket writes it.
        self.address: Address | None = None
        #: Whether it was looked for at every address and not found.
        self.unreachable = False
        #: Encoded frames that wait for the driver, and how much of the first it has taken.
        self.outbox: deque[memoryview] = deque()
        self.finish_unsaid = False
        self._credit: CreditSender | None = None
        #: Our own limit, until the receiver has said its.
        self.limit_bytes = FRAME_LIMIT_BYTES
        self._answers = FrameAssembler(FRAME_LIMIT_BYTES, lambda _: None)

    def credit_bytes(self) -> int:
        """Return the bytes of credit left."""
        with self.lock:
            self._look()
            return self._credit.available if self._credit is not None else 0

    def try_send(self, frame: Frame) -> bool:
        """Copy the frame for the driver, or return False for want of credit or of a connection."""
        size_bytes = encoded_size(frame)
        with self.lock:
            self._look()
            if self.state is LinkState.CLOSED:
                raise LinkClosed(f'link "{self.name}": this end has closed it; nothing can be sent any more')
            if size_bytes > self.limit_bytes:
                raise FrameOversizeError(
                    f'link "{self.name}": frame of {size_bytes} bytes, the limit is {self.limit_bytes}; '
                    "cut smaller batches"
                )
            if self._credit is None or not self._credit.can_send(size_bytes):
                self._blocked += 1
                return False
        # Outside of the lock, which the driver may want.
        encoded = memoryview(b"".join(encode_parts(frame)))
        with self.lock:
            self._credit.sent(size_bytes)
            self.outbox.append(encoded)
            self._frames += 1
            self._frame_bytes += size_bytes
        self.post()
        return True

    def close(self) -> None:
        """End the link after what was sent."""
        with self.lock:
            if self.state in (LinkState.OPENING, LinkState.OPEN):
                self.state = LinkState.CLOSED
                self.finish_unsaid = True
        self.post()

    def statistics(self) -> LinkStatistics:
        """Return the counts of this end."""
        with self.lock:
            in_flight = self._credit.in_flight_bytes if self._credit is not None else 0
            return LinkStatistics(self._frames, self._frame_bytes, self._blocked, in_flight, 0)

    def answered(self, data: bytes) -> None:
        """Bytes came from the receiver. Called by the driver; raises TransportError for what is no answer."""
        for raw in self._answers.feed(data):
            message = decode_control(raw)
            with self.lock:
                self._heard(message)

    def _heard(self, message: Control) -> None:
        match message:
            case Welcomed(window_bytes, limit_bytes) if self._credit is None:
                self._credit = CreditSender(window_bytes)
                self.limit_bytes = min(limit_bytes, FRAME_LIMIT_BYTES)
                if self.state is LinkState.OPENING:
                    self.state = LinkState.OPEN
            case Granted(size_bytes) if self._credit is not None:
                self._credit.granted(size_bytes)
            case _:
                raise LinkCorruptError(f'link "{self.name}": the receiver says {message}, out of turn')
        self._changed()

    def _cut(self, by: str, reason: str) -> None:
        super()._cut(by, reason)
        self.outbox.clear()


class QuicReceived:
    """A frame on loan; see `contract.Received`."""

    __slots__ = ("_frame", "_receiver", "_size_bytes")

    def __init__(self, receiver: "QuicReceiver", frame: Frame, size_bytes: int) -> None:
        self._receiver = receiver
        self._frame: Frame | None = frame
        self._size_bytes = size_bytes

    @property
    def frame(self) -> Frame:
        """The frame, in memory of its own."""
        if self._frame is None:
            raise RuntimeError(f'link "{self._receiver.name}": the frame was released; copy what is needed before')
        return self._frame

    def try_release(self) -> bool:
        """Release it: a body that is still in use is in memory of its own, which nobody writes again."""
        self.release()
        return True

    def release(self) -> None:
        """Drop the reference and give the credit back."""
        if self._frame is not None:
            self._frame = None
            self._receiver.give_back(self._size_bytes)


class QuicReceiver(QuicLink):
    """The receiving end; see `contract.Receiver`."""

    role = "receiver"

    def __init__(
        self,
        name: str,
        window_bytes: int,
        check: CheckTicket,
        post: Callable[[QuicLink], None],
        limit_bytes: int = FRAME_LIMIT_BYTES,
    ) -> None:
        super().__init__(name, post)
        self.check = check
        self._welcome = encode_control(Welcomed(window_bytes, limit_bytes))
        #: Answers that wait for the driver.
        self.answers: list[bytes] = []
        self._credit = CreditReceiver(window_bytes)
        self.limit_bytes = limit_bytes
        self._assembler = FrameAssembler(limit_bytes, self._admit)
        self._inbox: deque[memoryview] = deque()
        self._held_bytes = 0

    def try_receive(self) -> QuicReceived | None:
        """Return the next frame, or None."""
        with self.lock:
            self._look()
            if not self._inbox:
                if self.state is LinkState.CLOSED:
                    raise LinkClosed(f'link "{self.name}": closed by its sender after {self._frames} frames')
                self._blocked += 1
                return None
            raw = self._inbox.popleft()
            if self._inbox:
                # The next one is news still.
                self._news_seen -= 1
        frame = decode(raw, self.limit_bytes)
        self._frames += 1
        self._frame_bytes += raw.nbytes
        self._held_bytes += raw.nbytes
        return QuicReceived(self, frame, raw.nbytes)

    def give_back(self, size_bytes: int) -> None:
        """Return credit. Called by `QuicReceived.release`."""
        self._held_bytes -= size_bytes
        with self.lock:
            grant_bytes = self._credit.released(size_bytes)
            if not grant_bytes or self.state is LinkState.ABORTED:
                return
            self.answers.append(encode_control(Granted(grant_bytes)))
        self.post()

    def statistics(self) -> LinkStatistics:
        """Return the counts of this end."""
        return LinkStatistics(self._frames, self._frame_bytes, self._blocked, self._held_bytes, 0)

    def welcome(self) -> None:
        """A sender with a good ticket has come. Called by the driver."""
        with self.lock:
            if self.state is LinkState.OPENING:
                self.state = LinkState.OPEN
                self.answers.append(self._welcome)

    def arrived(self, data: bytes, *, end: bool) -> None:
        """Bytes came from the sender. Called by the driver; raises TransportError for what breaks the rules."""
        frames = self._assembler.feed(data)
        if end and not self._assembler.is_empty:
            raise LinkCorruptError(f'link "{self.name}": it ends in the middle of a frame')
        with self.lock:
            self._inbox.extend(frames)
            if end and self.state is LinkState.OPEN:
                self.state = LinkState.CLOSED
            if frames or end:
                self._changed()

    def _admit(self, size_bytes: int) -> None:
        with self.lock:
            self._credit.received(size_bytes)

    def _cut(self, by: str, reason: str) -> None:
        super()._cut(by, reason)
        self._inbox.clear()
