"""What is checked of Arrow data that somebody else made, before a byte of it is read as what it says it is.

Arrow takes offsets, lengths and indices at their word: one that lies reads what lies behind the column in memory. So
batches that came from another process or from a user's function are validated in full, which reads offsets, indices
and text once. What a message would unpack to is not known before it is unpacked, and nobody here packs: it is refused.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import pyarrow as pa

#: Rows of one batch: of columns without content, such as nulls, any number has no bytes.
ROWS_MAX: Final = 1 << 24
#: The field of a Message (Arrow's Message.fbs) that says of which kind its header is; a RecordBatch's, and its own.
_HEADER_TYPE, _HEADER, _COMPRESSION = 1, 2, 3
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
#: How a message begins.
_CONTINUES = b"\xff\xff\xff\xff"
#: Of a DictionaryBatch, the RecordBatch in it.
_DATA = 1


class UnsoundArrow(ValueError):  # noqa: N818 (named after what is so)
    """Arrow data that is not what it says it is."""


def sound(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The batch itself. Raises UnsoundArrow unless all of it lies in its buffers and its text is UTF-8."""
    if rows.num_rows > ROWS_MAX:
        raise UnsoundArrow(f"a batch of {rows.num_rows} rows, the limit is {ROWS_MAX}")
    try:
        rows.validate(full=True)
        # names of columns, and of fields within them, are decoded when they are asked for
        for field in rows.schema:
            _read_names(field)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise UnsoundArrow(f"a batch of {rows.num_rows} rows whose columns are not sound: {error}") from error
    return rows


def _read_names(field: pa.Field[Any]) -> None:
    _ = field.name
    for number in range(field.type.num_fields):
        _read_names(field.type.field(number))


def require_plain(metadata: bytes) -> None:
    """Raise UnsoundArrow where a message's metadata say that its body is compressed, or is no flatbuffer."""
    try:
        message = _table(metadata, 0)
        kind_at = _field(metadata, message, _HEADER_TYPE)
        kind = metadata[kind_at] if kind_at else 0
        at = _field(metadata, message, _HEADER)
        if kind == _DICTIONARY_BATCH and at:
            at = _field(metadata, _table(metadata, at), _DATA)
        if kind in (_DICTIONARY_BATCH, _RECORD_BATCH) and at and _field(metadata, _table(metadata, at), _COMPRESSION):
            raise UnsoundArrow("a message whose body is compressed: write it without compression")
    except (struct.error, IndexError) as error:
        raise UnsoundArrow(f"no message of Arrow: {error}") from error


def _table(data: bytes, at: int) -> int:
    """Where the table lies to which the offset at `at` points."""
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Where a table's field lies; 0 where it is not there."""
    fields = table - int(struct.unpack_from("<i", data, table)[0])
    if fields < 0 or struct.unpack_from("<H", data, fields)[0] < 4 + 2 * (number + 1):
        return 0
    at = int(struct.unpack_from("<H", data, fields + 4 + 2 * number)[0])
    return table + at if at else 0


def check_messages(stream: Any) -> None:
    """`require_plain` of each message of a whole IPC stream, as bytes. Raises UnsoundArrow."""
    view, at = memoryview(stream).cast("B"), 0
    try:
        _check_messages(view, at)
    except (struct.error, IndexError) as error:
        raise UnsoundArrow(f"no message of Arrow: {error}") from error


def _check_messages(view: memoryview, at: int) -> None:
    while at < len(view):
        # Arrow would also read messages as they were before its version 0.15, which nobody here has looked at.
        if bytes(view[at : at + 4]) != _CONTINUES or at + 8 > len(view):
            raise UnsoundArrow(f"no message of Arrow at byte {at}: {bytes(view[at : at + 8])!r}")
        length = int.from_bytes(view[at + 4 : at + 8], "little")
        if not length:
            return
        metadata = bytes(view[at + 8 : at + 8 + length])
        require_plain(metadata)
        body_at = _field(metadata, _table(metadata, 0), 3)
        body = int(struct.unpack_from("<q", metadata, body_at)[0]) if body_at else 0
        if not 0 <= body <= len(view) - at - 8 - length:
            raise UnsoundArrow(f"a message says that it has {length} and {body} bytes, of {len(view) - at}")
        at += 8 + length + body
