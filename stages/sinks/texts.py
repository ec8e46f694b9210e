"""The sinks that keep text as text: Parquet tables of documents, and compressed JSON Lines.

What they gather waits in scratch files, and a shard goes into its objects by row groups and frames, so that none of it
is in memory but what is on its way.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import zstandard

from headrace.stages.runtime import Batch, Sink, StageContractError, WrittenShard, as_column, give_back
from headrace.stages.sinks.sidecars import (
    count_fates,
    gather,
    in_one_piece,
    in_order,
    kept_of,
    schema_of_documents,
    with_column,
    write_lost,
    write_object,
    write_profile,
)
from headrace.stages.sinks.spill import SpilledStrings, SpillFiles, cut_by_size, slice_rows, spill_strings
from headrace.store import ObjectStore
from headrace.store.files import DraftFile, Scratch
from headrace.store.ledger import StoredObject
from headrace.store.shards import ROW_GROUP_ROWS, STEP_ROWS, ProfileBuilder, write_parquet

#: zstd's own default: 3 keeps a core ahead of most disks.
COMPRESSION_LEVEL = 3
#: Bytes of JSON behind which a zstd frame ends: each can be decompressed without the others.
FRAME_BYTES = 8 << 20
#: Bytes of text and metadata in a row group, the record that is over it included: as much of a shard is in memory.
ROW_GROUP_BYTES = 4 << 20
#: Rows in a row group, however short they are: each has some 100 bytes beside its text and metadata.
TEXT_GROUP_ROWS = 1 << 13
#: Bytes of a row group as it was before, of up to ROW_GROUP_ROWS rows
#: (docs/decisions/0020-memory-that-does-not-grow-with-the-input).
LARGER_GROUP_BYTES = 8 << 20
#: Rows by which a page of text grows: of a thousand pages of the web it would have several MiB, twice.
TEXT_STEP_ROWS = 32
#: Bytes of text and metadata that are made JSON at once.
WINDOW_BYTES = 1 << 20

TEXT, METADATA = "text", "metadata"


class TextLayout(Enum):
    """How shards are cut into row groups and frames, the newest first."""

    NOW = "columns have numbers, and shards profiles"
    WITHOUT_IDS = "row groups of ROW_GROUP_BYTES"
    LARGER_GROUPS = "row groups of LARGER_GROUP_BYTES"
    WHOLE = "as all of a shard in memory gives them"


class TextSink(Sink):
    """What both sinks share: shards are measured by their text, which waits in scratch files."""

    def __init__(self, name: str, shard_bytes: int = 256 << 20) -> None:
        self.name = name
        self.shard_bytes = shard_bytes
        self.layout = TextLayout.NOW
        self._spill_files = SpillFiles(shard_bytes)

    def begin(self, dataset: str, version: str) -> None:
        """Nothing to note: the tables name their fragments."""

    def measure(self, batch: Batch) -> int:
        """Bytes of the kept text."""
        self._check(batch)
        return int(batch.rows.column(TEXT).nbytes)

    def spill(self, batch: Batch, store: ObjectStore) -> Batch:
        """The batch with its text and metadata in a scratch file."""
        return self._spill_files.put(store, lambda scratch: self._spilled(batch, scratch))

    def use_older_layout(self) -> bool:
        """Write shards in the layout before this one; False where there is none."""
        older = list(TextLayout)[list(TextLayout).index(self.layout) + 1 :]
        self.layout = older[0] if older else self.layout
        return bool(older)

    @property
    def _has_ids(self) -> bool:
        return self.layout is TextLayout.NOW

    def _check(self, batch: Batch) -> None:
        if TEXT not in batch.rows.schema.names:
            raise StageContractError(f'sink "{self.name}" got records without text: put it before tokenize(...)')

    def _spilled(self, batch: Batch, scratch: Scratch) -> Batch:
        self._check(batch)
        return spill_strings(batch, scratch, (TEXT, METADATA))

    def _in_order(self, batches: Sequence[Batch], store: ObjectStore) -> list[Batch]:
        return in_order(SpillFiles(self.shard_bytes).spilled(batches, store, self._spilled))

    def _write_documents(
        self,
        batches: Sequence[Batch],
        store: ObjectStore,
        prefix: str,
        columns: Sequence[str],
        builder: ProfileBuilder,
    ) -> StoredObject:
        """Write the table of what is kept, with these of the spilled columns."""
        strings = SpilledStrings(batches, columns)
        schema = schema_of_documents(batches)
        if TEXT in columns:
            schema = schema.append(pa.field(TEXT, pa.string()))

        def fill(file: DraftFile) -> None:
            steps = STEP_ROWS if self.layout is TextLayout.WHOLE else TEXT_STEP_ROWS
            groups = _counted(self._groups(batches, strings, schema), builder)
            write_parquet(file, schema, groups, step_rows=steps, has_ids=self._has_ids)

        return write_object(store, "documents", prefix, ".documents.parquet", fill)

    def _written(
        self,
        main: tuple[StoredObject, ...],
        batches: Sequence[Batch],
        store: ObjectStore,
        prefix: str,
        builder: ProfileBuilder,
    ) -> WrittenShard:
        """The shard of these main objects, with the tables beside them."""
        lost = write_lost(batches, store, prefix, has_ids=self._has_ids)
        counts = count_fates(batches, tokens=0, sequences=0, padding=0)
        more = (write_profile(builder, counts, store, prefix),) if self._has_ids else ()
        return WrittenShard((*main, *lost, *more), counts)

    def _groups(self, batches: Sequence[Batch], strings: SpilledStrings, schema: pa.Schema) -> Iterator[pa.Table]:
        if not len(strings.sizes):
            yield schema.empty_table()
        elif self.layout is not TextLayout.WHOLE:
            for first, end in self._edges(strings):
                yield _table(batches, strings, schema, first, end)
                give_back()  # what one row group leaves would lie beside the next
        else:
            edges = np.cumsum([0, *(batch.rows.num_rows for batch in batches if batch.rows.num_rows)]).tolist()
            yield pa.concat_tables(
                [_table(batches, strings, schema, first, end) for first, end in itertools.pairwise(edges)]
            )

    def _edges(self, strings: SpilledStrings) -> Iterator[tuple[int, int]]:
        """Where row groups begin and end."""
        if self.layout in (TextLayout.NOW, TextLayout.WITHOUT_IDS):
            return cut_by_size(strings.sizes, bytes_max=ROW_GROUP_BYTES, rows_max=TEXT_GROUP_ROWS)
        return cut_by_size(strings.sizes, bytes_max=LARGER_GROUP_BYTES, rows_max=ROW_GROUP_ROWS)


class DocumentSink(TextSink):
    """Writes `<hash>.documents.parquet` with the text as its last column, and the table of verdicts."""

    borrows = True
    merges = True

    def write(self, batches: Sequence[Batch], store: ObjectStore, prefix: str) -> WrittenShard:
        """Write the shard of these batches; the same records give the same objects, however they lie in batches."""
        ordered, builder = self._in_order(batches, store), ProfileBuilder()
        documents = self._write_documents(ordered, store, prefix, (METADATA, TEXT), builder)
        return self._written((documents,), ordered, store, prefix, builder)


class JsonlSink(TextSink):
    """Writes `<hash>.jsonl.zst`, a line {"id", "text", "metadata"} a kept record, and the tables of both fates."""

    borrows = True
    merges = True

    def write(self, batches: Sequence[Batch], store: ObjectStore, prefix: str) -> WrittenShard:
        """Write the shard of these batches; the same records give the same objects, however they lie in batches."""
        ordered, builder = self._in_order(batches, store), ProfileBuilder()

        def fill(file: DraftFile) -> None:
            compress = _compress_whole if self.layout is TextLayout.WHOLE else _compress
            compress(file, self._lines(ordered, builder))

        lines = write_object(store, "lines", prefix, ".jsonl.zst", fill)
        documents = self._write_documents(ordered, store, prefix, (METADATA,), builder)
        return self._written((lines, documents), ordered, store, prefix, builder)

    def _lines(self, batches: Sequence[Batch], builder: ProfileBuilder) -> Iterator[bytes]:
        """All lines, about WINDOW_BYTES of them at a time, cut where no batch has a say."""
        strings = SpilledStrings(batches, (TEXT, METADATA))
        for first, end in cut_by_size(strings.sizes, bytes_max=WINDOW_BYTES, rows_max=ROW_GROUP_ROWS):
            ids = [name for batch in slice_rows(batches, first, end) for name in batch.rows.column("id").to_pylist()]
            texts = strings.column(TEXT, first, end)
            builder.add_texts(texts)
            yield json_lines(ids, texts, strings.column(METADATA, first, end))


def _counted(tables: Iterator[pa.Table], builder: ProfileBuilder) -> Iterator[pa.Table]:
    for table in tables:
        builder.add(table)
        yield table
        del table  # before the next one is made


def _table(batches: Sequence[Batch], strings: SpilledStrings, schema: pa.Schema, first: int, end: int) -> pa.Table:
    """The rows `first` to `end` of the documents table."""
    table = in_one_piece(gather(slice_rows(batches, first, end), schema, kept_of))
    table = with_column(table, "tokens", as_column(np.zeros(end - first, np.int64)))
    for name in strings.columns:
        table = with_column(table, name, strings.column(name, first, end))
    return table


def _compress(file: DraftFile, lines: Iterable[bytes]) -> None:
    """Write zstd frames of about FRAME_BYTES of lines each; at least one, so that the file is never empty."""
    frames = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).stream_writer(cast("Any", file), closefd=False)
    size = 0
    for window in lines:
        frames.write(window)
        size += len(window)
        del window  # before the next one is made
        if size >= FRAME_BYTES:
            frames.flush(zstandard.FLUSH_FRAME)
            size = 0
            give_back()
    if size or not file.size:
        frames.flush(zstandard.FLUSH_FRAME)


def _compress_whole(file: DraftFile, lines: Iterable[bytes]) -> None:
    """The same as Headrace once wrote it: frames that Arrow compressed, each whole and ended by a line."""
    codec = pa.Codec("zstd", compression_level=COMPRESSION_LEVEL)
    held: list[bytes] = []
    size = 0
    for line in (line for window in lines for line in window.splitlines(keepends=True)):
        held.append(line)
        size += len(line)
        if size >= FRAME_BYTES:
            file.write(codec.compress(b"".join(held), asbytes=True))
            held, size = [], 0
    if held or not file.size:
        file.write(codec.compress(b"".join(held), asbytes=True))


#: What JSON cannot hold as it is and text often has. The backslash comes first, since the others bring one.
_ESCAPES = ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n"), (b"\r", b"\\r"), (b"\t", b"\\t"))
_FREQUENT = (b"\n", b"\r", b"\t")
#: Bytes below this one are control characters.
_SPACE = 0x20
#: JSON has these between its values only, where any white space will do; readers of lines end a line at them.
_ON_ONE_LINE = bytes.maketrans(b"\n\r", b"  ")


def json_lines(ids: Sequence[Any], texts: pa.Array[Any], metadata: pa.Array[Any]) -> bytes:
    """A line for each row. `texts` and `metadata` are strings, the latter JSON objects, null or empty where none is."""
    parts: list[bytes | memoryview] = []
    plain = not _has_rare_controls(texts)
    for name, text, extra in zip(ids, _values(texts), _values(metadata), strict=True):
        parts += (b'{"id":', orjson.dumps(name), b',"text":', _quoted(text, plain=plain))
        if extra:
            parts += (b',"metadata":', bytes(extra).translate(_ON_ONE_LINE))
        parts.append(b"}\n")
    return b"".join(parts)


def _quoted(value: memoryview | None, *, plain: bool) -> bytes:
    if value is None:
        return b"null"
    if not plain:
        return orjson.dumps(str(value, "utf-8"))
    text = bytes(value)
    for character, escaped in _ESCAPES:
        text = text.replace(character, escaped)
    return b'"%b"' % text


def _values(column: pa.Array[Any]) -> Iterator[memoryview | None]:
    """The values where they lie: a copy would stay beside those that are made of it."""
    buffers: Any = column.buffers()
    bounds: npt.NDArray[np.int32] = np.frombuffer(buffers[1], np.int32) if len(column) else np.zeros(1, np.int32)
    offsets: list[int] = bounds[column.offset : column.offset + len(column) + 1].tolist()
    data = memoryview(buffers[2] if buffers[2] is not None else b"")
    valid = np.asarray(column.is_valid()).tolist()
    for is_value, (low, high) in zip(valid, itertools.pairwise(offsets), strict=True):
        yield data[low:high] if is_value else None


def _has_rare_controls(column: pa.Array[Any]) -> bool:
    """Whether there may be control characters other than the frequent ones."""
    data: Any = column.buffers()[2]
    if data is None or not data.size:
        return False
    values = np.frombuffer(data, np.uint8)
    controls = int(np.count_nonzero(values < _SPACE))
    return controls != sum(int(np.count_nonzero(values == character[0])) for character in _FREQUENT)
