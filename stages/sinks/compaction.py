"""Merging small shards of tokens: the shard that the sink would have written had it gathered all that they close.

Rows are put in the order in which a sink puts them (source, fragment, ordinal, part), tokens are packed anew, and the
header says of the sink what the small ones said. So `rebuild` makes a merged shard again from the source, byte by byte,
and nobody can tell it from one that was never small.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stages.runtime import InputError, merge as merge_samples
from headrace.stages.sinks.sidecars import create_object
from headrace.store import ObjectStore
from headrace.store.datasets import Dataset
from headrace.store.ledger import Closed, ClosedShard, Counts, LedgerState, Range, StoredObject
from headrace.store.shards import (
    BLOCKS,
    HEADER_CHECK,
    KEYS_ROLE,
    PROFILE_ROLE,
    PROFILE_SUFFIX,
    SKETCHES_ROLE,
    SKETCHES_SUFFIX,
    SUFFIX,
    ShardBytes,
    build_tokens,
    checksum,
    encode_profile,
    kind_of,
    measure_profile,
    merge_keys,
    merge_sketches,
    quarantine_prefix,
    read_plain_header,
    read_shard,
    read_table,
    table_to_parquet,
    verify_object,
)

#: What the layout itself writes into a shard's header; everything else there is the sink's.
_LAYOUT = {
    "format_version", "seq_len", "pad_id", "sequences", "pieces", "documents", "token_count", "padding", "overlap",
    BLOCKS, HEADER_CHECK,
}  # fmt: skip
_ELSEWHERE = "compact into a new place"
_SHOWN, _TAKEN_DOWN = frozenset[str](), frozenset({""})
#: Roles that are merged, with the end of the key.
TABLES = {
    "documents": ".documents.parquet",
    "verdicts": ".verdicts.parquet",
    "quarantine": ".parquet",
    "samples": ".samples.parquet",
}
#: What is merged by its own function: how a file's name ends, and the function.
MERGED = {
    KEYS_ROLE: (SUFFIX, merge_keys),
    SKETCHES_ROLE: (SKETCHES_SUFFIX, merge_sketches),
}


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """Shards that become one: of one sink and one version of the pipeline, neighbours in the ledger's order."""

    shards: tuple[Closed, ...]


def groups(shards: Iterable[ClosedShard], target_bytes: int) -> Iterator[ShardGroup]:
    """Neighbours together, until their tokens reach the target; a shard that reaches it alone stays alone.

    Raises InputError for a shard without tokens, and for an object of a kind that is not known here.
    """
    waiting: dict[tuple[str, str], list[Closed]] = {}
    sizes: dict[tuple[str, str], int] = {}
    for shard in shards:
        closed = shard.closed
        for item in closed.objects:
            if (
                item.role not in ("tokens", PROFILE_ROLE)
                and item.role not in TABLES
                and kind_of(item.role) not in MERGED
            ):
                raise InputError(f"{item.key} is of role {item.role!r}, which this Headrace cannot merge: upgrade it")
        if all(item.role != "tokens" for item in closed.objects):
            raise InputError(f"entry {shard.number} closes a shard without tokens: only shards of tokens are compacted")
        kind = closed.sink, closed.version
        held, size = waiting.setdefault(kind, []), object_of(closed, "tokens").size
        if held and sizes[kind] + size > target_bytes:
            yield ShardGroup(tuple(held))
            held.clear()
        sizes[kind] = sizes[kind] + size if held else size
        held.append(closed)
    for held in waiting.values():
        if held:
            yield ShardGroup(tuple(held))


def merge(source: ObjectStore, group: ShardGroup, target: ObjectStore, epoch: int) -> Closed:
    """Write a group's one shard under an epoch of another dataset, and say what an entry has to close.

    Raises InputError where the shards contradict each other, StoreError.
    """
    documents, flat, lengths = documents_of(source, group)
    tables = (("documents", documents), *_sidecars(source, group))
    objects, built = write_shard(source, group, target, epoch, flat, lengths, tables)
    counts = reduce(add, (closed.counts for closed in group.shards))
    if built.tokens != counts.tokens or documents.num_rows != len(lengths):
        raise InputError(
            f"{source.uri}: {built.tokens} tokens were read and the ledger counts {counts.tokens}: "
            "`headrace dataset verify` says what is wrong"
        )
    packing = built.packing
    first = group.shards[0]
    return Closed(
        sink=first.sink,
        version=first.version,
        epoch=epoch,
        ranges=_joined(group),
        objects=(*objects, profile_object(target, epoch, objects, documents, counts)),
        counts=replace(counts, sequences=packing.sequences, padding=packing.padding),
    )


def profile_object(
    target: ObjectStore, epoch: int, objects: Sequence[StoredObject], documents: pa.Table, counts: Counts
) -> StoredObject:
    """Write the profile of a shard of these objects, the first of which are its tokens, as its sink would have."""
    profile = measure_profile(target, objects[0].key, documents, counts.by_fate, counts.tokens)
    return create_object(target, PROFILE_ROLE, f"shards/{epoch}/", PROFILE_SUFFIX, [encode_profile(profile)])


def write_shard(
    source: ObjectStore,
    group: ShardGroup,
    target: ObjectStore,
    epoch: int,
    flat: npt.NDArray[Any],
    lengths: npt.NDArray[np.int64],
    tables: Iterable[tuple[str, pa.Table]],
    chosen: Callable[[pa.Table], pa.Table] | None = None,
) -> tuple[tuple[StoredObject, ...], ShardBytes]:
    """Write a shard of documents of a group, end to end in `flat`, with these tables, and of keys what is `chosen`.

    Raises InputError where the shards contradict each other, StoreError.
    """
    prefix, (facts, layout) = f"shards/{epoch}/", facts_of(source, group)
    built = build_tokens(
        flat,
        lengths,
        seq_len=int(layout["seq_len"]),
        dtype=flat.dtype,
        pad_id=int(layout["pad_id"]),
        metadata=facts,
        overlap=int(layout.get("overlap", "0")),
    )
    objects = [create_object(target, "tokens", prefix, ".safetensors", built.parts)]
    for role, table in tables:
        at = quarantine_prefix(prefix) if role == "quarantine" else prefix
        objects.append(create_object(target, role, at, TABLES[role], [table_to_parquet(table)]))
    merged: dict[str, list[str]] = {}
    for item in (item for closed in group.shards for item in closed.objects if kind_of(item.role) in MERGED):
        merged.setdefault(item.role, []).append(item.key)
    for role in sorted(merged):
        suffix, merge_files = MERGED[kind_of(role)]
        content = merge_files([(key, bytes(source.get(key))) for key in merged[role]], chosen)
        objects.append(create_object(target, role, prefix, suffix, [content]))
    return tuple(objects), built


def left_to_do(old: LedgerState, new: LedgerState) -> list[ClosedShard]:
    """The published shards of one dataset of which the other has closed nothing yet.

    Raises InputError where the other has records or shards that are not of it.
    """
    strange = sorted({shard.closed.version for shard in new.shards} - old.pipelines.keys())
    if strange:
        raise InputError(f"it holds shards of pipeline {strange[0]}, which the other dataset does not: {_ELSEWHERE}")
    for name, state in new.fragments.items():
        known = old.fragments.get(name)
        for sink, intervals in state.closed.items():
            for first, end in intervals:
                if known is None or sum(b - a for a, b in known.of(sink).overlap(first, end)) != end - first:
                    raise InputError(
                        f"it holds records {first}..{end - 1} of {state.fragment.uri}, which the other dataset does "
                        f"not: {_ELSEWHERE}"
                    )
    newest = old.newest
    return [
        shard
        for shard in old.shards
        if (newest is None or newest.shows_entry(shard.number)) and not new.conflicts(shard.closed)
    ]


Rows = tuple[tuple[str, tuple[int, ...]], ...]


def retracted_rows(old: Dataset, new: Dataset) -> dict[str, Rows]:
    """Rows of the new documents tables, by the key of the shard's tokens, that the old dataset shows no more.

    They are given by each reason of a version that hides them until a rollback, as far as the new dataset does not hide
    them for it; by "" are those that were taken down. Raises InputError where it hides what a rollback of the old one
    shows again.
    """
    gone: dict[tuple[str, int, int | None], frozenset[str]] = {}
    for shard in old.shards:
        rows = _reasons(old, object_of(shard.closed, "tokens").key)
        if rows:
            table = read_table(old.store, object_of(shard.closed, "documents").key, ["fragment", "row", "part"])
            gone.update(zip(_names(table.take(pa.array(list(rows), pa.int64()))), rows.values(), strict=True))
    found: dict[str, dict[str, list[int]]] = {}
    fragments = {fragment for fragment, _, _ in gone}
    for shard in new.shards:
        if fragments.isdisjoint(item.fragment.hex() for item in shard.closed.ranges):
            continue
        table = read_table(new.store, object_of(shard.closed, "documents").key, ["fragment", "row", "part"])
        tokens = object_of(shard.closed, "tokens").key
        known = _reasons(new, tokens)
        for row, name in enumerate(_names(table)):
            reasons, held = gone.get(name), known.get(row, _SHOWN)
            if reasons is None or held == _TAKEN_DOWN:
                continue
            if held and not reasons:
                raise InputError(f"it hides rows that a rollback of the other dataset shows again: {_ELSEWHERE}")
            for reason in reasons - held:
                found.setdefault(reason, {}).setdefault(tokens, []).append(row)
    return {
        reason: tuple((key, tuple(rows)) for key, rows in tables.items()) for reason, tables in sorted(found.items())
    }


def _reasons(dataset: Dataset, tokens: str) -> dict[int, frozenset[str]]:
    """For what each row of a shard that was ever hidden is shown no more; nothing where a rollback shows it again.

    Of a row that was taken down that is all that counts.
    """
    state, found = dataset.state, dict[int, frozenset[str]]()
    for since, rows in dataset.retractions(tokens):
        why = _TAKEN_DOWN if state.is_takedown(since) else frozenset({state.published[since].reason})
        hidden = why if state.hides(since, dataset.version) else _SHOWN
        found.update((row, found[row] | hidden if row in found else hidden) for row in rows)
    return {row: _TAKEN_DOWN & reasons or reasons for row, reasons in sorted(found.items())}


def write_retracted(old: Dataset, new: Dataset, epoch: int) -> tuple[tuple[str, StoredObject], ...]:
    """Write samples and quarantine of merged shards anew where the old dataset has lost text of them since.

    The key of each old object, and what takes its place. Raises StoreError.
    """
    prefix, origins = f"shards/{epoch}/", _Origins(old)
    made: list[tuple[str, StoredObject]] = []
    for shard in new.shards:
        standing = {item.role: item for item in shard.closed.objects if item.role in ("quarantine", "samples")}
        if not standing:
            continue
        for role, table in _sidecars(old.store, ShardGroup(origins.of(shard.closed))):
            data = table_to_parquet(table)
            if role in standing and standing[role].checksum != checksum([data]):
                at = quarantine_prefix(prefix) if role == "quarantine" else prefix
                made.append((standing[role].key, create_object(new.store, role, at, TABLES[role], [data])))
    return tuple(made)


class _Origins:
    """Where each shard of a dataset begins: by its sink and the fragment of its first record."""

    def __init__(self, dataset: Dataset) -> None:
        self._shards = [shard.closed for shard in dataset.shards]
        self._begins: dict[tuple[str, bytes], list[tuple[int, int]]] = {}
        for place, closed in enumerate(self._shards):
            for item in closed.ranges[:1]:
                self._begins.setdefault((closed.sink, item.fragment), []).append((item.first, place))
        for begins in self._begins.values():
            begins.sort()

    def of(self, merged: Closed) -> tuple[Closed, ...]:
        """The shards whose records a merged shard closes, in their order."""
        places: set[int] = set()
        for item in merged.ranges:
            begins = self._begins.get((merged.sink, item.fragment), [])
            first, end = (bisect_left(begins, (record, -1)) for record in (item.first, item.end))
            places.update(place for _, place in begins[first:end])
        return tuple(self._shards[place] for place in sorted(places))


def _names(table: pa.Table) -> list[tuple[str, int, int | None]]:
    columns: list[list[Any]] = [table.column(name).to_pylist() for name in ("fragment", "row", "part")]
    return list(zip(*columns, strict=True))


def object_of(closed: Closed, role: str) -> StoredObject:
    """The object of a role. StopIteration where there is none."""
    return next(item for item in closed.objects if item.role == role)


def facts_of(source: ObjectStore, group: ShardGroup) -> tuple[dict[str, str], dict[str, str]]:
    """What the sink says in the headers, and what the layout does, which all must have in common."""
    found: list[tuple[dict[str, str], dict[str, str]]] = []
    for closed in group.shards:
        header = read_plain_header(source, object_of(closed, "tokens").key)
        said = header.metadata
        layout: dict[str, str] = {name: said[name] for name in ("seq_len", "pad_id", "overlap") if name in said}
        layout["dtype"] = str(header.tensors["tokens"]["dtype"])
        found.append(({name: value for name, value in said.items() if name not in _LAYOUT}, layout))
    if any(one != found[0] for one in found):
        raise InputError(
            f"{source.uri}: shards of one pipeline say different things of themselves: {found[0]} and "
            f"{next(one for one in found if one != found[0])}"
        )
    return found[0]


def documents_of(
    source: ObjectStore, group: ShardGroup, rows: Sequence[Sequence[int]] | None = None
) -> tuple[pa.Table, npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The documents of all shards, or these rows of each, in a sink's order, their tokens end to end, and how many."""
    tables: list[pa.Table] = []
    flats: list[npt.NDArray[Any]] = []
    for place, closed in enumerate(group.shards):
        for item in closed.objects:
            # What is damaged would be given a checksum that says it is sound.
            verify_object(source, item.key, item.checksum)
        table = read_table(source, object_of(closed, "documents").key)
        flat = _tokens_of(read_shard(source, object_of(closed, "tokens").key))
        lengths = np.asarray(table.column("tokens"), dtype=np.int64)
        if int(lengths.sum()) != flat.size:
            raise InputError(
                f"{source.uri}: {flat.size} tokens in a shard whose documents have {int(lengths.sum())}: "
                "`headrace dataset verify` says what is wrong"
            )
        chosen = np.arange(len(lengths)) if rows is None else np.array(rows[place], np.int64)
        tables.append(table if rows is None else table.take(pa.array(chosen, pa.int64())))
        flats.append(flat if rows is None else _in_order(flat, lengths, chosen))
    table = pa.concat_tables(tables, promote_options="default")
    lengths = np.asarray(table.column("tokens"), dtype=np.int64)
    order = _order(table)
    ordered = _in_order(np.concatenate(flats), lengths, order)
    return _with_scores_in_order(table.take(pa.array(order, pa.int64()))), ordered, lengths[order]


def _in_order(flat: npt.NDArray[Any], lengths: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Of documents of these lengths, end to end, those of `rows`."""
    starts = np.cumsum(lengths) - lengths
    pieces = [flat[starts[row] : starts[row] + lengths[row]] for row in rows.tolist()]
    return np.concatenate(pieces) if pieces else flat[:0]


def _with_scores_in_order(table: pa.Table) -> pa.Table:
    """Columns of scores stand behind the others by name, whichever shard had them first."""
    names: list[str] = table.schema.names
    return table.select([name for name in names if "." not in name] + sorted(name for name in names if "." in name))


def _tokens_of(arrays: dict[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The documents of one shard end to end: their pieces in array order, what a piece repeats left out."""
    packed = arrays["tokens"]
    flat = packed.reshape(-1)
    starts = arrays["piece_sequence"].astype(np.int64) * packed.shape[1] + arrays["piece_start"]
    sizes = arrays["piece_length"].astype(np.int64)
    if "piece_repeated" in arrays:
        starts, sizes = starts + arrays["piece_repeated"], sizes - arrays["piece_repeated"]
    parts = [flat[start : start + size] for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)]
    return np.concatenate(parts) if parts else flat[:0]


def _sidecars(source: ObjectStore, group: ShardGroup) -> Iterator[tuple[str, pa.Table]]:
    for role in ("verdicts", "quarantine", "samples"):
        keys = [item.key for closed in group.shards for item in closed.objects if item.role == role]
        tables = [read_table(source, key) for key in keys]
        if not tables:
            continue
        if role == "samples":
            yield role, merge_samples(tables)
        else:
            table = pa.concat_tables(tables, promote_options="default")
            yield role, table.take(pa.array(_order(table), pa.int64()))


def _order(table: pa.Table) -> npt.NDArray[np.int64]:
    """The order of a sink: by source, fragment, ordinal and part."""
    names = list(zip(table.column("source").to_pylist(), table.column("fragment").to_pylist(), strict=True))
    ranks = {name: rank for rank, name in enumerate(sorted(set(names), key=lambda name: (name[0], name[1])))}
    rank = np.array([ranks[name] for name in names], np.int64)
    row = np.asarray(table.column("row"), dtype=np.int64)
    part = np.array([-1 if part is None else part for part in table.column("part").to_pylist()], np.int64)
    return np.lexsort((part, row, rank)).astype(np.int64)


def _joined(group: ShardGroup) -> tuple[Range, ...]:
    """All ranges in order; neighbours whose bytes follow one another in one."""
    joined: list[Range] = []
    ranges: Sequence[Range] = [item for closed in group.shards for item in closed.ranges]
    for item in sorted(ranges, key=lambda item: (item.fragment, item.first)):
        last = joined[-1] if joined else None
        if (
            last is not None
            and (last.fragment, last.end) == (item.fragment, item.first)
            and item.stop >= 0
            and last.stop == item.offset
        ):
            joined[-1] = Range(last.fragment, last.first, last.count + item.count, last.offset, item.stop - last.offset)
        else:
            joined.append(item)
    return tuple(joined)
