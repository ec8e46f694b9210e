"""What is checked of Arrow data that somebody else made, before a byte of it is read as what it says it is.

Arrow takes offsets, lengths and indices at their word: one that lies reads what lies behind the column in memory. So
batches that came from another process or from a user's function are validated in full, which reads offsets, indices
and text once. What a message would unpack to is not known before it is unpacked, and nobody here packs: it is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

#: Rows of one batch: of columns without content, such as nulls, any number has no bytes.
ROWS_MAX: Final = 1 << 24
#: The field of a Message (Arrow's Message.fbs) that says of which kind its header is; a RecordBatch's, and its own.
_HEADER_TYPE, _HEADER, _COMPRESSION = 1, 2, 3
#: How a message begins.
_CONTINUES = b"\xff\xff\xff\xff"
_BODY_BYTES = 3
_SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH = 1, 2, 3
#: Of a DictionaryBatch, the RecordBatch in it; of a RecordBatch its buffers, each an offset and a length.
_DATA, _BUFFERS = 1, 2
#: Of a Schema (Schema.fbs), and of a Field in it.
_SCHEMA_FIELDS, _SCHEMA_METADATA = 1, 2
_NAME, _TYPE_KIND, _TYPE, _CHILDREN, _FIELD_METADATA = 0, 2, 3, 5, 6
_TIMESTAMP, _UNION = 10, 14
#: Of a view, and bytes of a number at most.
_VIEW_INTS, _NUMBER_BYTES = 4, 32
#: Bytes of the metadata of one message; a batch of a thousand columns has a twentieth.
METADATA_BYTES_MAX: Final = 1 << 20
#: Fields of a schema, however deep, and the bytes of their names and metadata. What refers to the same bytes twice
#: has them twice, as it does in memory.
SCHEMA_FIELDS_MAX: Final = 4096
SCHEMA_BYTES_MAX: Final = 1 << 20
NESTING_MAX: Final = 32
#: Messages whose answers are remembered, and bytes of the metadata of one at most.
_KNOWN_MAX: Final = 32
KNOWN_BYTES_MAX: Final = 8 << 10
#: Bytes that the values of a column come to where many rows refer to one.
UNFOLDED_BYTES_MAX: Final = 256 << 20
#: Types, by their number, of whose columns each row has bytes of its own. Others are looked at one by one.
_OWN_BYTES: Final = frozenset(
    kind.id
    for kind in (
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64(), pa.timestamp("us"), pa.binary(1)),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    )
)
#: Types, by their number, that Arrow reads and has no Python class for: intervals of months, and of days (type.h).
_UNKNOWN: Final = frozenset((21, 22))


class UnsoundArrow(ValueError):  # noqa: N818 (named after what is so)
    """Arrow data that is not what it says it is."""


def sound(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The batch itself. Raises UnsoundArrow unless all of it lies in its buffers and its text is UTF-8."""
    if rows.num_rows > ROWS_MAX:
        raise UnsoundArrow(f"a batch of {rows.num_rows} rows, the limit is {ROWS_MAX}")
    try:
        rows.validate(full=True)
        for field in rows.schema:
            _require_known(field)
        for column in rows.columns:
            if column.type.id not in _OWN_BYTES:
                _require_bounded(column)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise UnsoundArrow(f"a batch of {rows.num_rows} rows whose columns are not sound: {error}") from error
    return rows


def _require_bounded(column: Any) -> None:
    """Raise UnsoundArrow for a column whose values come to more than its bytes, beyond UNFOLDED_BYTES_MAX."""
    types, kind = pa.types, column.type
    if types.is_dictionary(kind) and not types.is_nested(kind.value_type):
        values = column.dictionary
        sizes = _sizes(values)
        indices = np.asarray(column.indices.fill_null(0) if len(values) else [], np.int64)
        if int(sizes[indices].sum()) <= UNFOLDED_BYTES_MAX:
            return
    elif _is_view(kind):
        if int(_sizes(column).sum()) <= UNFOLDED_BYTES_MAX:
            return
    elif not _refers(kind):
        return
    raise UnsoundArrow(f"a column of type {kind} may come to more than {UNFOLDED_BYTES_MAX} bytes: write it plainly")


def _is_view(kind: Any) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _refers(kind: Any) -> bool:
    """Whether rows of this type, or of one in it, may refer to the same bytes as other rows."""
    types = pa.types
    if types.is_list_view(kind) or types.is_large_list_view(kind) or types.is_run_end_encoded(kind):
        return True
    if types.is_dictionary(kind) or _is_view(kind):
        return True
    return any(_refers(kind.field(number).type) for number in range(kind.num_fields))


def _sizes(values: Any) -> npt.NDArray[np.int64]:
    """Bytes of each of the values, which are not nested."""
    kind = values.type
    if _is_view(kind):
        views = memoryview(values.buffers()[1] or b"")
        # A buffer may be longer than its views, by any number of bytes.
        held = np.frombuffer(views[: len(views) // 4 * 4], np.int32)[::_VIEW_INTS]
        return held[values.offset : values.offset + len(values)].astype(np.int64)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return np.full(len(values), _NUMBER_BYTES, np.int64)
    sizes: Any = pc.binary_length(values)
    return np.asarray(sizes.fill_null(0), np.int64)


def _require_known(field: pa.Field[Any]) -> None:
    """Raise UnsoundArrow for a type, or one in it, that Python has no class for; UnicodeDecodeError for a name."""
    # A name is decoded when it is asked for.
    _ = field.name
    kind: Any = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    if kind.id in _UNKNOWN:
        raise UnsoundArrow(f"a column of type {kind}, which Python does not know")
    if pa.types.is_dictionary(kind):
        _require_known(pa.field("", kind.value_type))
    for number in range(kind.num_fields):
        _require_known(kind.field(number))


def require_plain(metadata: memoryview) -> int:
    """Raise UnsoundArrow for metadata of a message that are no flatbuffer, or more than they may be; bytes of its body.

    A body is not compressed; a schema has so many fields and bytes; the buffers of a batch lie beside one another.
    """
    if len(metadata) > METADATA_BYTES_MAX:
        raise UnsoundArrow(f"a message with {len(metadata)} bytes of metadata, the limit is {METADATA_BYTES_MAX}")
    try:
        message = _table(metadata, 0)
        kind, at = metadata[_needed(metadata, message, _HEADER_TYPE)], _needed(metadata, message, _HEADER)
        body_at = _field(metadata, message, _BODY_BYTES)
        body_bytes = int(struct.unpack_from("<q", metadata, body_at)[0]) if body_at else 0
        if kind == _DICTIONARY_BATCH:
            at = _needed(metadata, _table(metadata, at), _DATA)
        if kind in (_DICTIONARY_BATCH, _RECORD_BATCH):
            batch = _table(metadata, at)
            if _field(metadata, batch, _COMPRESSION):
                raise UnsoundArrow("a message whose body is compressed: write it without compression")
            _require_apart(metadata, batch, body_bytes)
        if kind == _SCHEMA:
            _Walk(metadata).schema(_table(metadata, at))
    except (struct.error, IndexError) as error:
        raise UnsoundArrow(f"no message of Arrow: {error}") from error
    return body_bytes


def _require_apart(data: memoryview, batch: int, body_bytes: int) -> None:
    at = _field(data, batch, _BUFFERS)
    if not at:
        return
    begin = _table(data, at)
    (count,) = struct.unpack_from("<I", data, begin)
    lengths = struct.unpack_from(f"<{2 * count}q", data, begin + 4)[1::2]
    if min(lengths, default=0) < 0 or sum(lengths) > body_bytes:
        raise UnsoundArrow(f"a message whose buffers have {sum(lengths)} bytes, of {body_bytes}")


class _Walk:
    """Counts what a schema comes to. Raises UnsoundArrow where that is too much."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._fields = self._bytes = 0

    def schema(self, table: int) -> None:
        """All of a schema."""
        self._pairs(table, _SCHEMA_METADATA)
        for field in self._items(table, _SCHEMA_FIELDS):
            self._field(field, 1)

    def _field(self, table: int, depth: int) -> None:
        self._fields += 1
        if self._fields > SCHEMA_FIELDS_MAX or depth > NESTING_MAX:
            raise UnsoundArrow(f"a schema of more than {SCHEMA_FIELDS_MAX} fields, or {NESTING_MAX} within each other")
        self._count(table, _NAME)
        self._pairs(table, _FIELD_METADATA)
        kind, at = self._data[_needed(self._data, table, _TYPE_KIND)], _needed(self._data, table, _TYPE)
        if kind in (_UNION, _TIMESTAMP):
            # the numbers of a union, or a time zone
            self._count(_table(self._data, at), 1)
        for child in self._items(table, _CHILDREN):
            self._field(child, depth + 1)

    def _pairs(self, table: int, number: int) -> None:
        for pair in self._items(table, number):
            self._count(pair, 0)
            self._count(pair, 1)

    def _count(self, table: int, number: int) -> None:
        at = _field(self._data, table, number)
        self._add(4 + int(struct.unpack_from("<I", self._data, _table(self._data, at))[0]) if at else 4)

    def _add(self, count: int) -> None:
        self._bytes += count
        if self._bytes > SCHEMA_BYTES_MAX:
            raise UnsoundArrow(f"a schema whose names and metadata have more than {SCHEMA_BYTES_MAX} bytes")

    def _items(self, table: int, number: int) -> Iterator[int]:
        at = _field(self._data, table, number)
        if not at:
            return
        begin = _table(self._data, at)
        for place in range(int(struct.unpack_from("<I", self._data, begin)[0])):
            yield _table(self._data, begin + 4 + 4 * place)


def _table(data: memoryview, at: int) -> int:
    """Where the table lies to which the offset at `at` points."""
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: memoryview, table: int, number: int) -> int:
    """Where a table's field lies; 0 where it is not there."""
    fields = table - int(struct.unpack_from("<i", data, table)[0])
    if fields < 0:
        raise IndexError(f"the fields of a table lie {-fields} bytes before its message")
    if struct.unpack_from("<H", data, fields)[0] < 4 + 2 * (number + 1):
        return 0
    at = int(struct.unpack_from("<H", data, fields + 4 + 2 * number)[0])
    return table + at if at else 0


def _needed(data: memoryview, table: int, number: int) -> int:
    """Where a field lies that no message is without."""
    at = _field(data, table, number)
    if not at:
        raise UnsoundArrow(f"no message of Arrow: a table without field {number}")
    return at


@lru_cache(maxsize=_KNOWN_MAX)
def _require_plain(metadata: bytes) -> int:
    """`require_plain`, of which the last answers are known: a link sends its schema with each batch."""
    return require_plain(memoryview(metadata))


def check_messages(stream: Any) -> None:
    """`require_plain` of each message of a whole IPC stream, as bytes. Raises UnsoundArrow."""
    view, at = memoryview(stream).cast("B"), 0
    while at < len(view):
        # Arrow would also read messages as they were before its version 0.15, which nobody here has looked at.
        if bytes(view[at : at + 4]) != _CONTINUES or at + 8 > len(view):
            raise UnsoundArrow(f"no message of Arrow at byte {at}: {bytes(view[at : at + 8])!r}")
        length = int.from_bytes(view[at + 4 : at + 8], "little")
        if not length:
            return
        metadata = view[at + 8 : at + 8 + length]
        body = _require_plain(bytes(metadata)) if length <= KNOWN_BYTES_MAX else require_plain(metadata)
        if not 0 <= body <= len(view) - at - 8 - length:
            raise UnsoundArrow(f"a message says that it has {length} and {body} bytes, of {len(view) - at}")
        at += 8 + length + body
