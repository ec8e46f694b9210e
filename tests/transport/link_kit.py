"""What the tests of links share: frames that can be told apart, and short verbs."""

import subprocess
from collections.abc import Callable
from typing import Protocol

from headrace.transport.contract import Received, Receiver, Sender
from headrace.transport.frame import Frame, FrameKind
from headrace.transport.ring import RingHandles

#: No wait of a test is longer than this, in seconds.
PATIENCE_S = 20.0


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


def take(receiver: Receiver) -> Received:
    received = receiver.try_receive()
    assert received is not None
    return received


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
