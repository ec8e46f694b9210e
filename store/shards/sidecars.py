"""The Parquet sidecars of a shard: their columns, how they are written and read (`docs/reference/format.md`)."""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.store import Buffer, FormatError, ObjectStore
from headrace.store.columnar import ColumnarGate, ColumnarHead, UnsoundColumns, open_columns
from headrace.store.files import DraftFile

#: Bounds what a reader of one document's row must decode.
ROW_GROUP_ROWS = 1 << 16
#: Bytes that rows may take in memory, for any file and for each of its bytes: a text of many rows may stand once there.
UNFOLDED_BYTES, UNFOLDED_A_STORED = 256 << 20, 512
#: Arrow's own step in rows, by which a page grows.
STEP_ROWS = 1024
#: Columns of the documents table that stages have written: `score.<stage>.<name>`.
SCORE_PREFIX = "score."
#: Columns whose values repeat; the others would only pay for a dictionary that is then given up.
_DICTIONARY_COLUMNS = ("source", "fragment", "stage", "verdict", "reason", "lineage")
#: Columns whose smallest and largest value help nobody find a row.
_NO_STATISTICS = ("raw", "metadata", "lineage", "text")

#: The type of each column that is no score, in the order of their numbers; text may be large.
_KINDS: dict[str, pa.DataType] = {
    "id": pa.string(),
    "source": pa.string(),
    "fragment": pa.string(),
    "row": pa.int64(),
    "part": pa.int32(),
    "tokens": pa.int64(),
    "lineage": pa.string(),
    "metadata": pa.string(),
    "text": pa.string(),
    "stage": pa.string(),
    "verdict": pa.string(),
    "reason": pa.string(),
    "duplicate_of": pa.string(),
    "raw": pa.binary(),
}
_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
#: How a Parquet file says the number of a column, and the numbers; those of scores begin at _SCORE_IDS.
_FIELD_ID = b"PARQUET:field_id"
_FIELD_IDS = {name: number for number, name in enumerate(_KINDS, 1)}
_SCORE_IDS = 1 << 30
#: Columns that each table of records has had from the first on, and those in which each row has a value.
_ALWAYS = ("id", "source", "fragment", "row", "verdict", "stage", "reason", "duplicate_of", "raw")
#: What a table has at the least, by the ending of its key.
_OF_VERDICTS = ("id", "source", "fragment", "row", "stage", "verdict", "reason")
_OF_KIND = {
    ".documents.parquet": ("id",),
    ".verdicts.parquet": _OF_VERDICTS,
    ".samples.parquet": (*_OF_VERDICTS, "text"),
}
_OF_QUARANTINE = ("id", "source", "fragment", "row", "stage", "reason", "raw")
_NEVER_NULL = ("fragment", "row")
#: The largest ordinal of a record in its fragment, as the ledger counts them.
ORDINAL_MAX = 1 << 62
#: How a fragment is named.
_FRAGMENT = re.compile(r"(?:[0-9a-f]{2}){1,16}")


def documents_schema() -> pa.Schema:
    """A row a kept document, in the order of `piece_document`; `row` is the record's ordinal in its fragment.

    `part` is null unless a stage split the record; it counts its parts from 0. So it is in the other tables.
    Behind these stand the scores that stages wrote, each a column `score.<stage>.<name>` of its own type.
    """
    return _schema_of_records("tokens", "lineage", "metadata")


def verdicts_schema() -> pa.Schema:
    """A row a record that was not kept; `duplicate_of` names the record that was: `<fragment>#<row>`, or null."""
    return _schema_of_records("stage", "verdict", "reason", "duplicate_of")


def quarantine_schema() -> pa.Schema:
    """A row a quarantined record, with its raw bytes."""
    return _schema_of_records("stage", "reason", "raw")


def samples_schema() -> pa.Schema:
    """A row a record that was removed and is shown as a sample, with the beginning of its text."""
    return _schema_of_records("stage", "verdict", "reason", "text")


def _schema_of_records(*columns: str) -> pa.Schema:
    """What says which record a row is about, and these columns behind it."""
    names = ("id", "source", "fragment", "row", "part", *columns)
    return pa.schema([pa.field(name, _KINDS[name]) for name in names])


def with_field_ids(schema: pa.Schema) -> pa.Schema:
    """The schema with a number for each column, by which table formats know it: the same for the same name."""
    return pa.schema([field.with_metadata({_FIELD_ID: str(field_id(field.name))}) for field in schema])


def field_id(name: str) -> int:
    """The number of a column; that of a score follows from its name."""
    return _FIELD_IDS.get(name) or _SCORE_IDS + zlib.crc32(name.encode()) % _SCORE_IDS


def table_to_parquet(table: pa.Table, *, has_ids: bool = True) -> bytes:
    """Return the table as a Parquet file; the same rows give the same bytes under one version of pyarrow.

    Columns `has_ids`, which they had not at first.
    """
    if has_ids:
        table = table.cast(with_field_ids(table.schema))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=ROW_GROUP_ROWS, **_parquet_options(table.schema))
    return sink.getvalue().to_pybytes()


def write_parquet(
    file: DraftFile,
    schema: pa.Schema,
    tables: Iterable[pa.Table],
    *,
    step_rows: int = STEP_ROWS,
    has_ids: bool = True,
) -> None:
    """Write a Parquet file of these tables, each as row groups of its own; of one table as `table_to_parquet` does.

    One table is held at a time. Of each column so many rows are encoded before it is asked whether the page is full; it
    grows by that much beyond Arrow's MiB. Raises StoreError, and what `tables` raises.
    """
    schema = with_field_ids(schema) if has_ids else schema
    writer = pq.ParquetWriter(cast("Any", file), schema, write_batch_size=step_rows, **_parquet_options(schema))
    try:
        for table in tables:
            writer.write_table(table.cast(schema), row_group_size=ROW_GROUP_ROWS)
            del table  # before the next one is made
        writer.close()
    except BaseException:
        file.abandon()
        raise


def _parquet_options(schema: pa.Schema) -> dict[str, Any]:
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": [field.name for field in schema if _repeats(field)],
        "write_statistics": [name for name in schema.names if name not in _NO_STATISTICS],
        "store_schema": False,
    }


def _repeats(field: pa.Field[Any]) -> bool:
    return field.name in _DICTIONARY_COLUMNS or (field.name.startswith(SCORE_PREFIX) and pa.types.is_string(field.type))


def read_table(store: ObjectStore, key: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a sidecar, or some columns of it. Raises `ObjectMissing`, `FormatError`."""
    with _open_table(store, key) as file:
        return _checked(file.whole(columns), columns or ())


def decode_table(data: Buffer, columns: Sequence[str], what: str) -> pa.Table:
    """These columns of a sidecar's bytes, of those that it has. FormatError where it is none."""
    try:
        with open_sidecar(data) as file:
            return _checked(file.whole([name for name in columns if name in file.schema.names]), ())
    except (pa.ArrowException, OSError, UnsoundColumns) as error:
        raise FormatError(f"{what} is not a readable Parquet file: {error}; restore it") from error


def whole_ids(table: pa.Table) -> Any:
    """`[rows]`: the id of each row's record, without the number of its part.

    Tables of before there were parts have no column `part`.
    """
    # a tenth of a second to import, which no run and no loader needs
    import pyarrow.compute as pc

    ids = table.column("id")
    if "part" not in table.column_names:
        return ids
    whole: Any = pc.replace_substring_regex(ids, pattern="/[0-9]+$", replacement="")
    return pc.if_else(pc.is_valid(table.column("part")), whole, ids)


def rows_named(table: pa.Table, name: str) -> npt.NDArray[np.bool_]:
    """`[rows]`: whether a row of a sidecar is the record of this id, or one of its parts."""
    import pyarrow.compute as pc

    wanted = pa.scalar(name, pa.string())
    found: Any = pc.or_(pc.equal(table.column("id"), wanted), pc.equal(whole_ids(table), wanted))
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


def codes_of(table: pa.Table, name: str) -> tuple[npt.NDArray[np.int64], list[str]]:
    """A column of texts as numbers `[rows]`, -1 for null, and the texts that they stand for."""
    encoded: Any = table.column(name).combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    return np.asarray(encoded.indices.fill_null(-1), np.int64), [str(text) for text in encoded.dictionary.to_pylist()]


def read_row_groups(store: ObjectStore, key: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield these columns of a sidecar, a row group at a time; at least one table. Raises as `read_table` does."""
    with _open_table(store, key) as file:
        for table in file.groups(columns):
            yield _checked(table, columns)


def _checked(table: pa.Table, asked: Sequence[str]) -> pa.Table:
    """The table, whose values are those that a sink writes: others take them for names. Raises UnsoundColumns."""
    if missing := [name for name in asked if name in _ALWAYS and name not in table.column_names]:
        raise UnsoundColumns(f"it has no column {missing[0]!r}")
    table.validate(full=True)
    for name in {*table.column_names} & _KINDS.keys():
        column, kind = table.column(name), _KINDS[name]
        if column.type not in (kind, _LARGE.get(kind, kind)):
            raise UnsoundColumns(f"its column {name!r} is of {column.type}, and should be of {kind}")
        if name in _NEVER_NULL and column.null_count:
            raise UnsoundColumns(f"its column {name!r} has no value in {column.null_count:,} of its rows")
    if "row" in table.column_names and table.num_rows:
        rows = np.concatenate([np.asarray(chunk) for chunk in table.column("row").chunks])
        if rows.min() < 0 or rows.max() > ORDINAL_MAX:
            raise UnsoundColumns(f"its column 'row' holds {int(rows.min())} to {int(rows.max())}")
    if "fragment" in table.column_names and table.num_rows:
        names: set[Any] = set(table.column("fragment").to_pylist())
        if wrong := next((name for name in names if not _FRAGMENT.fullmatch(name)), None):
            raise UnsoundColumns(f"its column 'fragment' holds {wrong[:80]!r}, which names none")
    return table


def json_object(text: str | None, what: str) -> dict[str, Any]:
    """The object in a cell of metadata or lineage, empty for anything else in JSON. Raises FormatError."""
    try:
        found: Any = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError as error:
        raise FormatError(f"the {what} of a record is no JSON: {error}; restore its table") from error
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def column_names(store: ObjectStore, key: str) -> list[str]:
    """The names of a sidecar's columns. Raises as `read_table` does."""
    with _open_table(store, key) as file:
        return list(file.schema.names)


def sidecar_schema(store: ObjectStore, key: str) -> pa.Schema:
    """The columns of a sidecar with their types. Raises as `read_table` does."""
    with _open_table(store, key) as file:
        return file.schema


class Sidecar:
    """A sidecar that is open: others may have written it, so a child decodes it, and it unfolds to so much alone."""

    def __init__(self, gate: ColumnarGate, head: ColumnarHead, size: int) -> None:
        self._gate, self._head, self._size = gate, head, size
        self._bytes_max = UNFOLDED_BYTES + UNFOLDED_A_STORED * size

    @property
    def schema(self) -> pa.Schema:
        """Its columns, and what Headrace says of them."""
        return self._head.schema

    def whole(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows. Raises UnsoundColumns."""
        found, taken = list[pa.Table](), 0
        for table in self.groups(columns):
            taken += table.nbytes
            self._check_bytes(taken)
            found.append(table)
        return pa.concat_tables(found)

    def groups(self, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        """The rows, a row group at a time; at least one table. Raises UnsoundColumns."""
        for index in range(len(self._head)):
            batches, taken = list[pa.RecordBatch](), 0
            for rows in self._gate.rows(index, ROW_GROUP_ROWS, columns):
                taken += rows.nbytes
                self._check_bytes(taken)
                batches.append(rows)
            yield pa.Table.from_batches(batches) if batches else self._empty(columns)
        if not len(self._head):
            yield self._empty(columns)

    def _empty(self, columns: Sequence[str] | None) -> pa.Table:
        names = self.schema.names if columns is None else [name for name in columns if name in self.schema.names]
        return self.schema.remove_metadata().empty_table().select(names)

    def _check_bytes(self, taken: int) -> None:
        if taken > self._bytes_max:
            raise UnsoundColumns(f"its {self._size:,} bytes unfold to more than {self._bytes_max:,}")


@contextlib.contextmanager
def open_sidecar(data: Buffer) -> Iterator[Sidecar]:
    """The bytes of a sidecar, opened. Raises UnsoundColumns."""
    with pa.BufferReader(data) as source, open_columns(source) as (gate, head):
        yield Sidecar(gate, head, source.size())


@contextlib.contextmanager
def _open_table(store: ObjectStore, key: str) -> Iterator[Sidecar]:
    path = store.open_local(key)
    try:
        if path is None:
            with open_sidecar(store.get(key)) as file:
                _check_kind(file.schema, key)
                yield file
        else:
            with path.open("rb", buffering=0) as source, open_columns(source) as (gate, head):
                _check_kind(head.schema, key)
                yield Sidecar(gate, head, path.stat().st_size)
    except (pa.ArrowException, OSError, UnsoundColumns) as error:
        raise FormatError(f"{store.uri}: {key!r} is not a readable Parquet file: {error}; restore it") from error


def _check_kind(schema: pa.Schema, key: str) -> None:
    """Raise UnsoundColumns where a table lacks what those of its kind have, or has a column twice."""
    folder, ending = key.partition("/")[0], key[key.find(".") :]
    wanted = _OF_QUARANTINE if folder == "quarantine" else _OF_KIND.get(ending, ())
    if missing := [name for name in wanted if name not in schema.names]:
        raise UnsoundColumns(f"it has no column {missing[0]!r}")
    if len({*schema.names}) < len(schema.names):
        raise UnsoundColumns("two of its columns have one name")
