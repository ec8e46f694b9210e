"""Deduplication of datasets that are there already, from their key files and sketches alone: no text is read.

The records of all datasets are put into one order, which depends on their names and on what the documents tables say of
them, and never on how a run laid them out. Then the index decides in that order, as it does in a run: the first of
several duplicates is kept. So two runs over datasets with the same records give the same answer, whatever tasks there
were. Keys and sketches lie in scratch files in that order; names, their order and the index are in memory.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline import KEY_MAKER, Pipeline, chain_order
from headrace.stages.dedup.core.scheme import Scheme, scheme_of
from headrace.stages.dedup.key_index import KeyIndex, Match
from headrace.stages.dedup.sketches import is_sketch
from headrace.stages.runtime import InputError, make_schema
from headrace.store.datasets import Dataset
from headrace.store.files import Scratch
from headrace.store.shards import (
    KEYS_ROLE,
    SKETCHES_ROLE,
    KeptKeys,
    numbered_role,
    read_keys,
    read_sketches,
    read_table,
)

#: Which of several duplicates is kept.
KeepRule = Literal["first", "longest", "newest", "best"]
#: Records that the index is asked about at once.
RECORDS_AT_ONCE = 4096
_COLUMNS = ["id", "source", "fragment", "row", "part", "tokens", "metadata"]


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """A kept record of a dataset: of which dataset, where in which documents table, and its id."""

    dataset: int
    tokens_key: str
    place: int
    id: str


@dataclass(frozen=True, slots=True)
class OfflineDuplicate:
    """A record that another says already, and why."""

    record: KeptRecord
    kept: KeptRecord
    reason: str


def find_offline(
    datasets: Sequence[Dataset],
    against: Sequence[Dataset] = (),
    *,
    rule: KeepRule = "first",
    by: str = "",
    near: bool = True,
) -> Iterator[OfflineDuplicate]:
    """The duplicates among the records of `datasets` that their newest versions show, in their order.

    Records of `against` come before all others, and are no duplicates themselves. `rule` orders the rest: "first" by
    dataset as given, source, fragment and row; "longest" by tokens before that; "newest" and "best" by what the
    metadata has under `by`, the greatest first. Without `near` only equal texts, or URLs, are duplicates. A record that
    several sinks keep is one, and what becomes of it holds at all of them.

    Raises InputError where a dataset has no keys, or they are of two schemes, or a record was split; StoreError.
    """
    records, room, scheme = load_keys(datasets, against, rule, by)
    yield from _decide(records, room, scheme if near else replace(scheme, bands=0), len(against))


def load_keys(
    datasets: Sequence[Dataset], against: Sequence[Dataset], rule: KeepRule = "first", by: str = ""
) -> tuple[OfflineRecords, Room, Scheme]:
    """The records that the newest versions show, in their order, with their keys, and the scheme of these.

    Raises as `find_offline`.
    """
    shown = [dataset.of_version() for dataset in (*against, *datasets)]
    made = [_keys_of(dataset) for dataset in shown]
    schemes = {scheme for scheme, _ in made}
    if len(schemes) != 1:
        raise InputError(f"the keys of these datasets are of {len(schemes)} schemes: deduplicate each by itself")
    records = OfflineRecords(shown, len(against), rule, by, [number for _, number in made])
    room = Room(records.count, scheme := schemes.pop())
    for place, shard in records.shards():
        room.fill(shown[place], shard)
    return records, room, scheme


def _decide(records: OfflineRecords, room: Room, scheme: Scheme, references: int) -> Iterator[OfflineDuplicate]:
    index = KeyIndex(scheme)
    copies, decided = records.copies(), dict[int, Match | None]()
    for first in range(0, records.count, RECORDS_AT_ONCE):
        end = min(first + RECORDS_AT_ONCE, records.count)
        keys = np.ascontiguousarray(room.keys[first:end, : scheme.words])
        sketches = room.sketches(first, end) if scheme.judged else None
        for place, found in enumerate(index.decide(_ALL, np.arange(first, end), keys, sketches), first):
            # The first of its copies that comes decides for the others: those are like it.
            match = decided.setdefault(copies[place], found) if copies is not None else found
            record = records.member(place) if match is not None else None
            if match is not None and record is not None and record.dataset >= references:
                reason = scheme.reason(near=match.near, score=match.score)
                yield OfflineDuplicate(record, records.member(match.name.row), reason)


def _keys_of(dataset: Dataset) -> tuple[Scheme, int]:
    """The scheme of a dataset's keys, and of several dedup stages the number of the last. Raises InputError."""
    found: set[tuple[Scheme, int]] = set()
    for pipeline in map(Pipeline.from_dict, dataset.state.pipelines.values()):
        makers = [stage for stage in chain_order(pipeline.stages) if stage.target.endswith(KEY_MAKER)]
        found |= {(scheme_of(stage.parameters), pipeline.remembering_before(stage.name)) for stage in makers[-1:]}
    if len(found) != 1:
        why = "no keys: put `dedup_keys()` or `*dedup()` into its pipeline" if not found else "keys of several schemes"
        raise InputError(f"{dataset.uri} has {why}")
    return found.pop()


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """One shard: its key files, and the ranks of its records by fragment and row."""

    keys: str
    sketches: str
    ranks: dict[tuple[bytes, int], int]


class OfflineRecords:
    """All records in their order: a rank is a place in it."""

    def __init__(
        self, datasets: Sequence[Dataset], references: int, rule: KeepRule, by: str, numbers: Sequence[int]
    ) -> None:
        tables: list[pa.Table] = []
        objects: list[tuple[int, str, str, str]] = []
        for place, dataset in enumerate(datasets):
            for shard in dataset.shards:
                roles = {item.role: item.key for item in shard.closed.objects}
                if "documents" not in roles or not shard.closed.counts.kept:
                    continue
                of_keys, of_sketches = (numbered_role(kind, numbers[place]) for kind in (KEYS_ROLE, SKETCHES_ROLE))
                if of_keys not in roles:
                    raise InputError(f"{dataset.uri}: the shard of entry {shard.number} has no keys")
                if rule == "longest" and place >= references and "tokens" not in roles:
                    raise InputError(f"{dataset.uri} holds text, of which no tokens are counted: keep by another rule")
                tokens = roles.get("tokens", roles["documents"])
                table = read_table(dataset.store, roles["documents"], _COLUMNS)
                ranked = _ranked(table, rule, by) if place >= references else np.full(table.num_rows, np.inf)
                tables.append(_facts(table, dataset, place, len(objects), tokens, ranked))
                objects.append((place, tokens, roles[of_keys], roles.get(of_sketches, "")))
        self._copies = any(len({shard.closed.sink for shard in dataset.shards}) > 1 for dataset in datasets)
        #: Of each shard: the dataset, the keys of its tokens, of its keys and of its sketches.
        self.objects = objects
        whole = pa.concat_tables(tables) if tables else _FACTS.empty_table()
        order = pc.sort_indices(whole, sort_keys=_ORDER)
        self.table = whole.take(order).combine_chunks()
        self.count = self.table.num_rows

    def shards(self) -> Iterator[tuple[int, ShardKeys]]:
        """Each shard, with the number of its dataset and the ranks of its records."""
        objects = np.asarray(self.table.column("object"), np.int64)
        fragments, rows = self.table.column("fragment"), self.table.column("row")
        order = np.argsort(objects, kind="stable")
        bounds = np.searchsorted(objects[order], np.arange(len(self.objects) + 1))
        for number, (place, _, keys, sketches) in enumerate(self.objects):
            mine = order[bounds[number] : bounds[number + 1]]
            taken: Any = pa.array(mine)
            columns: list[list[Any]] = [column.take(taken).to_pylist() for column in (fragments, rows)]
            names = zip(*columns, strict=True)
            ranks = {(bytes.fromhex(name), row): rank for (name, row), rank in zip(names, mine.tolist(), strict=True)}
            yield place, ShardKeys(keys, sketches, ranks)

    def copies(self) -> list[int] | None:
        """Of each rank a number that all copies of its record share; None where each dataset has one sink."""
        if not self._copies:
            return None
        names = pa.table([self.table.column(name) for name in ("dataset", "fragment", "row")], names=["a", "b", "c"])
        numbers = names.append_column("rank", pa.array(np.arange(self.count)))
        first = numbers.group_by(["a", "b", "c"], use_threads=False).aggregate([("rank", "min")])
        own = numbers.join(first, ["a", "b", "c"]).sort_by("rank")
        shared: list[Any] = own.column("rank_min").to_pylist()
        return shared

    def member(self, rank: int) -> KeptRecord:
        """The record at a rank."""
        row = self.table.slice(rank, 1).to_pylist()[0]
        place, tokens, _, _ = self.objects[row["object"]]
        return KeptRecord(place, tokens, row["place"], row["id"])


_FACTS = make_schema(
    by=pa.float64(),
    dataset=pa.int64(),
    source=pa.large_string(),
    start=pa.int64(),
    row=pa.int64(),
    fragment=pa.large_string(),
    id=pa.large_string(),
    object=pa.int64(),
    place=pa.int64(),
)
_ORDER: list[tuple[str, Any]] = [
    ("by", "descending"),
    *((name, "ascending") for name in ("dataset", "source", "start", "row")),
]


def _facts(
    table: pa.Table, dataset: Dataset, place: int, number: int, tokens: str, ranked: npt.NDArray[np.float64]
) -> pa.Table:
    """What orders and names the records of one documents table, without those that were retracted."""
    if table.column("part").null_count < table.num_rows:
        raise InputError(f"{dataset.uri}: records were split after their keys were made: they cannot be compared")
    named: list[Any] = table.column("fragment").to_pylist()
    fragments = [bytes.fromhex(name) for name in named]
    states = dataset.state.fragments
    if strange := next((name for name in fragments if name not in states), None):
        raise InputError(f"{dataset.uri}: a table names fragment {strange.hex()}, which its ledger has not: restore it")
    count = table.num_rows
    columns: list[Any] = [
        pa.array(ranked, pa.float64()),
        pa.array(np.full(count, place, np.int64)),
        table.column("source").cast(pa.large_string()),
        pa.array([states[name].fragment.start for name in fragments], pa.int64()),
        table.column("row"),
        table.column("fragment").cast(pa.large_string()),
        table.column("id").cast(pa.large_string()),
        pa.array(np.full(count, number, np.int64)),
        pa.array(np.arange(count, dtype=np.int64)),
    ]
    hidden = np.isin(np.arange(count), list(dataset.retracted(tokens)))
    return pa.Table.from_arrays(columns, schema=_FACTS).filter(pa.array(~hidden))


def _ranked(table: pa.Table, rule: KeepRule, by: str) -> npt.NDArray[np.float64]:
    """`[rows]`: the greater, the sooner a record is kept. Raises InputError where a record has nothing to go by."""
    if rule == "first":
        return np.zeros(table.num_rows)
    if rule == "longest":
        return np.asarray(table.column("tokens").to_numpy(), np.float64)
    values: list[float] = []
    for packed, name in zip(table.column("metadata").to_pylist(), table.column("id").to_pylist(), strict=True):
        try:
            facts = orjson.loads(packed) if packed else {}
        except ValueError as error:
            raise InputError(f"record {name!r} has metadata that is no JSON: {error}; restore its table") from error
        value = facts.get(by) if isinstance(facts, dict) else None
        number = _number(value)
        if number is None:
            raise InputError(
                f"record {name!r}: its metadata has {value!r} under {by!r}, which is no number and no date"
            )
        values.append(number)
    return np.array(values, np.float64)


def _number(value: object) -> float | None:
    """A number, or the seconds of a date as ISO 8601 writes it; None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None


class Room:
    """Keys and sketches of all records by rank, in scratch files."""

    def __init__(self, count: int, scheme: Scheme) -> None:
        self._scheme = scheme
        self._files = Scratch.on_disk(), Scratch.on_disk()
        size = max(1, count) * 8 * scheme.words
        os.posix_fallocate(self._files[0].fileno(), 0, size)
        mapped = mmap.mmap(self._files[0].fileno(), size)
        self.keys = np.frombuffer(mapped, np.uint64, count * scheme.words).reshape(count, scheme.words)
        self._begins = np.zeros(count, np.int64)
        self._sizes = np.zeros(count, np.int32)

    def fill(self, dataset: Dataset, shard: ShardKeys) -> None:
        """Take the keys and sketches of one shard. Raises InputError where they are not of the records it keeps."""
        kept = read_keys(dataset.store, shard.keys, self._scheme.identity())
        ranks = self._ranks_of(kept, shard)
        places, there = ranks[kept.holders], ranks[kept.holders] >= 0
        exact = there & (kept.words == 0)
        self.keys[places[exact], :2] = kept.keys[exact]
        band = there & (kept.words != 0)
        if band.any() and int(kept.words[band].max()) >= self._scheme.words:
            raise InputError(f"{dataset.uri}: {shard.keys} has more bands than its scheme: restore it")
        self.keys[places[band], kept.words[band]] = kept.keys[band, 0]
        if self._scheme.judged:
            self._take_sketches(dataset, shard)

    def _ranks_of(self, kept: KeptKeys, shard: ShardKeys) -> npt.NDArray[np.int64]:
        """`[records]`: the rank of each record of a key file; -1 for one that was retracted."""
        fragments = [kept.fragments[code] for code in kept.places.tolist()]
        names = zip(fragments, kept.records.tolist(), strict=True)
        return np.array([shard.ranks.get(name, -1) for name in names], np.int64)

    def _take_sketches(self, dataset: Dataset, shard: ShardKeys) -> None:
        table = read_sketches(dataset.store, shard.sketches)
        columns: list[list[Any]] = [column.to_pylist() for column in table.columns]
        for fragment, row, sketch in zip(*columns, strict=True):
            rank = shard.ranks.get((bytes.fromhex(fragment), row))
            if rank is None:
                continue
            if not is_sketch(sketch):
                raise InputError(f"{dataset.uri}: {shard.sketches} holds what is no sketch: restore it")
            self._begins[rank], self._sizes[rank] = self._files[1].append(sketch), len(sketch)

    def arena(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """All sketches in a row, and where each begins and ends. Raises InputError where one is missing."""
        if self._scheme.judged and not self._sizes.all():
            raise InputError(_NO_SKETCH)
        size = self._files[1].size
        held = np.zeros(1, np.uint8)
        if size:
            held = np.frombuffer(mmap.mmap(self._files[1].fileno(), size, access=mmap.ACCESS_READ), np.uint8)
        return held, self._begins, self._begins + self._sizes

    def sketches(self, first: int, end: int) -> pa.Array[Any]:
        """The sketches of the records from one rank to another. Raises InputError where one is missing."""
        found: list[bytes] = []
        for begin, size in zip(self._begins[first:end].tolist(), self._sizes[first:end].tolist(), strict=True):
            if not size:
                raise InputError(_NO_SKETCH)
            found.append(os.pread(self._files[1].fileno(), size, begin))
        return pa.array(found, pa.binary())


_ALL = bytes(16)
_NO_SKETCH = "a kept record has no sketch beside its shard: restore the file"
