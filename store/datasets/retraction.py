"""Retraction and erasure: which rows and objects hold a record, and how shards are written anew without its text.

The tokens of a retracted document stay where they lie, so that every position of the dataset keeps its meaning; the
manifest names its row, and readers take padding for it. What only serves to be looked at is written anew without it:
samples lose the row, quarantine loses the raw bytes.

Tokens of an erased document are pad tokens, and every position of the shard keeps its meaning. Its row of the
documents table keeps id, source and ordinal, by which it is accounted for, and loses metadata, lineage, scores and
text. Its sketch becomes that of an empty text; its keys, which are hashes, stay, so that the text does not come back
unseen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from headrace.store import Buffer, FormatError, ObjectStore, put
from headrace.store.datasets.dataset import main_object
from headrace.store.datasets.where import Test, rows_where
from headrace.store.ledger import Closed, LedgerState, StoredObject
from headrace.store.shards import (
    BLOCKS,
    HEADER_CHECK,
    SCORE_PREFIX,
    SKETCHES_ROLE,
    SKETCHES_SUFFIX,
    content_hash,
    kind_of,
    merge_sketches,
    quarantine_prefix,
    read_lines,
    read_plain_header,
    read_shard,
    read_table,
    safetensors_parts,
    table_to_parquet,
    verify_object,
    whole_ids,
)

#: The sketch of a text without words: level 0, and nothing behind it.
_NO_WORDS = b"\0"
_OF_TEXT = ("metadata", "lineage", "text")
_HOLD_TEXT = ("tokens", "documents", "lines", SKETCHES_ROLE)
_LEVEL = 3

#: Which record a row is, beside its id, which tells parts of it apart; and how it is asked for.
_PLACE, _NAMES = ("fragment", "row"), ("id", "part", "source")
_Place = tuple[Any, ...]

Replaced = tuple[tuple[str, StoredObject], ...]


@dataclass(frozen=True, slots=True)
class Erasable:
    """A shard, the rows of its documents table whose text is to go, and those of them whose text is gone already."""

    number: int
    closed: Closed
    rows: tuple[int, ...]
    gone: tuple[int, ...]


def to_erase(state: LedgerState) -> list[Erasable]:
    """The shards with documents that were taken down and whose text they still hold."""
    down: dict[str, set[int]] = {}
    for since, key, rows in state.retracted:
        if state.is_takedown(since):
            down.setdefault(key, set()).update(rows)
    found: list[Erasable] = []
    for shard in state.shards if down else ():
        main = main_object(shard.closed)
        rows = down.get(main.key, set()) if main is not None else set()
        gone = state.erased_rows(main.key) if main is not None else ()
        if rows - set(gone):
            found.append(Erasable(shard.number, shard.closed, tuple(sorted(rows)), gone))
    return found


def erase(store: ObjectStore, shard: Erasable, epoch: int) -> Replaced:
    """Write the objects of a shard anew under an epoch, without the text of its rows: old keys and new objects.

    One object is in memory at a time. Raises FormatError, StoreError.
    """
    made: list[tuple[str, StoredObject]] = []
    objects = {item.role: item for item in shard.closed.objects}
    for role, item in objects.items():
        if kind_of(role) not in _HOLD_TEXT:
            continue
        # What is damaged would be given a checksum that says it is sound.
        verify_object(store, item.key, item.checksum)
        if role == "tokens":
            suffix, parts = ".safetensors", _tokens(store, item.key, shard.rows)
        elif role == "documents":
            table = read_table(store, item.key)
            suffix, parts = ".documents.parquet", [table_to_parquet(_documents(table, shard.rows))]
        elif kind_of(role) == SKETCHES_ROLE:
            suffix, parts = SKETCHES_SUFFIX, [_sketches(store, item.key, objects["documents"].key, shard.rows)]
        else:
            rows = read_table(store, objects["documents"].key, ["id"]).num_rows
            suffix, parts = ".jsonl.zst", [_lines(store, item.key, rows, shard)]
        made.append((item.key, _put(store, role, f"shards/{epoch}/", suffix, parts)))
    return tuple(made)


def _put(store: ObjectStore, role: str, prefix: str, suffix: str, parts: Sequence[Buffer]) -> StoredObject:
    digest = content_hash(parts)
    put(store, f"{prefix}{digest}{suffix}", parts)
    return StoredObject(role, f"{prefix}{digest}{suffix}", f"xxh3-128:{digest}", _size(parts))


def _size(parts: Collection[Buffer]) -> int:
    return sum(memoryview(part).nbytes for part in parts)


def _tokens(store: ObjectStore, key: str, rows: Collection[int]) -> list[Buffer]:
    plain, arrays = read_plain_header(store, key), read_shard(store, key)
    tokens = arrays["tokens"].copy()
    pad = int(plain.metadata["pad_id"])
    pieces = np.flatnonzero(np.isin(arrays["piece_document"], np.array(sorted(rows), np.int64)))
    places = (arrays[name][pieces].tolist() for name in ("piece_sequence", "piece_start", "piece_length"))
    for sequence, start, length in zip(*places, strict=True):
        tokens[sequence, start : start + length] = pad
    facts = {name: value for name, value in plain.metadata.items() if name not in (BLOCKS, HEADER_CHECK)}
    parts = safetensors_parts({**arrays, "tokens": tokens}, facts, blocks=BLOCKS in plain.metadata)
    if _size(parts) != plain.size:
        raise FormatError(f"{store.uri}: {key!r} has {plain.size} bytes, written anew {_size(parts)}: report it")
    return parts


def _documents(table: pa.Table, rows: Collection[int]) -> pa.Table:
    mask = np.isin(np.arange(table.num_rows), np.array(sorted(rows), np.int64))
    for place, field in enumerate(table.schema):
        if field.name in _OF_TEXT or field.name.startswith(SCORE_PREFIX):
            column = table.column(place).combine_chunks()
            column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            kept: Any = pc.if_else(pa.array(~mask), column, pa.scalar(None, field.type))
            table = table.set_column(place, field, kept)
    return table


def _sketches(store: ObjectStore, key: str, documents: str, rows: Collection[int]) -> bytes:
    named = read_table(store, documents, ["fragment", "row"]).take(pa.array(sorted(rows), pa.int64())).to_pylist()
    gone = {(item["fragment"], item["row"]) for item in named}

    def emptied(table: pa.Table) -> pa.Table:
        columns: list[list[Any]] = [column.to_pylist() for column in table.columns]
        sketches = [
            _NO_WORDS if (fragment, row) in gone else sketch for fragment, row, sketch in zip(*columns, strict=True)
        ]
        place = table.schema.get_field_index("sketch")
        return table.set_column(place, table.schema.field(place), pa.array(sketches, pa.binary()))

    return merge_sketches([(f"{store.uri}: {key!r}", bytes(store.get(key)))], emptied)


def _lines(store: ObjectStore, key: str, rows: int, shard: Erasable) -> bytes:
    """The lines of what is left; those of rows that are gone were left out before."""
    doomed = set(shard.rows)
    stream = zstandard.ZstdCompressor(level=_LEVEL).compressobj()
    kept = (line for row, line in numbered_lines(store, key, rows, shard.gone) if row not in doomed)
    return b"".join((*map(stream.compress, kept), stream.flush()))


def numbered_lines(store: ObjectStore, key: str, rows: int, gone: Collection[int]) -> Iterator[tuple[int, bytes]]:
    """Each line of an object of JSON Lines, with its row among the `rows` of the documents table; of those that are
    gone there is none.

    Raises FormatError, behind the last line, where they are more or fewer: then none is known to be of its row.
    """
    left = np.setdiff1d(np.arange(rows), np.array(sorted(gone), np.int64)).tolist()
    count = 0
    for count, line in enumerate(read_lines(store, key), 1):
        if count <= len(left):
            yield left[count - 1], line
    if count != len(left):
        raise FormatError(
            f"{store.uri}: {key!r} has {count} lines for {len(left)} records: earlier versions of Headrace broke a "
            "line where its metadata did; write the dataset again"
        )


@dataclass(frozen=True, slots=True)
class RecordPlaces:
    """Where the asked records stand."""

    #: Rows of the documents table, by the key of the shard's tokens.
    documents: tuple[tuple[str, tuple[int, ...]], ...]
    #: Each object that holds a beginning or the bytes of one.
    rewritten: tuple[StoredObject, ...]
    #: Records that were found, by id; those among them that were not kept have a verdict only.
    ids: frozenset[str]
    #: The ids among those that were asked for of which there is a record, or a part.
    named: frozenset[str]
    #: The URIs of what these were read from.
    sources: frozenset[str]
    #: What was asked for: ids of records, and URIs of what they were read from.
    asked: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    #: Shards of text, whose objects are written anew at once: no position of a training job leans on them.
    texts: tuple[Erasable, ...] = ()
    #: Whether any record fulfils the test.
    fulfilled: bool = False
    #: How many the `documents` are, where each counts once, however many sinks have kept it.
    kept: int = 0


def find_records(
    store: ObjectStore,
    state: LedgerState,
    ids: Collection[str],
    sources: Collection[str],
    where: Test | None = None,
) -> RecordPlaces:
    """Look for records by id (a split record by that of its whole), by the URI of what they were read from, or for
    kept ones whose fields fulfil a test. Raises FormatError, StoreError.
    """
    documents: dict[str, dict[int, _Place]] = {}
    rewritten: dict[str, StoredObject] = {}
    seen: set[str] = set()
    named: set[str] = set()
    read_from: set[str] = set()
    fulfilled = False
    for shard in state.shards:
        objects = {item.role: item for item in shard.closed.objects}
        keys = {role: item.key for role, item in objects.items()}
        for role in ("documents", "verdicts", "samples", "quarantine"):
            if role not in keys:
                continue
            is_kept = role == "documents" and where is not None
            facts = read_table(
                store,
                keys[role],
                [*_NAMES, *(_PLACE if role == "documents" else ()), *(("tokens", "metadata") if is_kept else ())],
            )
            mask = _matches(facts, ids, sources)
            if where is not None and is_kept:
                fulfil = rows_where(facts, where)
                fulfilled = fulfilled or bool(fulfil.any())
                mask |= fulfil
            if not mask.any():
                continue
            here = facts.filter(pa.array(mask))
            seen.update(str(name) for name in here.column("id").to_pylist())
            named.update(str(name) for names in (here.column("id"), whole_ids(here)) for name in names.to_pylist())
            read_from.update(str(uri) for uri in here.column("source").unique().to_pylist())
            if role == "documents":
                places = zip(*(here.column(name).to_pylist() for name in (*_PLACE, "id")), strict=True)
                matched = zip(np.flatnonzero(mask).tolist(), places, strict=True)
                documents.setdefault(keys.get("tokens", keys[role]), {}).update(matched)
            elif role != "verdicts":
                rewritten[keys[role]] = objects[role]
    known = {(name, row) for since, name, rows in state.retracted if state.is_takedown(since) for row in rows}
    fresh = {name: tuple(sorted(row for row in rows if (name, row) not in known)) for name, rows in documents.items()}
    texts = [shard for shard in state.shards if "tokens" not in {item.role for item in shard.closed.objects}]
    found = []
    for shard in texts:
        main = main_object(shard.closed)
        if main is not None and (rows := fresh.get(main.key)):
            gone = state.erased_rows(main.key)
            found.append(Erasable(shard.number, shard.closed, tuple(sorted({*rows, *gone})), gone))
    return RecordPlaces(
        tuple((name, rows) for name, rows in fresh.items() if rows),
        tuple(rewritten.values()),
        frozenset(seen),
        frozenset(named.intersection(ids)),
        frozenset(read_from),
        (frozenset(ids), frozenset(sources)),
        tuple(found),
        fulfilled,
        len({documents[name][row] for name, rows in fresh.items() for row in rows}),
    )


def write_rewritten(store: ObjectStore, found: RecordPlaces, epoch: int) -> tuple[tuple[str, StoredObject], ...]:
    """Write the objects anew under this epoch: the key of each old one, and what takes its place.

    One of them is in memory at a time. Raises FormatError, StoreError.
    """
    made: list[tuple[str, StoredObject]] = [item for shard in found.texts for item in erase(store, shard, epoch)]
    for item in found.rewritten:
        # What is damaged would be given a checksum that says it is sound.
        verify_object(store, item.key, item.checksum)
        role, old = item.role, item.key
        table = read_table(store, old)
        data = table_to_parquet(_without(role, table, _matches(table, *found.asked)))
        del table  # before the next one is read
        prefix, suffix = f"shards/{epoch}/", ".samples.parquet"
        if role == "quarantine":
            prefix, suffix = quarantine_prefix(prefix), ".parquet"
        made.append((old, _put(store, role, prefix, suffix, [data])))
    return tuple(made)


def _matches(table: pa.Table, ids: Collection[str], sources: Collection[str]) -> npt.NDArray[np.bool_]:
    """`[rows]`: whether a row is of a record that is asked for."""
    wanted = pa.array(sorted(ids), pa.string())
    found: Any = pc.or_(pc.is_in(table.column("id"), wanted), pc.is_in(whole_ids(table), wanted))
    found = pc.or_(found, pc.is_in(table.column("source"), pa.array(sorted(sources), pa.string())))
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _without(role: str, table: pa.Table, mask: npt.NDArray[np.bool_]) -> pa.Table:
    if role == "samples":
        return table.filter(pa.array(~mask))
    raw = pc.if_else(pa.array(mask), pa.scalar(None, pa.binary()), table.column("raw").combine_chunks())
    return table.set_column(table.schema.get_field_index("raw"), "raw", raw)
