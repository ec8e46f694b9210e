"""What the verdicts of a sink behind dedup lean on, and what dedup let through to it: read from the batches' tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.pipeline import Pipeline, StageKind
from headrace.protos import control_pb2 as pb
from headrace.stages.dedup import Scheme
from headrace.stages.runtime import (
    DUPLICATE,
    FILTERED,
    QUARANTINED,
    ROW,
    Batch,
    StageContractError,
    StatefulTransform,
    ordinals_of,
)
from headrace.store import FormatError, ObjectStore, open_store
from headrace.store.ledger import Closed, Range, StoredObject
from headrace.store.shards import ROLE, SUFFIX, RecordName, encode_keys, read_table
from headrace.worker.task.chain import Chain
from headrace.worker.task.isolation import KILLED

#: Ordinals by fragment.
Rows = dict[bytes, set[int]]


@dataclass(frozen=True, slots=True)
class Leaning:
    """A dedup stage and those behind it, as a sink sees them."""

    stage: str
    behind: frozenset[str]
    scheme: Scheme

    @staticmethod
    def of(pipeline: Pipeline, sink: str) -> Leaning | None:
        """The dedup stage that leads to a sink; None if none does."""
        stage = pipeline.stateful
        behind = pipeline.behind(stage.name) if stage is not None else ()
        if stage is None or sink not in {other.name for other in behind}:
            return None
        scheme = Scheme(**{name: stage.parameters[name] for name in ("ngram", "bands", "rows")})
        return Leaning(stage.name, frozenset(other.name for other in behind), scheme)

    def check(self, batch: Batch) -> None:
        """StageContractError where a stage behind dedup has dropped a record, or its keys."""
        from headrace.stages.dedup import KEYS

        if batch.rows.num_rows and KEYS not in batch.rows.schema.names:
            raise StageContractError(f'a stage behind "{self.stage}" lost the column {KEYS}: it must keep all columns')
        for row in self._lost_behind(batch, FILTERED):
            raise StageContractError(
                f'a stage behind "{self.stage}" filtered record {row} of {batch.uri}: records may be duplicates of it; '
                "put the stage before it"
            )

    def needs(self, batches: Iterable[Batch]) -> Rows:
        """The records that duplicates among these batches name and that are not kept here."""
        held = list(batches)
        named: Rows = {}
        for batch in held:
            for name in self._names(batch):
                named.setdefault(name.fragment, set()).add(name.row)
        for batch in held:
            if batch.fragment in named:
                named[batch.fragment].difference_update(ordinals_of(batch.rows.column(ROW)).tolist())
        return {fragment: rows for fragment, rows in named.items() if rows}

    def released(self, batches: Iterable[Batch]) -> Rows:
        """The records that dedup let through, or may have before they killed their process, and that are not kept."""
        found: Rows = {}
        for batch in batches:
            lost = {*self._lost_behind(batch, QUARANTINED), *_killers(batch)}
            if rows := lost - set(ordinals_of(batch.rows.column(ROW)).tolist()):
                found.setdefault(batch.fragment, set()).update(rows)
        return found

    def leaning_on(self, batches: Iterable[Batch], records: Rows) -> list[Range]:
        """The duplicates among these batches that name one of these records."""
        found: list[Range] = []
        for batch in batches if records else ():
            rows = ordinals_of(self._duplicates(batch).column("row")).tolist()
            for row, name in zip(rows, self._names(batch), strict=True):
                if name.row in records.get(name.fragment, ()):
                    found.append(Range(batch.fragment, row, 1))
        return found

    def write_keys(self, batches: Iterable[Batch], store: ObjectStore, prefix: str) -> tuple[StoredObject, ...]:
        """Write the keys of what is kept; nothing where nothing is."""
        from headrace.stages.dedup import keys_of
        from headrace.stages.sinks import create_object

        kept = [batch for batch in batches if batch.rows.num_rows]
        if not kept:
            return ()
        parts = [(batch.fragment, ordinals_of(batch.rows.column(ROW)), keys_of(batch.rows)) for batch in kept]
        return (create_object(store, ROLE, prefix, SUFFIX, [encode_keys(parts, self.scheme.identity())]),)

    def _lost_behind(self, batch: Batch, verdict: str) -> list[int]:
        lost = batch.verdicts
        if not lost.num_rows:
            return []
        import pyarrow.compute as pc

        behind = pc.is_in(lost.column("stage"), value_set=pa.array(sorted(self.behind), pa.string()))
        found = lost.filter(pc.and_(behind, pc.equal(lost.column("verdict"), pa.scalar(verdict, pa.string()))))
        rows: list[int] = ordinals_of(found.column("row")).tolist()
        return rows

    def _duplicates(self, batch: Batch) -> pa.RecordBatch:
        lost = batch.verdicts
        if not lost.num_rows:
            return lost
        # Here, since Arrow's functions take longer to import than all else that a task needs.
        import pyarrow.compute as pc

        mine = pc.equal(lost.column("stage"), pa.scalar(self.stage, pa.string()))
        return lost.filter(pc.and_(mine, pc.equal(lost.column("verdict"), pa.scalar(DUPLICATE, pa.string()))))

    def _names(self, batch: Batch) -> list[RecordName]:
        texts: list[Any] = self._duplicates(batch).column("duplicate_of").to_pylist()
        return [RecordName.parse(text) for text in texts]


def _killers(batch: Batch) -> list[int]:
    """The records that were condemned, at whichever stage: one may have come through before it began to kill."""
    lost = batch.verdicts
    if not lost.num_rows:
        return []
    import pyarrow.compute as pc

    killed = pc.starts_with(lost.column("reason"), KILLED)
    quarantined = pc.equal(lost.column("verdict"), pa.scalar(QUARANTINED, pa.string()))
    rows: list[int] = ordinals_of(lost.filter(pc.and_(killed, quarantined)).column("row")).tolist()
    return rows


def begin_dedup(dedup: StatefulTransform, pipeline: Pipeline, order: pb.StartTask) -> None:
    """Have a dedup stage learn what was kept, or let nothing through. Raises PipelineError, StoreError.

    That of a solitary task learns nothing: another task decides.
    """
    if order.alone:
        return
    if order.fenced:
        dedup.forbid()
        return
    sink = next(stage.name for stage in pipeline.behind(dedup.name) if stage.kind is StageKind.SINK)
    dedup.begin(open_store(pipeline.dataset), order.epoch, sink)


def recall_verdicts(chain: Chain, store: ObjectStore, closed: Closed) -> None:
    """Have the dedup stage of a chain, if it has one, decide as a shard's verdicts say. Raises StoreError."""
    if chain.dedup is None:
        return
    from headrace.stages.dedup import matches_of

    keys = [item.key for item in closed.objects if item.role == "verdicts"]
    if not keys and closed.counts.duplicate:
        raise FormatError(f"{store.uri}: a shard of {closed.counts.duplicate} duplicates names no table of verdicts")
    chain.dedup.recall(matches_of(read_table(store, keys[0])) if keys else {})


def names_from(message: pb.ReleaseClaims) -> list[RecordName]:
    """The records whose claims are released."""
    return [RecordName(item.fragment, row) for item in message.records for row in item.rows]
