"""A relay passes datagrams on between two ends that have its tickets, and is of no use to anybody else."""

import itertools
import socket
import time
from collections.abc import Iterator

import pytest

from headrace.transport.core.errors import LinkAborted
from headrace.transport.core.relay_table import BURST_S, IDLE_S, SILENT_S, RelayFullError, RelayTable, rendezvous
from headrace.transport.quic.endpoint import QuicEndpoint, QuicSettings
from headrace.transport.quic.relay import Relay
from headrace.transport.wait import wait_any
from tests.kits.transport.links import PATIENCE_S, frame_of
from tests.kits.transport.quic import LOOPBACK, Cluster, opened

NEAR, FAR, OTHER = ("10.0.0.1", 1), ("10.0.0.2", 2), ("10.0.0.3", 3)
TICKETS = (b"the sender's", b"the receiver's")


def table_with_a_path(rate_bytes_s: float = 1e9) -> RelayTable:
    table = RelayTable(paths_max=2, rate_bytes_s=rate_bytes_s)
    table.open("link", TICKETS, 0.0)
    assert table.take([(rendezvous(TICKETS[0]), NEAR), (rendezvous(TICKETS[1]), FAR)], 0.0) == []
    return table


def test_what_comes_from_one_end_goes_to_the_other_unchanged() -> None:
    table = table_with_a_path()
    assert table.take([(b"there", NEAR), (b"back", FAR)], 1.0) == [(b"there", FAR), (b"back", NEAR)]
    told = table.statistics()
    assert (told.paths, told.refused, told.passed_bytes) == (1, 0, len(b"there") + len(b"back"))


def test_a_rendezvous_is_neither_answered_nor_passed_on() -> None:
    table = table_with_a_path()
    assert table.take([(rendezvous(TICKETS[0]), NEAR), (rendezvous(b"guess"), OTHER)], 1.0) == []


@pytest.mark.parametrize(
    "said", [b"", b"x" * 1400, rendezvous(b""), rendezvous(TICKETS[0][:-1]), rendezvous(TICKETS[0] + b"x")]
)
def test_who_has_no_ticket_gets_nothing_through(said: bytes) -> None:
    table = table_with_a_path()
    assert table.take([(said, OTHER), (b"data", OTHER)], 1.0) == []
    assert table.counts["unknown sender"] == 1 + (not said.startswith(rendezvous(b"")))
    assert table.counts["passed"] == 0
    assert table.take([(b"data", NEAR)], 1.0) == [(b"data", FAR)], "and disturbs nobody"


def test_before_the_other_end_is_known_datagrams_are_dropped() -> None:
    table = RelayTable()
    table.open("link", TICKETS, 0.0)
    assert table.take([(rendezvous(TICKETS[0]), NEAR), (b"early", NEAR)], 0.0) == []
    assert table.counts["peer absent"] == 1


def test_a_heard_end_keeps_its_address_and_a_moved_regains_it() -> None:
    table = table_with_a_path()
    table.take([(b"data", NEAR), (rendezvous(TICKETS[0]), OTHER)], 10.0)
    assert table.take([(b"back", FAR)], 10.0) == [(b"back", NEAR)]
    moved = 10.0 + SILENT_S
    table.take([(rendezvous(TICKETS[0]), OTHER)], moved)
    assert table.take([(b"back", FAR), (b"late", NEAR)], moved) == [(b"back", OTHER)]


def test_an_address_is_an_end_of_the_last_path_that_it_joined() -> None:
    table = table_with_a_path()
    table.open("second", (b"a", b"b"), 0.0)
    table.take([(rendezvous(b"a"), NEAR), (rendezvous(b"b"), OTHER)], 0.0)
    assert table.take([(b"data", NEAR), (b"back", OTHER), (b"old", FAR)], 0.0) == [(b"data", OTHER), (b"back", NEAR)]


def test_over_the_rate_datagrams_are_dropped_and_under_it_they_pass_again() -> None:
    table = table_with_a_path(rate_bytes_s=10_000)
    burst = int(10_000 * BURST_S / 100)
    assert len(table.take([(b"x" * 100, NEAR)] * (3 * burst), 0.0)) == burst
    assert len(table.take([(b"x" * 100, NEAR)] * 100, 0.05)) == 5
    assert table.counts["over rate"] == 2 * burst + 95


def test_paths_stay_below_their_limit_until_one_is_idle() -> None:
    table = table_with_a_path()
    table.open("second", (b"a", b"b"), 0.0)
    with pytest.raises(RelayFullError, match="there are 2"):
        table.open("third", (b"c", b"d"), 1.0)
    table.take([(b"data", NEAR)], IDLE_S - 1)
    table.open("third", (b"c", b"d"), IDLE_S)
    assert table.take([(b"data", NEAR)], IDLE_S) == [(b"data", FAR)], "the one that is used stays"


def test_a_path_of_the_same_name_replaces_the_earlier() -> None:
    table = table_with_a_path()
    table.open("link", (b"new", b"newer"), 1.0)
    assert len(table) == 1
    assert table.take([(b"data", NEAR)], 1.0) == []


@pytest.fixture
def relay() -> Iterator[Relay]:
    relay = Relay(LOOPBACK)
    yield relay
    relay.close()


NAMES = (f"relayed {number}" for number in itertools.count())


def test_two_endpoints_with_a_relay_alone_have_a_proven_link(cluster: Cluster, relay: Relay) -> None:
    at = ("127.0.0.1", relay.port)
    seen: list[str] = []
    with QuicEndpoint(LOOPBACK, cluster.node("near")) as near, QuicEndpoint(LOOPBACK, cluster.node("far")) as far:
        # The knocks come before the relay knows of the path, as they may.
        far.rendezvous([at], rendezvous(TICKETS[1]))
        near.rendezvous([at], rendezvous(TICKETS[0]))
        receiver = far.expect_link("a->b", lambda ticket, peer: seen.append(peer.identity.name))  # type: ignore[func-returns-value]
        sender = near.open_link("a->b", at, b"ticket", peer_name="far")
        relay.open("a->b", TICKETS)
        opened(sender)
        assert sender.address == at
        for number in range(20):
            frame = frame_of(number, 50_000)
            while not sender.try_send(frame):
                assert wait_any([sender], PATIENCE_S)
            while (received := receiver.try_receive()) is None:
                assert wait_any([receiver], PATIENCE_S)
            assert received.frame.body == frame.body
            received.release()
    assert seen == ["near"]
    assert relay.statistics().datagrams["passed"] > 700


def test_a_relay_keeps_to_its_tables_limits() -> None:
    relay = Relay(LOOPBACK, RelayTable(paths_max=1))
    try:
        relay.open("first", TICKETS)
        with pytest.raises(RelayFullError, match="relay path second: there are 1, which is the limit"):
            relay.open("second", (b"x", b"y"))
    finally:
        relay.close()


def test_without_a_path_nobody_is_found_and_the_sender_says_so(cluster: Cluster, relay: Relay) -> None:
    relay.open("another", (b"x", b"y"))
    with QuicEndpoint(LOOPBACK, cluster.node("near"), QuicSettings(handshake_s=0.4)) as near:
        near.rendezvous([("127.0.0.1", relay.port)], rendezvous(TICKETS[0]))
        sender = near.open_link("a->b", ("127.0.0.1", relay.port), peer_name="far")
        with pytest.raises(LinkAborted, match="the handshake took too long"):
            opened(sender)
        assert sender.unreachable
    assert relay.statistics().datagrams["unknown ticket"] >= 1
    assert "passed" not in {key for key, count in relay.statistics().datagrams.items() if count}


def test_a_flood_of_strangers_costs_a_relay_no_memory(relay: Relay) -> None:
    relay.open("link", TICKETS)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        deadline = time.monotonic() + PATIENCE_S
        while relay.statistics().datagrams.get("unknown sender", 0) < 2000:
            assert time.monotonic() < deadline
            for number in range(200):
                stranger.sendto(b"\x40" + number.to_bytes(8, "little") * 150, ("127.0.0.1", relay.port))
    assert len(relay._table) == 1
    assert relay._table._by_address == {}
    assert relay.statistics().datagrams["passed"] == 0
