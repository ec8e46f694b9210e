"""The batch as stages see it: kept rows, verdicts for the rest, its name; and how a source fills its columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from headrace.stages.runtime.errors import StageContractError
from headrace.store.files import Scratch
from headrace.store.ledger import Fragment
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
        lost = np.flatnonzero(~mask).tolist()
        return self.lose(lost, stage, FILTERED, [reasons[int(index)] for index in lost])

    def lose(
        self, places: Sequence[int], stage: str, verdict: str, reasons: Sequence[str | None], **more: Sequence[Any]
    ) -> Batch:
        """The batch without the rows at these places, which have a verdict each; `more` as `make_verdicts` takes it."""
        if not places:
            return self
        names = [name for name in (ROW, PART, "id") if name in self.rows.schema.names]
        at = np.array(places, np.int64)
        gone = self.rows.select(names).take(as_column(at))
        mask = np.ones(self.rows.num_rows, np.bool_)
        mask[at] = False
        verdicts = join_verdicts(self.verdicts, verdicts_of(gone, stage, verdict, reasons, **more))
        return replace(self, rows=self.rows.filter(as_column(mask)), verdicts=verdicts)


def verdicts_of(
    rows: pa.RecordBatch, stage: str, verdict: str, reasons: Sequence[str | None], **more: Any
) -> pa.RecordBatch:
    """A table of VERDICTS for these rows; `more` as `make_verdicts` takes it."""
    return make_verdicts(
        rows=rows.column(ROW), ids=rows.column("id"), stage=stage, verdict=verdict, reasons=reasons,
        parts=parts_of(rows), **more,
    )  # fmt: skip


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
    """A column of whole numbers, floats or truth values without nulls, of the type that the array has.

    `pa.array` asks whether an array is masked, for which each process imports `numpy.ma`: 0.02 s of processor time.
    Numbers are copied only where the array has gaps. Raises ValueError for an array of more than one dimension, and
    pa.ArrowException for one of another kind.
    """
    if values.ndim != 1:
        raise ValueError(f"an array of {values.ndim} dimensions is no column")
    kind = pa.from_numpy_dtype(values.dtype)
    if pa.types.is_boolean(kind):
        packed = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(packed.data)])
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise pa.ArrowNotImplementedError(f"an array of {values.dtype} is no column of numbers")
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values).data)])


def text_of(batch: Batch, stage: str) -> pa.Array[Any]:
    """The column of texts; StageContractError where an earlier stage has taken it away."""
    if "text" not in batch.rows.schema.names:
        raise StageContractError(f'stage "{stage}" needs text and got none: put it before tokenize')
    return batch.rows.column("text")


#: What a source's batches hold.
SOURCE_ROWS = make_schema(**{ROW: pa.int64()}, id=pa.string(), text=pa.string(), metadata=pa.string())

_CUT = re.compile(r" \(the first \d+ of \d+ bytes are kept\)$")


def cut_raw(reason: str, raw: bytes, size: int) -> tuple[str, bytes]:
    """The bytes that are kept of a quarantined record of `size` bytes, and the reason, which says what is cut off."""
    if size <= RAW_BYTES_MAX:
        return reason, raw
    kept = raw[:RAW_BYTES_MAX]
    return f"{reason} (the first {len(kept)} of {size} bytes are kept)", kept


def uncut(reason: str) -> str:
    """The reason that `cut_raw` was given for this one."""
    return _CUT.sub("", reason)


class Columns:
    """Records of one fragment: those that are kept, and those that cannot be read."""

    __slots__ = ("_bad", "_dropped", "_fields", "_ids", "_metadata", "_prefix", "_rows", "_texts")

    def __init__(self, prefix: str, fields: Mapping[str, str] | None = None) -> None:
        #: What each record has as metadata where it has no field of that name itself.
        self._fields = fields
        #: A record without an id of its own is named `<prefix>#<ordinal>`.
        self._prefix = prefix
        self._rows: list[int] = []
        self._ids: list[str] = []
        self._texts: list[bytes] = []
        self._metadata: list[bytes | None] = []
        self._bad: list[tuple[int, str, str, bytes | None]] = []
        self._dropped: list[tuple[int, str, str]] = []

    def keep(self, ordinal: int, identity: str | int | None, text: bytes, metadata: dict[str, Any]) -> None:
        """Add a record, its text in UTF-8; quarantines it where its metadata cannot be written as JSON."""
        name = f"{self._prefix}#{ordinal}" if identity is None else str(identity)
        try:
            if self._fields:
                metadata = {**self._fields, **metadata}
            packed = orjson.dumps(metadata) if metadata else None
        except orjson.JSONEncodeError as error:
            self.reject(ordinal, identity, f"metadata is no JSON: {error}", text)
            return
        self._rows.append(ordinal)
        self._ids.append(name)
        self._texts.append(text)
        self._metadata.append(packed)

    def reject(
        self, ordinal: int, identity: str | int | None, reason: str, raw: bytes, raw_bytes: int | None = None
    ) -> None:
        """Quarantine a record of `raw_bytes` bytes, of which `raw` may be a prefix."""
        name = f"{self._prefix}#{ordinal}" if identity is None else str(identity)
        reason, kept = cut_raw(reason, raw, len(raw) if raw_bytes is None else raw_bytes)
        self._bad.append((ordinal, name, reason, kept))

    def drop(self, ordinal: int, identity: str | None, reason: str) -> None:
        """Filter a record that is sound but holds no text."""
        self._dropped.append((ordinal, f"{self._prefix}#{ordinal}" if identity is None else identity, reason))

    @property
    def lost(self) -> int:
        """How many records are not kept."""
        return len(self._bad) + len(self._dropped)

    def join(self, other: Columns, shift: int) -> None:
        """Add the records of another, whose ordinals are `shift` higher here."""
        self._rows += [ordinal + shift for ordinal in other._rows]
        self._ids += other._ids
        self._texts += other._texts
        self._metadata += other._metadata
        self._bad += [(ordinal + shift, name, reason, raw) for ordinal, name, reason, raw in other._bad]
        self._dropped += [(ordinal + shift, name, reason) for ordinal, name, reason in other._dropped]

    def batch(self, fragment: Fragment, stage: str, first: int, count: int, offset: int, length: int) -> Batch:
        """The batch of these records, which are here no longer."""
        return Batch(fragment.id, fragment.uri, first, count, offset, length, self._kept(), self._verdicts(stage))

    def merged(self, members: tuple[Member, ...], stage: str) -> Batch:
        """The merged batch of these records, whose ordinals are places in it."""
        head, count = members[0], sum(member.count for member in members)
        uri = f"{head.uri} and {len(members) - 1} more"
        length = sum(max(0, member.length) for member in members)
        rows, verdicts = self._kept(), self._verdicts(stage)
        return Batch(head.fragment, uri, 0, count, -1, length, rows, verdicts, members=members)

    def _kept(self) -> pa.RecordBatch:
        columns = [
            pa.array(self._rows, pa.int64()),
            pa.array(self._ids, pa.string()),
            _strings(self._texts),
            pa.array(self._metadata, pa.string()),
        ]
        # A reader may hold them while the batch is worked on: of large records each text would be in memory twice.
        self._rows, self._ids, self._texts, self._metadata = [], [], [], []
        return pa.record_batch(columns, schema=SOURCE_ROWS)

    def _verdicts(self, stage: str) -> pa.RecordBatch:
        parts = [_table(stage, QUARANTINED, self._bad)] if self._bad else []
        if self._dropped:
            parts.append(_table(stage, FILTERED, [(*item, None) for item in self._dropped]))
        return join_verdicts(*parts)


@dataclass(frozen=True, slots=True)
class BatchDraft:
    """What a batch is made of, before there is anything of Arrow: those of small files may share one."""

    columns: Columns
    fragment: Fragment
    stage: str
    first: int
    count: int
    offset: int
    length: int

    def batch(self) -> Batch:
        """The batch of this draft alone."""
        return self.columns.batch(self.fragment, self.stage, self.first, self.count, self.offset, self.length)


def batch_of(drafts: Sequence[BatchDraft]) -> Batch:
    """One batch of these drafts of one stage: a merged one (`headrace.stages.runtime.batch.Batch`), even of a
    single draft.
    """
    columns = Columns("")
    members: list[Member] = []
    at = 0
    for draft in drafts:
        columns.join(draft.columns, at - draft.first)
        fragment = draft.fragment
        members.append(Member(fragment.id, fragment.uri, draft.first, draft.count, draft.offset, draft.length))
        at += draft.count
    return columns.merged(tuple(members), drafts[0].stage)


def _strings(texts: Sequence[bytes]) -> pa.Array[Any]:
    """A column of these strings in UTF-8, in memory of exactly their size: Arrow's own would double as it grows."""
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError(
            f"a batch has {offsets[-1]} bytes of text, more than a column of strings takes: read less at once"
        )
    buffers = [None, pa.py_buffer(offsets.astype(np.int32).data), pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)


def _table(stage: str, verdict: str, records: Sequence[tuple[int, str, str, bytes | None]]) -> pa.RecordBatch:
    ordinals, ids, reasons, raw = zip(*records, strict=True)
    return make_verdicts(
        rows=pa.array(ordinals, pa.int64()),
        ids=pa.array(ids, pa.string()),
        stage=stage,
        verdict=verdict,
        reasons=reasons,
        raw=raw,
    )
