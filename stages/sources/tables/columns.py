"""What the sources of columns share: a record a row, a run of row groups, stripes or record batches a fragment.

The source of Parquet files.

The sources of ORC and of Arrow IPC, in files (Feather is one) and streams.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.stages.runtime import (
    QUARANTINED,
    SOURCE_ROWS,
    Batch,
    Columns,
    DamagedInput,
    FragmentChanged,
    FragmentEnd,
    InputError,
    WrongFormat,
    cut_raw,
    make_verdicts,
    no_verdicts,
)
from headrace.stages.sources import FileSource, ReadOptions, prefix_of
from headrace.stages.sources.objects import (
    ARROW,
    BLOCK_BYTES,
    HEAD_BYTES,
    ORC,
    PARQUET,
    UNFOLDED_A_STORED,
    UNFOLDED_BYTES_FREE,
    Content,
    InputObject,
    LocalFile,
    RemoteFile,
    checksum_of,
    misnamed,
    open_raw,
    partition_of,
    to_path,
)
from headrace.stages.sources.tables.parquet_values import as_json, kind_within, lifted, to_records
from headrace.store.columnar import ARROW_READER, ORC_READER, ColumnarGate, ColumnarHead, UnsoundColumns, footer_of
from headrace.store.ledger import UNBOUNDED, Fragment, Gap

#: Columns of a file, not counting those within others.
COLUMNS_MAX = 1 << 14
#: Bytes that a row counts as, at the least: a row of nulls has none, and becomes a record all the same.
ROW_BYTES_MIN = 8


@dataclass(slots=True)
class _Open:
    """A file that is open: what its footer says, the gate that decodes it, its bytes, and those of its rows so far."""

    head: ColumnarHead
    gate: ColumnarGate
    raw: LocalFile | RemoteFile
    unfolded: int = 0


class ColumnSource(FileSource):
    """Reads rows of columns; all columns but those of text and id are kept as metadata.

    A fragment is a run of groups of about `fragment_bytes` bytes as they lie in the file; its `start` and `end` are the
    bytes at which groups begin. `text_key` may name a field within a column, "a.b". A row without text is
    quarantined, as is one whose text is above `max_record_bytes`.
    """

    #: What rows are decoded with, and what says where they lie.
    GROUP: ClassVar[str]
    FOOTER: ClassVar[str]
    FROM_FRONT = False

    DEFAULTS = ReadOptions(fragment_bytes=16 << 20)

    def __init__(self, name: str, input: Sequence[str], **options: Any) -> None:  # noqa: A002 (as of FileSource)
        super().__init__(name, input, **options)
        #: Gates that no file is open at.
        self._gates: list[ColumnarGate] = []

    def fragments(self, found: InputObject) -> Iterator[Fragment]:
        """The runs of row groups of one file, by its footer."""
        whole = found.fragment(self.name, self.READER)
        try:
            with open_raw(self.inputs, whole, ahead=False, size=found.size) as raw, self._gate() as gate:
                starts = self._cuts(self._open(gate, raw, whole))
        except DamagedInput:
            if not self._salvages:
                raise
            starts = [0]
        yield from found.fragments(self.name, self.READER, starts)

    def read(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[Batch | FragmentEnd]:
        """The rows of the gaps. Row groups before a gap cost nothing; within one its first rows are skipped."""
        count, checksum = 0, b""
        to_its_end = bool(gaps) and gaps[-1].end == UNBOUNDED
        with open_raw(self.inputs, fragment, ahead=False) as raw, self._gate() as gate:
            if to_its_end and isinstance(raw, RemoteFile):
                raw.content = Content(fragment, scattered=True)
            try:
                head = self._open(gate, raw, fragment)
            except DamagedInput as error:
                if not self._salvages:
                    raise
                head, count = None, 1
                if any(gap.first == 0 for gap in gaps):
                    yield self.lost(fragment, 0, error.why)
            if head is not None:
                file, groups = _Open(head, gate, raw), self._groups(head, fragment)
                count = sum(rows for _, rows in groups)
                for gap in gaps:
                    for batch in self._gap(file, groups, fragment, gap):
                        raw.check()
                        self.stored_read += fragment.size * batch.count // count
                        yield batch
            if to_its_end:
                # Columns are read here and there; a file is read in order for it alone, from the system's cache.
                raw.content = raw.content or Content(fragment)
                checksum = checksum_of(raw)
            raw.check()
        if any(gap.first > count or UNBOUNDED > gap.end > count for gap in gaps):
            raise FragmentChanged(f"{fragment.uri} holds {count} records here, but later ones were to be read")
        if to_its_end:
            yield FragmentEnd(count, checksum)

    # -- the file --

    @contextlib.contextmanager
    def _gate(self) -> Iterator[ColumnarGate]:
        """A gate of its own, so that files may be open beside one another; it is kept for the next file."""
        gate = self._gates.pop() if self._gates else ColumnarGate()
        try:
            yield gate
        finally:
            gate.let_go()
            self._gates.append(gate)

    @abstractmethod
    def _head_of(self, gate: ColumnarGate, raw: LocalFile | RemoteFile) -> ColumnarHead:
        """What says where the rows lie. Raises UnsoundColumns."""

    def _open(self, gate: ColumnarGate, raw: LocalFile | RemoteFile, fragment: Fragment) -> ColumnarHead:
        """The file with its footer read and its columns known. Raises DamagedInput, InputError."""
        name = to_path(fragment.uri)
        try:
            file = self._head_of(gate, raw)
        except UnsoundColumns as error:
            raw.check()
            raw.seek(0)
            if what := misnamed(raw.read(HEAD_BYTES) or b"", self.FORMAT.name):
                raise WrongFormat(name, what, self.FORMAT.name) from error
            raise DamagedInput(name, f"its {self.FOOTER} cannot be read ({error})") from error
        rows, stored = sum(file.numbers[:, 0].tolist()), raw.seek(0, os.SEEK_END)
        if ROW_BYTES_MIN * rows > UNFOLDED_BYTES_FREE + UNFOLDED_A_STORED * stored:
            raise DamagedInput(name, f"its {self.FOOTER} says it holds {rows:,} rows in {stored:,} bytes")
        names = file.schema.names
        if len(names) > COLUMNS_MAX:
            raise InputError(f"{name!r} has {len(names):,} columns, the limit is {COLUMNS_MAX:,}; drop some")
        if twice := next(((column, many) for column, many in Counter(names).items() if many > 1), None):
            raise InputError(f'{name!r} has {twice[1]} columns "{twice[0]}"; rename or drop all but one of them')
        key = self.options.text_key
        kind = kind_within(file.schema, key)
        if kind is None:
            known = ", ".join(names[:20]) or "none"
            raise InputError(
                f'{name!r} has no column "{key}"; it has: {known}; name it with text_key=, as "column.field" '
                "where it lies within another"
            )
        if not (_is_text(kind) or pa.types.is_null(kind)):
            raise InputError(f'{name!r}: column "{key}" holds {kind}, no text; name another with text_key=')
        return file

    def _cuts(self, head: ColumnarHead) -> list[int]:
        """The byte at which each fragment begins; the first is 0."""
        starts, held = [0], 0
        # a footer may name them in any order
        for at, size in sorted((head.first_byte(index), head.stored_bytes(index)) for index in range(len(head))):
            if held >= self.options.fragment_bytes and at > starts[-1]:
                starts.append(at)
                held = 0
            held += size
        return starts

    def _groups(self, head: ColumnarHead, fragment: Fragment) -> list[tuple[int, int]]:
        """The row groups that begin in the fragment's range, and the rows of each."""
        end = fragment.end if fragment.end >= 0 else sys.maxsize
        found = [index for index in range(len(head)) if fragment.start <= head.first_byte(index) < end]
        return [(index, head.rows(index)) for index in found]

    def _gap(self, file: _Open, groups: Sequence[tuple[int, int]], fragment: Fragment, gap: Gap) -> Iterator[Batch]:
        starts = itertools.accumulate((rows for _, rows in groups), initial=0)
        wanted = [
            (index, first, max(gap.first, first), min(gap.end, first + rows))
            for (index, rows), first in zip(groups, starts, strict=False)
            if max(gap.first, first) < min(gap.end, first + rows)
        ]
        head, raw = file.head, file.raw
        for place, (index, first, low, high) in enumerate(wanted):
            for near, *_ in wanted[place : place + 2]:
                # what lies before the first one is of the fragment, too
                begin = fragment.start if near == groups[0][0] else head.first_byte(near)
                raw.expect(begin, head.first_byte(near) + head.stored_bytes(near) - begin)
            raw.expect_parts(head.column_chunks(index) if head.stored_bytes(index) > BLOCK_BYTES else ())
            yield from self._group(file, fragment, index, first, low, high)

    def _group(self, file: _Open, fragment: Fragment, index: int, first: int, low: int, high: int) -> Iterator[Batch]:
        """The records `[low, high)` of a row group whose first record is `first`."""
        ordinal = first
        try:
            for table in self._decoded(file, index, to_path(fragment.uri)):
                file.unfolded += table.nbytes
                if file.unfolded > UNFOLDED_BYTES_FREE + UNFOLDED_A_STORED * fragment.size:
                    why = f"its {fragment.size:,} bytes unfold to more than {UNFOLDED_A_STORED:,} times as many"
                    raise DamagedInput(to_path(fragment.uri), why)
                begin, end = max(low - ordinal, 0), min(high - ordinal, table.num_rows)
                self.bytes_skipped += table.slice(0, begin).nbytes
                while begin < end:
                    part = self._head(table.slice(begin, end - begin))
                    yield self._batch(fragment, ordinal + begin, part)
                    begin += part.num_rows
                ordinal += table.num_rows
                if ordinal >= high:
                    return
            raise DamagedInput(
                to_path(fragment.uri), f"{self.GROUP} {index} holds {ordinal - first} rows, fewer than its footer says"
            )
        except DamagedInput as error:
            if not self._salvages:
                raise
            yield from self._unreadable(fragment, max(ordinal, low), high, error.why)

    def _unreadable(self, fragment: Fragment, first: int, end: int, why: str) -> Iterator[Batch]:
        """The footer says how many rows a damaged row group has, so each is quarantined and the others are read."""
        while first < end:
            count = min(self.batch_records, end - first)
            columns = Columns(prefix_of(fragment))
            for ordinal in range(first, first + count):
                columns.reject(ordinal, None, f"damaged file: {why}", b"")
            yield columns.batch(fragment, self.name, first, count, -1, -1)
            first += count

    def _decoded(self, file: _Open, index: int, name: str) -> Iterator[pa.RecordBatch]:
        """The rows of a row group, some at a time. Raises DamagedInput."""
        step = max(1, min(self.batch_records, self.batch_bytes // file.head.row_bytes(index)))
        try:
            for table in file.gate.rows(index, step):
                yield self._lifted(table)
        except UnsoundColumns as error:
            file.raw.check()
            raise DamagedInput(name, f"{self.GROUP} {index} cannot be read ({error})") from error

    def _lifted(self, table: pa.RecordBatch) -> pa.RecordBatch:
        key = self.options.id_key
        if kind_within(table.schema, key) is not None:
            table = lifted(table, key)
        return lifted(table, self.options.text_key)

    def _head(self, table: pa.RecordBatch) -> pa.RecordBatch:
        """As many of the first rows as a batch takes, at least one: rows may differ much in size."""
        if table.nbytes <= 2 * self.batch_bytes or table.num_rows == 1:
            return table
        sizes = _lengths(_plain(table.column(self.options.text_key)))
        filled = np.searchsorted(np.cumsum(sizes), self.batch_bytes, side="right")
        return table.slice(0, max(1, int(filled)))

    # -- the rows --

    def _batch(self, fragment: Fragment, first: int, table: pa.RecordBatch) -> Batch:
        texts = _plain(table.column(self.options.text_key))
        why = self._faults(texts)
        count = table.num_rows
        rows = pa.array(range(first, first + count), pa.int64())
        ids = self._ids(fragment, first, table)
        columns: list[Any] = [rows, ids, texts, self._metadata(table, why, partition_of(fragment.uri))]
        verdicts = no_verdicts()
        if why:
            places = pa.array(sorted(why), pa.int64())
            verdicts = make_verdicts(
                rows=rows.take(places),
                ids=ids.take(places),
                stage=self.name,
                verdict=QUARANTINED,
                reasons=[why[index][0] for index in sorted(why)],
                raw=[why[index][1] for index in sorted(why)],
            )
            kept = pa.array([index for index in range(count) if index not in why], pa.int64())
            columns = [column.take(kept) for column in columns]
        columns[2] = columns[2].cast(pa.string())
        batch = pa.record_batch(columns, schema=SOURCE_ROWS)
        size = int(_lengths(texts).sum())
        self.bytes_read += size
        return Batch(fragment.id, fragment.uri, first, count, -1, size, batch, verdicts)

    def _faults(self, texts: pa.Array[Any]) -> dict[int, tuple[str, bytes]]:
        """The rows whose text cannot be kept: why, and the raw bytes."""
        why: dict[int, tuple[str, bytes]] = {}
        if texts.null_count:
            for index in np.flatnonzero(np.asarray(texts.is_null())).tolist():
                why[index] = f'text is not a string: column "{self.options.text_key}" is null', b""
        sizes = _lengths(texts)
        for index in np.flatnonzero(sizes > self.options.max_record_bytes).tolist():
            reason = f"text too long: {int(sizes[index])} bytes, the limit is {self.options.max_record_bytes}"
            why[index] = cut_raw(reason, _raw(texts, index), int(sizes[index]))
        try:
            texts.cast(pa.large_string()).validate(full=True)
        except pa.ArrowInvalid:
            for index in range(len(texts)):
                if index not in why and (fault := _not_utf8(_raw(texts, index))):
                    why[index] = fault
        return why

    def _ids(self, fragment: Fragment, first: int, table: pa.RecordBatch) -> pa.Array[Any]:
        """The records' own ids, where there are such, and names that follow from their places."""
        column = table.column(self.options.id_key) if self._has_ids(table) else None
        known: list[str | None] = [None] * table.num_rows
        if column is not None:
            ids = _known_ids(column)
            if not ids.null_count:
                return ids
            known = ids.to_pylist()
        prefix = prefix_of(fragment)
        return pa.array(
            [f"{prefix}#{first + at}" if name is None else name for at, name in enumerate(known)], pa.string()
        )

    def _has_ids(self, table: pa.RecordBatch) -> bool:
        if self.options.id_key not in table.schema.names:
            return False
        kind = table.schema.field(self.options.id_key).type
        return _is_text(kind) or bool(pa.types.is_integer(kind))

    def _metadata(
        self, table: pa.RecordBatch, why: dict[int, tuple[str, bytes]], fields: Mapping[str, str]
    ) -> pa.Array[Any]:
        """The other columns of each row as JSON; a row that cannot be written so is added to `why`."""
        taken = (self.options.text_key, self.options.id_key) if self._has_ids(table) else (self.options.text_key,)
        names = [name for name in table.schema.names if name not in taken]
        if not names:
            packed_fields = orjson.dumps(fields).decode() if fields else None
            return pa.array([packed_fields] * table.num_rows, pa.string())
        packed: list[bytes | None] = []
        for index, record in enumerate(to_records(table.select(names))):
            try:
                packed.append(orjson.dumps({**fields, **record}, default=as_json) if record is not None else None)
            except orjson.JSONEncodeError as error:
                why.setdefault(index, (f"metadata is no JSON: {error}", b""))
                packed.append(None)
            if record is None:
                why.setdefault(index, ("invalid UTF-8 in a column of the metadata", b""))
        return pa.array(packed, pa.string())


def _known_ids(column: pa.Array[Any]) -> pa.Array[Any]:
    """Ids as text; null for one that is empty or not UTF-8, whatever the others are."""
    try:
        ids: pa.Array[Any] = column.cast(pa.string())
        ids.validate(full=True)
    except pa.ArrowInvalid:
        raw: list[bytes | None] = _plain(column).to_pylist()
        ids = pa.array([None if name is None or _not_utf8(name) else name.decode() for name in raw], pa.string())
    empty: Any = pc.equal(ids, pa.scalar(""))
    return pc.if_else(empty, pa.scalar(None, pa.string()), ids) if pc.any(empty).as_py() else ids


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary)
    return any(check(kind) for check in (*kinds, pa.types.is_large_binary, pa.types.is_binary_view))


def _plain(column: pa.Array[Any]) -> pa.Array[Any]:
    """The column as binary of 64-bit offsets, whatever its bytes are."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(pa.large_binary())


def _lengths(column: Any) -> npt.NDArray[np.int64]:
    """Bytes of each value; 0 for null."""
    sizes: Any = pc.binary_length(column)
    return np.asarray(sizes.fill_null(0), dtype=np.int64)


def _raw(column: Any, index: int) -> bytes:
    value: bytes = column[index].as_buffer().to_pybytes()
    return value


def _not_utf8(data: bytes) -> tuple[str, bytes] | None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return cut_raw(f"invalid UTF-8: byte 0x{data[error.start]:02x} at byte {error.start}", data, len(data))
    return None


class ParquetSource(ColumnSource):
    """Reads Parquet, by row groups."""

    FORMAT = PARQUET
    READER = "parquet/1"
    GROUP = "row group"
    FOOTER = "Parquet footer"

    def _head_of(self, gate: ColumnarGate, raw: LocalFile | RemoteFile) -> ColumnarHead:
        footer = footer_of(raw)
        if not footer:
            raise UnsoundColumns("no Parquet has its last bytes")
        return gate.open(raw, footer)


class OrcSource(ColumnSource):
    """Reads ORC, by stripes."""

    FORMAT = ORC
    READER = "orc/1"
    GROUP = "stripe"
    FOOTER = "ORC footer"

    def _head_of(self, gate: ColumnarGate, raw: LocalFile | RemoteFile) -> ColumnarHead:
        return gate.open(raw, kind=ORC_READER)


class ArrowSource(ColumnSource):
    """Reads Arrow IPC, by record batches: a file by its footer, a stream by its messages."""

    FORMAT = ARROW
    READER = "arrow/1"
    GROUP = "record batch"
    FOOTER = "Arrow IPC layout"

    def _head_of(self, gate: ColumnarGate, raw: LocalFile | RemoteFile) -> ColumnarHead:
        return gate.open(raw, kind=ARROW_READER)
