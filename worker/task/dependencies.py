"""What a task has to do with duplicates.

Duplicate dependencies are the records that the verdicts of a sink behind dedup name, read from the batches' tables. A
solitary task asks the decider of its pipeline: it has a way from source to sink, and no index of its own. The keys of
its record travel by way of the controller (`controller/core/messages/dedup.py`), and the answer comes back.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.pipeline import Pipeline
from headrace.protos import control_pb2 as pb
from headrace.stages.dedup import Scheme, scheme_of
from headrace.stages.runtime import (
    QUARANTINED,
    ROW,
    Batch,
    StageContractError,
    ordinals_of,
)
from headrace.store import FormatError, ObjectStore, open_store
from headrace.store.ledger import Range, StoredObject
from headrace.store.shards import (
    KEYS_ROLE,
    SKETCHES_ROLE,
    SKETCHES_SUFFIX,
    SUFFIX,
    RecordName,
    encode_keys,
    encode_sketches,
    numbered_role,
    read_table,
)
from headrace.worker.task.batch import KILLED, STAGES, InFlightPage
from headrace.worker.task.chain import Chain
from headrace.worker.task.codec import FRAGMENT_BYTES
from headrace.worker.task.core.held import SETTLED, Duplicates
from headrace.worker.task.core.ranges import Ordinals
from headrace.worker.task.core.task import DedupRole

if TYPE_CHECKING:
    from headrace.stages.dedup import Match
    from headrace.store.ledger import Closed

logger = logging.getLogger("headrace.task")

NO_DUPLICATES = Duplicates.of(())


@dataclass(frozen=True, slots=True)
class KeyWriter:
    """What a sink writes beside its shards where a stage before it makes keys."""

    #: How the keys of each dedup stage are made, by its number.
    schemes: Mapping[int, Scheme]

    @staticmethod
    def of(pipeline: Pipeline, sink: str) -> KeyWriter | None:
        """The keys that come to a sink; None if none do."""
        schemes = {number: scheme_of(stage.parameters) for number, stage in pipeline.key_makers(sink).items()}
        return KeyWriter(schemes) if schemes else None

    def write(self, batches: Iterable[Batch], store: ObjectStore, prefix: str) -> tuple[StoredObject, ...]:
        """Write the keys of what is kept, and the sketches; nothing where nothing is."""
        kept = [batch for batch in batches if batch.rows.num_rows]
        rows = [ordinals_of(batch.rows.column(ROW)) for batch in kept]
        return tuple(
            item for number in sorted(self.schemes) if kept for item in self._written(number, kept, rows, store, prefix)
        )

    def _written(
        self, number: int, kept: Sequence[Batch], rows: Sequence[Ordinals], store: ObjectStore, prefix: str
    ) -> Iterator[StoredObject]:
        from headrace.stages.dedup import KEYS, SKETCH, keys_of, numbered_column
        from headrace.stages.sinks import create_object

        scheme, columns = self.schemes[number], [numbered_column(name, number) for name in (KEYS, SKETCH)]
        keys = [
            (batch.fragment, mine, keys_of(batch.rows.column(columns[0])))
            for batch, mine in zip(kept, rows, strict=True)
        ]
        role = numbered_role(KEYS_ROLE, number)
        yield create_object(store, role, prefix, SUFFIX, [encode_keys(keys, scheme.identity())])
        if scheme.judged:
            sketches = [
                (batch.fragment, mine, batch.rows.column(columns[1])) for batch, mine in zip(kept, rows, strict=True)
            ]
            role = numbered_role(SKETCHES_ROLE, number)
            yield create_object(store, role, prefix, SKETCHES_SUFFIX, [encode_sketches(sketches)])


@dataclass(frozen=True, slots=True)
class DuplicateDependencies:
    """The dedup stages, in their order, and what is behind the first of them, as a sink sees them."""

    stages: tuple[str, ...]
    behind: frozenset[str]

    @staticmethod
    def of(pipeline: Pipeline, sink: str) -> DuplicateDependencies | None:
        """The dedup stages that lead to a sink; None if none does."""
        stages = tuple(stage.name for stage in pipeline.stateful)
        if not stages or sink not in pipeline.dependent_sinks:
            return None
        return DuplicateDependencies(stages, frozenset(other.name for other in pipeline.behind(stages[0])))

    def check(self, batch: Batch) -> None:
        """StageContractError where a stage behind dedup has dropped the keys of a record."""
        from headrace.stages.dedup import KEYS, numbered_column

        for number, stage in enumerate(self.stages if batch.rows.num_rows else ()):
            if (column := numbered_column(KEYS, number)) not in batch.rows.schema.names:
                raise StageContractError(f'a stage behind "{stage}" lost the column {column}: it must keep all columns')

    def released(self, batch: Batch) -> Ordinals:
        """The records that dedup let through, or may have before they killed their process, and that are not kept.

        What one dedup stage lets through and another calls a duplicate is decided, and holds what it claimed.
        """
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
    lost = batch.verdicts
    if lost.column("named_fragment").null_count == lost.num_rows:
        return NO_DUPLICATES
    if lost.column("named_fragment").null_count:
        lost = lost.filter(lost.column("named_fragment").is_valid())
    rows, targets = (ordinals_of(lost.column(name)) for name in ("row", "named_row"))
    names = names_in(lost.column("named_fragment"))
    found = dict(zip(dict.fromkeys(names), itertools.count(), strict=False))
    places = [*map(found.__getitem__, names)]
    settled: Any = lost.column("named_settled")
    numbers = np.array(places, np.int64)
    if settled.true_count:
        numbers[np.asarray(settled.fill_null(False))] = SETTLED
    return Duplicates(rows, numbers, targets, tuple(found))


def names_in(fragments: Any) -> list[bytes]:
    """A column of names of fragments, without nulls. ValueError where one is no name."""
    _, bounds, content = fragments.buffers()
    ends = np.frombuffer(bounds, np.int32)[fragments.offset : fragments.offset + len(fragments) + 1]
    if not (np.diff(ends) == FRAGMENT_BYTES).all():
        raise ValueError("a duplicate names no fragment")
    names = np.frombuffer(content, f"V{FRAGMENT_BYTES}", count=len(fragments), offset=int(ends[0]))
    found: list[bytes] = names.tolist()
    return found


def _killers(batch: Batch) -> list[int]:
    """The records that were poison, at whichever stage: one may have come through before it began to kill."""
    lost = batch.verdicts
    import pyarrow.compute as pc

    killed = pc.starts_with(lost.column("reason"), KILLED)
    quarantined = pc.equal(lost.column("verdict"), pa.scalar(QUARANTINED, pa.string()))
    rows: list[int] = ordinals_of(lost.filter(pc.and_(killed, quarantined)).column("row")).tolist()
    return rows


def begin_dedup(chain: Chain, pipeline: Pipeline, order: pb.StartTask) -> None:
    """Have a dedup stage, or a partition of its index, learn what was kept, or let nothing through.

    That of a solitary task learns nothing: another task decides. One that waits for its epoch learns what is kept by
    now, and the rest with `serve_index`. Raises PipelineError, StoreError.
    """
    dedup = chain.dedup
    if dedup is None or order.alone:
        return
    if order.fenced:
        dedup.forbid()
        return
    store, index = open_store(pipeline.dataset), chain.share or dedup
    if order.waits:
        index.prepare(store, pipeline.dependent_sinks)
    else:
        index.begin(store, order.epoch, pipeline.dependent_sinks)


def serve_index(chain: Chain, pipeline: Pipeline, position: int) -> None:
    """The epoch that an index waits for is raised: it serves, with what was kept up to a position. Raises as above."""
    assert chain.dedup is not None
    (chain.share or chain.dedup).begin(open_store(pipeline.dataset), position, pipeline.dependent_sinks)


def role_of(order: pb.StartTask, chain: Chain) -> DedupRole:
    """What a task has to do with duplicates."""
    if chain.asks:
        return DedupRole.ASKS
    if chain.dedup is None:
        return DedupRole.NONE
    if order.alone:
        return DedupRole.ASKS_ALONE
    if order.fenced:
        return DedupRole.FENCED
    return DedupRole.CONSULTS if chain.partitions else DedupRole.DECIDES


def recall_verdicts(chain: Chain, store: ObjectStore, closed: Closed) -> None:
    """Have the dedup stages of a chain decide as a shard's verdicts say. Raises StoreError."""
    if not chain.dedups:
        return
    from headrace.stages.dedup import matches_of

    keys = [item.key for item in closed.objects if item.role == "verdicts"]
    if not keys and closed.counts.duplicate:
        raise FormatError(f"{store.uri}: a shard of {closed.counts.duplicate} duplicates names no table of verdicts")
    verdicts = read_table(store, keys[0]) if keys else None
    for dedup in chain.dedups:
        dedup.recall(matches_of(verdicts, dedup.name) if verdicts is not None else {})


def names_from(message: pb.ReleaseClaims) -> list[RecordName]:
    """The records whose claims are released."""
    return [RecordName(item.fragment, row) for item in message.records for row in item.rows]


def question_of(chain: Chain, number: int, batch: Batch) -> pb.DecisionAsked:
    """The question whether the one record of a batch is a duplicate."""
    dedup = chain.asked_next
    assert dedup is not None
    keys = dedup.question(batch)
    return pb.DecisionAsked(number=number, fragment=batch.fragment, row=batch.first, keys=keys, stage=dedup.name)


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
        # The asking task's worker may be anybody's, and this task decides for all of them.
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
    return pb.DecisionMade(asking_task=message.asking_task, asking_attempt=message.asking_attempt, decision=decision)
