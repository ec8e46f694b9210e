"""aioquic's connection, with the six things that Headrace needs and aioquic keeps private. Pure, as its base is.

Whatever reaches behind an underscore of aioquic stands here, and `tests/transport/test_quic_connection.py` says at
once if a release has moved it.

- A server asks for the client's certificate, and the peer's certificate can be seen. aioquic checks the signature that
  proves the key; whose certificate it is it leaves open, on both sides (`verify_mode` is off): `quic_core` judges it.
- The end of a connection is known when the close is sent or received, and not some round trips later.
- A stream's flow control window slides instead of doubling. aioquic doubles it whenever half is used, so a peer that
  sends nothing but a byte at the end of the window has the receiver allocate without limit.
- The backlog of a stream can be asked for: aioquic takes any amount and copies it around when it grows.
- The pacer allows bursts of BURST_S. aioquic's allows 16 datagrams, and a timer of the kernel wakes every millisecond.
- Bulk data goes a short way (`quic_bulk`).
"""

from typing import Any

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated
from aioquic.quic.packet import QuicFrameType
from aioquic.quic.packet_builder import QuicPacketBuilder
from cryptography import x509

from headrace.transport.quic_bulk import BulkConnection, BurstPacer

#: A window is announced anew when it can move on by one over this of itself.
_WINDOW_STEPS = 4
_LIMIT_FRAME_BYTES = 1 + 2 * 8


class NodeConnection(BulkConnection):
    """A connection between two nodes of a cluster."""

    def __init__(self, configuration: QuicConfiguration, **arguments: Any) -> None:
        super().__init__(configuration=configuration, **arguments)
        self._loss._pacer = BurstPacer(max_datagram_size=configuration.max_datagram_size)

    def peer_certificate(self) -> x509.Certificate | None:
        """Return the certificate whose key the peer has proved to hold; good once the handshake is complete."""
        return self.tls._peer_certificate

    def backlog_bytes(self, stream_id: int) -> int:
        """Return how many bytes of the stream are not yet acknowledged, sent or not."""
        stream = self._streams.get(stream_id)
        return stream.sender._buffer_stop - stream.sender._buffer_start if stream is not None else 0

    def ending(self) -> ConnectionTerminated | None:
        """Return how the connection ends as soon as that is known; aioquic's event comes when its timers are done."""
        return self._close_event

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        if not self._is_client:
            self.tls._request_client_certificate = True

    def _write_stream_limits(
        self,
        builder: QuicPacketBuilder,
        space: Any,  # noqa: ARG002 - the base class's signature
        stream: Any,
    ) -> None:
        if not stream.max_stream_data_local or stream.receiver.is_finished:
            return
        window = self._configuration.max_stream_data
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
