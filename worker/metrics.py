"""Metrics of a worker for Prometheus: what its tasks get through, hold and wait for, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace.transport.core import RelayStatistics
from headrace.worker.counters import Counters, pipeline_of


def families(
    counters: Counters, resident_bytes: Callable[[str], int], *, connected: bool, relay: RelayStatistics | None = None
) -> Iterable[Metric]:
    """A worker's sums as metric families; `resident_bytes` tells the memory of a task, by its name."""
    yield GaugeMetricFamily("headrace_worker_connected", "1 while a controller is connected.", value=int(connected))
    yield from _of_stages(counters)
    yield from _of_lives(counters)
    yield from _of_ledgers(counters)
    yield from _of_tasks(counters, resident_bytes)
    yield from _of_links(counters)
    if relay is not None:
        yield from _of_relay(relay)


def _of_stages(counters: Counters) -> list[Metric]:
    labels = ["pipeline", "stage"]
    records = CounterMetricFamily("headrace_worker_stage_records", "Records that came to a stage here.", labels=labels)
    dropped = CounterMetricFamily("headrace_worker_stage_dropped_records", "Records not kept.", labels=labels)
    size = CounterMetricFamily("headrace_worker_stage_bytes", "Bytes of input that its batches cover.", labels=labels)
    busy = CounterMetricFamily("headrace_worker_stage_busy_seconds", "Time that its tasks worked here.", labels=labels)
    cpu = CounterMetricFamily("headrace_worker_stage_cpu_seconds", "Of that the time of a core.", labels=labels)
    for key, sums in sorted(counters.stages().items()):
        records.add_metric(key, sums.records)
        dropped.add_metric(key, sums.dropped)
        size.add_metric(key, sums.bytes)
        busy.add_metric(key, sums.busy_s)
        cpu.add_metric(key, sums.cpu_s)
    return [records, dropped, size, busy, cpu]


def _of_lives(counters: Counters) -> list[Metric]:
    tasks = GaugeMetricFamily("headrace_worker_tasks", "Tasks that live here, by state.", labels=["pipeline", "state"])
    counts: dict[tuple[str, str], int] = {}
    for key in counters.started:
        name = pipeline_of(key[0]), "ready" if key in counters.ready else "starting"
        counts[name] = counts.get(name, 0) + 1
    for name, count in sorted(counts.items()):
        tasks.add_metric(name, count)
    starts = CounterMetricFamily("headrace_worker_task_starts", "Attempts that were started.", labels=["pipeline"])
    for pipeline, count in sorted(counters.starts.items()):
        starts.add_metric([pipeline], count)
    ends = CounterMetricFamily(
        "headrace_worker_task_ends", "Attempts that ended: exit, signal, or a limit.", labels=["pipeline", "how"]
    )
    for ended, count in sorted(counters.ends.items()):
        ends.add_metric(ended, count)
    cuts = CounterMetricFamily("headrace_worker_link_cuts", "Links that were found cut.", labels=["pipeline"])
    for pipeline, count in sorted(counters.cuts.items()):
        cuts.add_metric([pipeline], count)
    spans = CounterMetricFamily("headrace_worker_spans", "Spans of traces, by fate.", labels=["pipeline", "fate"])
    for fate, count in sorted(counters.spans.items()):
        spans.add_metric(fate, count)
    return [tasks, starts, ends, cuts, spans]


def _of_ledgers(counters: Counters) -> list[Metric]:
    closed = CounterMetricFamily(
        "headrace_worker_closed_records",
        "Records that sinks here had closed, by verdict.",
        labels=["pipeline", "sink", "verdict"],
    )
    for key, count in sorted(counters.closed.items()):
        closed.add_metric(key, count)
    shards = CounterMetricFamily("headrace_worker_shards", "Shards of sinks here.", labels=["pipeline", "sink"])
    for sink, count in sorted(counters.shards.items()):
        shards.add_metric(sink, count)
    return [closed, shards]


def _of_tasks(counters: Counters, resident_bytes: Callable[[str], int]) -> list[Metric]:
    labels = ["pipeline", "task"]
    held = GaugeMetricFamily("headrace_worker_held_bytes", "Bytes that a task's sink holds.", labels=labels)
    ranges = GaugeMetricFamily(
        "headrace_worker_open_ranges", "Ranges that a task's sink holds and that are not closed.", labels=labels
    )
    fragments = GaugeMetricFamily(
        "headrace_worker_pending_fragments", "Fragments that a source was given and has not sent.", labels=labels
    )
    memory = GaugeMetricFamily("headrace_worker_task_resident_bytes", "Memory of its own.", labels=labels)
    for (task, _), progress in sorted(counters.living.items()):
        key = [pipeline_of(task), task]
        held.add_metric(key, progress.held_bytes)
        ranges.add_metric(key, progress.open_ranges)
        fragments.add_metric(key, progress.pending_fragments)
        memory.add_metric(key, resident_bytes(task))
    return [held, ranges, fragments, memory]


def _of_links(counters: Counters) -> list[Metric]:
    labels = ["pipeline", "task", "link"]
    flying = GaugeMetricFamily("headrace_worker_link_in_flight_bytes", "Credit in use at this end.", labels=labels)
    moved = GaugeMetricFamily("headrace_worker_link_bytes", "Bytes that went over this end.", labels=labels)
    frames = GaugeMetricFamily("headrace_worker_link_frames", "Frames that went over this end.", labels=labels)
    blocked = GaugeMetricFamily("headrace_worker_link_blocked", "Sends that found no credit.", labels=labels)
    for (task, _), progress in sorted(counters.living.items()):
        for link in progress.links:
            key = [pipeline_of(task), task, link.link]
            flying.add_metric(key, link.in_flight_bytes)
            moved.add_metric(key, link.bytes)
            frames.add_metric(key, link.frames)
            blocked.add_metric(key, link.blocked)
    return [flying, moved, frames, blocked]


def _of_relay(relay: RelayStatistics) -> list[Metric]:
    gauges = {
        "paths": ("Paths between two others that this worker relays.", relay.paths),
        "paths_max": ("Paths that it relays at most.", relay.paths_max),
        "rate_limit_bytes": ("Bytes a second that may go over each path.", relay.rate_bytes_s),
    }
    counters = {
        "refused_paths": ("Paths that were asked for while there were as many as may be.", relay.refused),
        "bytes": ("Bytes that went on.", relay.passed_bytes),
    }
    datagrams = CounterMetricFamily(
        "headrace_worker_relay_datagrams", "Datagrams that came, by what became of them.", labels=["fate"]
    )
    for fate, count in sorted(relay.datagrams.items()):
        datagrams.add_metric([fate], count)
    return [
        *(GaugeMetricFamily(f"headrace_worker_relay_{name}", text, value=n) for name, (text, n) in gauges.items()),
        *(CounterMetricFamily(f"headrace_worker_relay_{name}", text, value=n) for name, (text, n) in counters.items()),
        datagrams,
    ]
