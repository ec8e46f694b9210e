"""The relay of a node: one UDP socket and one thread, which `relay_table` tells what goes where.

The thread begins with the first path. It drains the socket, passes on what may go on, and keeps nothing: while the send
buffer is full it does not read, so what waits is at most one batch and the kernel's buffers, and the rest is lost.
"""

import os
import select
import threading
import time
from contextlib import suppress

from headrace.daemon import threads
from headrace.transport.core import Address, RelayStatistics, RelayTable
from headrace.transport.quic.udp import UdpSocket

#: System calls of one batch of receiving.
_RECEIVE_CALLS_MAX = 16
#: The thread looks around at least so often, in seconds.
_IDLE_S = 5.0
#: How long `close` waits for the thread, in seconds.
_JOIN_S = 10.0


class Relay:
    """Passes datagrams on between nodes that cannot reach each other. Verbs may be called on any thread."""

    def __init__(self, address: Address, table: RelayTable | None = None) -> None:
        self._socket = UdpSocket(address)
        # A table without paths is false: `or` would take another in its place.
        self._table = RelayTable() if table is None else table
        self._lock = threading.Lock()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The UDP port that it listens on."""
        return self._socket.address[1]

    def open(self, name: str, tickets: tuple[bytes, bytes]) -> None:
        """Add a path between the holders of two tickets. Raises RelayFullError."""
        with self._lock:
            self._table.open(name, tickets, time.monotonic())
            if self._thread is None:
                self._thread = threads.start("relay", self._run)

    def statistics(self) -> RelayStatistics:
        """Return what it has done so far; paths that nobody uses any more are forgotten first."""
        with self._lock:
            self._table.expire(time.monotonic())
            return self._table.statistics()

    def close(self) -> None:
        """End the relay; its paths are gone."""
        self._stopping = True
        with suppress(OSError):
            os.eventfd_write(self._wake_fd, 1)
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        self._socket.close()
        os.close(self._wake_fd)

    def _run(self) -> None:
        with select.epoll() as epoll:
            epoll.register(self._wake_fd, select.EPOLLIN)
            epoll.register(self._socket.fileno(), select.EPOLLIN)
            while not self._stopping:
                # What waits for the send buffer goes first, and nothing more is read meanwhile.
                waits = self._socket.wants_to_write
                epoll.modify(self._socket.fileno(), select.EPOLLOUT if waits else select.EPOLLIN)
                epoll.poll(_IDLE_S)
                now = time.monotonic()
                if waits:
                    self._socket.send(())
                    continue
                arrived = list(self._socket.receive(_RECEIVE_CALLS_MAX))
                with self._lock:
                    passed = self._table.take(arrived, now)
                    if not arrived:
                        self._table.expire(now)
                self._socket.send(passed)
