"""A peer that does not keep to the rules gets a refusal with a name, and costs a bounded amount of memory.

The hostile one has a good certificate and a QUIC core of its own, and says what it likes on its streams. What it cannot
do without one is in `test_quic_core.py`; all kinds of nonsense as frames are in `test_frame.py` and `fuzz_decoders.py`.
"""

import select
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import QuicProtocolVersion

from headrace.cluster.certificates import Credentials, Peer
from headrace.transport.contract import Receiver
from headrace.transport.core.errors import FrameError, LinkAborted
from headrace.transport.core.frame import (
    FRAME_LIMIT_BYTES,
    HEADER_BYTES,
    Aborted,
    Frame,
    FrameKind,
    Granted,
    Welcomed,
    decode_control,
    encode,
    encode_control,
    frame_size,
)
from headrace.transport.quic import endpoint
from headrace.transport.quic.core import Address, ConnectionEnded, PeerConnected, QuicCore, QuicSettings, StreamReceived
from headrace.transport.quic.endpoint import HELLO_LIMIT_BYTES, QuicEndpoint
from headrace.transport.quic.links import link_key
from headrace.transport.quic.udp import UdpSocket
from headrace.transport.wait import wait_any
from tests.kits.transport.links import PATIENCE_S, frame_of
from tests.kits.transport.quic import FAR, LOOPBACK, Cluster, Network

WINDOW_BYTES = 10_000


class CoreOfAnotherProtocol(QuicCore):
    def _configuration(self, *, is_client: bool) -> QuicConfiguration:
        configuration = super()._configuration(is_client=is_client)
        configuration.alpn_protocols = ["headrace/2", "h3"]
        return configuration


class CoreOfAnotherVersion(QuicCore):
    def _configuration(self, *, is_client: bool) -> QuicConfiguration:
        configuration = super()._configuration(is_client=is_client)
        configuration.supported_versions = [QuicProtocolVersion.VERSION_2]
        return configuration


@pytest.mark.parametrize(
    ("core", "reason"),
    [
        (CoreOfAnotherProtocol, "No common ALPN protocols"),
        (CoreOfAnotherVersion, "Could not find a common protocol version"),
    ],
)
def test_a_peer_of_another_language_is_refused_by_name_tracelessly(
    cluster: Cluster, core: type[QuicCore], reason: str
) -> None:
    far = QuicCore(cluster.node("far"), QuicSettings())
    net = Network(core(cluster.node("near"), QuicSettings()), far, cluster.now)
    net.near.connect(FAR, net.now)
    net.run_until(lambda: any(isinstance(event, ConnectionEnded) for event in net.events["near"]))
    (end,) = [event for event in net.events["near"] if isinstance(event, ConnectionEnded)]
    assert reason in end.reason
    assert not any(isinstance(event, PeerConnected) for event in net.events["far"])
    net.run_until(lambda: not far.connection_numbers())


def test_many_of_another_version_cost_one_small_answer_each_and_no_connection(cluster: Cluster) -> None:
    far = QuicCore(cluster.node("far"), QuicSettings(handshakes_max=3))
    for number in range(10):
        near = CoreOfAnotherVersion(cluster.node("near"), QuicSettings())
        near.connect(FAR, 0.0)
        far.receive([(data, ("10.0.0.1", number)) for data, _ in near.transmit(0.0)], 0.0, cluster.now)
    answers = far.transmit(0.0)
    assert len(answers) == 3
    assert all(len(data) < 50 for data, _ in answers)
    assert far.connection_numbers() == []


class Hostile:
    """A node with a good certificate that says what it likes."""

    def __init__(self, credentials: Credentials, target: Address) -> None:
        self._core, self._socket = QuicCore(credentials, QuicSettings()), UdpSocket(LOOPBACK)
        self.connection = self._core.connect(target, time.monotonic())
        self.heard: dict[int, bytes] = {}
        self._peer = False
        self.until(lambda: self._peer)

    def step(self) -> None:
        """Send what is to be sent, and take in what comes within a moment."""
        self._socket.send(self._core.transmit(time.monotonic()))
        select.select([self._socket], [], [], 0.02)
        now = time.monotonic()
        self._core.receive(self._socket.receive(8), now, datetime.now(UTC))
        self._core.tick(now)
        for event in self._core.events():
            if isinstance(event, StreamReceived):
                self.heard[event.stream] = self.heard.get(event.stream, b"") + event.data
            self._peer = self._peer or isinstance(event, PeerConnected)
            assert not isinstance(event, ConnectionEnded), event

    def until(self, what: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < deadline, self.heard
            self.step()

    def say(self, data: bytes, stream: int | None = None, *, end: bool = False) -> int:
        """Say something on a stream, or on a new one; its number."""
        stream = self._core.open_stream(self.connection) if stream is None else stream
        self._core.send(self.connection, stream, data, end=end)
        self.step()
        return stream

    def notices(self) -> list[str]:
        """What the other side gave as reasons for what it has cut."""
        found: list[str] = []
        for raw in self.heard.values():
            try:
                message = decode_control(raw[: frame_size(raw, HELLO_LIMIT_BYTES)])
            except FrameError:
                continue
            if isinstance(message, Aborted):
                found.append(message.reason)
        return found

    def close(self) -> None:
        self._core.close(self.connection, "enough")
        self._socket.send(self._core.transmit(time.monotonic()))
        self._socket.close()


@pytest.fixture
def hostile(cluster: Cluster, endpoints: tuple[QuicEndpoint, QuicEndpoint]) -> Iterator[Hostile]:
    hostile = Hostile(cluster.node("hostile"), endpoints[1].address)
    yield hostile
    hostile.close()


def hello(name: str, ticket: bytes = b"ticket") -> bytes:
    return encode(Frame(FrameKind.HELLO, 0, link_key(name), 0, 0, ticket, b""))


def with_header(offset: int, value: bytes) -> bytes:
    """A frame whose header says something else."""
    data = bytearray(encode(frame_of(0)))
    data[offset : offset + len(value)] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (with_header(0, b"HTTP"), "no frame: it begins with b'HTTP'"),
        (with_header(4, b"\x02"), "version 2"),
        (with_header(56, struct.pack("<Q", FRAME_LIMIT_BYTES)), f"the limit is {1 << 20}"),
        (with_header(56, b"\xff" * 8), f"the limit is {1 << 20}"),
        (encode(frame_of(0, WINDOW_BYTES // 2)) * 3, "without credit"),
        (encode(frame_of(0))[:-1], "ends in the middle of a frame"),
    ],
    ids=["no frame", "frames of another version", "oversize", "oversize beyond all", "credit fraud", "half a frame"],
)  # fmt: skip
def test_breaking_a_links_rules_cuts_it_with_reason_at_both_ends(
    hostile: Hostile, endpoints: tuple[QuicEndpoint, QuicEndpoint], data: bytes, reason: str
) -> None:
    name = f"hostile {reason} {len(data)}"
    receiver = endpoints[1].expect_link(name, lambda ticket, peer: None, WINDOW_BYTES, 1 << 20)
    stream = hostile.say(hello(name))
    hostile.until(lambda: stream in hostile.heard)
    assert isinstance(decode_control(hostile.heard[stream]), Welcomed)
    tracemalloc.start()
    hostile.say(data, stream, end=reason.startswith("ends"))
    hostile.until(lambda: any(reason in notice for notice in hostile.notices()))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 4 << 20, "memory was taken for what was only claimed"
    with pytest.raises(LinkAborted, match=reason):
        drain(receiver)


def drain(receiver: Receiver) -> None:
    """Receive until the link ends."""
    while True:
        if receiver.try_receive() is None:
            assert wait_any([receiver], PATIENCE_S)


def test_a_link_that_begins_with_something_else_than_hello_is_refused(hostile: Hostile) -> None:
    hostile.say(encode_control(Granted(5)))
    hostile.until(lambda: any("a link begins with HELLO and not with" in notice for notice in hostile.notices()))


def test_a_wrong_ticket_is_told_and_the_right_sender_served(
    hostile: Hostile, endpoints: tuple[QuicEndpoint, QuicEndpoint]
) -> None:
    def check(ticket: bytes, peer: Peer) -> str | None:
        return None if peer.identity.name == "near" else "this link is not for you"

    receiver = endpoints[1].expect_link("coveted", check)
    hostile.say(hello("coveted", b"stolen"))
    hostile.until(lambda: hostile.notices() == ["the ticket is not accepted: this link is not for you"])
    sender = endpoints[0].open_link("coveted", endpoints[1].address, b"ticket")
    while not sender.try_send(frame_of(1)):
        assert wait_any([sender], PATIENCE_S)
    while (received := receiver.try_receive()) is None:
        assert wait_any([receiver], PATIENCE_S)
    assert received.frame.first == 1
    received.release()


def test_greetings_that_never_end_are_held_to_a_few_kilobytes_each(
    hostile: Hostile, endpoints: tuple[QuicEndpoint, QuicEndpoint]
) -> None:
    far = endpoints[1]
    whole = hello("never", bytes(HELLO_LIMIT_BYTES // 2))
    streams = [hostile.say(whole[:-1]) for _ in range(100)]
    hostile.until(lambda: len(far._strangers) >= len(streams))
    held = sum(stranger.assembler._frame.nbytes for stranger in far._strangers.values() if stranger.assembler._frame)
    assert held <= len(streams) * HELLO_LIMIT_BYTES
    # A greeting over the limit is refused as soon as it says how long it is.
    too_long = encode(Frame(FrameKind.HELLO, 0, link_key("x"), 0, 0, b"", bytes(HELLO_LIMIT_BYTES)))
    hostile.say(too_long[:HEADER_BYTES])
    hostile.until(lambda: any(f"the limit is {HELLO_LIMIT_BYTES}" in notice for notice in hostile.notices()))
    far._strangers.clear()


@pytest.mark.parametrize("said", [b"", hello("x")[:10]], ids=["nothing", "a part of a greeting"])
def test_streams_that_end_without_a_greeting_are_let_go(hostile: Hostile, said: bytes) -> None:
    core = hostile._core
    for _ in range(3 * core.settings.streams_max):
        core.send(hostile.connection, core.open_stream(hostile.connection), said, end=True)
    hostile.until(lambda: not core._connections[hostile.connection].quic._streams)


def test_a_peer_that_takes_no_notices_is_sent_away(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "NOTICES_MAX", 8)
    core = hostile._core
    for _ in range(20):
        core.send(hostile.connection, core.open_stream(hostile.connection), encode_control(Granted(5)))
    with pytest.raises(AssertionError, match="8 notices were not taken, which is the limit"):
        hostile.until(lambda: False)
