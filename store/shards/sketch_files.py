"""The `.sketches` file of a shard: the sketch of each record that it keeps, for the judge of a dedup stage.

A Parquet file, a row a record, sorted by fragment and row. What a sketch is stands in `headrace.stages.dedup.judge`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.store import FormatError, ObjectStore
from headrace.store.shards.key_files import read_columns

SKETCHES_SUFFIX = ".sketches"
SKETCHES_FORMAT = 1
#: Bytes of one sketch that a reader takes.
SKETCH_BYTES_MAX = 1 << 16
_METADATA = b"headrace.sketches"
_COLUMNS: dict[str, pa.DataType] = {"fragment": pa.string(), "row": pa.int64(), "sketch": pa.binary()}
_SCHEMA = pa.schema([pa.field(name, kind) for name, kind in _COLUMNS.items()])


def encode_sketches(parts: Sequence[tuple[bytes, npt.NDArray[np.int64], Any]]) -> bytes:
    """The file of these records' sketches: of each part the fragment, ordinals `[n]` and a binary column `[n]`."""
    tables = [
        pa.Table.from_arrays(
            [pa.repeat(pa.scalar(fragment.hex(), pa.string()), len(rows)), pa.array(rows, pa.int64()), sketches],
            schema=_SCHEMA,
        )
        for fragment, rows, sketches in parts
    ]
    return _to_file(pa.concat_tables(tables) if tables else _SCHEMA.empty_table())


def merge_sketches(files: Sequence[tuple[str, bytes]], only: Callable[[pa.Table], pa.Table] | None = None) -> bytes:
    """One file with the sketches of several, or `only` those of some records, each with a name for errors."""
    read = [_from_file(data, what) for what, data in files]
    return _to_file(pa.concat_tables([only(table) if only else table for table in read]))


def read_sketches(store: ObjectStore, key: str) -> pa.Table:
    """The rows of a file in a store: `fragment`, `row`, `sketch`. Raises ObjectMissing, FormatError."""
    return _from_file(bytes(store.get(key)), f"{store.uri}: {key!r}")


def _to_file(table: pa.Table) -> bytes:
    by = [("fragment", "ascending"), ("row", "ascending")]
    table = table.take(pc.sort_indices(table, sort_keys=cast("Any", by))).combine_chunks()
    facts = json.dumps({"format": SKETCHES_FORMAT}).encode()
    sink = pa.BufferOutputStream()
    # A sketch is of hashes, which no codec makes smaller.
    codecs = {"fragment": "zstd", "row": "zstd", "sketch": "none"}
    pq.write_table(
        table.replace_schema_metadata({_METADATA: facts}),
        sink,
        compression=cast("Any", codecs),
        use_dictionary=cast("Any", ["fragment"]),
    )
    return sink.getvalue().to_pybytes()


def _from_file(data: bytes, what: str) -> pa.Table:
    table, _ = read_columns(data, what, "sketches", _COLUMNS, _METADATA, SKETCHES_FORMAT)
    if table.num_rows and pc.max(pc.binary_length(table.column("sketch"))).as_py() > SKETCH_BYTES_MAX:
        raise FormatError(f"{what} holds a sketch of more than {SKETCH_BYTES_MAX} bytes; restore it")
    return table
