"""What the tests of links share: frames that can be told apart, and short verbs."""

import select
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from headrace.transport.contract import LinkStatistics, Received, Receiver, Sender
from headrace.transport.core.credit import CreditReceiver
from headrace.transport.core.errors import LinkAborted, LinkClosed
from headrace.transport.core.frame import Frame, FrameKind, encoded_size
from headrace.transport.ring.ring import RingHandles
from headrace.transport.wait import wait_any

#: No wait of a test is longer than this, in seconds.
PATIENCE_S = 120.0


class MakePair(Protocol):
    def __call__(self, window_bytes: int = ..., capacity_bytes: int = ...) -> tuple[Sender, Receiver]: ...


class MakeRing(Protocol):
    def __call__(
        self, window_bytes: int = ..., capacity_bytes: int = ..., soft_bytes: int = ..., generation: int = ...
    ) -> RingHandles: ...


class Spawn(Protocol):
    def __call__(self, role: str, handles: RingHandles, *, frames: int = ...) -> "subprocess.Popen[str]": ...


def frame_of(number: int, size_bytes: int = 100) -> Frame:
    """A frame that can be told from its neighbours by its ordinal and by every byte of its body."""
    body = bytes([number % 251]) * size_bytes
    return Frame(FrameKind.DATA, 7, number.to_bytes(16, "little"), number, 1, b"metadata %d" % number, body)


class Later:
    """A body that is yet to be written."""

    def __init__(self, body: bytes) -> None:
        self._body, self.nbytes = body, len(body)

    def write_into(self, place: memoryview) -> None:
        place[:] = self._body


def take(receiver: Receiver) -> Received:
    received = receiver.try_receive()
    assert received is not None
    return received


def readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def becomes_readable(descriptor: int) -> bool:
    """Whether the descriptor is readable, at once or as soon as the transport has carried the news."""
    return bool(select.select([descriptor], [], [], PATIENCE_S)[0])


def take_frame(receiver: Receiver) -> Frame:
    """Receive one frame, copy it and release it."""
    received = take(receiver)
    frame = received.frame
    copy = Frame(
        frame.kind,
        frame.epoch,
        frame.fragment,
        frame.first,
        frame.count,
        bytes(frame.metadata),
        bytes(frame.body),
        frame.flags,
    )
    received.release()
    return copy


def fill(sender: Sender, make: Callable[[int], Frame] = frame_of) -> int:
    """Send until refused; return how many went."""
    number = 0
    while sender.try_send(make(number)):
        number += 1
    return number


class SettledPair:
    """Two ends whose transport carries things in its own time, made to look as if it took none.

    A verb of one end first waits for all that the other end has done to arrive. What that is, is counted here.
    """

    def __init__(self, sender: Sender, receiver: Receiver, window_bytes: int) -> None:
        self.sender, self.receiver = sender, receiver
        #: What the receiver has received and granted, by the rules of credit and not by the transport's word.
        self.credit = CreditReceiver(window_bytes)
        self.received_bytes = 0
        self.sent = self.received = 0
        #: How many grants the receiver gave, and how many the sender has looked at.
        self.grants = self.grants_seen = 0
        self.ended = self.aborted = False

    def ends(self) -> tuple["SettledSender", "SettledReceiver"]:
        return SettledSender(self), SettledReceiver(self)

    def wait_for(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < deadline, "the transport carries nothing any more"
            wait_any([self.sender], 0.001)

    def settle_credit(self) -> None:
        def settled() -> bool:
            sent = self.sender.statistics()
            in_flight = sent.frame_bytes - self.received_bytes + self.credit.held_bytes + self.credit.withheld_bytes
            return self.aborted or sent.in_flight_bytes == in_flight

        self.wait_for(settled)
        self.grants_seen = self.grants


def bare(ends: tuple[Sender, Receiver]) -> tuple[Sender, Receiver]:
    """Return the ends as the transport made them, for tests that wait themselves."""
    sender, receiver = ends
    return (sender.pair.sender, sender.pair.receiver) if isinstance(sender, SettledSender) else (sender, receiver)


class SettledEnd:
    """What both settled ends pass on."""

    def __init__(self, pair: SettledPair, end: Sender | Receiver) -> None:
        self.pair = pair
        self._end = end
        self.name = end.name

    def fileno(self) -> int:
        return self._end.fileno()

    def has_news(self) -> bool:
        return self._end.has_news()

    def disarm(self) -> None:
        self._end.disarm()

    def abort(self, reason: str) -> None:
        self._end.abort(reason)
        self.pair.ended = self.pair.aborted = True

    def statistics(self) -> LinkStatistics:
        self.settle()
        return self._end.statistics()

    def detach(self) -> None:
        self._end.detach()

    def settle(self) -> None:
        raise NotImplementedError


class SettledSender(SettledEnd):
    def __init__(self, pair: SettledPair) -> None:
        super().__init__(pair, pair.sender)
        self.limit_bytes = pair.sender.limit_bytes

    def settle(self) -> None:
        if self.pair.aborted:
            deadline = time.monotonic() + PATIENCE_S
            with suppress(LinkAborted):
                while time.monotonic() < deadline:
                    self.pair.sender.credit_bytes()
                    wait_any([self.pair.sender], 0.1)
        else:
            self.pair.settle_credit()

    def arm(self) -> bool:
        if self.pair.ended or self.pair.grants != self.pair.grants_seen:
            self.pair.wait_for(self.pair.sender.has_news)
        return self.pair.sender.arm()

    def credit_bytes(self) -> int:
        self.settle()
        return self.pair.sender.credit_bytes()

    def try_send(self, frame: Frame) -> bool:
        self.settle()
        went = self.pair.sender.try_send(frame)
        self.pair.sent += went
        return went

    def close(self) -> None:
        self.pair.sender.close()
        self.pair.ended = True


class SettledReceiver(SettledEnd):
    def __init__(self, pair: SettledPair) -> None:
        super().__init__(pair, pair.receiver)

    def settle(self) -> None:
        """Nothing: what a receiver waits for, it waits for in `try_receive`."""

    def arm(self) -> bool:
        if self.pair.ended or self.pair.sent > self.pair.received:
            self.pair.wait_for(self.pair.receiver.has_news)
        return self.pair.receiver.arm()

    def try_receive(self) -> "SettledReceived | None":
        pair = self.pair
        deadline = time.monotonic() + PATIENCE_S
        while (received := self._try_receive()) is None:
            if not pair.ended and pair.sent == pair.received:
                return None
            assert time.monotonic() < deadline, "the transport carries nothing any more"
            wait_any([pair.receiver], 0.1)
        size_bytes = encoded_size(received.frame)
        pair.received_bytes += size_bytes
        pair.received += 1
        pair.credit.received(size_bytes)
        return SettledReceived(pair, received, size_bytes)

    def _try_receive(self) -> Received | None:
        """What an abort cuts off, frames and a close, may come before the abort does: pass it over."""
        if not self.pair.aborted:
            return self.pair.receiver.try_receive()
        with suppress(LinkClosed):
            self.pair.receiver.try_receive()
        return None


class SettledReceived:
    def __init__(self, pair: SettledPair, received: Received, size_bytes: int) -> None:
        self._pair, self._received, self._size_bytes = pair, received, size_bytes
        self._released = False

    @property
    def frame(self) -> Frame:
        return self._received.frame

    def try_release(self) -> bool:
        released = self._received.try_release()
        if released:
            self._count()
        return released

    def release(self) -> None:
        self._count()
        self._received.release()

    def _count(self) -> None:
        if not self._released:
            self._released = True
            self._pair.grants += bool(self._pair.credit.released(self._size_bytes))
