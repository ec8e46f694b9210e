"""Erasure: the objects of a shard written anew without the text of some of its documents, at the same geometry.

Tokens of an erased document are pad tokens, and every position of the shard keeps its meaning. Its row of the documents
table keeps id, source and ordinal, by which it is accounted for, and loses metadata, lineage, scores and text. Its
sketch becomes that of an empty text; its keys, which are hashes, stay, so that the text does not come back unseen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from headrace.store import Buffer, FormatError, ObjectStore, put
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
    read_lines,
    read_plain_header,
    read_shard,
    read_table,
    safetensors_parts,
    table_to_parquet,
    verify_object,
)

#: The sketch of a text without words: level 0, and nothing behind it.
_NO_WORDS = b"\0"
_OF_TEXT = ("metadata", "lineage", "text")
_HOLD_TEXT = ("tokens", "documents", "lines", SKETCHES_ROLE)
_LEVEL = 3

Replaced = tuple[tuple[str, StoredObject], ...]


@dataclass(frozen=True, slots=True)
class Erasable:
    """A shard, the rows of its documents table whose text is to go, and those of them whose text is gone already."""

    number: int
    closed: Closed
    rows: tuple[int, ...]
    gone: tuple[int, ...]


def main_object(closed: Closed) -> StoredObject | None:
    """The object by whose key rows of a shard are retracted: its tokens, else its documents."""
    objects = {item.role: item for item in closed.objects}
    return objects.get("tokens") or objects.get("documents")


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
            suffix, parts = (
                ".documents.parquet",
                [table_to_parquet(_documents(read_table(store, item.key), shard.rows))],
            )
        elif kind_of(role) == SKETCHES_ROLE:
            suffix, parts = SKETCHES_SUFFIX, [_sketches(store, item.key, objects["documents"].key, shard.rows)]
        else:
            suffix, parts = ".jsonl.zst", [_lines(store, item.key, shard)]
        digest = content_hash(parts)
        key = f"shards/{epoch}/{digest}{suffix}"
        put(store, key, parts)
        made.append((item.key, StoredObject(role, key, f"xxh3-128:{digest}", _size(parts))))
    return tuple(made)


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


def _lines(store: ObjectStore, key: str, shard: Erasable) -> bytes:
    """The lines of what is left; those of rows that are gone were left out before."""
    doomed, gone = set(shard.rows), frozenset(shard.gone)
    stream = zstandard.ZstdCompressor(level=_LEVEL).compressobj()
    kept = (line for row, line in _numbered(read_lines(store, key), gone) if row not in doomed)
    return b"".join((*map(stream.compress, kept), stream.flush()))


def _numbered(lines: Iterator[bytes], gone: Collection[int]) -> Iterator[tuple[int, bytes]]:
    row = 0
    for line in lines:
        while row in gone:
            row += 1
        yield row, line
        row += 1
