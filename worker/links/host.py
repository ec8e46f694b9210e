"""The links of this worker's tasks through this host's memory and kernel: rings and pipes.

A ring's memory belongs to the worker of its sender: it makes it, and aborts the ring when an end dies. Where the
receiver is a task of another worker of this host, the memory is brought to that worker's door
(`worker/links/handoff.py`), and each of the two looks after the end that is its own. The connection by which it came
stands as long as the ring does, so that the death of a worker is seen by the other. A pipe belongs to nobody: the
kernel tells its ends of each other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from headrace.daemon import current_cause
from headrace.protos import control_pb2 as pb
from headrace.transport import LinkRefusedError
from headrace.transport.pipe import PipeHandles, create_pipe
from headrace.transport.ring import Party, RingHandles, RingOwner, create_ring
from headrace.worker.links.handoff import HandoffSocket, Tie, close_all

logger = logging.getLogger("headrace.worker")

PIPE = "pipe"
End = tuple[str, int]


#: Passes a command and descriptors to an attempt of a task; one that is gone takes none.
Send = Callable[[str, int, pb.TaskCommand, Sequence[int]], None]
#: Tells the controller, on behalf of an end, that a making of a link is over, why, and whether that is because nothing
#: can be passed between the two workers.
Lost = Callable[[End, str, int, str, bool], None]


@dataclass(slots=True)
class _Held:
    """A link that stands, as far as this worker is concerned."""

    ends: tuple[End, End]
    generation: int
    ring: RingOwner | None = None
    tie: Tie | None = None

    def drop(self, reason: str) -> None:
        """Cut it, and let go of what is here of it."""
        if self.ring is not None:
            if not self.ring.ended:
                self.ring.abort(reason)
            self.ring.close()
        if self.tie is not None:
            self.tie.end()


class HostLinks:
    """Every ring and pipe with an end on this worker. Called on the event loop's thread."""

    def __init__(self, send: Send, lost: Lost) -> None:
        self._send, self._lost = send, lost
        self._door = HandoffSocket()
        self._held: dict[str, _Held] = {}
        #: What another worker is to bring, by the link's name and making.
        self._awaited: dict[str, str] = {}

    @property
    def door(self) -> str:
        """Where other workers of this host bring links."""
        return self._door.name

    def open(self) -> None:
        """Open the door."""
        self._door.open()

    def close(self) -> None:
        """Close the door, and let go of every link."""
        self._door.close()
        for name in list(self._held):
            self._drop(name, "the worker ends")

    def make(self, message: pb.MakeLink, *, sends: bool, receives: bool) -> None:
        """Make a link, or the part of it that is this worker's: of its sender, of its receiver, or of both.

        Where the system has nothing to make it of, that is told like the end of one that stood.
        """
        self._drop(message.link, "a newer link takes its place")
        try:
            if sends and not receives:
                self._bring(message)
            elif receives and not sends:
                self._expect(message)
            elif message.transport == PIPE:
                self._join_by_pipe(message)
            else:
                self._join_by_ring(message)
        except OSError as error:
            reason = f"its worker could not make it: {error}"
            logger.warning("link %s: %s", message.link, reason)
            self._drop(message.link, reason)
            self._lost(_ends(message)[0 if sends else 1], message.link, message.generation, reason, False)

    def cut(self, end: End, reason: str) -> None:
        """An attempt is dead: cut every link that it had an end of, and tell the other task, if it is here."""
        for name, held in list(self._held.items()):
            if end in held.ends:
                self._drop(name, reason)
                for task, attempt in held.ends:
                    if task != end[0] and held.tie is None:
                        close = pb.TaskCommand(task=task, attempt=attempt, cause=current_cause())
                        close.close.link, close.close.reason = name, reason
                        self._send(task, attempt, close, ())

    # -- both ends are here --

    def _join_by_ring(self, message: pb.MakeLink) -> None:
        handles = self._hold_ring(message)
        for end in (message.sender_end, message.receiver_end):
            self._hand(message, end, handles.describe(), handles.descriptors())

    def _join_by_pipe(self, message: pb.MakeLink) -> None:
        pipe = create_pipe(message.link, **_window(message))
        self._held[message.link] = _Held(_ends(message), message.generation)
        try:
            self._hand(message, message.sender_end, pipe.describe(), (pipe.write_fd, pipe.sender_control_fd))
            self._hand(message, message.receiver_end, pipe.describe(), (pipe.read_fd, pipe.receiver_control_fd))
        finally:
            close_all(pipe.descriptors())

    # -- the sender is here --

    def _bring(self, message: pb.MakeLink) -> None:
        """Make the link, hand the sender's end to its task and bring the receiver's to its worker."""
        handles: PipeHandles | RingHandles
        ours: tuple[int, ...]
        theirs: tuple[int, ...]
        lent: tuple[int, ...] = ()
        if message.transport == PIPE:
            handles = pipe = create_pipe(message.link, **_window(message))
            ours, theirs = (pipe.write_fd, pipe.sender_control_fd), (pipe.read_fd, pipe.receiver_control_fd)
            self._held[message.link] = _Held(_ends(message), message.generation)
            lent = pipe.descriptors()
        else:
            handles = ring = self._hold_ring(message)
            ours = theirs = ring.descriptors()
        held = self._held[message.link]

        def over(reason: str, apart: bool) -> None:
            self._over(message, held, held.ends[0], reason, apart=apart)

        try:
            self._hand(message, message.sender_end, handles.describe(), ours, far=True)
            making, ticket = _making(message), message.sender_end.ticket
            held.tie = self._door.bring(message.door, making, ticket, handles.describe(), theirs, over)
        finally:
            close_all(lent)

    def _hold_ring(self, message: pb.MakeLink) -> RingHandles:
        """Make a ring, and hold it before an end of it is handed out: it can be cut then, whatever fails."""
        generation = (message.sender_attempt << 32) | message.receiver_attempt
        handles = create_ring(message.link, generation=generation, **_window(message))
        try:
            owner = RingOwner(handles)
        except OSError:
            handles.close_descriptors()
            raise
        self._held[message.link] = _Held(_ends(message), message.generation, owner)
        return handles

    # -- the receiver is here --

    def _expect(self, message: pb.MakeLink) -> None:
        """The other worker brings the link: hand its end to the receiver then."""
        held = _Held(_ends(message), message.generation)

        def take(description: dict[str, Any], descriptors: list[int], tie: Tie) -> None:
            _check(descriptors, 2 if message.transport == PIPE else 3, message.link)
            if message.transport == PIPE:
                PipeHandles.from_description(description)
                self._hand(message, message.receiver_end, description, descriptors, far=True)
                close_all(descriptors)
            else:
                ring = RingHandles.from_description(description).with_descriptors(*descriptors)
                # It looks at the memory: what is not a ring of these sizes is refused here, and no task meets it.
                held.ring = RingOwner(ring, Party.RECEIVER)
                self._hand(message, message.receiver_end, description, descriptors, far=True)
            held.tie = tie
            self._awaited.pop(message.link, None)
            self._held[message.link] = held

        def over(reason: str, apart: bool) -> None:
            self._over(message, held, held.ends[1], reason, apart=apart)

        self._awaited[message.link] = _making(message)
        self._door.expect(_making(message), message.receiver_end.ticket, take, over)

    def _over(self, message: pb.MakeLink, held: _Held, end: End, reason: str, *, apart: bool) -> None:
        """The other worker does not hold the link, or not any more."""
        if self._held.get(message.link) is held:
            if apart:
                # Before the task finds the ring aborted, which it would take for an ordinary end.
                self._lost(end, message.link, message.generation, reason, True)
            self._drop(message.link, reason)

    def _drop(self, name: str, reason: str) -> None:
        awaited = self._awaited.pop(name, None)
        if awaited is not None:
            self._door.forget(awaited)
        held = self._held.pop(name, None)
        if held is not None:
            held.drop(reason)

    def _hand(
        self,
        message: pb.MakeLink,
        end: pb.LinkEnd,
        description: dict[str, Any],
        descriptors: Sequence[int],
        *,
        far: bool = False,
    ) -> None:
        task, attempt = _ends(message)[0 if end.sends else 1]
        command = pb.TaskCommand(task=task, attempt=attempt, cause=current_cause())
        command.open.link.CopyFrom(end)
        command.open.transport, command.open.handles = message.transport, msgpack.packb(description)
        command.open.far = far
        self._send(task, attempt, command, descriptors)


def _ends(message: pb.MakeLink) -> tuple[End, End]:
    return (message.sender, message.sender_attempt), (message.receiver, message.receiver_attempt)


def _making(message: pb.MakeLink) -> str:
    """Each making of a link has a name of its own, as over QUIC."""
    return f"{message.link}#{message.generation}"


def _window(message: pb.MakeLink) -> dict[str, int]:
    return {"window_bytes": message.window_bytes} if message.window_bytes else {}


def _check(descriptors: Sequence[int], count: int, link: str) -> None:
    if len(descriptors) != count:
        raise LinkRefusedError(f"link {link}: {len(descriptors)} descriptors came with it, {count} belong to it")
