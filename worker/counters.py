"""What a worker counts of its tasks, for its metrics: it decides nothing.

Counters go on when a task dies: what its last report said is added to what dead attempts had done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from headrace.protos import control_pb2 as pb
from headrace.worker.core import LOOK_S, Held

#: Proposals whose answers are awaited; older ones are not counted when they are accepted.
PROPOSALS_MAX = 10_000
VERDICTS = ("kept", "filtered", "duplicate", "quarantined")
Key = tuple[str, int]
K = TypeVar("K")


@dataclass(slots=True)
class StageSums:
    """What the tasks of one stage did here."""

    records: int = 0
    dropped: int = 0
    bytes: int = 0
    busy_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, part: pb.StageProgress) -> None:
        """Add one task's report."""
        self.records += part.records
        self.dropped += part.dropped
        self.bytes += part.bytes
        self.busy_s += part.busy_s
        self.cpu_s += part.cpu_s


@dataclass(slots=True)
class Counters:
    """The sums of one worker since it began."""

    #: The newest report of each attempt that lives.
    living: dict[Key, pb.Progress] = field(default_factory=dict[Key, pb.Progress])
    ready: set[Key] = field(default_factory=set[Key])
    started: set[Key] = field(default_factory=set[Key])
    #: Starts, and ends by `exit`, `signal` or `limit`, by pipeline.
    starts: dict[str, int] = field(default_factory=dict[str, int])
    ends: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    #: Records whose verdicts are closed, by pipeline, sink and verdict; and shards, by pipeline and sink.
    closed: dict[tuple[str, str, str], int] = field(default_factory=dict[tuple[str, str, str], int])
    shards: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    cuts: dict[str, int] = field(default_factory=dict[str, int])
    #: Spans for a collector of traces, by pipeline and what became of them.
    spans: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    _dead: dict[tuple[str, str], StageSums] = field(default_factory=dict[tuple[str, str], StageSums])
    _proposed: dict[tuple[str, int, int], pb.Proposed] = field(default_factory=dict[tuple[str, int, int], pb.Proposed])

    def began(self, task: str, attempt: int) -> None:
        """An attempt was started."""
        self.started.add((task, attempt))
        _count(self.starts, pipeline_of(task))

    def said(self, event: pb.TaskEvent) -> None:
        """A task reports."""
        key = event.task, event.attempt
        match event.WhichOneof("event"):
            case "ready":
                self.ready.add(key)
            case "progress":
                before = self.living.get(key, pb.Progress())
                for fate, count in (
                    ("sent", event.progress.spans_sent - before.spans_sent),
                    ("dropped", event.progress.spans_dropped - before.spans_dropped),
                ):
                    if count > 0:
                        _count(self.spans, (pipeline_of(event.task), fate), count)
                self.living[key] = event.progress
            case "proposed":
                self._proposed[*key, event.proposed.proposal] = event.proposed
                if len(self._proposed) > PROPOSALS_MAX:
                    self._proposed.pop(next(iter(self._proposed)))
            case "lost":
                _count(self.cuts, pipeline_of(event.task))
            case _:
                pass

    def at_work(
        self, task: str, attempt: int, held: Held | None, now: float, spent_of: Callable[[int], float]
    ) -> pb.Progress | None:
        """What an attempt had done, with what it is at now; None where that is nothing, or not for long.

        A stage that is at one batch for seconds keeps its task from saying anything. `spent_of` are the processor
        seconds of a thread, now.
        """
        said = self.living.get((task, attempt))
        if said is None or held is None or now - held.since < LOOK_S:
            return None
        told = pb.Progress()
        told.CopyFrom(said)
        for row in told.stages:
            if any(item.stage == row.stage for item in held.items):
                row.at_batch_s = now - held.since
                row.busy_s += row.at_batch_s
                row.cpu_s += min(row.at_batch_s, max(0.0, spent_of(held.thread) - held.spent_s))
                row.batch_records = sum(item.range.count for item in held.items)
        return told

    def answered(self, task: str, attempt: int, answer: pb.Answer) -> None:
        """The controller answers a proposal: what is accepted is in the ledger."""
        proposed = self._proposed.pop((task, attempt, answer.proposal), None)
        if proposed is None or answer.outcome != pb.Answer.ACCEPTED:
            return
        sink = pipeline_of(task), proposed.sink
        _count(self.shards, sink)
        for verdict in VERDICTS:
            _count(self.closed, (*sink, verdict), getattr(proposed.counts, verdict))

    def ended(self, task: str, attempt: int, code: int, killed_for: str) -> None:
        """An attempt's process is gone."""
        key = task, attempt
        how = "limit" if killed_for else "signal" if code < 0 else "exit"
        _count(self.ends, (pipeline_of(task), how))
        for stage in self.living.pop(key, pb.Progress()).stages:
            self._dead.setdefault((pipeline_of(task), stage.stage), StageSums()).add(stage)
        self.ready.discard(key)
        self.started.discard(key)
        for proposal in [name for name in self._proposed if name[:2] == key]:
            del self._proposed[proposal]

    def stages(self) -> dict[tuple[str, str], StageSums]:
        """The sums by pipeline and stage, dead attempts included."""
        sums = {key: replace(dead) for key, dead in self._dead.items()}
        for (task, _), progress in self.living.items():
            for stage in progress.stages:
                sums.setdefault((pipeline_of(task), stage.stage), StageSums()).add(stage)
        return sums


def pipeline_of(task: str) -> str:
    """The pipeline of a task, which its name begins with."""
    return task.split("/", 1)[0]


def _count(counts: dict[K, int], key: K, by: int = 1) -> None:
    counts[key] = counts.get(key, 0) + by
