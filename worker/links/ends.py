"""A task's ends of its links: the inbox, and for each downstream stage the links to its replicas and what waits."""

from __future__ import annotations

import gc
import os
from collections import deque
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
F_contra = TypeVar("F_contra", contravariant=True)


class OutputEnd(Protocol[F_contra]):
    """As much of a `Sender` as an outbox needs."""

    def credit_bytes(self) -> int:
        """See `Sender`."""
        ...

    def try_send(self, frame: F_contra, /) -> bool:
        """See `Sender`."""
        ...

    def close(self) -> None:
        """See `Sender`."""
        ...


class Outbox(Generic[F]):
    """Sends each batch to one replica of every downstream stage, the one with the most credit.

    Of those with the same credit it is the one that has waited longest for a batch: replicas that keep up always have
    all of theirs, and one of them would do the work of all.

    One batch waits at most; while it does the task takes no other, which is all that backpressure is.
    """

    def __init__(self, stages: tuple[str, ...], cut: Callable[[str, str], None]) -> None:
        self._cut = cut
        self._links: dict[str, dict[str, OutputEnd[F]]] = {stage: {} for stage in stages}
        self._waiting: deque[tuple[str, F]] = deque()
        #: The last marker that each link has taken.
        self._marked: dict[str, int] = {}
        #: How many batches had been sent when the link got its last one.
        self._served: dict[str, int] = {}
        self._sent = 0

    @property
    def empty(self) -> bool:
        """Nothing waits."""
        return not self._waiting

    def senders(self) -> list[OutputEnd[F]]:
        """Every sender."""
        return [sender for links in self._links.values() for sender in links.values()]

    def awaited(self) -> list[OutputEnd[F]]:
        """Those to wait on, all of which `flush` or `mark` has looked at: news of another would end each wait at once.

        They are those of the batch that waits, or all for a marker.
        """
        return list(self._links[self._waiting[0][0]].values()) if self._waiting else self.senders()

    def open(self, stage: str, link: str, sender: OutputEnd[F]) -> None:
        """A link to a replica of `stage` stands."""
        self._links[stage][link] = sender
        self._marked.pop(link, None)
        self._served.pop(link, None)

    def close(self, link: str) -> None:
        """A link is gone."""
        self._served.pop(link, None)
        for links in self._links.values():
            links.pop(link, None)

    def put(self, frame: F, stages: tuple[str, ...] | None = None) -> None:
        """Queue a frame for every downstream stage, or for these, and send what can be sent."""
        self._waiting.extend((stage, frame) for stage in (self._links if stages is None else stages))
        self.flush()

    def clear(self) -> None:
        """Let go of what waits."""
        self._waiting.clear()

    def mark(self, frame: F, sweep: int) -> bool:
        """Send a marker on every link; False if one had no room: then call again with the same marker."""
        done = True
        for links in self._links.values():
            for link in list(links):
                if self._marked.get(link) == sweep:
                    self._look(links, link)
                elif self._mark(links, link, frame):
                    self._marked[link] = sweep
                else:
                    done = False
        return done

    def flush(self) -> bool:
        """Send what waits; whether anything moved."""
        moved = False
        while self._waiting:
            stage, frame = self._waiting[0]
            if not self._send(stage, frame):
                break
            self._waiting.popleft()
            moved = True
        return moved

    def finish(self) -> None:
        """Close every link in order."""
        for sender in self.senders():
            sender.close()

    def _send(self, stage: str, frame: F) -> bool:
        links = self._links[stage]
        offers: list[tuple[int, int, str]] = []
        for name, sender in list(links.items()):
            try:
                offers.append((-sender.credit_bytes(), self._served.get(name, 0), name))
            except LinkAborted as end:
                self._drop(links, name, end)
        for _, _, name in sorted(offers):
            try:
                if links[name].try_send(frame):
                    self._sent += 1
                    self._served[name] = self._sent
                    return True
            except LinkAborted as end:
                self._drop(links, name, end)
        return False

    def _mark(self, links: dict[str, OutputEnd[F]], link: str, frame: F) -> bool:
        try:
            return links[link].try_send(frame)
        except LinkAborted as end:
            self._drop(links, link, end)
            return True

    def _look(self, links: dict[str, OutputEnd[F]], link: str) -> None:
        try:
            links[link].credit_bytes()
        except LinkAborted as end:
            self._drop(links, link, end)

    def _drop(self, links: dict[str, OutputEnd[F]], link: str, end: LinkAborted) -> None:
        """A link was cut; what was on it the sweep finds."""
        del links[link]
        self._cut(link, end.reason)


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
