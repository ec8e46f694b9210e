"""Pairs of ends to test: one per transport, and the far end of a ring in a process of its own."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headrace.transport.contract import Receiver, Sender
from headrace.transport.core.relay_table import RelayTable, rendezvous
from headrace.transport.pipe.pipe import PipeReceiver, PipeSender, create_pipe
from headrace.transport.quic.endpoint import QuicEndpoint
from headrace.transport.quic.relay import Relay
from headrace.transport.ring import RingHandles, RingReceiver, RingSender, create_ring
from tests.kits.transport.inline import create_inline
from tests.kits.transport.links import PATIENCE_S, MakePair, MakeRing, SettledPair, Spawn
from tests.kits.transport.quic import LOOPBACK, Cluster, opened

LINKS = itertools.count()


@pytest.fixture
def make_ring() -> Iterator[MakeRing]:
    made: list[RingHandles] = []

    def make(
        window_bytes: int = 1 << 16, capacity_bytes: int = 1 << 20, soft_bytes: int = 1 << 19, generation: int = 1
    ) -> RingHandles:
        handles = create_ring("a->b", capacity_bytes, window_bytes, generation, soft_bytes=soft_bytes)
        made.append(handles)
        return handles

    yield make
    for handles in made:
        handles.close_descriptors()


@pytest.fixture(params=["inline", "ring", "pipe", "quic", "relayed"])
def make_pair(request: pytest.FixtureRequest, make_ring: MakeRing) -> MakePair:
    def inline(window_bytes: int = 1 << 16, capacity_bytes: int = 1 << 20) -> tuple[Sender, Receiver]:
        return create_inline("a->b", window_bytes, limit_bytes=capacity_bytes - 64)

    def ring(window_bytes: int = 1 << 16, capacity_bytes: int = 1 << 20) -> tuple[Sender, Receiver]:
        handles = make_ring(window_bytes, capacity_bytes)
        return RingSender(handles), RingReceiver(handles)

    def pipe(window_bytes: int = 1 << 16, capacity_bytes: int = 1 << 20) -> tuple[Sender, Receiver]:
        handles = create_pipe("a->b", window_bytes, limit_bytes=capacity_bytes - 64)
        pair = SettledPair(PipeSender(handles), PipeReceiver(handles), window_bytes)
        request.addfinalizer(pair.sender.detach)
        request.addfinalizer(pair.receiver.detach)
        return pair.ends()

    def quic(window_bytes: int = 1 << 16, capacity_bytes: int = 1 << 20) -> tuple[Sender, Receiver]:
        near, far = request.getfixturevalue("endpoints")
        name = f"a->b {next(LINKS)}"
        receiver = far.expect_link(name, lambda ticket, peer: None, window_bytes, capacity_bytes - 64)
        sender = near.open_link(name, far.address, b"ticket", peer_name="far")
        request.addfinalizer(sender.detach)
        request.addfinalizer(receiver.detach)
        opened(sender)
        return SettledPair(sender, receiver, window_bytes).ends()

    def relayed(window_bytes: int = 1 << 16, capacity_bytes: int = 1 << 20) -> tuple[Sender, Receiver]:
        relay: Relay = request.getfixturevalue("relay_of_all")
        cluster: Cluster = request.getfixturevalue("cluster")
        name, at = f"a->b {next(LINKS)}", ("127.0.0.1", relay.port)
        tickets = (f"{name} sends".encode(), f"{name} receives".encode())
        relay.open(name, tickets)
        near, far = (QuicEndpoint(LOOPBACK, cluster.node(node)) for node in ("near", "far"))
        for endpoint, ticket in zip((near, far), tickets, strict=True):
            request.addfinalizer(endpoint.close)
            endpoint.rendezvous([at], rendezvous(ticket))
        receiver = far.expect_link(name, lambda ticket, peer: None, window_bytes, capacity_bytes - 64)
        sender = near.open_link(name, at, b"ticket", peer_name="far")
        opened(sender)
        return SettledPair(sender, receiver, window_bytes).ends()

    ways = {"inline": inline, "ring": ring, "pipe": pipe, "quic": quic, "relayed": relayed}
    return ways[request.param]


@pytest.fixture(scope="session")
def relay_of_all() -> Iterator[Relay]:
    """The relay of every link that goes through one."""
    relay = Relay(LOOPBACK, RelayTable(paths_max=1000))
    yield relay
    relay.close()


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return Cluster("test")


@pytest.fixture(scope="session")
def endpoints(cluster: Cluster) -> Iterator[tuple[QuicEndpoint, QuicEndpoint]]:
    """Two nodes on the loopback device, for all links of all tests."""
    with QuicEndpoint(LOOPBACK, cluster.node("near")) as near, QuicEndpoint(LOOPBACK, cluster.node("far")) as far:
        yield near, far


@pytest.fixture
def spawn_peer() -> Iterator[Spawn]:
    """Start the kit `ring_peer` in the role of the sender or the receiver of a ring."""
    started: list[subprocess.Popen[str]] = []

    def spawn(role: str, handles: RingHandles, *, frames: int = 0) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "tests.kits.transport.ring_peer", role]
        process = subprocess.Popen(
            [*command, json.dumps(handles.describe()), str(frames)],
            pass_fds=handles.descriptors(),
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield spawn
    for process in started:
        process.kill()
        process.wait(PATIENCE_S)
        if process.stdout:
            process.stdout.close()
