"""What the tests of QUIC share: a cluster with an authority, two cores and a network between them, and short verbs."""

import heapq
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from headrace.cluster.certificates import Credentials, Role, create_authority, create_node
from headrace.transport.quic.core import Address, Datagram, Event, QuicCore
from headrace.transport.quic.links import QuicSender
from headrace.transport.wait import wait_any
from tests.kits.transport.links import PATIENCE_S

LOOPBACK = ("127.0.0.1", 0)
NEAR: Address = ("10.0.0.1", 1)
FAR: Address = ("10.0.0.2", 2)


class Cluster:
    """An authority, and the nodes that it has issued certificates for."""

    def __init__(self, name: str) -> None:
        self.now = datetime.now(UTC)
        self.authority = create_authority(name, self.now)

    def node(
        self, name: str, role: Role = Role.WORKER, *, made: timedelta = timedelta(), lifetime: timedelta = timedelta(1)
    ) -> Credentials:
        return create_node(self.authority, role, name, self.now + made, lifetime=lifetime)


def opened(sender: QuicSender) -> QuicSender:
    """Wait until the receiver has welcomed the sender."""
    deadline = time.monotonic() + PATIENCE_S
    while not sender.credit_bytes():
        assert time.monotonic() < deadline, "the link was not opened"
        wait_any([sender], 0.1)
    return sender


class Network:
    """Two cores and the datagrams between them, on a clock of their own: nothing waits, and each run is the same."""

    def __init__(self, near: QuicCore, far: QuicCore, now: datetime, seed: int = 0) -> None:
        self.near, self.far, self.utc = near, far, now
        self.now = 0.0
        #: One way, in seconds.
        self.delay_s = 0.01
        self.random = random.Random(seed)
        #: Decides what becomes of a datagram: the delays of its copies, in seconds; none if it is lost.
        self.fate: Callable[[bytes], list[float]] = lambda data: [self.delay_s]
        #: What the far core sees as the near one's address.
        self.near_address = NEAR
        self.events: dict[str, list[Event]] = {"near": [], "far": []}
        self._flying: list[tuple[float, int, str, Datagram]] = []
        self._sent = 0

    def step(self) -> None:
        """Go on to the next moment at which something happens, and let it happen."""
        self._send("far", self.near.transmit(self.now), None)
        self._send("near", self.far.transmit(self.now), FAR)
        times = [core.next_timer() for core in (self.near, self.far)]
        moments = [moment for moment in times if moment is not None] + [entry[0] for entry in self._flying[:1]]
        self.now = max(self.now, min(moments))
        # What comes within a millisecond comes in one batch, as it does to a thread that was asleep.
        self.now += 1e-3
        arrived: dict[str, list[Datagram]] = {"near": [], "far": []}
        while self._flying and self._flying[0][0] <= self.now:
            _, _, to, datagram = heapq.heappop(self._flying)
            arrived[to].append(datagram)
        for name, core in (("near", self.near), ("far", self.far)):
            core.receive(arrived[name], self.now, self.utc)
            core.tick(self.now)
            self.events[name] += core.events()

    def run_until(self, done: Callable[[], bool], limit_s: float = 60.0) -> None:
        """Step until `done`, for at most `limit_s` seconds of the network's own time."""
        until = self.now + limit_s
        while not done():
            assert self.now < until, f"not within {limit_s} s: {self.events}"
            self.step()

    def _send(self, to: str, datagrams: list[Datagram], source: Address | None) -> None:
        for data, _ in datagrams:
            for delay_s in self.fate(data):
                self._sent += 1
                entry = (self.now + delay_s, self._sent, to, (data, source or self.near_address))
                heapq.heappush(self._flying, entry)
