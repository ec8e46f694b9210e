"""Shards of a few records of another dataset: what its sink would have written had it been given these alone.

A shard closes each of its records as a range of its own, and keeps it. So a dataset of such shards is balanced record
by record, and `rebuild` makes each of them again from the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stages.runtime import InputError
from headrace.stages.sinks.compaction import ShardGroup, documents_of, object_of, profile_object, write_shard
from headrace.store import ObjectStore
from headrace.store.ledger import Closed, ClosedShard, Counts, Range
from headrace.store.shards import (
    codes_of,
    read_table,
)

#: Records of one entry at most: each is a range of its own.
RECORDS_MAX = 1 << 15


@dataclass(frozen=True, slots=True)
class Chosen:
    """Shards of one sink and version, and the rows `[n]` of each one's documents table that are chosen."""

    shards: tuple[Closed, ...]
    rows: tuple[tuple[int, ...], ...]


def chosen_groups(
    shards: Sequence[ClosedShard], rows: Mapping[str, Sequence[int]], target_bytes: int
) -> Iterator[Chosen]:
    """The chosen rows, by the key of a shard's tokens, in groups of about so many bytes of tokens.

    Raises InputError for a shard without tokens.
    """
    waiting: dict[tuple[str, str], list[tuple[Closed, tuple[int, ...], int]]] = {}
    for shard in shards:
        closed = shard.closed
        tokens = next((item for item in closed.objects if item.role == "tokens"), None)
        if tokens is None:
            raise InputError(f"entry {shard.number} closes a shard without tokens: only token datasets are split")
        mine = tuple(rows.get(tokens.key, ()))
        if not mine:
            continue
        size = tokens.size * len(mine) // max(1, closed.counts.kept)
        held = waiting.setdefault((closed.sink, closed.version), [])
        held.append((closed, mine, size))
        if sum(item[2] for item in held) >= target_bytes or sum(len(item[1]) for item in held) >= RECORDS_MAX:
            yield _group(held)
            held.clear()
    yield from (_group(held) for held in waiting.values() if held)


def _group(held: Sequence[tuple[Closed, tuple[int, ...], int]]) -> Chosen:
    return Chosen(tuple(item[0] for item in held), tuple(item[1] for item in held))


def write_chosen(source: ObjectStore, chosen: Chosen, target: ObjectStore, epoch: int) -> Closed:
    """Write the one shard of a group under an epoch of another dataset, and say what an entry has to close.

    Raises InputError where the shards contradict each other, StoreError.
    """
    group = ShardGroup(chosen.shards)
    documents, flat, lengths = documents_of(source, group, chosen.rows)
    verdicts = read_table(source, object_of(chosen.shards[0], "verdicts").key).slice(0, 0)
    tables, names = (("documents", documents), ("verdicts", verdicts)), _names_of(documents)
    objects, built = write_shard(source, group, target, epoch, flat, lengths, tables, partial(_only, names))
    ranges = tuple(
        Range(bytes.fromhex(name), row, 1) for name, rows in sorted(names.items()) for row in np.unique(rows).tolist()
    )
    first, packing = chosen.shards[0], built.packing
    counts = Counts(kept=len(ranges), tokens=built.tokens, sequences=packing.sequences, padding=packing.padding)
    profile = profile_object(target, epoch, objects, documents, counts)
    return Closed(first.sink, first.version, epoch, ranges, (*objects, profile), counts)


def _names_of(table: pa.Table) -> dict[str, npt.NDArray[np.int64]]:
    """The rows of a table by fragment."""
    codes, names = codes_of(table, "fragment")
    rows = np.asarray(table.column("row"), np.int64)
    return {name: rows[codes == code] for code, name in enumerate(names)}


def _only(names: Mapping[str, npt.NDArray[np.int64]], table: pa.Table) -> pa.Table:
    """The rows of a table that are of these records."""
    columns = (table.column("fragment").to_pylist(), table.column("row").to_pylist())
    wanted = {(name, row) for name, rows in names.items() for row in rows.tolist()}
    return table.filter(pa.array([pair in wanted for pair in zip(*columns, strict=True)], pa.bool_()))
