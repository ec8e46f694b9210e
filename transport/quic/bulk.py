"""aioquic's connection with a short way for bulk data, which is most of what goes between nodes. Pure, as its base is.

aioquic assembles each packet frame by frame and asks each time for everything that might be due; it parses each one as
if it might hold anything. Nearly all packets of a link are full ones that hold one STREAM frame and nothing else. These
are made and read here by the batch, and all else goes the long way, through the base class:

- **Sending.** Before the base class writes what is due, as many full packets of one stream are written as congestion
  control, pacing and flow control allow, less RESERVE_PACKETS for control frames. Streams take turns. The masks of
  header protection are made by one call for all packets of a batch.
- **Receiving.** Of the datagrams of one batch and address those are read here that have a short header, this
  connection's present name, the present key phase and one STREAM frame for the next byte of a known stream. Whatever is
  not exactly that is given to the base class as it came: nothing of it has been acted on. So rules are judged, and a
  peer that breaks them is refused, in one place.

Ciphers: AES (the default); with ChaCha20 everything goes the long way. It reaches behind underscores of aioquic;
`tests/transport/quic/test_quic_connection.py` says at once if a release has moved what is used.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any

from aioquic import tls
from aioquic.quic.connection import QuicConnection, QuicConnectionState
from aioquic.quic.events import StreamDataReceived
from aioquic.quic.packet import QuicPacketType, decode_packet_number
from aioquic.quic.packet_builder import QuicPacketBuilder, QuicSentPacket
from aioquic.quic.recovery import MAX_ACK_RANGES, QuicPacketPacer
from cryptography.exceptions import InvalidTag

#: Full packets of room in the congestion window that bulk data leaves to everything else.
RESERVE_PACKETS = 2
#: Packets of one batch at most: a pacer that has no rate yet allows any number.
BATCH_PACKETS_MAX = 4096
#: How much may be sent at once, as the time that it takes at the pacer's rate, in seconds.
BURST_S = 4e-3

_CID_BYTES = 8
_PACKET_NUMBER_BYTES = 2
#: Flags, name and packet number of a short header.
_HEADER_BYTES = 1 + _CID_BYTES + _PACKET_NUMBER_BYTES
_TAG_BYTES = 16
_SAMPLE_BYTES = 16
#: Where the sample begins: as if the packet number had four bytes.
_SAMPLE_AT = 1 + _CID_BYTES + 4
#: STREAM, with an offset and a length, and not the last of its stream.
_STREAM_FRAME = 0x0E
_FIXED_BIT = 0x40
_NO_FRAMES: list[Any] = []


class BurstPacer(QuicPacketPacer):
    """A pacer for who is woken rarely and then sends much."""

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        """Set the rate: a congestion window each round trip."""
        super().update_rate(congestion_window, smoothed_rtt)
        self.bucket_max = max(self.bucket_max, BURST_S)

    def allowance(self, now: float) -> int:
        """Return how many packets may go now."""
        if self.packet_time is None:
            return BATCH_PACKETS_MAX
        self.update_bucket(now=now)
        return max(0, ceil(self.bucket_time / self.packet_time))

    def spend(self, packets: int) -> None:
        """So many packets have gone."""
        if self.packet_time is not None:
            self.bucket_time = max(0.0, self.bucket_time - packets * self.packet_time)


class BulkConnection(QuicConnection):
    """A connection that sends and receives bulk data by the batch."""

    # -- sending --

    def _write_application(self, builder: QuicPacketBuilder, network_path: Any, now: float) -> None:
        if self._may_write_bulk(builder, network_path):
            stream = next((stream for stream in self._streams_queue if _has_bulk(stream)), None)
            if stream is not None and self._write_bulk(builder, stream, now):
                self._streams_queue.remove(stream)
                self._streams_queue.append(stream)
        super()._write_application(builder, network_path, now)

    def _may_write_bulk(self, builder: QuicPacketBuilder, network_path: Any) -> bool:
        crypto = self._cryptos[tls.Epoch.ONE_RTT]
        return (
            self._handshake_confirmed
            and network_path.is_validated
            and not self._probe_pending
            and self._quic_logger is None
            and builder.max_total_bytes is None
            and len(self._peer_cid.cid) == _CID_BYTES
            and not crypto._update_key_requested
            and crypto.send.hp is not None
            and not crypto.send.hp._is_chacha20
        )

    def _write_bulk(self, builder: QuicPacketBuilder, stream: Any, now: float) -> int:
        """Write full packets of one stream; return how many."""
        sender, datagram_bytes = stream.sender, builder._buffer_capacity
        pending = sender._pending[0]
        start, highest = pending.start, sender.highest_offset
        flow_limit = min(highest + self._remote_max_data - self._remote_max_data_used, stream.max_stream_data_remote)
        stop = min(pending.stop, flow_limit)
        head, offset_mark, offset_bytes = _frame_head(stream.stream_id, stop)
        size = datagram_bytes - _HEADER_BYTES - _TAG_BYTES - len(head) - offset_bytes - 2
        room = (builder.max_flight_bytes or 0) - RESERVE_PACKETS * datagram_bytes
        pacer: BurstPacer = self._loss._pacer  # type: ignore[assignment]
        count: int = min((stop - start) // size, room // datagram_bytes, pacer.allowance(now), BATCH_PACKETS_MAX)
        if count <= 0:
            return 0
        stop = start + count * size
        length = (size | 0x4000).to_bytes(2, "big")
        with memoryview(sender._buffer) as data:
            at = start - sender._buffer_start
            payloads = [
                b"".join((head, (offset | offset_mark).to_bytes(offset_bytes, "big"), length, data[i : i + size]))
                for i, offset in zip(range(at, at + count * size, size), range(start, stop, size), strict=True)
            ]
        builder._datagrams += self._seal(builder, payloads)
        deliver = sender.on_data_delivery
        builder._packets += [
            QuicSentPacket(
                tls.Epoch.ONE_RTT,
                True,
                True,
                False,
                builder._packet_number + number,
                QuicPacketType.ONE_RTT,
                None,
                datagram_bytes,
                [(deliver, (offset, offset + size, False))],
                _NO_FRAMES,
            )
            for number, offset in enumerate(range(start, stop, size))
        ]
        builder._packet_number += count
        builder._flight_bytes += count * datagram_bytes
        builder._total_bytes += count * datagram_bytes
        sender._pending.subtract(start, stop)
        sender.highest_offset = max(highest, stop)
        self._remote_max_data_used += sender.highest_offset - highest
        pacer.spend(count)
        return count

    def _seal(self, builder: QuicPacketBuilder, payloads: Sequence[bytes]) -> list[bytes]:
        """Encrypt payloads, and protect the headers that they get."""
        crypto: Any = self._cryptos[tls.Epoch.ONE_RTT]
        encrypt, iv = crypto.send.aead._aead.encrypt, crypto.send.aead._iv
        flags = _FIXED_BIT | self._spin_bit << 5 | crypto.key_phase << 2 | _PACKET_NUMBER_BYTES - 1
        cid, first = self._peer_cid.cid, builder._packet_number
        prefix = bytes((flags,)) + cid
        sealed = [
            encrypt((iv ^ number).to_bytes(12, "big"), payload, prefix + (number & 0xFFFF).to_bytes(2, "big"))
            for number, payload in enumerate(payloads, first)
        ]
        sample = 4 - _PACKET_NUMBER_BYTES
        samples = b"".join([packet[sample : sample + _SAMPLE_BYTES] for packet in sealed])
        masks = crypto.send.hp._encryptor.update(samples)
        return [
            b"".join(
                (
                    bytes((flags ^ masks[at] & 0x1F,)),
                    cid,
                    ((number & 0xFFFF) ^ (masks[at + 1] << 8 | masks[at + 2])).to_bytes(2, "big"),
                    packet,
                )
            )
            for number, at, packet in zip(
                range(first, first + len(sealed)), range(0, len(masks), 16), sealed, strict=True
            )
        ]

    # -- receiving --

    def receive_datagrams(self, datagrams: Sequence[bytes], address: Any, now: float) -> None:
        """Take in datagrams that came from one address in one batch, in their order."""
        masks = self._masks(datagrams, address) if len(datagrams) > 1 else b""
        if not masks:
            for data in datagrams:
                self.receive_datagram(data, address, now)
            return
        batch = _Batch(self)
        for index, data in enumerate(datagrams):
            if not batch.take(data, masks[index * _SAMPLE_BYTES : index * _SAMPLE_BYTES + 3]):
                batch.settle(now)
                self.receive_datagram(data, address, now)
                if self._state is not QuicConnectionState.CONNECTED or self._close_pending:
                    return
                batch = _Batch(self)
        batch.settle(now)

    def _masks(self, datagrams: Sequence[bytes], address: Any) -> bytes:
        """Return the masks of header protection, 16 bytes for each datagram; none if all must go the long way."""
        crypto = self._cryptos[tls.Epoch.ONE_RTT].recv if self._cryptos else None
        if (
            crypto is None
            or crypto.hp is None
            or crypto.hp._is_chacha20
            or self._state is not QuicConnectionState.CONNECTED
            or self._close_pending
            or not self._handshake_confirmed
            or self._quic_logger is not None
            or self._network_paths[0].addr != address
            or not self._network_paths[0].is_validated
            or len(self.host_cid) != _CID_BYTES
        ):
            return b""
        samples = [data[_SAMPLE_AT : _SAMPLE_AT + _SAMPLE_BYTES] for data in datagrams]
        if any(len(sample) < _SAMPLE_BYTES for sample in samples):
            return b""
        return bytes(crypto.hp._encryptor.update(b"".join(samples)))


class _Batch:
    """Datagrams that are read the short way, up to one that is not."""

    def __init__(self, quic: BulkConnection) -> None:
        crypto: Any = quic._cryptos[tls.Epoch.ONE_RTT].recv
        self._quic, self._space = quic, quic._spaces[tls.Epoch.ONE_RTT]
        self._decrypt, self._iv, self._key_phase = crypto.aead._aead.decrypt, crypto.aead._iv, crypto.key_phase
        self._cid = quic.host_cid
        self._stream: Any = None
        self._chunks: list[memoryview] = []
        self._numbers: list[int] = []

    def take(self, data: bytes, mask: bytes) -> bool:
        """Read one datagram; False, and nothing has happened, if it must go the long way."""
        flags = data[0] ^ mask[0] & 0x1F
        # Short header, no reserved bits, this key phase, two bytes of packet number; the spin bit may be either.
        if flags & 0xDF != _FIXED_BIT | self._key_phase << 2 | 1 or data[1 : 1 + _CID_BYTES] != self._cid:
            return False
        truncated = (data[9] ^ mask[1]) << 8 | data[10] ^ mask[2]
        space = self._space
        number = decode_packet_number(truncated, 16, space.expected_packet_number)
        if number in space.received_packets or (self._numbers and number <= self._numbers[-1]):
            return False
        header = bytes((flags,)) + self._cid + truncated.to_bytes(2, "big")
        try:
            payload = self._decrypt((self._iv ^ number).to_bytes(12, "big"), data[_HEADER_BYTES:], header)
        except InvalidTag:
            return False
        if not self._take_payload(payload):
            return False
        if number > space.expected_packet_number:
            space.expected_packet_number = number + 1
        quic = self._quic
        if number > quic._spin_highest_pn:
            spin = bool(flags & 0x20)
            quic._spin_bit = not spin if quic._is_client else spin
            quic._spin_highest_pn = number
        self._numbers.append(number)
        return True

    def _take_payload(self, payload: bytes) -> bool:
        """Take a payload that is one STREAM frame for the next byte of a known stream."""
        if payload[0] != _STREAM_FRAME:
            return False
        stream_id, at = _varint(payload, 1)
        offset, at = _varint(payload, at)
        length, at = _varint(payload, at)
        stream = self._quic._streams.get(stream_id)
        if stream is None or at + length != len(payload) or not length or (self._stream or stream) is not stream:
            return False
        receiver, end = stream.receiver, offset + length
        new = end - receiver.highest_offset
        limit = self._quic._local_max_data
        if (
            offset != receiver._buffer_start
            or receiver._buffer
            or receiver._final_size is not None
            or receiver.is_finished
            or new != length
            or end > stream.max_stream_data_local
            or limit.used + new > limit.value
            or not self._quic._stream_can_receive(stream_id)
        ):
            return False
        self._stream = stream
        self._chunks.append(memoryview(payload)[at:])
        receiver._buffer_start = receiver.highest_offset = end
        limit.used += new
        return True

    def settle(self, now: float) -> None:
        """Hand over what was read, and note for acknowledgement what came."""
        quic, space, numbers = self._quic, self._space, self._numbers
        if not numbers:
            return
        data = b"".join(self._chunks)
        quic._events.append(StreamDataReceived(data=data, end_stream=False, stream_id=self._stream.stream_id))
        quic._close_at = now + quic._idle_timeout()
        quic._ack_eliciting_sent_since_receipt = False
        if numbers[-1] > space.largest_received_packet:
            space.largest_received_packet, space.largest_received_time = numbers[-1], now
        first = previous = numbers[0]
        for number in [*numbers[1:], -1]:
            if number != previous + 1:
                space.ack_queue.add(first, previous + 1)
                first = number
            previous = number
        for number in numbers:
            space.received_packets.add(number)
        while len(space.ack_queue) > MAX_ACK_RANGES:
            space.ack_queue.shift()
        if space.ack_at is None:
            space.ack_at = now + quic._ack_delay


def _has_bulk(stream: Any) -> bool:
    sender = stream.sender
    return not (
        stream.is_finished
        or stream.is_blocked
        or sender.buffer_is_empty
        or sender.reset_pending
        or not len(sender._pending)
    )


def _frame_head(stream_id: int, stop: int) -> tuple[bytes, int, int]:
    """Return the beginning of a STREAM frame, and for its offset the mark and the bytes of a QUIC integer."""
    if stream_id < 1 << 6:
        head = bytes((_STREAM_FRAME, stream_id))
    else:
        head = bytes((_STREAM_FRAME,)) + (stream_id | 0x80000000).to_bytes(4, "big")
    return (head, 0x80000000, 4) if stop < 1 << 30 else (head, 0xC0 << 56, 8)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a QUIC integer (RFC 9000, section 16) and return where the next byte is. Past the end it reads nonsense."""
    size = 1 << (data[at] >> 6) if at < len(data) else 1
    value = int.from_bytes(data[at : at + size], "big") & (1 << 8 * size - 2) - 1
    return value, at + size
