"""Retraction: which rows and objects of a dataset hold a record, and what stands in their place afterwards.

The tokens of a retracted document stay where they lie, so that every position of the dataset keeps its meaning; the
manifest names its row, and readers take padding for it. What only serves to be looked at is written anew without it:
samples lose the row, quarantine loses the raw bytes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.store import ObjectStore, put
from headrace.store.datasets.erasure import Erasable, erase, main_object
from headrace.store.datasets.where import Test, rows_where
from headrace.store.ledger import LedgerState, StoredObject
from headrace.store.shards import content_hash, quarantine_prefix, read_table, table_to_parquet, verify_object


@dataclass(frozen=True, slots=True)
class RecordPlaces:
    """Where the asked records stand."""

    #: Rows of the documents table, by the key of the shard's tokens.
    documents: tuple[tuple[str, tuple[int, ...]], ...]
    #: Each object that holds a beginning or the bytes of one.
    rewritten: tuple[StoredObject, ...]
    #: Records that were found, by id; those among them that were not kept have a verdict only.
    ids: frozenset[str]
    #: What was asked for: ids of records, and URIs of what they were read from.
    asked: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    #: Shards of text, whose objects are written anew at once: no position of a training job leans on them.
    texts: tuple[Erasable, ...] = ()


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
    documents: dict[str, set[int]] = {}
    rewritten: dict[str, StoredObject] = {}
    seen: set[str] = set()
    for shard in state.shards:
        objects = {item.role: item for item in shard.closed.objects}
        keys = {role: item.key for role, item in objects.items()}
        for role in ("documents", "verdicts", "samples", "quarantine"):
            if role not in keys:
                continue
            is_kept = role == "documents" and where is not None
            facts = read_table(
                store, keys[role], ["id", "part", "source", *(("tokens", "metadata") if is_kept else ())]
            )
            mask = _matches(facts, ids, sources)
            if where is not None and is_kept:
                mask |= rows_where(facts, where)
            if not mask.any():
                continue
            seen.update(str(name) for name in facts.column("id").filter(pa.array(mask)).to_pylist())
            if role == "documents":
                documents.setdefault(keys.get("tokens", keys[role]), set()).update(np.flatnonzero(mask).tolist())
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
        (frozenset(ids), frozenset(sources)),
        tuple(found),
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
        digest = content_hash([data])
        prefix = f"shards/{epoch}/"
        key = (
            f"{quarantine_prefix(prefix)}{digest}.parquet"
            if role == "quarantine"
            else f"{prefix}{digest}.samples.parquet"
        )
        put(store, key, [data])
        made.append((old, StoredObject(role, key, f"xxh3-128:{digest}", len(data))))
    return tuple(made)


def _matches(table: pa.Table, ids: Collection[str], sources: Collection[str]) -> npt.NDArray[np.bool_]:
    """`[rows]`: whether a row is of a record that is asked for."""
    names: Any = table.column("id")
    whole: Any = pc.if_else(
        pc.is_valid(table.column("part")), pc.replace_substring_regex(names, pattern="/[0-9]+$", replacement=""), names
    )
    wanted = pa.array(sorted(ids), pa.string())
    found: Any = pc.or_(pc.is_in(names, wanted), pc.is_in(whole, wanted))
    found = pc.or_(found, pc.is_in(table.column("source"), pa.array(sorted(sources), pa.string())))
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _without(role: str, table: pa.Table, mask: npt.NDArray[np.bool_]) -> pa.Table:
    if role == "samples":
        return table.filter(pa.array(~mask))
    raw = pc.if_else(pa.array(mask), pa.scalar(None, pa.binary()), table.column("raw").combine_chunks())
    return table.set_column(table.schema.get_field_index("raw"), "raw", raw)
