"""A worker's door: where another worker of this host brings the memory of a link.

The door is a UNIX socket in a folder that only this user may enter; its path is told to the controller. That two
workers are on one host is so proved and not declared: descriptors come through. Whoever comes must run as the same
user, by the kernel's word and not by his own, and brings one packet: the name of the link, its ticket, what describes
the memory, and the descriptors. The ticket is compared with the one that this worker was given for that link, as over
QUIC. The answer is one packet too. Then nothing more is said, and the connection stands for as long as both hold the
link: its end tells each of the other's death.

A worker that is sent to a door looks first whether only its own user can have made it. A stranger costs a descriptor
and a packet of 8 KiB, for STRANGER_S seconds; STRANGERS_MAX may stand at the door.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgpack

from headrace.cluster import PeerError, match_ticket
from headrace.daemon import Nook, check_socket, peer_user, short_path
from headrace.transport import TransportError

#: One packet at most, in bytes: a ticket, a name and some numbers.
PACKET_BYTES_MAX = 8 << 10
DESCRIPTORS_MAX = 4
#: Who stands at the door at most, come to bring something or waiting for an answer.
STRANGERS_MAX = 64
#: Seconds in which a packet must come, and in which the link that it is for must be known here.
STRANGER_S = 10.0
#: Seconds that the other worker has to answer.
ANSWER_S = 15.0
#: Those that are let in, or sent away, in one turn of the loop.
COME_AT_ONCE = 64
_SOCKET_NAME = "door.sock"

#: Takes a link's description and descriptors; raises TransportError or OSError where it cannot.
Take = Callable[[dict[str, Any], list[int], "Tie"], None]
#: Is told why a connection has ended, and whether that is because nothing can be passed between the two workers.
Over = Callable[[str, bool], None]


@dataclass(slots=True)
class _Expected:
    ticket: bytes
    take: Take
    over: Over


@dataclass(slots=True)
class _Brought:
    """What came before this worker knew of the link."""

    tie: Tie
    ticket: bytes
    description: dict[str, Any]
    descriptors: list[int]


class Tie:
    """A connection between two workers that stands for one link. `end` lets go of it."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._timer: asyncio.TimerHandle | None = None

    @property
    def open(self) -> bool:
        """Whether this worker still holds it."""
        return self._socket.fileno() >= 0

    def watch(self, readable: Callable[[], None], seconds: float = 0.0, late: Callable[[], None] | None = None) -> None:
        """Have `readable` called when something comes, and `late` after so many seconds. Ends an earlier watch."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket.fileno(), readable)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(seconds, late) if late is not None else None

    def hold(self, over: Over) -> None:
        """The link stands. Nobody has anything to say any more: what comes is the end."""

        def ended() -> None:
            self.end()
            over("the worker at its other end has let go of it", False)

        self.watch(ended)

    def send(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Say one packet. Raises OSError."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self._socket.sendmsg([msgpack.packb(message)], rights)

    def receive(self) -> tuple[bytes, list[int]]:
        """One packet, and the descriptors with it; empty at the end. Raises TransportError if it is too large."""
        room = socket.CMSG_SPACE(4 * DESCRIPTORS_MAX)
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(PACKET_BYTES_MAX, room, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return b"", []
        descriptors = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            close_all(descriptors)
            raise TransportError(f"more than {PACKET_BYTES_MAX} bytes or {DESCRIPTORS_MAX} descriptors in a packet")
        return data, descriptors.tolist()

    def end(self) -> None:
        """Let go: the other worker sees that this one has."""
        if self._timer is not None:
            self._timer.cancel()
        if self.open:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()

    def peer_user(self) -> int:
        """The user that the other process runs as."""
        return peer_user(self._socket)


class HandoffSocket:
    """The door of one worker. Called on the event loop's thread."""

    def __init__(self) -> None:
        #: Its path, once it is open.
        self.name = ""
        self._nook: Nook | None = None
        self._socket: socket.socket | None = None
        self._strangers: set[Tie] = set()
        self._expected: dict[str, _Expected] = {}
        self._brought: dict[str, _Brought] = {}

    def open(self) -> None:
        """Let others come. Raises OSError, where the folder of sockets is not this user's alone."""
        self._nook = Nook("door")
        path = self._nook.path / _SOCKET_NAME
        self.name = str(path)
        self._socket = _packets()
        self._socket.bind(short_path(path))
        self._socket.listen(STRANGERS_MAX)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Nobody may come any more; links that stand are not touched."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        if self._nook is not None:
            self._nook.close()
            self._nook = None
        for stranger in list(self._strangers):
            self._send_away(stranger)

    def bring(
        self, door: str, link: str, ticket: bytes, description: dict[str, Any], descriptors: Sequence[int], over: Over
    ) -> Tie:
        """Bring a link to another worker's door. `over` is told once: that it came to nothing, or that it has ended."""
        sock = _packets()
        tie = Tie(sock)

        def fail(reason: str, *, apart: bool) -> None:
            if tie.open:
                tie.end()
                over(reason, apart)

        try:
            check_socket(Path(door))
            sock.connect(short_path(Path(door)))
            if tie.peer_user() != os.geteuid():
                raise PermissionError(f"user {tie.peer_user()} stands behind it, this is user {os.geteuid()}")
            tie.send([link, ticket, description], descriptors)
        except OSError as error:
            reason = f"nothing can be passed to the other worker: {error}"
            asyncio.get_running_loop().call_soon(partial(fail, reason, apart=True))
            return tie
        late = f"the other worker has not taken it within {ANSWER_S:.0f} s"
        tie.watch(partial(_answered, tie, over, fail), ANSWER_S, partial(fail, late, apart=True))
        return tie

    def expect(self, link: str, ticket: bytes, take: Take, over: Over) -> None:
        """Another worker will bring this link: `take` it then. `over` is told when that worker lets go of it."""
        self._expected[link] = _Expected(ticket, take, over)
        brought = self._brought.pop(link, None)
        if brought is not None:
            self._match(link, brought)

    def forget(self, link: str) -> None:
        """Nobody needs to bring this link."""
        self._expected.pop(link, None)

    def _accept(self) -> None:
        assert self._socket is not None
        for _ in range(COME_AT_ONCE):
            try:
                sock, _whence = self._socket.accept()
            except OSError:
                return
            sock.setblocking(False)
            tie = Tie(sock)
            if len(self._strangers) >= STRANGERS_MAX:
                self._refuse(tie, f"{STRANGERS_MAX} others stand at the door; come again")
            elif tie.peer_user() not in (os.geteuid(), 0):
                self._refuse(tie, f"this worker runs as user {os.geteuid()}, and user {tie.peer_user()} comes")
            else:
                self._strangers.add(tie)
                late = partial(self._refuse, tie, f"nothing that is expected here came within {STRANGER_S:.0f} s")
                tie.watch(partial(self._greeted, tie), STRANGER_S, late)

    def _greeted(self, tie: Tie) -> None:
        """A stranger says what it brings, or leaves."""
        try:
            data, descriptors = tie.receive()
        except PeerError as error:
            self._refuse(tie, str(error))
            return
        read = read_brought(data)
        if read is None:
            close_all(descriptors)
            self._refuse(tie, "what came to the door is no link")
            return
        link, ticket, description = read
        brought = _Brought(tie, ticket, description, descriptors)
        if link in self._expected:
            self._match(link, brought)
        elif link in self._brought:
            close_all(descriptors)
            self._refuse(tie, f"link {link}: somebody has brought it already")
        else:
            # Until its time is over.
            self._brought[link] = brought

    def _match(self, link: str, brought: _Brought) -> None:
        """Take what was brought, if it is what is expected."""
        expected = self._expected[link]
        try:
            match_ticket(brought.ticket, expected.ticket)
            expected.take(brought.description, brought.descriptors, brought.tie)
        except (PeerError, OSError) as error:
            close_all(brought.descriptors)
            self._refuse(brought.tie, f"link {link}: {error}")
            return
        del self._expected[link]
        self._strangers.discard(brought.tie)
        # The descriptors are whose who took them. One that has left meanwhile is seen to have let go.
        with suppress(OSError):
            brought.tie.send([""])
        brought.tie.hold(expected.over)

    def _refuse(self, tie: Tie, reason: str) -> None:
        with suppress(OSError):
            tie.send([reason])
        self._send_away(tie)

    def _send_away(self, tie: Tie) -> None:
        self._strangers.discard(tie)
        for link in [link for link, brought in self._brought.items() if brought.tie is tie]:
            close_all(self._brought.pop(link).descriptors)
        tie.end()


def read_brought(data: bytes) -> tuple[str, bytes, dict[str, Any]] | None:
    """The name of a link, its ticket and its description, as a stranger at the door says them; None for all else."""
    try:
        link, ticket, description = msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    known = isinstance(link, str) and isinstance(ticket, bytes) and isinstance(description, dict)
    return (link, ticket, description) if known else None


def _answered(tie: Tie, over: Over, fail: Callable[..., None]) -> None:
    """The other worker has said whether it takes the link."""
    try:
        data, descriptors = tie.receive()
        close_all(descriptors)
        (reason,) = msgpack.unpackb(data)
    except (PeerError, ValueError, TypeError, msgpack.UnpackException):
        fail("the other worker has gone", apart=False)
        return
    if reason:
        fail(f"the other worker does not take it: {reason}", apart=False)
    else:
        tie.hold(over)


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors that nobody took."""
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


def _packets() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
