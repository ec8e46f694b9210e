"""The stages of one task, built and timed: a batch goes in at one end and comes out at the other, verdicts and all."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.pipeline import Pipeline, Stage, StageKind
from headrace.protos import control_pb2 as pb
from headrace.stages.runtime import (
    Batch,
    BatchDraft,
    ContentAnswer,
    FragmentEnd,
    IndexPart,
    InputError,
    Prefix,
    Sink,
    Source,
    StatefulTransform,
    Transform,
    build_stage,
    process_safely,
)
from headrace.store.ledger import Fragment, Gap, Range
from headrace.store.shards import RecordName
from headrace.worker.task.batch import (
    STAGES,
    InFlightPage,
    Isolation,
    Tracer,
    ranges_of,
    singly,
    try_writing,
)

if TYPE_CHECKING:
    from headrace.worker.task.batch import Passed, Takeover

#: What a source gives.
Read = TypeVar("Read", bound=Batch | BatchDraft | FragmentEnd)


@dataclass(slots=True)
class StageStatistics:
    """What one stage of this task has done. `bytes` are those of the source that the batches cover.

    `busy_s` is the time for which it was at work, and what it waited for among it; `cpu_s` that of a core.
    """

    records: int = 0
    bytes: int = 0
    busy_s: float = 0.0
    cpu_s: float = 0.0
    dropped: int = 0


class Watch:
    """Times the work of this thread, and what a stage has delegated to other processes."""

    def __init__(self, stage: Transform | None = None) -> None:
        self._stage = stage
        self._began_at, self._cpu_at = time.perf_counter(), self._cpu()

    def stop(self, statistics: StageStatistics) -> float:
        """Add the time since this watch was made; it, in seconds."""
        seconds = time.perf_counter() - self._began_at
        statistics.busy_s += seconds
        statistics.cpu_s += max(0.0, self._cpu() - self._cpu_at)
        return seconds

    def _cpu(self) -> float:
        return time.thread_time() + (self._stage.delegated_cpu_s() if self._stage is not None else 0.0)


class Chain:
    """A fused chain: perhaps a source, then transforms, then perhaps a sink."""

    #: Who is told of batches, if anybody wants spans of them.
    tracer: Tracer | None = None
    #: In a solitary task: of the transforms, the one that remembers and is asked of the batch at hand.
    _stands_at: int | None = None

    def __init__(
        self,
        pipeline: Pipeline,
        names: Sequence[str],
        in_flight: InFlightPage | None = None,
        *,
        alone: bool = False,
        replica: int | None = None,
        takes_over: bool = False,
    ) -> None:
        self._in_flight = in_flight or InFlightPage.private()
        #: Set in the solitary task: what it must not touch again.
        self.isolation = Isolation() if alone else None
        self.source: Source | None = None
        self.sink: Sink | None = None
        self.source_name = self.sink_name = ""
        self.transforms: list[tuple[str, Transform]] = []
        #: The transforms that remember, where there are any: one, but for a solitary task and a shard made again.
        self.dedups: list[StatefulTransform] = []
        #: Partitions that the transform that remembers asks, and what this task has in its place if it is one of them.
        self.partitions = 0
        self.share: IndexPart | None = None
        #: The stage that another task has and this one asks, if any, its number, and behind how many of the transforms.
        self.asks, self.asks_number, self._asked_at = "", 0, 0
        self.statistics = {name: StageStatistics() for name in names}
        self.facts: dict[str, str] = {}
        takes_over = takes_over and not alone and pipeline.base is not None
        for name in names:
            stage = pipeline.stage(name)
            built = _build(pipeline, stage, defers=takes_over and self.source is not None)
            if stage.kind is StageKind.SOURCE:
                self.source, self.source_name = built, name
            elif stage.kind is StageKind.SINK:
                self.sink, self.sink_name = built, name
            else:
                self.transforms.append((name, built))
                built.stand_behind(pipeline.remembering_before(name))
            if stage.kind is StageKind.STATEFUL:
                self.dedups.append(built)
                self._part(built, (stage.replicas or 1) - 1, None if alone else replica)
            if not alone and (asked := pipeline.asks(name)) and asked not in names:
                self.asks, self.asks_number = asked, pipeline.remembering_before(asked)
                self._asked_at = len(self.transforms)
            self.facts.update(built.facts())
        #: Whether its transform that remembers decides for other tasks, and whether it is asked for one record alone.
        self.decides, self.asks_alone = self.dedup is not None and not alone, self.dedup is not None and alone
        self.downstream = pipeline.flows_to(names[-1])
        #: Stages that follow the one that asks, and are not past the decider; none where a stage past it is here too.
        last_asks = self.asks != "" and pipeline.asks(names[-1]) != ""
        self.direct = tuple(stage for stage in self.downstream if last_asks and stage in pipeline.downstream(names[-1]))
        takers = [*(one for _, one in self.transforms), *([self.sink] if self.sink is not None else [])]
        #: Whether batches may lie in memory that is only lent to it (`headrace.stages.runtime.contract`).
        self.borrows = not self.asks and all(stage.borrows for stage in takers)
        #: Whether all of its stages take merged batches.
        self._merges = (
            self.source is not None
            and self.sink is not None
            and not alone
            and not self.asks
            and all(stage.merges for stage in (self.source, *takers))
        )
        #: The most that a merged batch holds; 0 where there is none.
        self.batch_bytes, self.batch_records = 0, 0
        if self._merges and self.source is not None:
            self.batch_bytes, self.batch_records = self.source.batch_bytes, self.source.batch_records
        #: What the source's batches have behind them; a solitary task judges everything.
        self._takeover = _takeover(pipeline, self.source_name, self.transforms) if takes_over else None
        self._passed: Passed | None = None
        #: Whether the source gives batches of one record.
        self._singly = alone and self.source is not None and self.source.read_singly()

    @property
    def dedup(self) -> StatefulTransform | None:
        """The transform that remembers, in a task of its own; the first of them in others."""
        return self.dedups[0] if self.dedups else None

    def _part(self, dedup: StatefulTransform, partitions: int, replica: int | None) -> None:
        if replica is None or not partitions:
            return
        if replica:
            self.share = dedup.share(replica - 1, partitions)
        else:
            self.partitions = partitions
            dedup.part(partitions)

    def skipped(self) -> str:
        """What the source's newest listing skipped, in one line for people; "" for nothing."""
        return self.source.skipped() if self.source is not None else ""

    def all_below(self) -> str:
        """See `Source.all_below`."""
        return self.source.all_below() if self.source is not None else ""

    def expect(self, fragment: Fragment, gaps: Sequence[Gap]) -> None:
        """What `read` will be called with next. What is wrong with it is said then."""
        assert self.source is not None
        with contextlib.suppress(InputError):
            self.source.expect(fragment, gaps)

    def read(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[Batch | FragmentEnd]:
        """The source's batches, timed."""
        assert self.source is not None
        if self.isolation is None:
            yield from self._timed(fragment, gaps, self.source.read(fragment, gaps))
            return
        for part in self.isolation.around(self.source_name, fragment, gaps):
            if isinstance(part, Batch):
                yield part
            else:
                yield from singly(self._timed(fragment, (part,), self.source.read(fragment, (part,))))

    def drafts(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[Batch | BatchDraft | FragmentEnd]:
        """As `read`, but with drafts where all stages of this task take merged batches."""
        if not self._merges or self.source is None:
            return self.read(fragment, gaps)
        return self._timed(fragment, gaps, self.source.drafts(fragment, gaps))

    def compare(self, fragment: Fragment) -> Iterator[ContentAnswer | None]:
        """As `Source.compare`."""
        assert self.source is not None
        return self.source.compare(fragment)

    def prefix(self, fragment: Fragment) -> Prefix | None:
        """As `Source.prefix`."""
        assert self.source is not None
        return self.source.prefix(fragment)

    def _timed(self, fragment: Fragment, gaps: Sequence[Gap], items: Iterator[Read]) -> Iterator[Read]:
        statistics = self.statistics[self.source_name]
        edges = dict(zip((gap.end for gap in gaps), (gap.first for gap in gaps[1:]), strict=False))
        at, count = gaps[0].first if gaps else 0, 1 if self._singly else 0
        while True:
            self._in_flight.take(STAGES, self.source_name, (Range(fragment.id, at, count),))
            watch = Watch()
            item = next(items, None)
            seconds = watch.stop(statistics)
            self._in_flight.clear(STAGES)
            if item is None:
                return
            if not isinstance(item, FragmentEnd):
                at = edges.get(item.first + item.count, item.first + item.count)
                lost = item.columns.lost if isinstance(item, BatchDraft) else item.verdicts.num_rows
                self._count(statistics, item.length, item.count, lost)
                if self.tracer is not None:
                    read = Range(fragment.id, item.first, item.count)
                    self.tracer.batch(self.source_name, read, item.count, lost, seconds)
            yield item
            del item  # before the next one is made

    def process(self, batch: Batch) -> Batch:
        """The batch behind the last transform, or where it is to be asked for."""
        if self._takeover is not None:
            self._passed = self._takeover.over(batch)
            batch = self._passed.batch
        return self._through(self.transforms[: self._asked_at] if self.asks else self.transforms, batch)

    def decided(self, batch: Batch) -> Batch:
        """The batch less its duplicates, for which the partitions of the index have answered."""
        assert self.dedup is not None
        return self._at_work(self.dedup.name, self.dedup, self.dedup.process, batch)

    def _at_work(self, name: str, transform: Transform, process: Callable[[Batch], Batch], batch: Batch) -> Batch:
        """What a transform makes of a batch, by `process`; timed, counted and traced."""
        before, lost = batch.rows.num_rows, batch.verdicts.num_rows
        watch, ranges = Watch(transform), ranges_of(batch)
        self._in_flight.take(STAGES, name, ranges, timed=True)
        batch = process(batch)
        self._in_flight.clear(STAGES)
        statistics, dropped = self.statistics[name], batch.verdicts.num_rows - lost
        seconds = watch.stop(statistics)
        self._count(statistics, batch.length, before, dropped)
        if self.tracer is not None:
            self.tracer.batch(name, ranges[0], before, dropped, seconds)
        return batch

    def past_decider(self, batch: Batch) -> Batch:
        """The batch less its duplicates behind the last transform."""
        return self._through(self.transforms[self._asked_at :], batch)

    def to_be_asked(self, batch: Batch) -> Batch:
        """The batch where another task is asked about its rows; without rows, or that, behind the last transform."""
        if self.asks_alone:
            return self._to_dedup(0, batch)
        if not self.partitions:
            batch = self.process(batch)
        # A sink wants its columns.
        return self.past_decider(batch) if self.asks and not batch.rows.num_rows else batch

    def from_dedup(self, batch: Batch, match: Any) -> Batch:
        """In the solitary task: the same batch before the next dedup stage, or behind the last transform.

        `match`: what its record is a duplicate of, if of any, by the dedup stage that was asked.
        """
        dedup, at = self.asked_next, self._stands_at
        assert dedup is not None
        assert at is not None
        dedup.recall({RecordName(batch.fragment, batch.first): match} if match is not None else {})
        return self._to_dedup(at + 1, self._through(self.transforms[at : at + 1], batch))

    @property
    def asked_next(self) -> StatefulTransform | None:
        """In the solitary task: the dedup stage that the batch at hand has come to, if it has."""
        at = self._stands_at
        return next((dedup for dedup in self.dedups if at is not None and dedup is self.transforms[at][1]), None)

    def _to_dedup(self, first: int, batch: Batch) -> Batch:
        behind = range(first, len(self.transforms))
        self._stands_at = next((at for at in behind if self.transforms[at][1] in self.dedups), None)
        batch = self._through(self.transforms[first : self._stands_at], batch)
        if not batch.rows.num_rows and self._stands_at is not None:
            # Nothing is asked of it.
            at, self._stands_at = self._stands_at, None
            return self._through(self.transforms[at:], batch)
        if self.isolation is not None and self._stands_at is not None:
            batch = self.isolation.at(self.transforms[self._stands_at][0], batch)
        return batch

    def _through(self, transforms: Sequence[tuple[str, Transform]], batch: Batch) -> Batch:
        for name, transform in transforms:
            passed = self._passed
            if self.isolation is not None:
                batch = self.isolation.at(name, batch)
            if passed is not None and name in passed.stages:
                process = functools.partial(passed.through, judge=transform, name=name)
            else:
                process = functools.partial(process_safely, transform, stage_name=name)
            batch = self._at_work(name, transform, process, batch)
        return batch

    def probe(self, batch: Batch) -> Batch:
        """In the solitary task: the batch without what is poison at the sink, after a trial where one is wanted."""
        if self.isolation is None or self.sink is None:
            return batch
        batch = self.isolation.at(self.sink_name, batch)
        if batch.fragment in self.isolation.probed and batch.rows.num_rows:
            self._in_flight.take(STAGES, self.sink_name, ranges_of(batch))
            try_writing(self.sink, batch)
            self._in_flight.clear(STAGES)
        return batch

    def gathered(self, batch: Batch, watch: Watch) -> None:
        """A batch was handed to the sink."""
        statistics = self.statistics[self.sink_name]
        self._count(statistics, batch.length, batch.rows.num_rows, 0)
        seconds = watch.stop(statistics)
        if self.tracer is not None:
            self.tracer.gathered(self.sink_name, ranges_of(batch)[0], batch.rows.num_rows, seconds)

    def progress(self, writer: StageStatistics, writing_s: float = 0.0) -> list[pb.StageProgress]:
        """A row a stage. `writer` is the time of the thread that writes; `writing_s` how long it is at a shard now."""
        rows: list[pb.StageProgress] = []
        for name, item in self.statistics.items():
            row = pb.StageProgress(
                stage=name,
                records=item.records,
                bytes=item.bytes,
                busy_s=item.busy_s,
                cpu_s=item.cpu_s,
                dropped=item.dropped,
            )
            if name == self.source_name and self.source is not None:
                row.bytes, row.skipped_bytes = self.source.bytes_read, self.source.bytes_skipped
                row.stored_bytes = self.source.stored_read
            if name == self.sink_name:
                row.busy_s += writer.busy_s + writing_s
                row.cpu_s += writer.cpu_s
                row.at_batch_s = writing_s
            rows.append(row)
        return rows

    @staticmethod
    def _count(statistics: StageStatistics, length: int, records: int, dropped: int) -> None:
        statistics.records += records
        statistics.bytes += max(0, length)
        statistics.dropped += dropped


# Few runs have a base: the others load nothing of what reads it.


def _build(pipeline: Pipeline, stage: Stage, *, defers: bool) -> Any:
    if not defers:
        return build_stage(stage, pipeline.modules)
    from headrace.worker.task.batch import build_or_defer

    return build_or_defer(pipeline, stage)


def _takeover(pipeline: Pipeline, source: str, transforms: Sequence[tuple[str, Transform]]) -> Takeover | None:
    from headrace.worker.task.batch import Takeover

    return Takeover.of(pipeline, source, transforms)
