"""A sink inside a task: gathered batches, a thread that writes shards, and proposals that wait for their answers."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import assert_never

import numpy as np
import pyarrow as pa

from headrace.daemon import OneThread, about
from headrace.protos import codec, control_pb2 as pb
from headrace.stages.runtime import (
    QUARANTINED,
    Batch,
    Sink,
    WrittenShard,
    give_back,
    join_verdicts,
    no_verdicts,
    ordinals_of,
)
from headrace.store import ObjectStore, StoreStalled
from headrace.store.ledger import Range
from headrace.worker.task.batch import (
    RANGES_MAX,
    STAGES,
    WRITER,
    InFlightPage,
    Mask,
    apart,
    fates,
    join,
    ordinals_in,
    part,
    ranges_of,
)
from headrace.worker.task.chain import StageStatistics, Watch
from headrace.worker.task.core import held
from headrace.worker.task.core.held import SETTLED, Duplicates
from headrace.worker.task.core.ranges import Columns, Ordinals, columns_of, runs
from headrace.worker.task.core.sink import SealAsked, SealPolicy, SealTimePassed, ShardStalled
from headrace.worker.task.dependencies import NO_DUPLICATES, DuplicateDependencies, KeyWriter, duplicates_of

logger = logging.getLogger("headrace.task")


@dataclass(frozen=True, slots=True, eq=False)
class SinkBatch:
    """Records of one batch, those from the first of `item` to its last that `held` has; None: all of them.

    `mask` says which of them are kept, `names` which are duplicates, `released` whose claims are given back.
    """

    item: Range
    batch: Batch
    mask: Mask
    held: Mask | None = None
    names: Duplicates = NO_DUPLICATES
    released: Ordinals = field(default_factory=lambda: NO_DUPLICATES.rows)

    @staticmethod
    def of(batch: Batch, mask: Mask, dependencies: DuplicateDependencies | None = None) -> SinkBatch:
        """All records of a batch."""
        item = ranges_of(batch)[0]
        if dependencies is None or not batch.verdicts.num_rows:
            return SinkBatch(item, batch, mask)
        return SinkBatch(item, batch, mask, None, duplicates_of(batch), dependencies.released(batch))

    def cut(self, ranges: Columns) -> list[SinkBatch]:
        """See `Holdable`: what is left in one batch, whose verdicts `laid_out` or `joined` cuts."""
        inside = _mask_of(ranges, self.item)
        inside = inside if self.held is None else inside & self.held
        (places,) = inside.nonzero()
        if len(places) in (0, self.records):
            return [self] if len(places) else []
        low, high = int(places[0]), int(places[-1]) + 1
        whole = len(places) == high - low
        bytes_of = (int(ranges[0, 2]), int(ranges[0, 3])) if whole and len(ranges) == 1 else (-1, -1)
        item = Range(self.item.fragment, self.item.first + low, high - low, *bytes_of)
        kept = self.mask & inside
        count = np.count_nonzero(kept)
        if not count:
            batch = replace(self.batch, rows=self.batch.rows.slice(0, 0), edits={}, counters={})
        elif count == np.count_nonzero(self.mask):
            batch = self.batch
        else:
            batch = part(self.batch, item, inside[low:high])
        named = self.names
        (mine,) = inside[named.rows - self.item.first].nonzero()
        names = Duplicates(named.rows[mine], named.numbers[mine], named.targets[mine], named.fragments)
        released = self.released[inside[self.released - self.item.first]] if len(self.released) else self.released
        held = None if whole else inside[low:high]
        return [SinkBatch(item, batch, kept[low:high], held, names, released)]

    @property
    def records(self) -> int:
        """How many records it has."""
        return self.item.count if self.held is None else int(np.count_nonzero(self.held))

    def covers(self, rows: Ordinals) -> Mask:
        """Which of these records it has."""
        places = rows - self.item.first
        inside = (places >= 0) & (places < self.item.count)
        if self.held is not None:
            inside[inside] = self.held[places[inside]]
        return inside

    def ranges(self) -> Columns:
        """Its records as ranges."""
        return columns_of(*runs(ordinals_in(self.item, self.held)))

    def duplicate_names(self) -> Duplicates:
        """See `Holdable`."""
        return self.names

    def standing_rows(self) -> Ordinals:
        """See `Holdable`."""
        first, standing = self.item.first, np.ones(self.item.count, np.bool_) if self.held is None else self.held.copy()
        standing[self.names.rows - first] = False
        if len(self.released):
            standing[self.released - first] = False
        return standing.nonzero()[0] + first

    def released_rows(self) -> Ordinals:
        """See `Holdable`."""
        return self.released


#: Records from the first to the last of verdicts that wait in one batch: it has a byte for each of them.
JOINED_SPAN_MAX = 1 << 20
#: Ages at which the tasks of a stage seal, in turn: from all that is allowed down to half of it.
AGES = 16


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
        key_writer: KeyWriter | None = None,
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
        self._key_writer = key_writer
        self.core = held.HeldBatches[SinkBatch, WrittenShard](policy, dependent=dependencies is not None, join=joined)
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
    def is_writing(self) -> bool:
        """Whether a shard is being written."""
        return bool(self._writing)

    def close(self) -> None:
        """End the writer's thread."""
        self._thread.close(wait=True)

    @property
    def trouble(self) -> str:
        """Why a shard waits for its store; "" while none does."""
        return self.core.gathering.trouble or (self._store.capabilities.trouble() if self._writing else "")

    def add(self, batch: Batch) -> None:
        """Take a batch, less what is held. Raises ConservationError if a record has not exactly one fate."""
        mask = fates(batch)
        if batch.members:
            self._add_merged(batch, mask)
            return
        if self._dependencies is not None:
            self._dependencies.check(batch)
        whole = SinkBatch.of(batch, mask, self._dependencies)
        doubtful = _quarantined(batch) if self.core.gathering.doubt.lasts else 0
        for item in self.core.missing(whole.item):
            place = np.array([(item.first, item.end, item.offset, item.length)], np.int64)
            fresh = whole if item is whole.item else whole.cut(place)[0]
            spilled, sizes = self._spilled(fresh.batch, (item,))
            self.do(held.BatchHeld(replace(fresh, batch=spilled), *sizes, min(item.count, doubtful)))

    def _add_merged(self, batch: Batch, mask: Mask) -> None:
        """Take a merged batch: measured and spilled as one, and held as one of each member."""
        ranges = ranges_of(batch)
        if self._key_writer is not None or any(self.core.ranges(item.fragment) for item in ranges):
            for alone in apart(batch):
                self.add(alone)
            return
        doubtful = _quarantined(batch) if self.core.gathering.doubt.lasts else 0
        batch, whole = self._spilled(batch, ranges)
        start = 0
        for item, alone in zip(ranges, apart(batch), strict=True):
            member = SinkBatch(item, alone, mask[start : start + item.count])
            start += item.count
            # All of it counts with the last, behind which it is whole.
            sizes = (*whole, doubtful) if item is ranges[-1] else (0, 0, 0)
            self.do(held.BatchHeld(member, *sizes))

    def _spilled(self, batch: Batch, ranges: tuple[Range, ...]) -> tuple[Batch, tuple[int, int, int]]:
        """A batch as the sink keeps it; its size by the sink's measure, its bytes in memory, and those spilled."""
        rows, spilled = batch.rows.nbytes, 0
        self._in_flight.take(STAGES, self.name, ranges)
        size = self._sink.measure(batch)
        batch = self._sink.spill(batch, self._store)
        if batch.scratch is not None and not batch.scratch.is_memory:
            left = batch.rows.nbytes
            rows, spilled = left, max(0, rows - left)
        self._in_flight.clear(STAGES)
        return batch, (size, rows + batch.verdicts.nbytes, spilled)

    def tick(self) -> None:
        """Let timers run and take what the writer has finished. Raises what the writer raised, but for a stall."""
        for number in [number for number, future in self._writing.items() if future.done()]:
            try:
                shard = self._writing.pop(number).result()
            except StoreStalled as error:
                self.do(ShardStalled(number, str(error)))
            else:
                self.do(held.BatchesWritten(number, shard))
        self.do(SealTimePassed())

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
                    self._writing[command.shard] = self._thread.submit(
                        functools.partial(self._write_now, command.batches), wake
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

    def _write_now(self, held: Sequence[SinkBatch]) -> WrittenShard:
        watch = Watch()
        self._writes_since = time.perf_counter()
        self._in_flight.take(WRITER, self.name, list(itertools.islice(_ranges_of(held), RANGES_MAX)))
        try:
            batches = laid_out(held)
            prefix = f"shards/{self._epoch}/"
            shard = self._sink.write(batches, self._store, prefix)
            if self._key_writer is not None:
                shard.objects = (*shard.objects, *self._key_writer.write(batches, self._store, prefix))
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
        # Where verdicts have waited there are thousands, and arguments by name take twice the time.
        for range_ in join((batch.item, batch.mask, batch.held) for batch in command.batches):
            new = message.ranges.add()
            new.fragment, new.first, new.count, new.offset, new.length, new.kept, new.verdicts = range_
        return message


def _mask_of(ranges: Columns, item: Range) -> Mask:
    """Which records of `item` lie in these ranges, all of which lie in it."""
    steps = np.zeros(item.count + 1, np.int8)
    steps[ranges[:, 0] - item.first] = 1
    steps[ranges[:, 1] - item.first] -= 1
    return np.cumsum(steps[:-1], dtype=np.int8).view(np.bool_)


def _ranges_of(batches: Sequence[SinkBatch]) -> Iterator[Range]:
    for batch in batches:
        if batch.held is None:
            yield batch.item
        else:
            for first, end, offset, length in batch.ranges().tolist():
                yield Range(batch.item.fragment, first, end - first, offset, length)


def laid_out(held: Sequence[SinkBatch]) -> list[Batch]:
    """What a sink writes, in the order of each fragment's records. A batch costs a sink more than a verdict does.

    So the verdicts of a fragment are one batch, behind the kept rows.
    """
    found: dict[bytes, list[SinkBatch]] = {}
    for batch in sorted(held, key=lambda batch: batch.item.first):
        found.setdefault(batch.item.fragment, []).append(batch)
    laid: list[Batch] = []
    for batches in found.values():
        if any(one.item.end > other.item.first for one, other in itertools.pairwise(batches)):
            batches = _in_turn(batches)
        laid += _of_fragment(batches)
    return laid


def _of_fragment(batches: Sequence[SinkBatch]) -> list[Batch]:
    if len(batches) == 1 and batches[0].held is None and batches[0].item.count == batches[0].batch.count:
        return [batches[0].batch]
    tables = [(batch, batch.batch.verdicts) for batch in batches if batch.batch.verdicts.num_rows]
    if any(table.column("part").null_count < table.num_rows for _, table in tables):
        # What became of a record that was split follows from its rows and its verdicts.
        return [part(batch.batch, batch.item, batch.held) for batch in batches]
    laid = [
        _at(batch.item, replace(batch.batch, verdicts=no_verdicts()))
        for batch in batches
        if batch.batch.rows.num_rows or batch.batch.edits or batch.batch.counters
    ]
    if tables:
        laid.append(_bare(batches))
    return laid


def _bare(batches: Sequence[SinkBatch]) -> Batch:
    """The verdicts of batches of one fragment, without their rows: nothing else of them stays in memory."""
    inside = np.concatenate([batch.covers(ordinals_of(batch.batch.verdicts.column("row"))) for batch in batches])
    verdicts = join_verdicts(*(batch.batch.verdicts for batch in batches))
    verdicts = verdicts if inside.all() else verdicts.filter(pa.array(inside))
    one = batches[0].batch
    bare = replace(one, rows=_no_rows(one.rows.schema), verdicts=verdicts, edits={}, counters={})
    return _at(_span_of(batches), bare)


@functools.lru_cache(maxsize=4)
def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """No rows of these columns, and no memory of any batch that has some."""
    return pa.RecordBatch.from_pylist([], schema=schema)


def _span_of(batches: Sequence[SinkBatch]) -> Range:
    first = min(batch.item.first for batch in batches)
    return Range(batches[0].item.fragment, first, max(batch.item.end for batch in batches) - first)


def joined(waiting: Sequence[SinkBatch]) -> list[SinkBatch]:
    """Verdicts that wait, those of a fragment in one batch up to JOINED_SPAN_MAX."""
    found: dict[tuple[bytes, int], list[SinkBatch]] = {}
    for batch in sorted(waiting, key=lambda batch: batch.item.first):
        found.setdefault((batch.item.fragment, batch.item.first // JOINED_SPAN_MAX), []).append(batch)
    return [_one_of(batches) for batches in found.values()]


def _one_of(batches: Sequence[SinkBatch]) -> SinkBatch:
    item, numbers = _span_of(batches), dict[bytes, int]()
    held = np.zeros(item.count, np.bool_)
    places: list[Ordinals] = []
    for batch in batches:
        low = batch.item.first - item.first
        held[low : low + batch.item.count] |= True if batch.held is None else batch.held
        known = [*(numbers.setdefault(name, len(numbers)) for name in batch.names.fragments), SETTLED]
        places.append(np.array(known, np.int64)[batch.names.numbers])
    rows, targets = (
        np.concatenate(parts) for parts in zip(*((b.names.rows, b.names.targets) for b in batches), strict=True)
    )
    names = Duplicates(rows, np.concatenate(places), targets, tuple(numbers))
    released = np.concatenate([batch.released for batch in batches])
    return SinkBatch(item, _bare(batches), np.zeros(item.count, np.bool_), held, names, released)


def _at(item: Range, batch: Batch) -> Batch:
    return replace(batch, first=item.first, count=item.count, offset=item.offset, length=item.length)


def _in_turn(batches: Sequence[SinkBatch]) -> list[SinkBatch]:
    """Batches between whose records others lie, cut where that is so."""
    ranges = [batch.ranges() for batch in batches]
    owners = np.repeat(np.arange(len(batches)), [len(columns) for columns in ranges])
    columns = np.concatenate(ranges)
    order = np.argsort(columns[:, 0], kind="stable")
    columns, owners = columns[order], owners[order]
    edges = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
    return [
        part for low, high in itertools.pairwise(edges) for part in batches[int(owners[low])].cut(columns[low:high])
    ]


def _quarantined(batch: Batch) -> int:
    """How many verdicts of a batch are that."""
    return batch.verdicts.column("verdict").to_pylist().count(QUARANTINED)


def policy_of(order: pb.StartTask, sink: Sink) -> SealPolicy:
    """What the request asks for, else what the sink was declared with, else the default.

    Tasks that started together do not seal together: ages are spread, down to half.
    """
    default = SealPolicy()
    phase = order.replica % AGES / AGES
    return SealPolicy(
        target_bytes=order.seal.target_bytes or sink.shard_bytes or default.target_bytes,
        held_bytes_max=order.seal.held_bytes_max or default.held_bytes_max,
        age_s=(order.seal.age_s or default.age_s) * (1 - phase / 2),
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
