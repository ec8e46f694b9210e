"""What strangers, and nodes that turned hostile, can make an endpoint keep: little, and bounded behind judgement."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from aioquic.quic.connection import QuicConnection
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from headrace.cluster.certificates import Credentials, Role, create_node
from headrace.transport.quic.connection import CRYPTO_BYTES_MAX, UNPROVED_BYTES
from headrace.transport.quic.core import ConnectionEnded, PeerConnected, QuicCore, QuicSettings, StreamReceived
from tests.kits.transport.quic import FAR, Cluster, Network

MIB = 1 << 20


def outsider(cluster: Cluster) -> Credentials:
    """A certificate of another authority, and trust in ours."""
    foreign = create_node(Cluster("test").authority, Role.WORKER, "near", cluster.now)
    return Credentials(foreign.certificate_pem, foreign.key_pem, cluster.authority.certificate_pem)


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def greedy(quic: QuicConnection, streams: int, offset: int) -> None:
    """Queue one byte at that offset of each of so many streams, whatever the peer allows."""
    quic._remote_max_data = 1 << 60
    quic._remote_max_streams_bidi = 1 << 20
    quic._remote_max_stream_data_bidi_remote = 1 << 60
    for number in range(streams):
        stream = quic._get_or_create_stream_for_send(4 * number)
        stream.max_stream_data_remote = 1 << 60
        sender = stream.sender
        sender._buffer_start = sender._buffer_stop = sender.highest_offset = offset
        quic.send_stream_data(4 * number, b"x")


def held_bytes(core: QuicCore) -> int:
    return sum(entry.quic.held_bytes() for entry in core._connections.values())


def attack(net: Network, connections: int, streams: int, offset: int) -> None:
    """As soon as a connection of the near end is through, it asks for more than it may have."""
    numbers = [net.near.connect(FAR, net.now) for _ in range(connections)]
    begun: set[int] = set()
    most = 0

    def over() -> bool:
        nonlocal most
        for event in net.events["near"]:
            if isinstance(event, PeerConnected) and event.connection not in begun:
                begun.add(event.connection)
                greedy(net.near._connections[event.connection].quic, streams, offset)
                net.near._dirty[event.connection] = net.near._connections[event.connection]
        most = max(most, held_bytes(net.far))
        ended = [event for event in net.events["near"] if isinstance(event, ConnectionEnded)]
        return len(ended) == len(numbers)

    net.run_until(over)
    assert len(begun) == connections, "nothing was tried"
    net.most = most  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("streams", "offset"), [(100, 4 * MIB - 1), (4, 4 * MIB - 1), (1, 1 << 40), (8, 8191), (100, 0)]
)
def test_a_stranger_has_next_to_nothing_kept_for_it(cluster: Cluster, streams: int, offset: int) -> None:
    net = Network(
        QuicCore(outsider(cluster), QuicSettings()), QuicCore(cluster.node("far"), QuicSettings()), cluster.now
    )
    before = resident_bytes()
    attack(net, 10, streams, offset)
    assert net.most <= 10 * UNPROVED_BYTES  # type: ignore[attr-defined]
    assert resident_bytes() - before < 24 * MIB
    assert not [event for event in net.events["far"] if isinstance(event, StreamReceived | PeerConnected)]


@pytest.mark.parametrize("offset", [4 * MIB - 1, 1 << 40])
def test_a_node_that_turned_hostile_has_its_window_and_no_more(cluster: Cluster, offset: int) -> None:
    settings = QuicSettings(connection_window_bytes=8 * MIB)
    net = Network(QuicCore(cluster.node("near"), QuicSettings()), QuicCore(cluster.node("far"), settings), cluster.now)
    number = net.near.connect(FAR, net.now)
    net.run_until(lambda: len(net.events["near"]) == len(net.events["far"]) == 1)
    # Behind judgement, when it has been told what it may send.
    net.near.send(number, net.near.open_stream(number), b"hello")
    net.run_until(lambda: any(isinstance(event, StreamReceived) for event in net.events["far"]))
    before = resident_bytes()
    greedy(net.near._connections[number].quic, 100, offset)
    net.near._dirty[number] = net.near._connections[number]
    most = 0

    def over() -> bool:
        nonlocal most
        most = max(most, held_bytes(net.far))
        return any(isinstance(event, ConnectionEnded) for event in net.events["near"])

    net.run_until(over)
    assert most <= 8 * MIB
    assert resident_bytes() - before < 40 * MIB


def test_a_connection_goes_on_far_behind_its_first_window(cluster: Cluster) -> None:
    settings = QuicSettings(stream_window_bytes=64 << 10, connection_window_bytes=128 << 10)
    net = Network(QuicCore(cluster.node("near"), settings), QuicCore(cluster.node("far"), settings), cluster.now)
    number = net.near.connect(FAR, net.now)
    net.run_until(lambda: len(net.events["near"]) == len(net.events["far"]) == 1)
    streams = [net.near.open_stream(number) for _ in range(4)]
    for stream in streams:
        net.near.send(number, stream, bytes(MIB), end=True)

    def received() -> int:
        return sum(len(event.data) for event in net.events["far"] if isinstance(event, StreamReceived))

    net.run_until(lambda: received() == 4 * MIB)
    assert held_bytes(net.far) == 0


def test_more_streams_than_may_be_open_go_through_singly(cluster: Cluster) -> None:
    settings = QuicSettings(streams_max=16)
    net = Network(QuicCore(cluster.node("near"), settings), QuicCore(cluster.node("far"), settings), cluster.now)
    number = net.near.connect(FAR, net.now)
    net.run_until(lambda: len(net.events["near"]) == len(net.events["far"]) == 1)
    for _ in range(60):
        net.near.send(number, net.near.open_stream(number), b"x", end=True)
    answered: set[int] = set()

    def over() -> bool:
        for event in net.events["far"]:
            if isinstance(event, StreamReceived) and event.end and event.stream not in answered:
                answered.add(event.stream)
                net.far.send(event.connection, event.stream, b"", end=True)
        return len(answered) == 60

    net.run_until(over)


def first_packets(cluster: Cluster, count: int, step: Callable[[bytes, tuple[str, int]], None]) -> None:
    """First packets of so many connections, each from an address of its own."""
    core = QuicCore(cluster.node("near"), QuicSettings())
    for number in range(count):
        core.connect(FAR, 0.0)
        ((data, _),) = core.transmit(0.0)
        step(data, ("10.1.0.1", number + 1))


def test_many_strangers_must_show_addresses_and_none_is_kept_before(cluster: Cluster) -> None:
    far = QuicCore(cluster.node("far"), QuicSettings(handshakes_max=8))
    answers: list[bytes] = []

    def step(data: bytes, address: tuple[str, int]) -> None:
        far.receive([(data, address)], 0.0, cluster.now)
        answers.extend(answer for answer, to in far.transmit(0.0) if to == address)

    first_packets(cluster, 200, step)
    assert len(far.connection_numbers()) == 2
    retries = [answer for answer in answers if answer[0] & 0xF0 == 0xF0]
    assert len(retries) == 198
    assert max(map(len, retries)) < 1200


def test_a_node_gets_in_while_strangers_flood(cluster: Cluster) -> None:
    settings = QuicSettings(handshakes_max=8)
    net = Network(QuicCore(cluster.node("near"), settings), QuicCore(cluster.node("far"), settings), cluster.now)
    first_packets(cluster, 100, lambda data, address: net.far.receive([(data, address)], 0.0, cluster.now))
    net.far.transmit(0.0)
    net.near.connect(FAR, net.now)
    net.run_until(lambda: any(isinstance(event, PeerConnected) for event in net.events["far"]), limit_s=4.0)


def test_the_oldest_stranger_gives_way_where_all_have_shown_their_address(cluster: Cluster) -> None:
    settings = QuicSettings(handshakes_max=4)
    far = QuicCore(cluster.node("far"), settings)
    near = QuicCore(cluster.node("near"), settings)
    for _ in range(10):
        number = near.connect(FAR, 0.0)
        for data, _ in near.transmit(0.0):
            far.receive([(data, ("10.0.0.1", 1))], 0.0, cluster.now)
        for data, _ in far.transmit(0.0):
            if data[0] & 0xF0 == 0xF0:  # a Retry; it comes back with a first packet that shows the address
                near.receive([(data, FAR)], 0.0, cluster.now)
        for data, _ in near.transmit(0.0):
            far.receive([(data, ("10.0.0.1", 1))], 0.0, cluster.now)
        assert near._connections[number].peer is None
    assert len(far.connection_numbers()) == 4
    assert min(far.connection_numbers()) == 7


def test_a_forged_token_begins_nothing(cluster: Cluster) -> None:
    far = QuicCore(cluster.node("far"), QuicSettings(handshakes_max=4))
    near = QuicCore(cluster.node("near"), QuicSettings())
    number = near.connect(FAR, 0.0)
    near._connections[number].quic._peer_token = b"x" * 60
    for data, _ in near.transmit(0.0):
        far.receive([(data, ("10.0.0.1", 1))], 0.0, cluster.now)
    assert far.connection_numbers() == []


def test_one_node_has_so_many_connections_and_no_more(cluster: Cluster) -> None:
    net = Network(
        QuicCore(cluster.node("near"), QuicSettings()),
        QuicCore(cluster.node("far"), QuicSettings(connections_max=3)),
        cluster.now,
    )
    for _ in range(5):
        net.near.connect(FAR, net.now)

    def ended() -> list[ConnectionEnded]:
        return [event for event in net.events["near"] if isinstance(event, ConnectionEnded)]

    net.run_until(lambda: len(ended()) == 2)
    assert "near has 3 connections here, which is the limit" in ended()[0].reason
    assert sum(isinstance(event, PeerConnected) for event in net.events["far"]) == 3


def test_more_of_tls_than_a_handshake_needs_ends_the_connection(cluster: Cluster) -> None:
    net = Network(
        QuicCore(cluster.node("near"), QuicSettings()), QuicCore(cluster.node("far"), QuicSettings()), cluster.now
    )
    number = net.near.connect(FAR, net.now)
    net.run_until(lambda: len(net.events["near"]) == len(net.events["far"]) == 1)
    quic = net.near._connections[number].quic
    sender = max(quic._crypto_streams.items(), key=lambda item: item[0].value)[1].sender
    sender._buffer_start = sender._buffer_stop = sender.highest_offset = CRYPTO_BYTES_MAX
    sender.write(b"x")
    net.near._dirty[number] = net.near._connections[number]
    net.run_until(lambda: any(isinstance(event, ConnectionEnded) for event in net.events["far"]))
    (end,) = [event for event in net.events["far"] if isinstance(event, ConnectionEnded)]
    assert "more than 65536 bytes of TLS" in end.reason


class Altered:
    """A certificate as its holder sends it, with some bytes of it exchanged."""

    def __init__(self, certificate: x509.Certificate, what: bytes, by: bytes) -> None:
        self._certificate, self._what, self._by = certificate, what, by

    def public_bytes(self, encoding: serialization.Encoding) -> bytes:
        der = self._certificate.public_bytes(encoding)
        assert self._what in der
        return der.replace(self._what, self._by, 1)

    def public_key(self) -> object:
        return self._certificate.public_key()


#: What the library refuses at once though not by a ValueError (the version), and what it refuses when it is asked for.
UNREADABLE = [(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x7d"), (b"\x0c\x04near", b"\x0c\x04\xff\xff\xff\xff")]


@pytest.mark.parametrize(("what", "by"), UNREADABLE)
def test_a_certificate_that_cannot_be_read_ends_its_connection_alone(cluster: Cluster, what: bytes, by: bytes) -> None:
    net = Network(
        QuicCore(outsider(cluster), QuicSettings()), QuicCore(cluster.node("far"), QuicSettings()), cluster.now
    )
    bad = net.near.connect(FAR, net.now)
    tls = net.near._connections[bad].quic.tls
    tls.certificate = Altered(tls.certificate, what, by)  # type: ignore[assignment]
    net.run_until(lambda: any(isinstance(event, ConnectionEnded) for event in net.events["near"]))
    assert not [event for event in net.events["far"] if isinstance(event, PeerConnected)]
