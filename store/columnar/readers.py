"""What decodes each format of columns, in the child: rows by groups: row groups, stripes or record batches."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.store.columnar.layout import Messages, RangeStream, RowGroup, messages_of, stripes_of

MAGIC: Final = b"PAR1"
#: Bytes of a column that are asked for at a time.
COLUMN_BUFFER_BYTES: Final = 1 << 20
#: Bytes by which a column may be said to be larger than it is: some writers count a header twice.
COLUMN_SLACK_BYTES: Final = 128
#: How the names of a file's own metadata begin that is told.
OWN_METADATA: Final = b"headrace."
#: The formats, as an order names them.
PARQUET_READER, ORC_READER, ARROW_READER = 0, 1, 2


class ParquetReader:
    """A Parquet file by its footer. `metadata` and `head`: what another reader of the same footer has."""

    def __init__(self, source: Any, footer: bytes, known: ParquetReader | None) -> None:
        if known is None:
            data = pa.py_buffer(MAGIC + footer + struct.pack("<I", len(footer)) + MAGIC)
            metadata: Any = pq.read_metadata(pa.BufferReader(data))
            with pq.ParquetFile(pa.BufferReader(data), metadata=metadata) as file:
                schema: Any = file.schema_arrow
            groups = _row_groups(metadata, source.size)
            self.head, self._metadata = head_of(schema, groups, metadata.num_columns), metadata
        else:
            self.head, self._metadata = known.head, known._metadata
        #: The names of those that are read; all.
        self.columns: list[str] | None = None
        self._file = pq.ParquetFile(
            source,
            metadata=self._metadata,
            pre_buffer=False,
            buffer_size=COLUMN_BUFFER_BYTES,
            memory_map=False,
            page_checksum_verification=True,
        )

    def stored_bytes(self, index: int) -> int:
        """Bytes of a group as it lies in the file."""
        group = self._metadata.row_group(index)
        return sum(group.column(number).total_compressed_size for number in range(group.num_columns))

    def rows(self, index: int, step: int) -> Iterator[pa.RecordBatch]:
        """The rows of a group, up to `step` at a time. Raises ValueError, OSError, and as Arrow does."""
        batches: Any = self._file.iter_batches(
            batch_size=step, row_groups=[index], columns=self.columns, use_threads=False
        )
        return iter(batches)


class OrcReader:
    """An ORC file. A stripe is decoded whole."""

    def __init__(self, source: Any) -> None:
        from pyarrow import orc

        self._groups = stripes_of(_reads(source), source.size)
        self._file: Any = orc.ORCFile(source)
        if self._file.nstripes != len(self._groups):
            raise ValueError(f"it has {self._file.nstripes} stripes, and {len(self._groups)} by its footer")
        self.head = head_of(self._file.schema, map(_one_place, self._groups), 1)

    def stored_bytes(self, index: int) -> int:
        """See `ParquetReader`."""
        return self._groups[index].size

    def rows(self, index: int, step: int) -> Iterator[pa.RecordBatch]:
        """See `ParquetReader`."""
        return _cut(self._file.read_stripe(index), self._groups[index].rows, step)


class ArrowReader:
    """An Arrow file or stream. The batches of a stream are read in a row where they are asked for in a row."""

    def __init__(self, source: Any) -> None:
        self._read_at = _reads(source)
        self._messages: Messages = messages_of(self._read_at, source.size)
        schema = self._messages.schema
        self._file: Any = None if schema else pa.ipc.open_file(source)
        told: Any = self._file and self._file.schema
        if told is None:
            told = pa.ipc.read_schema(pa.py_buffer(self._read_at(*_range(schema))))
        self.head = head_of(told, map(_one_place, self._messages.batches), 1)
        self._stream: Any = None
        self._next = -1

    def stored_bytes(self, index: int) -> int:
        """See `ParquetReader`. Dictionaries are read with any batch."""
        return self._messages.batches[index].size + sum(group.size for group in self._messages.dictionaries)

    def rows(self, index: int, step: int) -> Iterator[pa.RecordBatch]:
        """See `ParquetReader`."""
        batch = self._file.get_batch(index) if self._file else self._streamed(index)
        return _cut(batch, self._messages.batches[index].rows, step)

    def _streamed(self, index: int) -> pa.RecordBatch:
        if self._stream is None or self._next != index:
            self._stream = pa.ipc.open_stream(RangeStream(self._read_at, self._ranges(index)))
        stream, self._stream = self._stream, None
        try:
            batch: pa.RecordBatch = stream.read_next_batch()
        except StopIteration as error:
            raise ValueError("the record batch is not there") from error
        self._stream, self._next = stream, index + 1
        return batch

    def _ranges(self, index: int) -> list[tuple[int, int]]:
        """The schema, the dictionaries before a batch, the batch and all messages behind it."""
        told = self._messages
        left = sorted((*told.dictionaries, *told.batches[index:]), key=lambda group: group.order)
        return [_range(told.schema), *map(_range, left)]


Reader: TypeAlias = ParquetReader | OrcReader | ArrowReader


def _range(group: RowGroup | None) -> tuple[int, int]:
    return (group.at, group.size) if group else (0, 0)


def _one_place(group: RowGroup) -> list[int]:
    return [group.rows, group.size, group.at, group.size]


def _reads(source: Any) -> Callable[[int, int], bytes]:
    def read_at(at: int, size: int) -> bytes:
        source.seek(at)
        found: bytes = source.read(size)
        return found

    return read_at


def _cut(rows: pa.RecordBatch, declared: int, step: int) -> Iterator[pa.RecordBatch]:
    """The rows in parts, once all offsets within them were looked at."""
    if rows.num_rows != declared:
        raise ValueError(f"it holds {rows.num_rows} rows, of {declared}")
    check(rows)
    return (rows.slice(at, step) for at in range(0, rows.num_rows, step))


def check(rows: pa.RecordBatch) -> None:
    """Raise pa.ArrowInvalid where rows point out of their buffers; text may be no UTF-8."""
    for column in rows.columns:
        bare = bare_kind(column.type)
        held = column if bare is column.type else column.view(bare)
        held.validate(full=True)


def _row_groups(metadata: Any, size: int) -> Iterator[list[int]]:
    """Of each row group its rows and bytes, and of each column in it where it lies; of a file of so many bytes.

    Raises ValueError, also where they come to more bytes than there are: a thousand may lie at one place.
    """
    left = size
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        if group.num_rows < 0 or group.total_byte_size < 0:
            raise ValueError(f"row group {index} has {group.num_rows} rows in {group.total_byte_size} bytes")
        numbers = [group.num_rows, group.total_byte_size]
        for number in range(metadata.num_columns):
            column = group.column(number)
            first, stored = column.data_page_offset, column.total_compressed_size
            if min(first, stored, column.total_uncompressed_size) < 0:
                raise ValueError(f"row group {index} has a column at no place, or of no size")
            places = [place for place in (column.dictionary_page_offset, first) if place and place > 0]
            left += COLUMN_SLACK_BYTES - stored
            if left < 0:
                raise ValueError(f"its row groups come to more than its {size} bytes")
            numbers += (min(places, default=0), stored)
        yield numbers


def head_of(schema: pa.Schema, groups: Iterator[list[int]], columns: int) -> bytes:
    """What is asked of a footer: the schema; of each group its rows and bytes; of each column in it where it lies.

    Raises ValueError for a size that is none, and for a name that is not UTF-8.
    """
    for field in schema:
        _read_names(field)
    count, numbers = 0, list[int]()
    for group in groups:
        count += 1
        numbers += group
    own = {name: value for name, value in (schema.metadata or {}).items() if name.startswith(OWN_METADATA)}
    told = schema.with_metadata(own).serialize().to_pybytes()
    shape = struct.pack("<qqq", len(told), count, columns)
    return bytes(shape + told + struct.pack(f"<{len(numbers)}q", *numbers))


def _read_names(field: pa.Field[Any]) -> None:
    _ = field.name
    for number in range(field.type.num_fields):
        _read_names(field.type.field(number))


def bare_kind(kind: Any) -> Any:
    """The type with bytes in the place of text, itself where there is none: whether text is UTF-8 is for others."""
    types: Any = pa.types
    if types.is_string(kind):
        return pa.binary()
    if types.is_large_string(kind):
        return pa.large_binary()
    if types.is_string_view(kind):
        return pa.binary_view()
    if types.is_dictionary(kind) and (value := bare_kind(kind.value_type)) is not kind.value_type:
        return pa.dictionary(kind.index_type, value, kind.ordered)
    if types.is_map(kind):
        key, item = bare_kind(kind.key_type), bare_kind(kind.item_field.type)
        same = key is kind.key_type and item is kind.item_field.type
        return kind if same else pa.map_(kind.key_field.with_type(key), kind.item_field.with_type(item))
    if types.is_struct(kind):
        fields = [field.with_type(bare_kind(field.type)) for field in kind]
        same = all(new.type is old.type for new, old in zip(fields, kind, strict=True))
        return kind if same else pa.struct(fields)
    for check, make in (
        (types.is_list, pa.list_),
        (types.is_large_list, pa.large_list),
    ):
        if check(kind):
            value = bare_kind(kind.value_type)
            return kind if value is kind.value_type else make(kind.value_field.with_type(value))
    if types.is_fixed_size_list(kind):
        value = bare_kind(kind.value_type)
        return kind if value is kind.value_type else pa.list_(kind.value_field.with_type(value), kind.list_size)
    return kind
