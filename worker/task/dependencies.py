"""What a task has to do with duplicates.

Duplicate dependencies are the records that the verdicts of a sink behind dedup name, read from the batches' tables. A
solitary task asks the decider of its pipeline: it has a way from source to sink, and no index of its own. The keys of
its record travel by way of the controller (`controller/core/messages/dedup.py`), and the answer comes back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.pipeline import Pipeline
from headrace.protos import control_pb2 as pb
from headrace.stages.dedup import KEY_MAKER, Scheme, scheme_of
from headrace.stages.runtime import (
    QUARANTINED,
    ROW,
    Batch,
    StageContractError,
    ordinals_of,
)
from headrace.store import FormatError, ObjectStore, open_store
from headrace.store.ledger import Closed, Range, StoredObject
from headrace.store.shards import (
    ROLE,
    SKETCHES_ROLE,
    SKETCHES_SUFFIX,
    SUFFIX,
    RecordName,
    encode_keys,
    encode_sketches,
    read_table,
)
from headrace.worker.task.chain import Chain
from headrace.worker.task.core.held import SETTLED, Duplicates
from headrace.worker.task.core.ranges import Ordinals
from headrace.worker.task.core.task import Dedup
from headrace.worker.task.in_flight import STAGES, InFlightPage
from headrace.worker.task.isolation import KILLED

if TYPE_CHECKING:
    from headrace.stages.dedup import Match

logger = logging.getLogger("headrace.task")

NO_DUPLICATES = Duplicates.of(())


@dataclass(frozen=True, slots=True)
class KeyWriter:
    """What a sink writes beside its shards where a stage before it makes keys."""

    scheme: Scheme

    @staticmethod
    def of(pipeline: Pipeline, sink: str) -> KeyWriter | None:
        """The keys that come to a sink; None if none do."""
        for stage in pipeline.stages:
            if stage.target.endswith(KEY_MAKER) and sink in {other.name for other in pipeline.behind(stage.name)}:
                return KeyWriter(scheme_of(stage.parameters))
        return None

    def write(self, batches: Iterable[Batch], store: ObjectStore, prefix: str) -> tuple[StoredObject, ...]:
        """Write the keys of what is kept, and the sketches; nothing where nothing is."""
        from headrace.stages.dedup import SKETCH, keys_of
        from headrace.stages.sinks import create_object

        kept = [batch for batch in batches if batch.rows.num_rows]
        if not kept:
            return ()
        parts = [(batch.fragment, ordinals_of(batch.rows.column(ROW)), keys_of(batch.rows)) for batch in kept]
        keys = create_object(store, ROLE, prefix, SUFFIX, [encode_keys(parts, self.scheme.identity())])
        if not self.scheme.judged:
            return (keys,)
        sketches = [
            (batch.fragment, rows, batch.rows.column(SKETCH)) for batch, (_, rows, _) in zip(kept, parts, strict=True)
        ]
        return keys, create_object(store, SKETCHES_ROLE, prefix, SKETCHES_SUFFIX, [encode_sketches(sketches)])


@dataclass(frozen=True, slots=True)
class DuplicateDependencies:
    """A dedup stage and those behind it, as a sink sees them."""

    stage: str
    behind: frozenset[str]

    @staticmethod
    def of(pipeline: Pipeline, sink: str) -> DuplicateDependencies | None:
        """The dedup stage that leads to a sink; None if none does."""
        stage = pipeline.stateful
        behind = pipeline.behind(stage.name) if stage is not None else ()
        if stage is None or sink not in {other.name for other in behind}:
            return None
        return DuplicateDependencies(stage.name, frozenset(other.name for other in behind))

    def check(self, batch: Batch) -> None:
        """StageContractError where a stage behind dedup has dropped the keys of a record."""
        from headrace.stages.dedup import KEYS

        if batch.rows.num_rows and KEYS not in batch.rows.schema.names:
            raise StageContractError(f'a stage behind "{self.stage}" lost the column {KEYS}: it must keep all columns')

    def released(self, batch: Batch) -> Ordinals:
        """The records that dedup let through, or may have before they killed their process, and that are not kept."""
        if QUARANTINED not in batch.verdicts.column("verdict").unique().to_pylist():
            return np.zeros(0, np.int64)
        lost = {*self._quarantined_behind(batch), *_killers(batch)}
        return np.array(sorted(lost - set(ordinals_of(batch.rows.column(ROW)).tolist())), np.int64)

    def _quarantined_behind(self, batch: Batch) -> list[int]:
        lost = batch.verdicts
        if self.behind.isdisjoint(lost.column("stage").unique().to_pylist()):
            return []
        # Here, since Arrow's functions take longer to import than all else that a task needs.
        import pyarrow.compute as pc

        behind = pc.is_in(lost.column("stage"), value_set=pa.array(sorted(self.behind), pa.string()))
        found = lost.filter(pc.and_(behind, pc.equal(lost.column("verdict"), pa.scalar(QUARANTINED, pa.string()))))
        rows: list[int] = ordinals_of(found.column("row")).tolist()
        return rows


def duplicates_of(batch: Batch) -> Duplicates:
    """What dedup found to be duplicates."""
    names: Any = batch.verdicts.column("named_fragment")
    if names.null_count == len(names):
        return NO_DUPLICATES
    encoded: Any = names.dictionary_encode()
    settled: Any = batch.verdicts.column("named_settled")
    columns: list[Any] = [batch.verdicts.column("row"), encoded.indices, batch.verdicts.column("named_row")]
    if names.null_count:
        mask = names.is_valid()
        columns, settled = [column.filter(mask) for column in columns], settled.filter(mask)
    rows, numbers, targets = map(ordinals_of, columns)
    if settled.true_count:
        numbers = np.where(np.asarray(settled.fill_null(False)), SETTLED, numbers)
    return Duplicates(rows, numbers, targets, tuple(encoded.dictionary.to_pylist()))


def _killers(batch: Batch) -> list[int]:
    """The records that were condemned, at whichever stage: one may have come through before it began to kill."""
    lost = batch.verdicts
    import pyarrow.compute as pc

    killed = pc.starts_with(lost.column("reason"), KILLED)
    quarantined = pc.equal(lost.column("verdict"), pa.scalar(QUARANTINED, pa.string()))
    rows: list[int] = ordinals_of(lost.filter(pc.and_(killed, quarantined)).column("row")).tolist()
    return rows


def begin_dedup(chain: Chain, pipeline: Pipeline, order: pb.StartTask) -> None:
    """Have a dedup stage, or a partition of its index, learn what was kept, or let nothing through.

    That of a solitary task learns nothing: another task decides. Raises PipelineError, StoreError.
    """
    dedup = chain.dedup
    if dedup is None or order.alone:
        return
    if order.fenced:
        dedup.forbid()
        return
    (chain.share or dedup).begin(open_store(pipeline.dataset), order.epoch, pipeline.dependent_sinks)


def role_of(order: pb.StartTask, chain: Chain) -> Dedup:
    """What a task has to do with duplicates."""
    if chain.asks:
        return Dedup.ASKS
    if chain.dedup is None:
        return Dedup.NONE
    if order.alone:
        return Dedup.ASKS_ALONE
    if order.fenced:
        return Dedup.FENCED
    return Dedup.CONSULTS if chain.partitions else Dedup.DECIDES


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


def question_of(chain: Chain, number: int, batch: Batch) -> pb.DecisionAsked:
    """The question whether the one record of a batch is a duplicate."""
    assert chain.dedup is not None
    keys = chain.dedup.question(batch)
    return pb.DecisionAsked(number=number, fragment=batch.fragment, row=batch.first, keys=keys)


def match_of(decision: pb.Decision) -> Match | None:
    """What a record is a duplicate of, if of any."""
    # Here, since it comes with a compiler, which few tasks need.
    from headrace.stages.dedup import Match

    if not decision.duplicate:
        return None
    return Match(RecordName(decision.fragment, decision.row), decision.near, settled=decision.settled)


def fits(chain: Chain, message: pb.AskDecision) -> bool:
    """Whether the question of a solitary task is one."""
    asked = message.question
    if chain.dedup is not None and not chain.dedup.fits(asked.keys):
        # The asker's worker may be anybody's, and this task decides for all of them.
        logger.warning("a question of %d bytes, which are no keys, is not answered", len(asked.keys))
        return False
    return chain.dedup is not None


def decide(chain: Chain, in_flight: InFlightPage, message: pb.AskDecision) -> pb.DecisionMade:
    """What this task's dedup stage decides on a record of a solitary task. The question `fits`."""
    dedup, asked = chain.dedup, message.question
    assert dedup is not None
    in_flight.take(STAGES, dedup.name, (Range(asked.fragment, asked.row, 1),), timed=True)
    match = dedup.decide(RecordName(asked.fragment, asked.row), asked.keys)
    in_flight.clear(STAGES)
    decision = pb.Decision(number=asked.number)
    if match is not None:
        decision.duplicate, decision.near, decision.settled = True, match.near, match.settled
        decision.fragment, decision.row = match.name.fragment, match.name.row
    return pb.DecisionMade(asker=message.asker, asker_attempt=message.asker_attempt, decision=decision)
