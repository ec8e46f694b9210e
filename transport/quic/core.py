"""All QUIC connections of one UDP socket, without the socket and without a clock. Pure.

Datagrams and the time go in, events and datagrams come out:

    core.receive(datagrams, now, utc)     # what came; utc is for certificates
    core.tick(now)                        # timers that are due
    for event in core.events(): ...       # what it means
    core.send(connection, stream, data)   # what to answer
    for data, address in core.transmit(now): ...
    wake me at core.next_timer()

`now` is monotonic, in seconds, and the same clock always. One core plays both parts: it takes connections and makes
them. A connection is announced (`PeerConnected`) once the peer has proved to be a node of the cluster with a role that
is expected. Before that nothing it sends is looked at, and it is refused by name (`ConnectionEnded.refused`).

No 0-RTT: no session tickets are given out or kept, since early data can be replayed.

Bounds on strangers: at most `handshakes_max` unproved connections, each for at most `handshake_s`; for a further one
the oldest is forgotten. From a quarter of that on a stranger has to show first that it receives at the address that it
sends from (Retry, RFC 9000, 8.1.2), for which nothing is kept here. What it sends before it has proved itself takes
some kilobytes at most (`quic_connection`).

Bounds on nodes: a stream and a connection hold at most their window of data out of order; a connection has at most
`streams_max` open streams of each kind, and one node `connections_max` connections.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic import events as quic_events
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE, QuicConfiguration
from aioquic.quic.packet import (
    QuicHeader,
    QuicPacketType,
    QuicProtocolVersion,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.retry import QuicRetryTokenHandler

from headrace.cluster import NOBODY, CertificateError, Credentials, Expelled, Peer, Role, verify, why_expelled
from headrace.transport.quic.connection import NODE_CUBIC, UNPROVED_BYTES, UNPROVED_STREAM_BYTES, NodeConnection

#: What both sides must speak; it changes with what travels on the streams.
ALPN = "headrace/1"
#: Codes of CONNECTION_CLOSE; the reason phrase says it in words.
CLOSE_NORMAL = 0
CLOSE_REFUSED = 0x101
#: A reason is cut to this, to fit into the smallest datagram, in bytes.
REASON_LIMIT_BYTES = 400
_CID_BYTES = 8
#: `ssl.CERT_NONE`, without `ssl`.
_CERT_NONE = 0
#: Unproved connections from which on strangers have to show their address: one part of `handshakes_max` in so many.
_RETRY_PART = 4

Address = tuple[str, int] | tuple[str, int, int, int]
Datagram = tuple[bytes, Address]


@dataclass(frozen=True, slots=True)
class QuicSettings:
    """What can be set about connections."""

    #: The UDP payload to send at most, in bytes: what the path carries, less the headers of IP and UDP.
    datagram_bytes: int = 1400
    #: What a peer may have sent on a stream ahead of what has arrived in order, in bytes.
    stream_window_bytes: int = 4 << 20
    #: The same of all streams of a connection.
    connection_window_bytes: int = 8 << 20
    #: Streams of each kind that a peer may have open in a connection.
    streams_max: int = 128
    #: Connections that one node may have here, by the name in its certificate.
    connections_max: int = 128
    #: A peer that is silent for so long is gone, in seconds. Quiet connections are kept alive.
    idle_timeout_s: float = 10.0
    #: A peer that has not proved itself after so long is dropped, in seconds.
    handshake_s: float = 5.0
    #: How many peers may be at it at once.
    handshakes_max: int = 64
    #: Who may connect, and be connected to.
    roles: frozenset[Role] = frozenset({Role.WORKER, Role.CONTROLLER})
    #: The algorithm, by its name in aioquic's register.
    congestion: str = NODE_CUBIC


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """The handshake is done, and the peer is a node of the cluster with a role that is expected."""

    connection: int
    peer: Peer
    address: Address


@dataclass(frozen=True, slots=True)
class ConnectionEnded:
    """The connection is over; `refused` where a certificate was not accepted, by us or by the peer."""

    connection: int
    reason: str
    refused: bool


@dataclass(frozen=True, slots=True)
class StreamReceived:
    """Bytes came on a stream, in order; `end` if they are the last."""

    connection: int
    stream: int
    data: bytes
    end: bool


@dataclass(frozen=True, slots=True)
class StreamCut:
    """The peer gave up a stream: it sends no more on it, or wants no more."""

    connection: int
    stream: int


Event = PeerConnected | ConnectionEnded | StreamReceived | StreamCut


@dataclass(slots=True)
class _Connection:
    number: int
    quic: NodeConnection
    #: The names by which packets find it.
    cids: set[bytes]
    #: None until the peer has proved itself.
    peer: Peer | None
    #: When an unproved peer is dropped.
    deadline: float
    #: When a quiet connection shows that it lives.
    keepalive_at: float
    timer_at: float | None = None
    #: Chunks of streams that came in this batch.
    chunks: dict[int, list[bytes]] = field(default_factory=dict)
    ends: set[int] = field(default_factory=set)
    #: Whether its end was announced; it stays for a while to answer what still comes.
    ended: bool = False

    def due_at(self) -> float:
        """Return when something is to be done next."""
        due = self.keepalive_at if self.peer is not None else self.deadline
        return due if self.timer_at is None else min(due, self.timer_at)


class QuicCore:
    """The connections of one socket."""

    def __init__(self, credentials: Credentials, settings: QuicSettings) -> None:
        self.settings = settings
        self._authority = credentials.authority()
        self._certificate = credentials.certificate()
        self._key = credentials.key()
        self._connections: dict[int, _Connection] = {}
        self._by_cid: dict[bytes, _Connection] = {}
        self._dirty: dict[int, _Connection] = {}
        self._events: list[Event] = []
        #: Answers to strangers of whom nothing is kept: another version of QUIC, or a wish to see their address.
        self._answers: list[Datagram] = []
        self._retries = QuicRetryTokenHandler()
        self._made = 0
        self._expelled = NOBODY

    def connect(self, address: Address, now: float) -> int:
        """Begin a connection to the node at `address` and return its number."""
        quic = NodeConnection(self._configuration(is_client=True))
        quic.connect(address, now)
        return self._add(quic, now, ()).number

    def receive(self, datagrams: Iterable[Datagram], now: float, utc: datetime) -> None:
        """Take in datagrams. `utc` is the present, by which certificates are in force or not."""
        touched: dict[int, _Connection] = {}
        runs: dict[tuple[int, Address], list[bytes]] = {}
        for data, address in datagrams:
            connection = self._find(data, address, now)
            if connection is None:
                continue
            touched[connection.number] = connection
            if connection.peer is not None:
                runs.setdefault((connection.number, address), []).append(data)
            else:
                connection.quic.receive_datagram(data, address, now)
                self._take_events(connection, utc)
        for (number, address), run in runs.items():
            touched[number].quic.receive_datagrams(run, address, now)
        for connection in touched.values():
            connection.keepalive_at = now + self.settings.idle_timeout_s / 3
            self._take_events(connection, utc)
            self._dirty[connection.number] = connection

    def tick(self, now: float) -> None:
        """Do what is due: retransmissions, idle timeouts, late handshakes, signs of life."""
        for connection in list(self._connections.values()):
            if connection.due_at() > now:
                continue
            quic = connection.quic
            if connection.peer is None and connection.deadline <= now:
                connection.deadline = now + self.settings.idle_timeout_s
                quic.close(CLOSE_REFUSED, reason_phrase="the handshake took too long")
            if connection.keepalive_at <= now:
                connection.keepalive_at = now + self.settings.idle_timeout_s / 3
                quic.send_ping(0)
            if connection.timer_at is not None and connection.timer_at <= now:
                quic.handle_timer(now)
            self._take_events(connection, None)
            self._dirty[connection.number] = connection

    def transmit(self, now: float) -> list[Datagram]:
        """Return what is to be sent now, of all connections in which something has happened."""
        datagrams, self._answers = self._answers, []
        for connection in self._dirty.values():
            datagrams += connection.quic.datagrams_to_send(now)
            connection.timer_at = connection.quic.get_timer()
            # A close that was just sent is an event too.
            self._take_events(connection, None)
        self._dirty.clear()
        return datagrams

    def next_timer(self) -> float | None:
        """Return when `tick` is to be called at the latest; None for never."""
        return min((connection.due_at() for connection in self._connections.values()), default=None)

    def events(self) -> list[Event]:
        """Return what has happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def open_stream(self, connection: int) -> int:
        """Return the number of a new stream in both directions."""
        quic = self._connections[connection].quic
        stream = quic.get_next_available_stream_id()
        quic.send_stream_data(stream, b"")
        return stream

    def open_notice(self, connection: int) -> int:
        """Return the number of a new stream that only we write to."""
        return self._connections[connection].quic.get_next_available_stream_id(is_unidirectional=True)

    def notices(self, connection: int) -> int:
        """Return how many of those streams the peer has not taken to their ends."""
        entry = self._connections.get(connection)
        return entry.quic.notices() if entry is not None else 0

    def send(self, connection: int, stream: int, data: bytes | memoryview, *, end: bool = False) -> None:
        """Queue bytes on a stream; `end` if they are the last. Nothing happens on a connection that is over."""
        entry = self._connections.get(connection)
        if entry is not None:
            entry.quic.send_stream_data(stream, data, end_stream=end)  # type: ignore[arg-type]
            self._dirty[connection] = entry

    def cut_stream(self, connection: int, stream: int) -> None:
        """Give a stream up: what is queued is dropped, and what comes is not wanted."""
        entry = self._connections.get(connection)
        if entry is None:
            return
        # ValueError: it has ended by itself.
        with suppress(ValueError):
            entry.quic.reset_stream(stream, CLOSE_NORMAL)
            entry.quic.stop_stream(stream, CLOSE_NORMAL)
        self._dirty[connection] = entry

    def backlog_bytes(self, connection: int, stream: int) -> int:
        """Return the bytes of a stream that were queued and are not acknowledged."""
        entry = self._connections.get(connection)
        return entry.quic.backlog_bytes(stream) if entry is not None else 0

    def close(self, connection: int, reason: str, code: int = CLOSE_NORMAL) -> None:
        """End a connection; the peer learns the reason."""
        entry = self._connections.get(connection)
        if entry is not None:
            entry.quic.close(code, reason_phrase=_cut(reason))
            self._dirty[connection] = entry

    def expel(self, expelled: Expelled) -> None:
        """Cut the connections of members that were expelled, and refuse them from now on."""
        self._expelled = expelled
        for entry in self._connections.values():
            if entry.peer is not None and (reason := why_expelled(entry.peer, expelled)):
                self.close(entry.number, reason, CLOSE_REFUSED)

    def connection_numbers(self) -> list[int]:
        """Return the connections that are not over."""
        return [number for number, connection in self._connections.items() if not connection.ended]

    def address_of(self, connection: int) -> Address | None:
        """Return where datagrams of this connection go now: it changes when the peer's address does."""
        entry = self._connections.get(connection)
        return entry.quic.get_peer_address() if entry is not None else None

    def _find(self, data: bytes, address: Address, now: float) -> _Connection | None:
        """Return the connection of a datagram, a new one for a first packet, None for what is nobody's."""
        if data and not data[0] & 0x80:
            # A packet of an established connection: its name stands right behind the first byte.
            return self._by_cid.get(data[1 : 1 + _CID_BYTES])
        try:
            header = pull_quic_header(Buffer(data=data), host_cid_length=_CID_BYTES)
        except ValueError:
            return None
        connection = self._by_cid.get(header.destination_cid)
        if connection is not None:
            return connection
        if header.version not in (None, QuicProtocolVersion.NEGOTIATION, QuicProtocolVersion.VERSION_1):
            if len(data) >= SMALLEST_MAX_DATAGRAM_SIZE:
                known: list[int] = [QuicProtocolVersion.VERSION_1]
                self._answer(encode_quic_version_negotiation(header.destination_cid, header.source_cid, known), address)
            return None
        if (
            header.packet_type != QuicPacketType.INITIAL
            or header.version != QuicProtocolVersion.VERSION_1
            or len(data) < SMALLEST_MAX_DATAGRAM_SIZE
        ):
            return None
        return self._stranger(header, address, now)

    def _stranger(self, header: QuicHeader, address: Address, now: float) -> _Connection | None:
        """A connection for a first packet, or None for one that has to come again."""
        unproved = [entry for entry in self._connections.values() if entry.peer is None]
        strangers = [entry for entry in unproved if not entry.quic.configuration.is_client]
        original, shown = header.destination_cid, None
        if header.token:
            try:
                original = self._retries.validate_token(
                    address=address, destination_cid=header.destination_cid, token=header.token, now=now
                )
            except ValueError:
                return None
            shown = header.destination_cid
        elif len(strangers) >= self.settings.handshakes_max // _RETRY_PART:
            self._retry(header, address, now)
            return None
        if len(strangers) >= self.settings.handshakes_max:
            # They are in the order in which they came.
            self._remove(strangers[0])
        quic = NodeConnection(
            self._configuration(is_client=False),
            original_destination_connection_id=original,
            retry_source_connection_id=shown,
        )
        return self._add(quic, now, (header.destination_cid,))

    def _retry(self, header: QuicHeader, address: Address, now: float) -> None:
        source = os.urandom(_CID_BYTES)
        token = self._retries.create_token(
            address=address,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=source,
            now=now,
        )
        self._answer(
            encode_quic_retry(
                version=QuicProtocolVersion.VERSION_1,
                source_cid=source,
                destination_cid=header.source_cid,
                original_destination_cid=header.destination_cid,
                retry_token=token,
            ),
            address,
        )

    def _answer(self, data: bytes, address: Address) -> None:
        """Smaller than what it answers, and kept for one batch only."""
        if len(self._answers) < self.settings.handshakes_max:
            self._answers.append((data, address))

    def _add(self, quic: NodeConnection, now: float, cids: tuple[bytes, ...]) -> _Connection:
        self._made += 1
        connection = _Connection(
            number=self._made,
            quic=quic,
            cids={*cids, quic.host_cid},
            peer=None,
            deadline=now + self.settings.handshake_s,
            keepalive_at=now + self.settings.idle_timeout_s,
        )
        self._connections[connection.number] = self._dirty[connection.number] = connection
        for cid in connection.cids:
            self._by_cid[cid] = connection
        return connection

    def _take_events(self, connection: _Connection, utc: datetime | None) -> None:
        """Turn aioquic's events into ours. Data of one stream in one batch becomes one event."""
        while (event := connection.quic.next_event()) is not None:
            match event:
                case quic_events.StreamDataReceived(data=data, end_stream=end, stream_id=stream):
                    if connection.peer is not None:
                        connection.chunks.setdefault(stream, []).append(data)
                        if end:
                            connection.ends.add(stream)
                case quic_events.HandshakeCompleted():
                    self._judge(connection, utc)
                case quic_events.ConnectionIdIssued(connection_id=cid):
                    connection.cids.add(cid)
                    self._by_cid[cid] = connection
                case quic_events.ConnectionIdRetired(connection_id=cid):
                    connection.cids.discard(cid)
                    self._by_cid.pop(cid, None)
                case quic_events.StreamReset(stream_id=stream) | quic_events.StopSendingReceived(stream_id=stream):
                    self._hand_over(connection)
                    self._events.append(StreamCut(connection.number, stream))
                case quic_events.ConnectionTerminated():
                    self._remove(connection)
                case _:
                    pass
        self._hand_over(connection)
        ending = connection.quic.ending()
        if ending is not None and not connection.ended:
            connection.ended = True
            reason = ending.reason_phrase or f"QUIC error 0x{ending.error_code:x}"
            self._events.append(ConnectionEnded(connection.number, reason, ending.error_code == CLOSE_REFUSED))

    def _hand_over(self, connection: _Connection) -> None:
        for stream, chunks in connection.chunks.items():
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            self._events.append(StreamReceived(connection.number, stream, data, stream in connection.ends))
        connection.chunks.clear()
        connection.ends.clear()

    def _judge(self, connection: _Connection, utc: datetime | None) -> None:
        """Let the peer in, or close the connection. What it sends before is not looked at."""
        assert utc is not None, "a handshake is completed by a datagram and not by a timer"
        try:
            shown = connection.quic.peer_certificate()
            peer = verify(shown, self._authority, self.settings.roles, utc, self._expelled)
        except CertificateError as error:
            connection.quic.close(CLOSE_REFUSED, reason_phrase=_cut(str(error)))
            return
        names = [entry.peer.identity for entry in self._connections.values() if entry.peer and not entry.ended]
        if names.count(peer.identity) >= self.settings.connections_max:
            reason = f"{peer.identity.name} has {self.settings.connections_max} connections here, which is the limit"
            connection.quic.close(CLOSE_REFUSED, reason_phrase=reason)
            return
        connection.peer = peer
        settings = self.settings
        connection.quic.widen(settings.stream_window_bytes, settings.connection_window_bytes, settings.streams_max)
        address = connection.quic.get_peer_address()
        assert address is not None
        self._events.append(PeerConnected(connection.number, peer, address))

    def _remove(self, connection: _Connection) -> None:
        self._connections.pop(connection.number, None)
        self._dirty.pop(connection.number, None)
        for cid in connection.cids:
            self._by_cid.pop(cid, None)

    def _configuration(self, *, is_client: bool) -> QuicConfiguration:
        settings = self.settings
        return QuicConfiguration(
            alpn_protocols=[ALPN],
            certificate=self._certificate,
            congestion_control_algorithm=settings.congestion,
            connection_id_length=_CID_BYTES,
            idle_timeout=settings.idle_timeout_s,
            is_client=is_client,
            max_data=UNPROVED_BYTES,
            max_datagram_size=settings.datagram_bytes,
            max_stream_data=UNPROVED_STREAM_BYTES,
            private_key=self._key,
            supported_versions=[QuicProtocolVersion.VERSION_1],
            # `_judge` does it, the same way on both sides.
            verify_mode=_CERT_NONE,
        )


def _cut(reason: str) -> str:
    return reason.encode("utf-8", "replace")[:REASON_LIMIT_BYTES].decode("utf-8", "ignore")
