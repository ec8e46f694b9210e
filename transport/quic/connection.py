"""aioquic's connection, with the nine things that Headrace needs and aioquic keeps private. Pure, as its base is.

Whatever reaches behind an underscore of aioquic stands here, and `tests/transport/quic/test_quic_connection.py` says at
once if a release has moved it.

- A server asks for the client's certificate, and the peer's certificate can be seen. aioquic checks the signature that
  proves the key; whose certificate it is it leaves open, on both sides (`verify_mode` is off): `quic_core` judges it.
- The end of a connection is known when the close is sent or received, and not some round trips later.
- A stream's flow control window slides instead of doubling. aioquic doubles it whenever half is used, so a peer that
  sends nothing but a byte at the end of the window has the receiver allocate without limit.
- The window of a whole connection slides too. aioquic's begins with the largest there is, or doubles.
- A peer that has not proved itself has next to nothing: few streams, windows of some kilobytes, and as much of TLS as a
  handshake needs. One byte at the end of a window has the receiver allocate all of it, so a stranger's datagram would
  cost megabytes. `widen` gives a peer that has proved itself what nodes have. Whatever a stranger's TLS has the library
  raise ends its connection alone.
- The backlog of a stream can be asked for: aioquic takes any amount and copies it around when it grows.
- So can the number of streams that the peer lets wait: aioquic queues any number that the peer has not granted.
- The pacer allows bursts of BURST_S. aioquic's allows 16 datagrams, and a timer of the kernel wakes every millisecond.
- Bulk data goes a short way (`quic_bulk`).
"""

from collections.abc import Iterable
from typing import Any

from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.congestion.base import K_MINIMUM_WINDOW, register_congestion_control
from aioquic.quic.congestion.cubic import K_CUBIC_LOSS_REDUCTION_FACTOR, CubicCongestionControl
from aioquic.quic.connection import QuicConnectionError
from aioquic.quic.events import ConnectionTerminated
from aioquic.quic.packet import QuicErrorCode, QuicFrameType
from aioquic.quic.packet_builder import QuicPacketBuilder, QuicSentPacket
from cryptography import x509

from headrace.transport.quic.bulk import BulkConnection, BurstPacer

#: A window is announced anew when it can move on by one over this of itself.
_WINDOW_STEPS = 4
_LIMIT_FRAME_BYTES = 1 + 2 * 8
#: What a peer may have sent before it has proved itself: of a stream, for a HELLO; of all; and streams of each kind.
UNPROVED_STREAM_BYTES = 8 << 10
UNPROVED_BYTES = 32 << 10
UNPROVED_STREAMS = 8
#: Bytes of TLS that a peer may send in a connection's life: two certificates take some kilobytes.
CRYPTO_BYTES_MAX = 64 << 10

#: What TLS calls bad_certificate, as QUIC says it.
_BAD_CERTIFICATE = QuicErrorCode.CRYPTO_ERROR + 42


class NodeConnection(BulkConnection):
    """A connection between two nodes of a cluster."""

    def __init__(self, configuration: QuicConfiguration, **arguments: Any) -> None:
        super().__init__(configuration=configuration, **arguments)
        self._loss._pacer = BurstPacer(max_datagram_size=configuration.max_datagram_size)
        #: Of one stream and of all, in bytes; 0 for all while the peer has not proved itself.
        self._stream_window, self._connection_window = UNPROVED_STREAM_BYTES, 0
        for limit in (self._local_max_streams_bidi, self._local_max_streams_uni):
            limit.value = limit.sent = UNPROVED_STREAMS

    def widen(self, stream_bytes: int, connection_bytes: int, streams: int) -> None:
        """Give the peer what one has that has proved itself: windows in bytes, and open streams of each kind."""
        self._stream_window, self._connection_window = stream_bytes, connection_bytes
        for limit in (self._local_max_streams_bidi, self._local_max_streams_uni):
            limit.value += streams - UNPROVED_STREAMS

    def held_bytes(self) -> int:
        """Return how many bytes the connection has made room for that wait for others before them."""
        receivers = (stream.receiver for stream in self._streams.values())
        return sum(receiver.highest_offset - receiver.starting_offset() for receiver in receivers)

    def peer_certificate(self) -> x509.Certificate | None:
        """Return the certificate whose key the peer has proved to hold; good once the handshake is complete."""
        return self.tls._peer_certificate

    def backlog_bytes(self, stream_id: int) -> int:
        """Return how many bytes of the stream are not yet acknowledged, sent or not."""
        stream = self._streams.get(stream_id)
        return stream.sender._buffer_stop - stream.sender._buffer_start if stream is not None else 0

    def notices(self) -> int:
        """Return how many streams in one direction this end has that are not acknowledged to their ends."""
        ours = 2 if self._is_client else 3
        return sum(number & 3 == ours for number in self._streams)

    def ending(self) -> ConnectionTerminated | None:
        """Return how the connection ends as soon as that is known; aioquic's event comes when its timers are done."""
        return self._close_event

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        if not self._is_client:
            self.tls._request_client_certificate = True

    def _handle_crypto_frame(self, context: Any, frame_type: int, buf: Buffer) -> None:
        place = buf.tell()
        end = buf.pull_uint_var() + buf.pull_uint_var()
        buf.seek(place)
        if end > CRYPTO_BYTES_MAX:
            reason = f"more than {CRYPTO_BYTES_MAX} bytes of TLS"
            raise QuicConnectionError(QuicErrorCode.CRYPTO_BUFFER_EXCEEDED, frame_type, reason)
        try:
            super()._handle_crypto_frame(context, frame_type, buf)
        except QuicConnectionError:
            raise
        except Exception as error:
            reason = f"its TLS cannot be read: {type(error).__name__}"
            raise QuicConnectionError(_BAD_CERTIFICATE, frame_type, reason) from error

    def _write_connection_limits(
        self,
        builder: QuicPacketBuilder,
        space: Any,  # noqa: ARG002 - the base class's signature
    ) -> None:
        data, window = self._local_max_data, self._connection_window
        if data.used + window - data.value >= window // _WINDOW_STEPS > 0:
            data.value = max(data.value, data.used - self.held_bytes() + window)
        for limit in (data, self._local_max_streams_bidi, self._local_max_streams_uni):
            granted, left = limit.value - limit.sent, limit.sent - limit.used
            # As aioquic has it, more streams are granted once the peer has fewer left than that.
            if granted > 0 and (limit is data or left < granted):
                buffer = builder.start_frame(
                    limit.frame_type,
                    capacity=_LIMIT_FRAME_BYTES,
                    handler=self._on_connection_limit_delivery,
                    handler_args=(limit,),
                )
                buffer.push_uint_var(limit.value)
                limit.sent = limit.value

    def _write_stream_limits(
        self,
        builder: QuicPacketBuilder,
        space: Any,  # noqa: ARG002 - the base class's signature
        stream: Any,
    ) -> None:
        if not stream.max_stream_data_local or stream.receiver.is_finished or stream.is_blocked:
            return
        window = self._stream_window
        limit = stream.receiver.starting_offset() + window
        if limit - stream.max_stream_data_local >= window // _WINDOW_STEPS:
            stream.max_stream_data_local = limit
        if stream.max_stream_data_local_sent != stream.max_stream_data_local:
            buffer = builder.start_frame(
                QuicFrameType.MAX_STREAM_DATA,
                capacity=_LIMIT_FRAME_BYTES,
                handler=self._on_max_stream_data_delivery,
                handler_args=(stream,),
            )
            buffer.push_uint_var(stream.stream_id)
            buffer.push_uint_var(stream.max_stream_data_local)
            stream.max_stream_data_local_sent = stream.max_stream_data_local


#: The name by which a configuration asks for it.
NODE_CUBIC = "headrace-cubic"


class NodeCubic(CubicCongestionControl):
    """aioquic's CUBIC, less two rules that hold links between nodes back.

    - A loss cuts the window to 0.7 of itself. aioquic cuts to 0.7 of the bytes in flight, which are fewer where the
      pacer or the sender's thread holds it up (RFC 9438, section 4.6, allows either).
    - Slow start ends with a loss. HyStart ends it when round trips grow, and a thread that takes datagrams by the batch
      makes them grow.
    """

    def on_packets_lost(self, *, now: float, packets: Iterable[QuicSentPacket]) -> None:
        """Cut the window, once for all losses of a round trip."""
        before, recovery = self.congestion_window, self._congestion_recovery_start_time
        super().on_packets_lost(now=now, packets=packets)
        if self._congestion_recovery_start_time != recovery:
            smallest = K_MINIMUM_WINDOW * self._max_datagram_size
            self.ssthresh = self.congestion_window = max(int(before * K_CUBIC_LOSS_REDUCTION_FACTOR), smallest)

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:  # noqa: ARG002 - the base class's signature
        """Remember the round trip."""
        self.rtt = rtt


register_congestion_control(NODE_CUBIC, NodeCubic)
