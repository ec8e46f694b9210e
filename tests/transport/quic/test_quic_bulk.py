"""The short way of bulk data: nearly everything takes it, and nothing is different for who does or does not."""

import random
from collections import Counter

import pytest
from aioquic.quic.connection import QuicConnection

from headrace.transport.quic.bulk import BATCH_PACKETS_MAX, BurstPacer, _varint
from headrace.transport.quic.core import ConnectionEnded, PeerConnected, QuicCore, QuicSettings, StreamReceived
from tests.kits.transport.quic import FAR, Cluster, Network


@pytest.fixture
def net(cluster: Cluster) -> Network:
    settings = QuicSettings(stream_window_bytes=1 << 20)
    return Network(QuicCore(cluster.node("near"), settings), QuicCore(cluster.node("far"), settings), cluster.now)


def connect(net: Network) -> int:
    connection = net.near.connect(FAR, net.now)
    net.run_until(lambda: all(any(isinstance(event, PeerConnected) for event in net.events[end]) for end in net.events))
    return connection


def received(net: Network, end: str) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for event in net.events[end]:
        if isinstance(event, StreamReceived):
            found[event.stream] = found.get(event.stream, b"") + event.data
    return found


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many packets went through the base class, written and read."""
    counts: Counter[str] = Counter()
    read, write = QuicConnection.receive_datagram, QuicConnection._write_stream_frame

    def counted_read(self: QuicConnection, data: bytes, addr: object, now: float) -> None:
        counts["read"] += 1
        read(self, data, addr, now)

    def counted_write(self: QuicConnection, **arguments: object) -> int:
        counts["written"] += 1
        return write(self, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(QuicConnection, "receive_datagram", counted_read)
    monkeypatch.setattr(QuicConnection, "_write_stream_frame", counted_write)
    return counts


def test_nearly_all_of_a_large_transfer_takes_the_short_way(net: Network, long_way: Counter[str]) -> None:
    connection, data = connect(net), random.Random(1).randbytes(3_000_000)
    stream = net.near.open_stream(connection)
    long_way.clear()
    net.near.send(connection, stream, data, end=True)
    net.run_until(lambda: len(received(net, "far").get(stream, b"")) == len(data))
    assert received(net, "far")[stream] == data
    packets = len(data) / 1360
    assert long_way["written"] < packets / 10
    assert long_way["read"] < packets / 4, "acknowledgements included"


@pytest.mark.parametrize("seed", range(3))
def test_several_streams_both_ways_over_a_bad_network_arrive_whole(net: Network, seed: int) -> None:
    connection, rng = connect(net), random.Random(seed)
    (far_connection,) = net.far.connection_numbers()
    delay = net.delay_s

    def fate(data: bytes) -> list[float]:
        if rng.random() < 0.03:
            return []
        late = delay * rng.choice([1, 1, 1, 1.5])
        return [late, 2 * late] if rng.random() < 0.02 else [late]

    net.fate = fate
    sent: dict[str, dict[int, bytes]] = {"near": {}, "far": {}}
    for core, name, number in ((net.near, "far", connection), (net.far, "near", far_connection)):
        for _ in range(3):
            stream = core.open_stream(number)
            sent[name][stream] = rng.randbytes(rng.randint(1, 300_000))
            core.send(number, stream, sent[name][stream], end=True)
    net.run_until(
        lambda: all(sum(map(len, received(net, end).values())) == sum(map(len, sent[end].values())) for end in sent)
    )
    assert {end: received(net, end) for end in sent} == sent
    assert net.near.connection_numbers() == [connection]


def test_streams_take_turns(net: Network) -> None:
    connection = connect(net)
    streams = [net.near.open_stream(connection) for _ in range(3)]
    for stream in streams:
        net.near.send(connection, stream, bytes(900_000))
    net.run_until(lambda: max((len(data) for data in received(net, "far").values()), default=0) >= 450_000)
    assert min(len(received(net, "far").get(stream, b"")) for stream in streams) > 100_000


def test_a_sender_beyond_its_window_is_cut_off_as_ever(net: Network) -> None:
    connection = connect(net)
    stream = net.near.open_stream(connection)
    quic = net.near._connections[connection].quic
    quic._streams[stream].max_stream_data_remote = 1 << 40
    net.near.send(connection, stream, bytes(3 << 20))
    # The receiver announces no more than its first window.
    net.far._connections[net.far.connection_numbers()[0]].quic._write_stream_limits = lambda **_: None  # type: ignore[method-assign]
    net.run_until(lambda: any(isinstance(event, ConnectionEnded) for event in net.events["far"]))
    (end,) = [event for event in net.events["far"] if isinstance(event, ConnectionEnded)]
    assert end.reason == "Over stream data limit"
    assert sum(map(len, received(net, "far").values())) <= 1 << 20


def test_bytes_that_were_changed_on_the_way_are_dropped_and_sent_again(net: Network) -> None:
    connection, rng, data = connect(net), random.Random(5), random.Random(6).randbytes(500_000)
    stream = net.near.open_stream(connection)
    net.near.send(connection, stream, data)
    whole = net.near.transmit
    changed = 0

    def transmit(now: float) -> list[tuple[bytes, object]]:
        nonlocal changed
        datagrams: list[tuple[bytes, object]] = []
        for packet, address in whole(now):
            if rng.random() < 0.05:
                changed += 1
                at = rng.randrange(len(packet))
                packet = packet[:at] + bytes([packet[at] ^ 1 << rng.randrange(8)]) + packet[at + 1 :]
            datagrams.append((packet, address))
        return datagrams

    net.near.transmit = transmit  # type: ignore[method-assign, assignment]
    net.run_until(lambda: len(received(net, "far").get(stream, b"")) == len(data))
    assert received(net, "far")[stream] == data
    assert changed > 5


def test_a_change_of_keys_in_the_middle_costs_nothing(net: Network) -> None:
    connection, data = connect(net), random.Random(7).randbytes(600_000)
    stream = net.near.open_stream(connection)
    net.near.send(connection, stream, data[:300_000])
    net.run_until(lambda: len(received(net, "far").get(stream, b"")) == 300_000)
    net.near._connections[connection].quic.request_key_update()
    net.near.send(connection, stream, data[300_000:])
    net.run_until(lambda: len(received(net, "far").get(stream, b"")) == len(data))
    assert received(net, "far")[stream] == data


@pytest.mark.parametrize("value", [0, 63, 64, 16383, 16384, (1 << 30) - 1, 1 << 30, (1 << 62) - 1])
def test_integers_of_every_size_are_read_and_a_cut_one_harms_nobody(value: int) -> None:
    size, mark = next((n, m) for n, m in ((1, 0), (2, 1), (4, 2), (8, 3)) if value < 1 << (8 * n - 2))
    data = (value | mark << (8 * size - 2)).to_bytes(size, "big")
    assert _varint(b"x" + data, 1) == (value, 1 + size)
    assert _varint(data[:-1], 0)[1] >= size or not data[:-1]


def test_the_pacer_lets_a_batch_go_and_then_waits() -> None:
    pacer = BurstPacer(max_datagram_size=1400)
    assert pacer.allowance(0.0) == BATCH_PACKETS_MAX, "no rate is known yet"
    pacer.update_rate(congestion_window=140_000, smoothed_rtt=0.01)
    allowed = pacer.allowance(1.0)
    # A hundred packets each ten milliseconds, four milliseconds in one go.
    assert allowed == 40
    pacer.spend(allowed)
    assert pacer.allowance(1.0) == 0
    assert pacer.allowance(1.001) == 10
