"""The bytes of a shard: a safetensors file of tokens and its Parquet sidecars (`docs/reference/format.md`).

What writes one is `headrace.store.shards.builder`; here they are read, named and checked.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from headrace.store import Buffer, ChecksumMismatch, FormatError, ObjectMissing, ObjectStore
from headrace.store.files import DraftFile
from headrace.store.parquet import UnsoundParquet, try_footer
from headrace.store.shards.header import malformed, read_plain_header

#: How much of an object is held at once while it is checked.
VERIFY_CHUNK_BYTES = 8 << 20
#: Bounds what a reader of one document's row must decode.
ROW_GROUP_ROWS = 1 << 16
#: Arrow's own step in rows, by which a page grows.
STEP_ROWS = 1024

_CHECKSUM_KIND = "xxh3-128"
#: Of the arrays in a safetensors file, by the names that it gives them.
DTYPES: dict[str, type[np.generic]] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
}
#: Columns of the documents table that stages have written: `score.<stage>.<name>`.
SCORE_PREFIX = "score."
#: Columns whose values repeat; the others would only pay for a dictionary that is then given up.
_DICTIONARY_COLUMNS = ("source", "fragment", "stage", "verdict", "reason", "lineage")
#: Columns whose smallest and largest value help nobody find a row.
_NO_STATISTICS = ("raw", "metadata", "lineage", "text")


def content_hash(parts: Iterable[Buffer]) -> str:
    """Return the xxh3-128 of the concatenated parts, in hex: what an object is named by."""
    state = xxhash.xxh3_128()
    for part in parts:
        state.update(part)
    return state.hexdigest()


def checksum(parts: Iterable[Buffer]) -> str:
    """Return the checksum as the ledger records it: `xxh3-128:<hex>`."""
    return f"{_CHECKSUM_KIND}:{content_hash(parts)}"


def verify_object(store: ObjectStore, key: str, expected: str) -> int:
    """Read the object and return its size in bytes.

    Raises `ObjectMissing`, `ChecksumMismatch`, and `FormatError` for a kind of checksum that is not known.
    """
    if not expected.startswith(_CHECKSUM_KIND + ":"):
        raise FormatError(
            f"{key!r} has the checksum {expected!r}; this Headrace reads {_CHECKSUM_KIND}:<hex>, upgrade it"
        )
    if store.head(key) is None:
        raise ObjectMissing(key, store.uri)
    state = xxhash.xxh3_128()
    size = 0
    while chunk := store.get(key, offset=size, length=VERIFY_CHUNK_BYTES):
        state.update(chunk)
        size += len(chunk)
        if len(chunk) < VERIFY_CHUNK_BYTES:
            break
    found = f"{_CHECKSUM_KIND}:{state.hexdigest()}"
    if found != expected:
        raise ChecksumMismatch(key, store.uri, expected, found)
    return size


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one array lies in a safetensors file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    #: bytes from the start of the file
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """What a safetensors file says of itself."""

    metadata: dict[str, str]
    tensors: dict[str, TensorInfo]


def read_header(store: ObjectStore, key: str) -> ShardHeader:
    """Read the header of a token shard, and nothing else of it. Raises `ObjectMissing`, `FormatError`."""
    plain = read_plain_header(store, key)
    try:
        tensors = {str(name): _tensor_info(entry, plain.body) for name, entry in plain.tensors.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise malformed(store, key, f"{type(error).__name__}: {error}") from error
    for name, tensor in tensors.items():
        if tensor.offset + tensor.size > plain.size:
            raise malformed(store, key, f"{name!r} ends at byte {tensor.offset + tensor.size} of {plain.size}")
    return ShardHeader(plain.metadata, tensors)


def _tensor_info(entry: Any, body: int) -> TensorInfo:
    start, end = entry["data_offsets"]
    dtype = np.dtype(DTYPES[entry["dtype"]]).newbyteorder("<")
    shape = tuple(entry["shape"])
    if not all(type(value) is int and value >= 0 for value in (start, end, *shape)):
        raise ValueError(f"shape {shape} or offsets {start}, {end} are not sizes")
    if end - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"shape {shape} of {dtype} needs another size than {end - start} bytes")
    return TensorInfo(dtype, shape, body + start, end - start)


def read_shard(store: ObjectStore, key: str, header: ShardHeader | None = None) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a token shard by name, read-only; mapped into memory where the store is local.

    `header` is the shard's, where it was read already. Raises `ObjectMissing`, `FormatError`.
    """
    header = header or read_header(store, key)
    path = store.open_local(key)
    if path is None:
        data: Buffer | mmap.mmap = store.get(key)
    else:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, tensor in header.tensors.items():
        count = math.prod(tensor.shape)
        flat = np.frombuffer(data, tensor.dtype, count, tensor.offset) if count else np.zeros(0, tensor.dtype)
        arrays[name] = flat.reshape(tensor.shape)
    return arrays


def documents_schema() -> pa.Schema:
    """A row a kept document, in the order of `piece_document`; `row` is the record's ordinal in its fragment.

    `part` is null unless a stage split the record; it counts its parts from 0. So it is in the other tables.
    Behind these stand the scores that stages wrote, each a column `score.<stage>.<name>` of its own type.
    """
    return _schema_of_records(
        tokens=pa.int64(),
        lineage=pa.string(),
        metadata=pa.string(),
    )


def verdicts_schema() -> pa.Schema:
    """A row a record that was not kept; `duplicate_of` names the record that was: `<fragment>#<row>`, or null."""
    return _schema_of_records(
        stage=pa.string(),
        verdict=pa.string(),
        reason=pa.string(),
        duplicate_of=pa.string(),
    )


def quarantine_schema() -> pa.Schema:
    """A row a quarantined record, with its raw bytes."""
    return _schema_of_records(
        stage=pa.string(),
        reason=pa.string(),
        raw=pa.binary(),
    )


def samples_schema() -> pa.Schema:
    """A row a record that was removed and is shown as a sample, with the beginning of its text."""
    return _schema_of_records(
        stage=pa.string(),
        verdict=pa.string(),
        reason=pa.string(),
        text=pa.string(),
    )


def _schema_of_records(**columns: pa.DataType) -> pa.Schema:
    """What says which record a row is about, and these columns behind it."""
    record = {
        "id": pa.string(),
        "source": pa.string(),
        "fragment": pa.string(),
        "row": pa.int64(),
        "part": pa.int32(),
    }
    return pa.schema([pa.field(name, kind) for name, kind in (record | columns).items()])


def table_to_parquet(table: pa.Table) -> bytes:
    """Return the table as a Parquet file; the same rows give the same bytes under one version of pyarrow."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=ROW_GROUP_ROWS, **_parquet_options(table.schema))
    return sink.getvalue().to_pybytes()


def write_parquet(
    file: DraftFile, schema: pa.Schema, tables: Iterable[pa.Table], *, step_rows: int = STEP_ROWS
) -> None:
    """Write a Parquet file of these tables, each as row groups of its own; of one table as `table_to_parquet` does.

    One table is held at a time. Of each column so many rows are encoded before it is asked whether the page is full; it
    grows by that much beyond Arrow's MiB. Raises StoreError, and what `tables` raises.
    """
    writer = pq.ParquetWriter(cast("Any", file), schema, write_batch_size=step_rows, **_parquet_options(schema))
    try:
        for table in tables:
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
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
        return file.read(columns=None if columns is None else list(columns))


def rows_named(table: pa.Table, name: str) -> npt.NDArray[np.bool_]:
    """`[rows]`: whether a row of a sidecar is the record of this id, or one of its parts.

    Tables of before there were parts have no column `part`.
    """
    # a tenth of a second to import, which no run and no loader needs
    import pyarrow.compute as pc

    ids = table.column("id")
    found: Any = pc.equal(ids, pa.scalar(name, pa.string()))
    if "part" in table.column_names and table.column("part").null_count < table.num_rows:
        part = pc.and_(pc.is_valid(table.column("part")), pc.starts_with(ids, pattern=f"{name}/"))
        found = pc.or_(found, part)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


def read_row_groups(store: ObjectStore, key: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield these columns of a sidecar, a row group at a time; at least one table. Raises as `read_table` does."""
    with _open_table(store, key) as file:
        for index in range(file.metadata.num_row_groups):
            yield file.read_row_group(index, columns=list(columns))
        if not file.metadata.num_row_groups:
            yield file.read(columns=list(columns))


def column_names(store: ObjectStore, key: str) -> list[str]:
    """The names of a sidecar's columns. Raises as `read_table` does."""
    with _open_table(store, key) as file:
        return list(file.schema_arrow.names)


@contextlib.contextmanager
def _open_table(store: ObjectStore, key: str) -> Iterator[pq.ParquetFile]:
    path = store.open_local(key)
    try:
        source = pa.BufferReader(store.get(key)) if path is None else pa.memory_map(str(path))
        with source:
            # what lies in a folder, or with a store, may have been written by anybody since
            try_footer(source)
            with pq.ParquetFile(source) as file:
                yield file
    except (pa.ArrowException, OSError, UnsoundParquet) as error:
        raise FormatError(f"{store.uri}: {key!r} is not a readable Parquet file: {error}; restore it") from error
