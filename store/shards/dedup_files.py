"""The `.keys` and `.sketches` files of a shard: what a dedup stage is begun with after its index was lost.

`.keys` is a Parquet file, a row a key, sorted by key, so that each virtual partition (the key's highest eight bits)
is one run of rows; the file's metadata says where each begins, and by which scheme the keys were made
(docs/guide/dedup.md).

`.sketches` is a Parquet file, a row a record, sorted by fragment and row. What a sketch is stands in
`headrace.stages.dedup.judge`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.store import FormatError, ObjectStore
from headrace.store.shards.sidecars import ORDINAL_MAX, codes_of, open_sidecar

#: How the name of the file ends.
SUFFIX = ".keys"
KEYS_FORMAT = 1
PARTITIONS = 256
_KEYS_METADATA = b"headrace.keys"
_PARTITION_SHIFT = np.uint64(56)

#: `word`: 0 for a key of the whole text, which is `high` and `low`; else the number of a band's word, which is `high`.
_KEYS_COLUMNS: dict[str, pa.DataType] = {
    "high": pa.uint64(),
    "low": pa.uint64(),
    "word": pa.uint16(),
    "fragment": pa.string(),
    "row": pa.int64(),
}


#: A record as text: the fragment in hex, and the row.
_NAME = re.compile(r"((?:[0-9a-f]{2}){1,16})#([0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class RecordName:
    """A record as the ledger names it; as text, `<fragment in hex>#<row>`."""

    fragment: bytes
    row: int

    def __str__(self) -> str:
        return f"{self.fragment.hex()}#{self.row}"

    @staticmethod
    def parse(text: str) -> RecordName:
        """The inverse of `str`; ValueError for any other text."""
        found = _NAME.fullmatch(text)
        if found is None or int(found[2]) > ORDINAL_MAX:
            raise ValueError(f"{text[:80]!r} names no record")
        return RecordName(bytes.fromhex(found[1]), int(found[2]))

    @staticmethod
    def stored(cell: object, what: str) -> RecordName:
        """The record that a cell of a table names. Raises FormatError, which calls the cell `what`."""
        try:
            return RecordName.parse(cell if isinstance(cell, str) else "")
        except ValueError as error:
            raise FormatError(f"{what} {error}; restore its table") from error


@dataclass(frozen=True, slots=True)
class KeptKeys:
    """Keys of kept records. `keys` `[keys, 2]` and `words` `[keys]` are of the records `holders` `[keys]`.

    A holder is a place in `records` `[n]`, ordinals of the fragments at `places` `[n]` in `fragments`.
    """

    fragments: tuple[bytes, ...]
    places: npt.NDArray[np.int64]
    records: npt.NDArray[np.int64]
    keys: npt.NDArray[np.uint64]
    words: npt.NDArray[np.int64]
    holders: npt.NDArray[np.int64]

    def name(self, place: int) -> RecordName:
        """The record at a place."""
        return RecordName(self.fragments[int(self.places[place])], int(self.records[place]))


def encode_keys(
    parts: Sequence[tuple[bytes, npt.NDArray[np.int64], npt.NDArray[np.uint64]]], scheme: str, exact_words: int = 2
) -> bytes:
    """The file of these records' keys: of each part the fragment, ordinals `[n]` and keys `[n, words]`.

    The first two words are the key of the text; a band's word is one, and 0 where there is none.
    """
    width = exact_words if not parts else parts[0][2].shape[1]
    keys = np.concatenate([np.zeros((0, width), np.uint64), *(mine for _, _, mine in parts)])
    rows = np.concatenate([np.zeros(0, np.int64), *(mine for _, mine, _ in parts)])
    codes = np.repeat(np.arange(len(parts), dtype=np.int32), [len(mine) for _, mine, _ in parts])
    holders, bands = np.nonzero(keys[:, exact_words:])
    bands += exact_words
    holders, words = np.concatenate([np.arange(len(keys)), holders]), np.concatenate([np.zeros(len(keys), int), bands])
    low = np.zeros(len(holders), np.uint64)
    low[: len(keys)] = keys[:, 1]
    fragments = pa.array([fragment.hex() for fragment, _, _ in parts], pa.string()).take(
        pa.array(codes[holders], pa.int32())
    )
    columns = (keys[holders, words], low, words.astype(np.uint16))
    arrays = [*map(pa.array, columns), fragments, pa.array(rows[holders])]
    return _keys_file(pa.Table.from_arrays(arrays, schema=pa.schema(list(_KEYS_COLUMNS.items()))), scheme)


def merge_keys(files: Sequence[tuple[str, bytes]], only: Callable[[pa.Table], pa.Table] | None = None) -> bytes:
    """One file with the keys of several, or `only` those of some records, each with a name for errors.

    FormatError where they are of two schemes.
    """
    read = [_keys_table(data, what) for what, data in files]
    schemes = sorted({scheme for _, scheme in read})
    if len(schemes) != 1:
        raise FormatError(f"{files[0][0]} and {len(files) - 1} more: keys of schemes {', '.join(schemes)}")
    return _keys_file(pa.concat_tables([only(table) if only else table for table, _ in read]), schemes[0])


def _keys_file(table: pa.Table, scheme: str) -> bytes:
    """The rows by key, and of equal ones by record, so that the same keys are the same bytes."""
    table = table.take(pa.array(_order(table), pa.int64()))
    partitions = (np.asarray(table.column("high"), np.uint64) >> _PARTITION_SHIFT).astype(np.int64)
    bounds = np.searchsorted(partitions, np.arange(PARTITIONS + 1))
    facts = {"format": KEYS_FORMAT, "scheme": scheme, "partitions": bounds.tolist()}
    table = table.combine_chunks().replace_schema_metadata({_KEYS_METADATA: json.dumps(facts).encode()})
    sink = pa.BufferOutputStream()
    pq.write_table(
        table, sink, compression="zstd", compression_level=1, use_dictionary=cast("Any", ["word", "fragment"])
    )
    return sink.getvalue().to_pybytes()


def _order(table: pa.Table) -> npt.NDArray[np.int64]:
    """By `high`, and where that is equal by the other columns."""
    high = np.asarray(table.column("high"), np.uint64)
    order = np.argsort(high)
    same = high[order[1:]] == high[order[:-1]]
    tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    if len(tied):
        mine = table.take(pa.array(order[tied], pa.int64()))
        by = [(name, "ascending") for name in ("high", "low", "word", "fragment", "row")]
        order[tied] = order[tied][np.asarray(pc.sort_indices(mine, sort_keys=cast("Any", by)))]
    return order


def read_columns(
    data: bytes, what: str, noun: str, columns: Mapping[str, pa.DataType], metadata: bytes, known: int
) -> tuple[pa.Table, dict[str, Any]]:
    """These columns of a Parquet file, without nulls, and the facts in its metadata, whose format must be known.

    Raises FormatError, with `what` and that it is no file of `noun`.
    """
    unreadable = f"{what} is not a readable file of {noun}"
    try:
        with open_sidecar(data) as file:
            facts = json.loads((file.schema.metadata or {})[metadata])
            made = facts["format"]
            table = file.whole().select(list(columns))
    except (pa.ArrowException, OSError, LookupError, ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"{unreadable}: {error}; restore it") from error
    if made != known:
        raise FormatError(f"{what}: {noun} of format {made!r}; this Headrace reads {known}: upgrade it")
    if table.schema.types != list(columns.values()) or any(column.null_count for column in table.columns):
        raise FormatError(f"{unreadable}: its columns are {table.schema.types}; restore it")
    return table.replace_schema_metadata(None), facts


def _keys_table(data: bytes, what: str) -> tuple[pa.Table, str]:
    """The rows of a file and the scheme of its keys."""
    table, facts = read_columns(data, what, "keys", _KEYS_COLUMNS, _KEYS_METADATA, KEYS_FORMAT)
    return table, str(facts.get("scheme"))


def decode_keys(data: bytes, scheme: str, what: str) -> KeptKeys:
    """The keys of a file. FormatError, naming `what`, for bytes that are none, and for keys of another scheme."""
    table, made = _keys_table(data, what)
    if made != scheme:
        raise FormatError(
            f"{what}: its keys were made by scheme {made}, the pipeline's is {scheme}: keys of the two cannot be "
            "compared; write a new dataset"
        )
    try:
        return _kept_keys(table)
    except ValueError as error:
        raise FormatError(f"{what} names a fragment that is none: {error}; restore it") from error


def read_keys(store: ObjectStore, key: str, scheme: str) -> KeptKeys:
    """The keys of a file in a store. Raises ObjectMissing, FormatError."""
    return decode_keys(bytes(store.get(key)), scheme, f"{store.uri}: {key!r}")


def _kept_keys(table: pa.Table) -> KeptKeys:
    codes, names = codes_of(table, "fragment")
    rows = np.asarray(table.column("row"), np.int64)
    order = np.lexsort((rows, codes))
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (np.diff(codes[order]) != 0) | (np.diff(rows[order]) != 0)
    holders = np.empty(len(order), np.int64)
    holders[order] = np.cumsum(fresh) - 1
    first = order[fresh]
    keys = np.stack([np.asarray(table.column(name), np.uint64) for name in ("high", "low")], axis=1)
    return KeptKeys(
        tuple(bytes.fromhex(name) for name in names),
        codes[first],
        rows[first],
        keys,
        np.asarray(table.column("word"), np.int64),
        holders,
    )


SKETCHES_SUFFIX = ".sketches"
SKETCHES_FORMAT = 1
#: Bytes of one sketch that a reader takes.
SKETCH_BYTES_MAX = 1 << 16
_SKETCHES_METADATA = b"headrace.sketches"
_SKETCHES_COLUMNS: dict[str, pa.DataType] = {"fragment": pa.string(), "row": pa.int64(), "sketch": pa.binary()}
_SKETCHES_SCHEMA = pa.schema(list(_SKETCHES_COLUMNS.items()))


def encode_sketches(parts: Sequence[tuple[bytes, npt.NDArray[np.int64], Any]]) -> bytes:
    """The file of these records' sketches: of each part the fragment, ordinals `[n]` and a binary column `[n]`."""
    tables = [
        pa.Table.from_arrays(
            [pa.repeat(pa.scalar(fragment.hex(), pa.string()), len(rows)), pa.array(rows, pa.int64()), sketches],
            schema=_SKETCHES_SCHEMA,
        )
        for fragment, rows, sketches in parts
    ]
    return _sketches_file(pa.concat_tables(tables) if tables else _SKETCHES_SCHEMA.empty_table())


def merge_sketches(files: Sequence[tuple[str, bytes]], only: Callable[[pa.Table], pa.Table] | None = None) -> bytes:
    """One file with the sketches of several, or `only` those of some records, each with a name for errors."""
    read = [_sketches_table(data, what) for what, data in files]
    return _sketches_file(pa.concat_tables([only(table) if only else table for table in read]))


def read_sketches(store: ObjectStore, key: str) -> pa.Table:
    """The rows of a file in a store: `fragment`, `row`, `sketch`. Raises ObjectMissing, FormatError."""
    return _sketches_table(bytes(store.get(key)), f"{store.uri}: {key!r}")


def _sketches_file(table: pa.Table) -> bytes:
    by = [("fragment", "ascending"), ("row", "ascending")]
    table = table.take(pc.sort_indices(table, sort_keys=cast("Any", by))).combine_chunks()
    facts = json.dumps({"format": SKETCHES_FORMAT}).encode()
    sink = pa.BufferOutputStream()
    # A sketch is of hashes, which no codec makes smaller.
    codecs = {"fragment": "zstd", "row": "zstd", "sketch": "none"}
    pq.write_table(
        table.replace_schema_metadata({_SKETCHES_METADATA: facts}),
        sink,
        compression=cast("Any", codecs),
        use_dictionary=cast("Any", ["fragment"]),
    )
    return sink.getvalue().to_pybytes()


def _sketches_table(data: bytes, what: str) -> pa.Table:
    table, _ = read_columns(data, what, "sketches", _SKETCHES_COLUMNS, _SKETCHES_METADATA, SKETCHES_FORMAT)
    if table.num_rows and pc.max(pc.binary_length(table.column("sketch"))).as_py() > SKETCH_BYTES_MAX:
        raise FormatError(f"{what} holds a sketch of more than {SKETCH_BYTES_MAX} bytes; restore it")
    return table
