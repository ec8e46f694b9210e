"""The verdicts of a base: what a run over the same input need not judge again.

A base was written by somebody else, perhaps long ago. A table is taken at its word only if it has the checksum that the
ledger names, holds rows of its own ranges only, each record once, and as many as the ledger counts. What is not
believed is judged again, as is what the base has not closed, and every record that its source had given a verdict.
"""

from __future__ import annotations

import bisect
import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.pipeline import Base
from headrace.store import ChecksumMismatch, FormatError, ObjectMissing, StoreError
from headrace.store.datasets import Dataset
from headrace.store.history.address import view
from headrace.store.ledger import ClosedShard, LedgerState, Range, main_sink
from headrace.store.shards import codes_of, content_hash, decode_table

logger = logging.getLogger("headrace.store")

#: Bytes of a table that is read, and tables that are held at once.
TABLE_BYTES_MAX = 1 << 30
TABLES_HELD = 8
_FILTERED, _QUARANTINED = "filtered", "quarantined"
_COLUMNS = ("fragment", "row", "part", "stage", "verdict", "reason")
_KINDS = {"stage": pa.string(), "verdict": pa.string(), "reason": pa.string(), "raw": pa.binary()}
_VERDICTS = pa.schema([pa.field(name, kind) for name, kind in _KINDS.items()])

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BaseVerdicts:
    """What the base says of a range: verdicts by ordinal, and the stages that other records have passed."""

    rows: Rows
    #: Columns `stage`, `verdict`, `reason`, `raw`.
    verdicts: pa.RecordBatch
    passed: frozenset[str]
    #: The records of which the base does not say that they have.
    open: Rows


@dataclass(frozen=True, slots=True)
class _Taken:
    """The verdicts of one shard on records of one fragment, and the ordinals that are to be judged again."""

    rows: Rows
    verdicts: pa.RecordBatch
    open: Rows


class EarlierVerdicts:
    """The verdicts of a base by fragment and ordinal. Raises StoreError where the base cannot be opened."""

    def __init__(self, base: Base) -> None:
        whole = Dataset.open(base.dataset)
        published = whole.state.published.get(base.version)
        if published is None or published.number != base.entry:
            raise FormatError(f"{base.dataset} has no version {base.version} of entry {base.entry} any more")
        self._dataset, self._base = view(whole, base.version), base
        self._state: LedgerState = self._dataset.state
        main = main_sink(self._state.counts)
        self._shards = [
            shard
            for shard in self._dataset.shards
            if shard.closed.sink == main and shard.closed.version in base.recipes
        ]
        self._parts: dict[bytes, list[tuple[int, int, int]]] = {}
        for number, shard in enumerate(self._shards):
            for item in shard.closed.ranges:
                self._parts.setdefault(item.fragment, []).append((item.first, item.end, number))
        for parts in self._parts.values():
            parts.sort()
        self._held: OrderedDict[int, Mapping[bytes, _Taken] | None] = OrderedDict()

    def over(self, fragment: bytes, first: int, count: int) -> BaseVerdicts | None:
        """What the base says of a range of records; None where it does not say it of all of them."""
        parts, at, end = self._parts.get(fragment, []), first, first + count
        found: list[tuple[Rows, pa.RecordBatch]] = []
        again: list[Rows] = []
        passed: frozenset[str] | None = None
        for low, high, number in parts[max(0, bisect.bisect_right(parts, (first, 1 << 62, 0)) - 1) :]:
            if at >= end or low > at:
                break
            if high <= at:
                continue
            taken = self._shard(number)
            if taken is None:
                return None
            stages = frozenset(self._path(number, fragment))
            here = taken.get(fragment)
            if here is not None:
                start, stop = np.searchsorted(here.rows, (at, min(high, end))).tolist()
                found.append((here.rows[start:stop], here.verdicts.slice(start, stop - start)))
                again.append(here.open[slice(*np.searchsorted(here.open, (at, min(high, end))).tolist())])
            passed = stages if passed is None else passed & stages
            at = high
        if at < end or passed is None:
            return None
        verdicts = pa.Table.from_batches([part for _, part in found], schema=_VERDICTS).combine_chunks().to_batches()
        rows = np.concatenate([np.zeros(0, np.int64), *(part for part, _ in found)])
        return BaseVerdicts(
            rows, verdicts[0] if verdicts else _none(), passed, np.concatenate([np.zeros(0, np.int64), *again])
        )

    def _path(self, number: int, fragment: bytes) -> tuple[str, ...]:
        """The stages that are unchanged behind the source of a fragment, by the recipe of a shard."""
        source = self._state.fragments[fragment].fragment.stage
        return tuple(self._base.recipes[self._shards[number].closed.version].get(source, ()))

    def _shard(self, number: int) -> Mapping[bytes, _Taken] | None:
        """What a shard says by fragment; None where it is not believed."""
        if number in self._held:
            self._held.move_to_end(number)
            return self._held[number]
        try:
            self._held[number] = self._read(number)
        except (FormatError, ObjectMissing, ChecksumMismatch) as error:
            logger.warning("%s; its records are judged again", error)
            self._held[number] = None
        while len(self._held) > TABLES_HELD:
            self._held.popitem(last=False)
        return self._held[number]

    def _read(self, number: int) -> Mapping[bytes, _Taken]:
        shard = self._shards[number]
        what = f"{self._dataset.uri}: the verdicts of entry {shard.number}"
        counts = shard.closed.counts
        table = self._table(shard, "verdicts", _COLUMNS, what)
        if table is None:
            if counts.kept != counts.records:
                raise FormatError(f"{what} are not named")
            return {}
        try:
            return self._checked(number, shard, table, what)
        except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise FormatError(f"{what} are malformed: {error!s:.200}") from error

    def _checked(self, number: int, shard: ClosedShard, table: pa.Table, what: str) -> Mapping[bytes, _Taken]:
        counts = shard.closed.counts
        whole = np.ones(table.num_rows, np.bool_)
        if "part" in table.column_names:
            whole = np.asarray(table.column("part").is_null())
        if whole.all() and table.num_rows != counts.records - counts.kept:
            raise FormatError(f"{what} are {table.num_rows}, the ledger counts {counts.records - counts.kept}")
        if table.column("row").null_count or table.column("fragment").null_count:
            raise FormatError(f"{what} name no record in a row")
        rows = np.asarray(table.column("row").cast(pa.int64()), np.int64)
        fragments, names = codes_of(table, "fragment")
        stages, stage_names = codes_of(table, "stage")
        verdicts, words = codes_of(table, "verdict")
        final = np.isin(verdicts, [at for at, word in enumerate(words) if word in (_FILTERED, _QUARANTINED)])
        lost = np.isin(verdicts, [at for at, word in enumerate(words) if word == _QUARANTINED])
        recipe = self._state.pipelines.get(shard.closed.version, {}).get("stages", ())
        known = {str(stage.get("name")) for stage in recipe}
        closed = {item.fragment.hex(): item.fragment for item in shard.closed.ranges}
        found: dict[bytes, _Taken] = {}
        for code, name in enumerate(names):
            fragment = closed[name]
            here = np.flatnonzero(fragments == code)
            _check_rows(rows[here], whole[here], _ranges(shard, fragment), what)
            path = self._path(number, fragment)
            source = self._state.fragments[fragment].fragment.stage
            before = np.isin(stages, [at for at, stage in enumerate(stage_names) if stage in path])[here]
            behind = np.isin(
                stages,
                [at for at, s in enumerate(stage_names) if s in known and s not in path and s != source],
            )[here]
            taken = before & whole[here] & final[here] & ~(lost[here] & self._base.again)
            again = ~taken & ~behind
            chosen = here[taken][np.argsort(rows[here[taken]], kind="stable")]
            found[fragment] = _Taken(
                rows[chosen], self._verdicts(shard, table, chosen, what), np.sort(rows[here[again]])
            )
        return found

    def _verdicts(self, shard: ClosedShard, table: pa.Table, chosen: Rows, what: str) -> pa.RecordBatch:
        """The verdicts at these places of a table, with the bytes of what was quarantined, and the samples of texts."""
        held = table.take(pa.array(chosen, pa.int64()))
        columns: list[Any] = [held.column(name).cast(pa.string()) for name in _VERDICTS.names[:3]]
        names: list[Any] = list(zip(held.column("fragment").to_pylist(), held.column("row").to_pylist(), strict=True))
        raw: dict[tuple[str, str, int], bytes] = {}
        for role, verdict, column in (("quarantine", _QUARANTINED, "raw"), ("samples", _FILTERED, "text")):
            more = self._table(shard, role, ("fragment", "row", column), what) if names else None
            for row in () if more is None else more.to_pylist():
                raw[verdict, row["fragment"], row["row"]] = row[column] if column == "raw" else row[column].encode()
        verdicts = columns[1].to_pylist()
        found = [raw.get((verdict, *name)) for verdict, name in zip(verdicts, names, strict=True)]
        columns.append(pa.array(found, pa.binary()))
        return pa.RecordBatch.from_arrays([_one(column) for column in columns], schema=_VERDICTS)

    def _table(self, shard: ClosedShard, role: str, columns: tuple[str, ...], what: str) -> pa.Table | None:
        stored = shard.object(role)
        if stored is None:
            return None
        info = self._dataset.store.head(stored.key)
        if info is None:
            raise ObjectMissing(stored.key, self._dataset.uri)
        if info.size != stored.size or not 0 < stored.size <= TABLE_BYTES_MAX:
            raise FormatError(f"{what} have {info.size} bytes, the ledger says {stored.size}")
        data = self._dataset.store.get(stored.key, 0, stored.size)
        if f"xxh3-128:{content_hash([data])}" != stored.checksum:
            raise FormatError(f"{what} have another checksum than the ledger says")
        return decode_table(data, columns, what)


def _ranges(shard: ClosedShard, fragment: bytes) -> list[Range]:
    return sorted((item for item in shard.closed.ranges if item.fragment == fragment), key=lambda item: item.first)


def _check_rows(rows: Rows, whole: npt.NDArray[np.bool_], ranges: list[Range], what: str) -> None:
    """FormatError where a row is in none of the ranges, or a record that was not split has several."""
    firsts = np.array([item.first for item in ranges], np.int64)
    ends = np.array([item.end for item in ranges], np.int64)
    at = np.searchsorted(firsts, rows, side="right") - 1
    if not len(ranges) or (at < 0).any() or (rows >= ends[at]).any():
        raise FormatError(f"{what} hold a record that the shard does not close")
    alone = rows[whole]
    if len(np.unique(alone)) != len(alone):
        raise FormatError(f"{what} hold a record twice")


def _one(column: Any) -> pa.Array[Any]:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _none() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in _VERDICTS], schema=_VERDICTS)


def open_earlier(base: Base) -> EarlierVerdicts | None:
    """The verdicts of a base; None, and a warning, where it cannot be opened: then all is judged again."""
    try:
        return EarlierVerdicts(base)
    except StoreError as error:
        logger.warning("%s; nothing is taken over, and every record is judged again", error)
        return None
