"""The columns of a batch while a source fills them, a record at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from headrace.stages.runtime.batch import (
    FILTERED,
    QUARANTINED,
    RAW_BYTES_MAX,
    ROW,
    Batch,
    Member,
    join_verdicts,
    make_schema,
    make_verdicts,
)
from headrace.store.ledger import Fragment

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
