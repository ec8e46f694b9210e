"""A sink inside a task: gathered batches, a thread that writes shards, and proposals that wait for their answers."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np
import numpy.typing as npt

from headrace.daemon import OneThread, about
from headrace.protos import codec, control_pb2 as pb
from headrace.stages.runtime import QUARANTINED, ROW, Batch, Sink, WrittenShard, give_back, ordinals_of
from headrace.store import ObjectStore, StoreStalled
from headrace.store.ledger import Range
from headrace.worker.task.chain import StageStatistics, Watch
from headrace.worker.task.core import held
from headrace.worker.task.core.sink import SealAsked, SealPolicy, ShardStalled, TimePassed
from headrace.worker.task.coverage import fates, join, part
from headrace.worker.task.dependencies import DuplicateDependencies
from headrace.worker.task.in_flight import STAGES, WRITER, InFlightPage
from headrace.worker.task.merge import apart, ranges_of

logger = logging.getLogger("headrace.task")


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """A batch, and which of its records are kept: what `HeldBatches` holds in a task."""

    item: Range
    batch: Batch
    mask: npt.NDArray[np.bool_]
    dependencies: DuplicateDependencies | None = None

    def cut(self, item: Range) -> SinkBatch:
        """The records of `item`, which lies within; the batch itself where that is all of it."""
        if (item.first, item.count) == (self.item.first, self.item.count):
            return self
        start = item.first - self.item.first
        return SinkBatch(item, part(self.batch, item), self.mask[start : start + item.count], self.dependencies)

    def duplicate_names(self) -> Sequence[tuple[int, held.Name]]:
        """See `Holdable`."""
        return self.dependencies.duplicates(self.batch) if self.dependencies is not None else ()

    def kept_rows(self) -> Iterable[int]:
        """See `Holdable`."""
        rows: list[int] = ordinals_of(self.batch.rows.column(ROW)).tolist()
        return rows

    def released_rows(self) -> Iterable[int]:
        """See `Holdable`."""
        return self.dependencies.released(self.batch) if self.dependencies is not None else ()


class TaskSink:
    """One sink of a task. Called on the task's thread; only `Sink.write` runs on the writer's."""

    def __init__(
        self,
        name: str,
        sink: Sink,
        store: ObjectStore,
        *,
        version: str,
        epoch: int,
        policy: SealPolicy,
        in_flight: InFlightPage,
        dependencies: DuplicateDependencies | None = None,
    ):
        self.name = name
        #: The time of the writer's thread, and when it began what it is at now (seconds, of perf_counter); 0: nothing.
        self.writer = StageStatistics()
        self._writes_since = 0.0
        self._in_flight = in_flight
        self._sink = sink
        self._store = store
        self._version = version
        self._epoch = epoch
        self._dependencies = dependencies
        self.core = held.HeldBatches[SinkBatch, WrittenShard](policy, dependent=dependencies is not None)
        self._writing: dict[int, Future[WrittenShard]] = {}
        self._proposals: list[pb.Proposed] = []
        self._questions: list[pb.NeedsAsked] = []
        self._let_go = False
        self._thread = OneThread("writer")
        #: Readable when the writer has finished something.
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @property
    def writing_s(self) -> float:
        """Seconds for which the writer is at its shard; 0 while it is at none."""
        since = self._writes_since
        return time.perf_counter() - since if since else 0.0

    @property
    def trouble(self) -> str:
        """Why a shard waits for its store; "" while none does."""
        return self.core.trouble or (self._store.capabilities.trouble() if self._writing else "")

    def add(self, batch: Batch) -> None:
        """Take a batch, less what is held. Raises ConservationError if a record has not exactly one fate."""
        mask = fates(batch)
        if batch.members:
            self._add_joint(batch, mask)
            return
        if self._dependencies is not None:
            self._dependencies.check(batch)
        whole = SinkBatch(ranges_of(batch)[0], batch, mask, self._dependencies)
        doubtful = _quarantined(batch) if self.core.doubtful else 0
        for item in self.core.missing(whole.item):
            fresh = whole.cut(item)
            spilled, sizes = self._shelved(fresh.batch, (item,))
            self.do(held.BatchHeld(replace(fresh, batch=spilled), *sizes, min(item.count, doubtful)))

    def _add_joint(self, batch: Batch, mask: npt.NDArray[np.bool_]) -> None:
        """Take a joint batch: measured and shelved as one, and held as one of each member."""
        ranges = ranges_of(batch)
        if self._dependencies is not None or any(self.core.ranges(item.fragment) for item in ranges):
            for alone in apart(batch):
                self.add(alone)
            return
        doubtful = _quarantined(batch) if self.core.doubtful else 0
        batch, whole = self._shelved(batch, ranges)
        start = 0
        for item, alone in zip(ranges, apart(batch), strict=True):
            member = SinkBatch(item, alone, mask[start : start + item.count])
            start += item.count
            # All of it counts with the last, behind which it is whole.
            sizes = (*whole, doubtful) if item is ranges[-1] else (0, 0, 0)
            self.do(held.BatchHeld(member, *sizes))

    def _shelved(self, batch: Batch, ranges: tuple[Range, ...]) -> tuple[Batch, tuple[int, int, int]]:
        """A batch as the sink keeps it; its size by the sink's measure, and bytes of it in memory and on the shelf."""
        held, shelved = _bytes_of(batch), 0
        self._in_flight.take(STAGES, self.name, ranges)
        size = self._sink.measure(batch)
        batch = self._sink.spill(batch, self._store)
        if batch.scratch is not None and not batch.scratch.is_memory:
            held, shelved = _bytes_of(batch), max(0, held - _bytes_of(batch))
        self._in_flight.clear(STAGES)
        return batch, (size, held, shelved)

    def tick(self) -> None:
        """Let timers run and take what the writer has finished. Raises what the writer raised, but for a stall."""
        for number in [number for number, future in self._writing.items() if future.done()]:
            try:
                shard = self._writing.pop(number).result()
            except StoreStalled as error:
                self.do(ShardStalled(number, str(error)))
            else:
                self.do(held.ShardWritten(number, shard))
        self.do(TimePassed())

    def obey(self, message: pb.TaskCommand) -> None:
        """Take a command that is for a sink. Raises RuntimeError where it says that a proposal is refused."""
        match message.WhichOneof("command"):
            case "seal":
                self.do(SealAsked(message.seal.reason))
            case "answer":
                self._answered(message.answer)
            case "needs":
                asked = message.needs
                answer = codec.records_from(asked.open), codec.records_from(asked.gone)
                self.do(held.DependenciesAnswered(asked.proposal, *answer))
            case other:
                raise ValueError(f"a sink knows no command {other!r}")

    def _answered(self, answer: pb.Answer) -> None:
        if answer.outcome == pb.Answer.ACCEPTED:
            self.do(held.ProposalAccepted(answer.proposal))
        elif answer.outcome == pb.Answer.OVERLAPS:
            self.do(held.ProposalOverlaps(answer.proposal, codec.ranges_from(answer.overlaps)))
        else:
            raise RuntimeError(f"sink {self.name}: the controller refused a shard: {answer.reason}")

    def take_questions(self) -> list[pb.NeedsAsked]:
        """Questions to ask the controller since the last call."""
        ready, self._questions = self._questions, []
        return ready

    def take_let_go(self) -> bool:
        """Whether verdicts were let go of since the last call: the controller is to know."""
        let_go, self._let_go = self._let_go, False
        return let_go

    def take_proposals(self) -> list[pb.Proposed]:
        """Proposals to send since the last call."""
        ready, self._proposals = self._proposals, []
        return ready

    def do(self, event: held.Event) -> None:
        """Give the core an event, and carry out what follows from it."""
        for command in self.core.handle(event, time.monotonic()):
            match command:
                case held.WriteBatches():
                    wake = functools.partial(os.eventfd_write, self.wake_fd, 1)
                    batches = [item.batch for item in command.batches]
                    self._writing[command.shard] = self._thread.submit(
                        functools.partial(self._write_now, batches), wake
                    )
                case held.AskDependencies():
                    records = codec.records_to(command.records)
                    self._questions.append(pb.NeedsAsked(proposal=command.shard, sink=self.name, records=records))
                case held.ProposeBatches():
                    self._proposals.append(self._proposal(command))
                case held.ReportLetGo():
                    self._let_go = True
                case _:
                    assert_never(command)

    def _write_now(self, batches: list[Batch]) -> WrittenShard:
        watch = Watch()
        self._writes_since = time.perf_counter()
        ranges = [Range(item.fragment, item.first, item.count, item.offset, item.length) for item in batches]
        self._in_flight.take(WRITER, self.name, ranges)
        try:
            prefix = f"shards/{self._epoch}/"
            shard = self._sink.write(batches, self._store, prefix)
            if self._dependencies is not None:
                shard.objects = (*shard.objects, *self._dependencies.write_keys(batches, self._store, prefix))
            return shard
        finally:
            give_back()
            self._in_flight.clear(WRITER)
            self._writes_since = 0.0
            watch.stop(self.writer)

    def _proposal(self, command: held.ProposeBatches[SinkBatch, WrittenShard]) -> pb.Proposed:
        shard = command.result
        message = pb.Proposed(
            proposal=command.shard,
            sink=self.name,
            version=self._version,
            epoch=self._epoch,
            objects=codec.objects_to(shard.objects),
            counts=codec.counts_to(shard.counts),
            needs=codec.records_to(command.needs),
            released=codec.records_to(command.released),
        )
        for item, kept, verdicts in join([(batch.item, batch.mask) for batch in command.batches]):
            message.ranges.append(codec.range_to(item, kept, verdicts))
        return message


def _bytes_of(batch: Batch) -> int:
    return batch.rows.nbytes + batch.verdicts.nbytes


def _quarantined(batch: Batch) -> int:
    """How many verdicts of a batch are that."""
    return batch.verdicts.column("verdict").to_pylist().count(QUARANTINED)


def policy_of(order: pb.StartTask, sink: Sink) -> SealPolicy:
    """What the request asks for, else what the sink was declared with, else the default."""
    default = SealPolicy()
    return SealPolicy(
        target_bytes=order.seal.target_bytes or sink.shard_bytes or default.target_bytes,
        held_bytes_max=order.seal.held_bytes_max or default.held_bytes_max,
        age_s=order.seal.age_s or default.age_s,
    )


def log_proposal(proposal: pb.Proposed) -> None:
    """A line of the task's log."""
    counts = proposal.counts
    logger.info(
        "proposes a shard: %d ranges, %d records kept, %d bytes",
        len(proposal.ranges),
        counts.kept,
        sum(item.size for item in proposal.objects),
        extra=about(stage=proposal.sink, proposal=proposal.proposal, quarantined=counts.quarantined or None),
    )
