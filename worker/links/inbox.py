"""A task's ends of its links: opened when the worker brings them, given up when their peer is gone."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Generic, Protocol, TypeVar

import msgpack

from headrace.protos import control_pb2 as pb
from headrace.stages.runtime import StageContractError
from headrace.transport import LinkAborted, LinkClosed, Receiver, Sender
from headrace.transport.pipe import PipeHandles, PipeReceiver, PipeSender
from headrace.transport.ring import RingHandles, RingReceiver, RingSender

F = TypeVar("F")
F_co = TypeVar("F_co", covariant=True)


class Lent(Protocol[F_co]):
    """As much of a `Received` as an inbox needs."""

    @property
    def frame(self) -> F_co:
        """See `Received`."""
        ...

    def try_release(self) -> bool:
        """See `Received`."""
        ...


class InputEnd(Protocol[F_co]):
    """As much of a `Receiver` as an inbox needs."""

    def try_receive(self) -> Lent[F_co] | None:
        """See `Receiver`."""
        ...


class Inbox(Generic[F]):
    """The receiving side of a task: its input links, read in turn.

    A frame whose memory is still in use when `take` returns (its batch waits for credit, further on) is given back
    before the next one is received; with it its credit, so that a link lends one frame at a time.
    """

    def __init__(self, closed: Callable[[str], None], cut: Callable[[str, str], None]) -> None:
        self._links: dict[str, InputEnd[F]] = {}
        self._closed = closed
        self._cut = cut
        self._turn = 0
        #: The link and the frame of the batch that is on its way through this task.
        self._lent: tuple[str, Lent[F]] | None = None

    def receivers(self) -> list[InputEnd[F]]:
        """Every receiver, to wait on."""
        return list(self._links.values())

    def open(self, link: str, receiver: InputEnd[F]) -> None:
        """A link stands."""
        self._links[link] = receiver

    def close(self, link: str) -> None:
        """A link is gone, by the worker's word."""
        if self._lent is not None and self._lent[0] == link:
            self._lent = None  # Its memory stays until the last who refers to it is done; nobody writes there again.
        if self._links.pop(link, None) is not None:
            self._closed(link)

    def receive(self, take: Callable[[str, F], None]) -> bool:
        """Give the next frame of some link to `take`, and release it; False if there is none anywhere.

        Raises StageContractError if what was built on the frame before it is still in use, now that nothing waits.
        """
        self._settle()
        names = list(self._links)
        self._turn += 1
        for name in islice(cycle(names), self._turn % max(1, len(names)), self._turn % max(1, len(names)) + len(names)):
            try:
                received = self._links[name].try_receive()
            except (LinkClosed, LinkAborted) as end:
                self.close(name)
                if isinstance(end, LinkAborted):
                    self._cut(name, end.reason)
                continue
            if received is None:
                continue
            take(name, received.frame)
            if not received.try_release():
                self._lent = name, received
            return True
        return False

    def _settle(self) -> None:
        if self._lent is None:
            return
        name, received = self._lent
        if not received.try_release():
            gc.collect()  # An exception that a stage raised may have it in a cycle.
            if not received.try_release():
                raise StageContractError(
                    f"link {name}: a stage behind it keeps rows that it was lent: let it copy what it keeps, "
                    "or not say that it borrows"
                )
        self._lent = None


#: Descriptors that travel with an end of a link.
DESCRIPTORS = {"ring": 3, "pipe": 2}


@dataclass(frozen=True, slots=True)
class Attached:
    """This task's end of a link, and the descriptors that it needs and does not close itself."""

    end: Sender | Receiver
    descriptors: tuple[int, ...] = ()

    def detach(self) -> None:
        """Let go of the end."""
        self.end.detach()
        for descriptor in self.descriptors:
            os.close(descriptor)


def attach(message: pb.OpenLink, descriptors: tuple[int, ...]) -> Attached:
    """This task's end of a ring or a pipe."""
    description, sends = msgpack.unpackb(message.handles), message.link.sends
    if message.transport == "pipe":
        pipe = PipeHandles.from_description(description)
        data, control = descriptors
        if sends:
            return Attached(PipeSender(pipe.with_descriptors(-1, data, -1, control)))
        return Attached(PipeReceiver(pipe.with_descriptors(data, -1, control, -1)))
    memory, sender, receiver = descriptors
    ring = RingHandles.from_description(description).with_descriptors(memory, sender, receiver)
    return Attached(RingSender(ring) if sends else RingReceiver(ring), descriptors)
