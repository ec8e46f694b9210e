"""The batch as stages see it: kept rows, verdicts for the rest, and the name that it carries to the shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stages.runtime.errors import StageContractError
from headrace.store.files import Scratch
from headrace.store.shards import RecordName, keys_of


def make_schema(**columns: pa.DataType) -> pa.Schema:
    """The schema of these columns, in the order given."""
    return pa.schema([pa.field(name, kind) for name, kind in columns.items()])


#: The hidden column that ties each row to its record: the record's ordinal in its fragment.
ROW = "__row"
#: The hidden column behind a stage that splits records: the number of this part of its record, from 0.
PART = "__part"
#: The hidden column, where a stage has made it, of what was edited in a record: JSON, or null.
LINEAGE = "__lineage"
#: Bytes of a quarantined record that are kept to look at; what is cut off is said in the reason.
RAW_BYTES_MAX = 1 << 20

#: A row a record, or part of one, that is not kept. `part` is null where the record was not split. A duplicate names
#: the record that is kept in its place, which is `named_settled` where it was kept before the epoch began; these three
#: are null elsewhere. `raw` holds the
#: record where it is quarantined, the beginning of its text where it is in a sample of what a stage removed
#: (`headrace.stages.runtime.samples`), and is null elsewhere.
VERDICTS = make_schema(
    row=pa.int64(),
    part=pa.int32(),
    id=pa.string(),
    stage=pa.string(),
    verdict=pa.string(),
    reason=pa.string(),
    named_fragment=pa.binary(),
    named_row=pa.int64(),
    named_settled=pa.bool_(),
    raw=pa.binary(),
)

FILTERED = "filtered"
DUPLICATE = "duplicate"
QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Member:
    """Records of one fragment in a merged batch: what a batch of them alone would be named by."""

    fragment: bytes
    uri: str
    first: int
    count: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A range of a fragment's records on its way from a source to a sink.

    `rows` holds the kept records: the hidden column `__row` (int64, ascending), `id`, `text` and `metadata`
    (strings, the last a JSON object or null) behind a source; stages may replace or add columns. `verdicts` holds a
    row of VERDICTS for each record that is not kept. Rows and verdicts together are exactly the ordinals from
    `first` to `first + count`; behind a stage that splits, the parts of a record together stand for it. `offset` and
    `length` are the bytes of the uncompressed fragment that the range covers; -1 where the reader cannot tell.
    `edits` counts records whose text a stage changed, by stage, `counters` what stages count besides (`counted`), by
    `stage/name`. A sink may keep of the rows what is large in a `scratch` file,
    and in the rows where it is there.

    A merged batch holds records of several fragments, its `members`, end to end. Its `first` is 0, its ordinals are
    places in it, and its `fragment` is that of the first member. Only stages with `merges` are given one.
    """

    fragment: bytes
    uri: str
    first: int
    count: int
    offset: int
    length: int
    rows: pa.RecordBatch
    verdicts: pa.RecordBatch
    edits: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    scratch: Scratch | None = None
    members: tuple[Member, ...] = ()

    def with_rows(self, rows: pa.RecordBatch) -> Batch:
        """The same range with other rows; only for a stage that keeps each record."""
        return replace(self, rows=rows)

    def counted(self, stage: str, name: str, count: int) -> Batch:
        """The same batch with `count` more under a name of the stage's own, which every summary shows as it is."""
        if not count:
            return self
        key = f"{stage}/{name}"
        return replace(self, counters={**self.counters, key: self.counters.get(key, 0) + count})

    def keep(self, mask: npt.NDArray[np.bool_], stage: str, reasons: Sequence[str | None]) -> Batch:
        """Keep the rows where `mask` holds; filter the others for `reasons[i]` (one for each row of the batch)."""
        if mask.all():
            return self
        lost = np.flatnonzero(~mask).tolist()
        places = pa.array(lost, pa.int64())
        verdicts = make_verdicts(
            rows=self.rows.column(ROW).take(places),
            ids=self.rows.column("id").take(places),
            parts=parts.take(places) if (parts := parts_of(self.rows)) is not None else None,
            stage=stage,
            verdict=FILTERED,
            reasons=[reasons[int(index)] for index in lost],
        )
        return replace(self, rows=self.rows.filter(pa.array(mask)), verdicts=join_verdicts(self.verdicts, verdicts))


def make_verdicts(
    *,
    rows: pa.Array[Any],
    ids: pa.Array[Any],
    stage: str,
    verdict: str,
    reasons: Sequence[str | None],
    raw: Sequence[bytes | None] | None = None,
    parts: pa.Array[Any] | None = None,
    duplicates_of: Sequence[RecordName | None] | None = None,
    settled: Sequence[bool] | None = None,
) -> pa.RecordBatch:
    """A table of VERDICTS for records, or parts of records, that one stage did not keep.

    `settled` says of each record in `duplicates_of` whether it was kept before the epoch; None: none was.
    """
    count = len(rows)
    named_fragments: Any = pa.nulls(count, pa.binary())
    named_rows: Any = pa.nulls(count, pa.int64())
    settled_ones: Any = pa.nulls(count, pa.bool_())
    if duplicates_of is not None:
        pairs = zip(duplicates_of, settled or [False] * count, strict=True)
        settled_ones = pa.array([None if name is None else flag for name, flag in pairs], pa.bool_())
        named_fragments = pa.array([name.fragment if name else None for name in duplicates_of], pa.binary())
        named_rows = pa.array([name.row if name else None for name in duplicates_of], pa.int64())
    return pa.record_batch(
        [
            rows.cast(pa.int64()),
            parts.cast(pa.int32()) if parts is not None else pa.nulls(count, pa.int32()),
            ids.cast(pa.string()),
            pa.repeat(pa.scalar(stage, pa.string()), count),
            pa.repeat(pa.scalar(verdict, pa.string()), count),
            pa.array(reasons, pa.string()),
            named_fragments,
            named_rows,
            settled_ones,
            pa.array(raw, pa.binary()) if raw is not None else pa.nulls(count, pa.binary()),
        ],
        schema=VERDICTS,
    )


def parts_of(rows: pa.RecordBatch) -> pa.Array[Any] | None:
    """The number of each row's part; None where nothing was split."""
    return rows.column(PART) if PART in rows.schema.names else None


def ordinals_of(column: Any) -> npt.NDArray[np.int64]:
    """A column of ordinals as numpy."""
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)


def row_keys(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The keys (`headrace.store.shards.core.parts`) of kept rows."""
    return keys_of(ordinals_of(rows.column(ROW)), parts_of(rows))


def verdict_keys(verdicts: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The keys of a table of VERDICTS."""
    return keys_of(ordinals_of(verdicts.column("row")), verdicts.column("part"))


def reason_class(reason: str | None) -> str:
    """A reason without its particulars, which follow a colon: what records are counted by."""
    return (reason or "unknown").partition(": ")[0]


def no_verdicts() -> pa.RecordBatch:
    """An empty table of VERDICTS."""
    return _EMPTY


def join_verdicts(*parts: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of several tables of VERDICTS in one."""
    filled = [part for part in parts if part.num_rows]
    if len(filled) == 1:
        return filled[0]
    if not filled:
        return _EMPTY
    return pa.Table.from_batches(filled).combine_chunks().to_batches()[0]


_EMPTY = pa.record_batch([pa.array([], kind.type) for kind in VERDICTS], schema=VERDICTS)


def as_column(values: npt.NDArray[Any]) -> Any:
    """A column of whole numbers or floats without nulls, of the type that the array has; a copy only where it has gaps.

    Raises ValueError for an array of more than one dimension, and pa.ArrowException for one of another kind.
    """
    if values.ndim != 1:
        raise ValueError(f"an array of {values.ndim} dimensions is no column")
    kind = pa.from_numpy_dtype(values.dtype)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise pa.ArrowNotImplementedError(f"an array of {values.dtype} is no column of numbers")
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values).data)])


def text_of(batch: Batch, stage: str) -> pa.Array[Any]:
    """The column of texts; StageContractError where an earlier stage has taken it away."""
    if "text" not in batch.rows.schema.names:
        raise StageContractError(f'stage "{stage}" needs text and got none: put it before tokenize')
    return batch.rows.column("text")
