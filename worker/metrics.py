"""Metrics of a worker for Prometheus: what it counts of its tasks, and what these get through, hold and wait for.

Counters go on when a task dies: what its last report said is added to what dead attempts had done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.protos import control_pb2 as pb
from headrace.transport.core import RelayStatistics
from headrace.worker.core import LOOK_S, Held

if TYPE_CHECKING:  # imported when somebody asks for metrics: it takes 0.02 s
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

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
    #: Those that were accepted last: one may be on its way again while its answer comes.
    _accepted: dict[tuple[str, int, int], None] = field(default_factory=dict[tuple[str, int, int], None])

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
        key = task, attempt, answer.proposal
        proposed = self._proposed.pop(key, None)
        if proposed is None or answer.outcome != pb.Answer.ACCEPTED or key in self._accepted:
            return
        self._accepted[key] = None
        if len(self._accepted) > PROPOSALS_MAX:
            self._accepted.pop(next(iter(self._accepted)))
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


#: What is told of each stage, task and link: the name of the family, the field, and what it is.
_OF_STAGES = (
    ("headrace_worker_stage_records", "records", "Records that came to a stage here."),
    ("headrace_worker_stage_dropped_records", "dropped", "Records not kept."),
    ("headrace_worker_stage_bytes", "bytes", "Bytes of input that its batches cover."),
    ("headrace_worker_stage_busy_seconds", "busy_s", "Time that its tasks worked here."),
    ("headrace_worker_stage_cpu_seconds", "cpu_s", "Of that the time of a core."),
)
_OF_TASKS = (
    ("headrace_worker_held_bytes", "held_bytes", "Bytes that a task's sink holds."),
    ("headrace_worker_open_ranges", "open_ranges", "Ranges that a task's sink holds and that are not closed."),
    ("headrace_worker_pending_fragments", "pending_fragments", "Fragments that a source was given and has not sent."),
)
_OF_LINKS = (
    ("headrace_worker_link_in_flight_bytes", "in_flight_bytes", "Credit in use at this end."),
    ("headrace_worker_link_bytes", "bytes", "Bytes that went over this end."),
    ("headrace_worker_link_frames", "frames", "Frames that went over this end."),
    ("headrace_worker_link_blocked", "blocked", "Sends that found no credit."),
)


def families(
    counters: Counters, resident_bytes: Callable[[str], int], *, connected: bool, relay: RelayStatistics | None = None
) -> Iterable[Metric]:
    """A worker's sums as metric families; `resident_bytes` tells the memory of a task, by its name."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    count, gauge = CounterMetricFamily, GaugeMetricFamily
    yield gauge("headrace_worker_connected", "1 while a controller is connected.", value=int(connected))
    stages = counters.stages().items()
    tasks = [((pipeline_of(task), task), progress) for (task, _), progress in counters.living.items()]
    links = [((*key, link.link), link) for key, progress in tasks for link in progress.links]
    for kind, labels, facts, found in (
        (count, "pipeline stage", _OF_STAGES, stages),
        (gauge, "pipeline task", _OF_TASKS, tasks),
        (gauge, "pipeline task link", _OF_LINKS, links),
    ):
        for name, field_name, text in facts:
            yield _family(kind, name, text, labels, [(key, getattr(item, field_name)) for key, item in found])
    memory = [(key, resident_bytes(key[1])) for key, _ in tasks]
    states = Counter(
        (pipeline_of(key[0]), "ready" if key in counters.ready else "starting") for key in counters.started
    )
    for kind, name, text, labels, rows in (
        (gauge, "headrace_worker_task_resident_bytes", "Memory of its own.", "pipeline task", memory),
        (gauge, "headrace_worker_tasks", "Tasks that live here, by state.", "pipeline state", states.items()),
        (count, "headrace_worker_task_starts", "Attempts that were started.", "pipeline", counters.starts.items()),
        (
            count,
            "headrace_worker_task_ends",
            "Attempts that ended: exit, signal, or a limit.",
            "pipeline how",
            counters.ends.items(),
        ),
        (count, "headrace_worker_link_cuts", "Links that were found cut.", "pipeline", counters.cuts.items()),
        (count, "headrace_worker_spans", "Spans of traces, by fate.", "pipeline fate", counters.spans.items()),
        (
            count,
            "headrace_worker_closed_records",
            "Records that sinks here had closed, by verdict.",
            "pipeline sink verdict",
            counters.closed.items(),
        ),
        (count, "headrace_worker_shards", "Shards of sinks here.", "pipeline sink", counters.shards.items()),
    ):
        yield _family(kind, name, text, labels, rows)
    if relay is not None:
        yield from _of_relay(relay)


def _family(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    labels: str,
    rows: Iterable[tuple[Any, float]],
) -> Metric:
    """One family: its value for each key, which is a tuple, or a string where there is one label."""
    family = kind(name, text, labels=labels.split())
    for key, value in sorted(rows):
        family.add_metric([key] if isinstance(key, str) else key, value)
    return family


def _of_relay(relay: RelayStatistics) -> list[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    gauges = {
        "paths": ("Paths between two others that this worker relays.", relay.paths),
        "paths_max": ("Paths that it relays at most.", relay.paths_max),
        "rate_limit_bytes": ("Bytes a second that may go over each path.", relay.rate_bytes_s),
    }
    counters = {
        "refused_paths": ("Paths that were asked for while there were as many as may be.", relay.refused),
        "bytes": ("Bytes that went on.", relay.passed_bytes),
    }
    fates = "Datagrams that came, by what became of them."
    return [
        *(GaugeMetricFamily(f"headrace_worker_relay_{name}", text, value=n) for name, (text, n) in gauges.items()),
        *(CounterMetricFamily(f"headrace_worker_relay_{name}", text, value=n) for name, (text, n) in counters.items()),
        _family(CounterMetricFamily, "headrace_worker_relay_datagrams", fates, "fate", relay.datagrams.items()),
    ]
