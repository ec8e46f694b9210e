"""The Arrow IPC streams to and from one process, as bytes that come in any pieces."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from headrace.stages.commands.process import CommandFailedError
from headrace.stages.runtime import METADATA_BYTES_MAX, SOURCE_ROWS, UnsoundArrow, check_messages, sound

#: Bytes of one message of output.
MESSAGE_BYTES_MAX = 256 << 20
_CONTINUES = b"\xff\xff\xff\xff"
#: The end of a stream: a message of no bytes.
END_OF_STREAM = _CONTINUES + bytes(4)
_PREFIX_BYTES = 8


class ArrowStream:
    """The two streams of one process: what has been told in one, and what is not whole yet of the other."""

    def __init__(self) -> None:
        self._told: pa.Schema | None = None
        self._schema: pa.Schema | None = None
        self._rest = bytearray()

    def encode(self, rows: pa.RecordBatch) -> bytes:
        """The next message; before the first, the schema."""
        schema = b"" if self._told is not None else rows.schema.serialize().to_pybytes()
        self._told = self._told or rows.schema
        return bytes(schema + rows.serialize().to_pybytes())

    def of_nothing(self) -> bytes:
        """A whole stream without a batch."""
        return bytes(SOURCE_ROWS.serialize().to_pybytes() + END_OF_STREAM)

    def take(self, data: bytes) -> Iterator[pa.RecordBatch]:
        """The batches that are whole with these bytes. Raises CommandFailedError for what is no such stream."""
        self._rest += data
        while (size := self._message_bytes()) is not None and len(self._rest) >= size:
            piece = bytes(self._rest[:size])
            del self._rest[:size]
            if size == _PREFIX_BYTES:
                continue
            try:
                check_messages(piece)
                message = pa.ipc.read_message(piece)
                if message.type == "schema":
                    self._schema = pa.ipc.read_schema(message)
                elif message.type == "record batch" and self._schema is not None:
                    yield sound(pa.ipc.read_record_batch(message, self._schema))
                else:
                    raise CommandFailedError(f"command gave an Arrow message that is not expected: {message.type}")
            except (pa.ArrowException, OSError, UnsoundArrow) as error:
                raise CommandFailedError(f"command gave what is no Arrow stream: {error}") from error

    def _message_bytes(self) -> int | None:
        """The size of the message that begins here, as its metadata says; None while that is not whole."""
        rest = self._rest
        if len(rest) < _PREFIX_BYTES:
            return None
        metadata_bytes = int.from_bytes(rest[4:8], "little")
        if rest[:4] == _CONTINUES and metadata_bytes > METADATA_BYTES_MAX:
            raise CommandFailedError(
                f"command gave a message with {metadata_bytes} bytes of metadata, more than {METADATA_BYTES_MAX}"
            )
        if rest[:4] != _CONTINUES:
            raise CommandFailedError(f"command gave what is no Arrow stream: it begins with {bytes(rest[:8])!r}")
        if len(rest) < _PREFIX_BYTES + metadata_bytes:
            return None
        if not metadata_bytes:
            return _PREFIX_BYTES
        body_bytes = _body_bytes(bytes(rest[_PREFIX_BYTES : _PREFIX_BYTES + metadata_bytes]))
        if not 0 <= body_bytes <= MESSAGE_BYTES_MAX:
            raise CommandFailedError(f"command gave a batch of {body_bytes} bytes, more than {MESSAGE_BYTES_MAX}")
        return _PREFIX_BYTES + metadata_bytes + body_bytes


def _body_bytes(metadata: bytes) -> int:
    """The field `bodyLength` of a Message (Arrow's Message.fbs): the fourth of a flatbuffer's root table, 0 if absent.

    Raises CommandFailedError if there is no such table.
    """
    try:
        table = struct.unpack_from("<I", metadata, 0)[0]
        fields = table - struct.unpack_from("<i", metadata, table)[0]
        fields_bytes = struct.unpack_from("<H", metadata, fields)[0]
        if fields < 0 or fields_bytes < 4 + 2 * 4:
            return 0
        at = struct.unpack_from("<H", metadata, fields + 4 + 2 * 3)[0]
        return int(struct.unpack_from("<q", metadata, table + at)[0]) if at else 0
    except struct.error as error:
        raise CommandFailedError(f"command gave what is no Arrow message: {error}") from error
