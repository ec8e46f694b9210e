"""Gates of a cluster's own ways: TCP before each controller, UDP before each task that takes links.

All of them run on one loop in a thread of their own. Who stands at either end of a connection is said by `whose`: the
bytes themselves are encrypted, and stay so. On one host that is the kernel's table of sockets and a mark in the
environment of the processes; the gates of one host of several know others by their addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar, cast

from headrace.chaos.gates.impairments import Affected, Impairment, Impairments, Way
from headrace.chaos.gates.sockets import owner_of, users_of
from headrace.daemon import Nook, host_and_port, peer_user, short_path
from headrace.transport.quic import every_address
from headrace.worker.links import ASK_BYTES_MAX, HOST
from headrace.worker.membership import own_addresses

#: Seconds that the loop's thread has to do what it is asked.
ASK_S_MAX = 10.0
#: Bytes of a stream that are read at once.
PIECE_BYTES = 1 << 16
#: Datagrams that are on their way at most, for one client; more are lost, as in a router.
FLYING_MAX = 20_000
#: What a maker of gates is sent before the address of a controller; a task sends its port alone.
CONTROL_WORD = b"control "
#: Gates of one maker.
GATES_MAX = 4096
#: Clients of one task's gate; the oldest is forgotten for a further one, and comes again.
CLIENTS_MAX = 1024
#: Seconds for which a client that was refused is not looked up again, and how many of them are remembered.
REFUSED_S, REFUSED_MAX = 1.0, 256
#: Seconds that who asks for a gate has to say which.
SAY_S = 5.0
S = TypeVar("S")
T = TypeVar("T")
#: The name of the end of a connection: its protocol, "tcp" or "udp", and where it is as this host sees it.
Whose = Callable[[str, str, int], str]


class NetworkGates:
    """The gates of one cluster, with their impairments. A context manager.

    `mark` is the environment variable whose value in a process names the worker that it belongs to; or `whose` names
    the ends, and tasks are reached from other hosts.
    """

    def __init__(self, seed: int, mark: str = "", *, whose: Whose | None = None) -> None:
        self.whose = whose or (lambda protocol, _host, port: owner_of(protocol, port, mark))
        #: Whether the gates of tasks can be reached from other hosts, and where they are bound.
        self._outward = whose is not None
        self._bound = every_address() if whose else (HOST, 0)
        self.impairments = Impairments(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gates", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        #: What is closed at the end: servers, and the sockets of datagrams.
        self.open: list[asyncio.AbstractServer | asyncio.BaseTransport] = []
        #: Where tasks ask for a gate of their own (worker/links/gate.py): a UNIX socket in a folder of this user's.
        self.registry = ""
        self._nook: Nook | None = None
        self._local = frozenset(own_addresses())
        #: Set, and replaced, when the impairments change.
        self._changed = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self.registry = self._ask(self._open_registry())
        return self

    def __exit__(self, *_: object) -> None:
        self._ask(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ASK_S_MAX)
        self._loop.close()
        if self._nook is not None:
            self._nook.close()

    def admits(self, protocol: str, client: tuple[str, int], gate: tuple[str, int] | None = None) -> bool:
        """Whether a client may pass: processes of this user or root here, and permitted other hosts.

        The kernel says whose a socket of this host is. `gate` is the end that a connected one leads to.
        """
        host = client[0].removeprefix("::ffff:")
        if not host.startswith("127.") and host != "::1" and host not in self._local:
            return self._outward
        try:
            users = users_of(protocol, (host, client[1]), gate)
        except OSError:
            return False  # no IPv4 address: no gate is reached by another from this host
        return bool(users) and users <= {os.geteuid(), 0}

    def control(self, name: str, port: int) -> str:
        """A gate before the controller `name`, which listens on a port of loopback; where it is, as host:port."""
        return self._ask(self.before(name, HOST, port))

    def begin(self, impairment: Impairment) -> Counter[Affected]:
        """Begin an impairment; the returned counter counts what it affects."""
        return self._ask(self._change(self.impairments.begin, impairment))

    def end(self, affected: Counter[Affected]) -> None:
        """End the impairment with this counter."""
        self._ask(self._change(self.impairments.end, affected))

    # -- on the loop --

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(ASK_S_MAX)

    async def _change(self, work: Callable[[S], T], what: S) -> T:
        answer = work(what)
        self._changed.set()
        self._changed = asyncio.Event()
        return answer

    async def way(self, ends: frozenset[str]) -> None:
        """Wait while a control session between these is cut: TCP would hold the bytes, and lose none."""
        if self.impairments.is_cut(Way.CONTROL, ends):
            self.impairments.held(Way.CONTROL, ends)
        while self.impairments.is_cut(Way.CONTROL, ends):
            await self._changed.wait()

    async def _shut(self) -> None:
        # The servers close first: no session begins while the others end.
        for item in self.open:
            item.close()
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        # A transport is closed in the loop's next turn.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def before(self, name: str, host: str, port: int) -> str:
        """A gate before the controller `name`, which listens there."""

        async def guest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._session(name, (host, port), reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            # Also of a session that was cancelled before it began, none of whose lines are run.
            task.add_done_callback(lambda _: writer.close())

        server = await asyncio.start_server(guest, HOST, 0)
        self.open.append(server)
        return f"{HOST}:{server.sockets[0].getsockname()[1]}"

    async def _session(
        self, name: str, to: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One connection to a controller, until either side ends it; the caller closes `writer`."""
        whence = writer.get_extra_info("peername")
        if whence is None:
            return  # it has gone already
        if not self.admits("tcp", whence[:2], writer.get_extra_info("sockname")[:2]):
            return
        try:
            onward_reader, onward = await asyncio.open_connection(*to)
        except OSError:
            return
        pumps: list[asyncio.Future[None]] = []
        try:
            ends = frozenset((name, self.whose("tcp", *whence[:2])))
            for source, into in ((reader, onward), (onward_reader, writer)):
                pumps.append(asyncio.ensure_future(_Pump(self, ends, into).run(source)))
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            onward.close()

    async def _open_registry(self) -> str:
        self._nook = Nook("gates")
        path = self._nook.path / "gates.sock"
        self.open.append(await asyncio.start_unix_server(_Registry(self).asked, short_path(path), limit=ASK_BYTES_MAX))
        return str(path)

    async def front(self, port: int) -> int:
        """The port of a gate before a task's UDP port."""
        owner = self.whose("udp", HOST, port)
        if self._outward and not owner:
            raise PermissionError(f"UDP port {port} is no task's: a gate before it would let other hosts in")
        transport, _ = await self._loop.create_datagram_endpoint(
            lambda: _Front(self, port, owner), local_addr=self._bound[:2]
        )
        return int(transport.get_extra_info("sockname")[1])


class _Pump:
    """One direction of a session. The order of the stream is kept, unless an impairment reorders it."""

    def __init__(self, gates: NetworkGates, ends: frozenset[str], into: asyncio.StreamWriter) -> None:
        self._gates, self._ends, self._into = gates, ends, into
        self._not_before = 0.0

    async def run(self, source: asyncio.StreamReader) -> None:
        """Carry what comes from `source`, to its end."""
        loop = asyncio.get_running_loop()
        while True:
            data = await source.read(PIECE_BYTES)
            if not data:
                return
            await self._gates.way(self._ends)
            for delay_s, is_late, piece in self._gates.impairments.passed(data, Way.CONTROL, self._ends):
                due = loop.time() + delay_s
                if not is_late:
                    due = self._not_before = max(due, self._not_before)
                if due <= loop.time():
                    self._write(piece)
                else:
                    loop.call_at(due, self._write, piece)
            with contextlib.suppress(ConnectionError):
                await self._into.drain()

    def _write(self, piece: bytes) -> None:
        if not self._into.is_closing():
            self._into.write(piece)


class _Registry:
    """Gives each task that asks a gate before its port, and each worker one before a controller. Answers a port."""

    def __init__(self, gates: NetworkGates) -> None:
        self._gates = gates
        self._made: dict[bytes, asyncio.Task[int]] = {}

    async def asked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one line with a port, and nothing where no gate can be made, or another user asks."""
        try:
            if peer_user(writer.get_extra_info("socket")) not in (os.geteuid(), 0):
                return
            async with asyncio.timeout(SAY_S):
                line = (await reader.readuntil(b"\n")).strip()
                if line not in self._made and len(self._made) < GATES_MAX:
                    self._made[line] = asyncio.ensure_future(self._make(line))
                if (made := self._made.get(line)) is not None:
                    try:
                        port = await asyncio.shield(made)
                    except OSError:
                        self._made.pop(line, None)  # another time there may be one
                        raise
                    writer.write(b"%d\n" % port)
                    await writer.drain()
        except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the end of the connection is the answer
        finally:
            writer.close()

    def _make(self, asked: bytes) -> Coroutine[Any, Any, int]:
        """What makes the gate that is asked for. Raises ValueError."""
        if not asked.startswith(CONTROL_WORD):
            return self._gates.front(int(asked))
        address = asked.removeprefix(CONTROL_WORD).decode()
        return self._before(address, *host_and_port(address))

    async def _before(self, address: str, host: str, port: int) -> int:
        return host_and_port(await self._gates.before(address, host, port))[1]


class _Front(asyncio.DatagramProtocol):
    """The gate before one task: a socket of its own for each client, so that answers find their way back."""

    def __init__(self, gates: NetworkGates, port: int, owner: str) -> None:
        self._gates, self._port, self._owner = gates, port, owner
        self._backs: dict[tuple[str, int], _Back] = {}
        #: Clients that may not pass, and until when.
        self._refused: dict[tuple[str, int], float] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._gates.open.append(transport)
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        back = self._backs.get(addr)
        if back is None:
            if not self._admits(addr):
                return
            if len(self._backs) >= CLIENTS_MAX:
                self._backs.pop(next(iter(self._backs))).close()
            ends = frozenset((self._owner, self._gates.whose("udp", *addr[:2])))
            back = self._backs[addr] = _Back(self, addr, self._gates, ends)
            loop = asyncio.get_running_loop()
            opening = loop.create_datagram_endpoint(lambda: back, remote_addr=(HOST, self._port))
            back.opening = asyncio.ensure_future(opening)
        back.carry(data, back.onward)

    def _admits(self, addr: tuple[str, int]) -> bool:
        """Whether a client may pass. One that may not is not looked up at each datagram."""
        now = asyncio.get_running_loop().time()
        if self._refused.get(addr, 0.0) > now:
            return False
        if self._gates.admits("udp", addr[:2]):
            return True
        if len(self._refused) >= REFUSED_MAX:
            self._refused.clear()
        self._refused[addr] = now + REFUSED_S
        return False


class _Back(asyncio.DatagramProtocol):
    """What one client says to the task, and the other way."""

    def __init__(self, front: _Front, client: tuple[str, int], gates: NetworkGates, ends: frozenset[str]) -> None:
        self._front, self._client, self._gates, self._ends = front, client, gates, ends
        self._transport: asyncio.DatagramTransport | None = None
        self._flying = 0
        #: Kept, since the loop itself does not keep it.
        self.opening: asyncio.Future[Any] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._gates.open.append(transport)
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:  # noqa: ARG002 - the base class's
        self.carry(data, self.homeward)

    def close(self) -> None:
        """Nobody says anything this way any more."""
        if self._transport is not None:
            self._transport.close()

    def error_received(self, exc: Exception) -> None:
        """The task is gone: for QUIC's timers to find."""

    def onward(self, data: bytes) -> None:
        """To the task; what comes before the socket is made is lost."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(data)

    def homeward(self, data: bytes) -> None:
        """To the client."""
        self._front.transport.sendto(data, self._client)

    def carry(self, data: bytes, send: Callable[[bytes], None]) -> None:
        """Send what the impairments let through."""
        loop = asyncio.get_running_loop()
        for delay_s, _, piece in self._gates.impairments.passed(data, Way.LINK, self._ends):
            if not delay_s:
                send(piece)
            elif self._flying < FLYING_MAX:
                self._flying += 1
                loop.call_later(delay_s, self._land, piece, send)

    def _land(self, piece: bytes, send: Callable[[bytes], None]) -> None:
        self._flying -= 1
        send(piece)
