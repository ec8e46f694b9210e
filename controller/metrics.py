"""Metrics of a controller for Prometheus: a reading of its status at each scrape, so nothing is counted twice.

Served on the address of `--metrics`; they name pipelines, stages and workers, and hold no record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from headrace.protos import control_pb2 as pb

if TYPE_CHECKING:
    from headrace.controller.shell import CommitTimes

#: Reasons of verdicts of one dataset, by which metrics are told apart; the rarer ones are `others`.
REASONS_MAX = 200


def families(status: pb.StatusReply, commits: CommitTimes) -> Iterable[Metric]:
    """A status as metric families."""
    workers = GaugeMetricFamily("headrace_workers", "Workers by state.", labels=["state"])
    for state, count in sorted(Counter(item.state for item in status.workers).items()):
        workers.add_metric([state], count)
    yield workers
    commit = HistogramMetricFamily("headrace_commit_seconds", "Time until an entry of a ledger is durable.")
    commit.add_metric([], commits.buckets(), commits.total_s)
    yield commit
    yield from _of_stages(status.pipelines)
    yield from _of_ledgers(status.pipelines)
    yield _of_reasons(status.pipelines)
    yield from _of_runs(status.pipelines)
    yield from _of_tasks(status.pipelines)


def _of_stages(pipelines: Iterable[pb.PipelineStatus]) -> Iterable[Metric]:
    labels = ["pipeline", "stage"]
    records = CounterMetricFamily("headrace_stage_records", "Records that came to a stage in this run.", labels=labels)
    dropped = CounterMetricFamily("headrace_stage_dropped_records", "Records that it did not keep.", labels=labels)
    size = CounterMetricFamily("headrace_stage_bytes", "Bytes of input that its batches cover.", labels=labels)
    busy = CounterMetricFamily("headrace_stage_busy_seconds", "Time that its tasks worked.", labels=labels)
    cpu = CounterMetricFamily("headrace_stage_cpu_seconds", "Of that the time of a core.", labels=labels)
    tasks = GaugeMetricFamily("headrace_stage_tasks", "Tasks of a stage.", labels=labels)
    for item in pipelines:
        counts = Counter(stage for task in item.tasks for stage in task.stages)
        for stage in item.stages:
            key = [item.pipeline, stage.stage]
            records.add_metric(key, stage.records)
            dropped.add_metric(key, stage.dropped)
            size.add_metric(key, stage.bytes)
            busy.add_metric(key, stage.busy_s)
            cpu.add_metric(key, stage.cpu_s)
            tasks.add_metric(key, counts[stage.stage])
    return [records, dropped, size, busy, cpu, tasks]


def _of_ledgers(pipelines: Iterable[pb.PipelineStatus]) -> Iterable[Metric]:
    closed = GaugeMetricFamily(
        "headrace_closed_records", "Records of the dataset by verdict.", labels=["pipeline", "sink", "verdict"]
    )
    unclosed = GaugeMetricFamily(
        "headrace_open_records", "Records that were read to the end of their fragment and are not closed.",
        labels=["pipeline"],
    )  # fmt: skip
    still = GaugeMetricFamily("headrace_open_fragments", "Fragments that are not closed.", labels=["pipeline"])
    shards = GaugeMetricFamily("headrace_shards", "Shards of the dataset.", labels=["pipeline"])
    for item in pipelines:
        still.add_metric([item.pipeline], item.fragments - item.fragments_done)
        shards.add_metric([item.pipeline], item.shards)
        unclosed.add_metric([item.pipeline], item.balance.records_open)
        for sink, counts in item.counts.items():
            for verdict in ("kept", "filtered", "duplicate", "quarantined"):
                closed.add_metric([item.pipeline, sink, verdict], getattr(counts, verdict))
    return [closed, unclosed, still, shards]


def _of_reasons(pipelines: Iterable[pb.PipelineStatus]) -> Metric:
    labels = ["pipeline", "verdict", "reason"]
    family = GaugeMetricFamily("headrace_verdict_records", "Closed records by verdict and reason.", labels=labels)
    for item in pipelines:
        counts = Counter({("kept", ""): item.balance.kept, ("duplicate", ""): item.balance.duplicate})
        counts.update({("filtered", reason): count for reason, count in item.balance.filtered_by.items()})
        counts.update({("quarantined", reason): count for reason, count in item.balance.quarantined_by.items()})
        named = counts.most_common(REASONS_MAX)
        for (verdict, reason), count in named:
            family.add_metric([item.pipeline, verdict, reason], count)
        others = counts.total() - sum(count for _, count in named)
        if others:
            family.add_metric([item.pipeline, "others", "others"], others)
    return family


def _of_runs(pipelines: Iterable[pb.PipelineStatus]) -> Iterable[Metric]:
    labels = ["pipeline"]
    state = GaugeMetricFamily("headrace_run_state", "1 for the state of a run.", labels=["pipeline", "state"])
    waits = GaugeMetricFamily("headrace_run_waits", "Reasons for which a run waits, such as a store.", labels=labels)
    lag = GaugeMetricFamily(
        "headrace_ledger_lag_seconds", "For how long records are held of which no entry closed any.", labels=labels
    )
    size = GaugeMetricFamily("headrace_input_bytes", "Bytes of listed input, as they are stored.", labels=labels)
    read = GaugeMetricFamily("headrace_input_read_bytes", "Of these what was read.", labels=labels)
    for item in pipelines:
        key = [item.pipeline]
        state.add_metric([*key, item.state], 1)
        waits.add_metric(key, len(item.waits))
        lag.add_metric(key, item.ledger_lag_s)
        size.add_metric(key, item.input_bytes)
        before = int(item.facts.get("bytes_resumed", 0))
        done = before + sum(stage.stored_bytes for stage in item.stages if stage.stage in item.sources)
        read.add_metric(key, min(done, item.input_bytes))
    return [state, waits, lag, size, read]


def _of_tasks(pipelines: Iterable[pb.PipelineStatus]) -> Iterable[Metric]:
    tasks = GaugeMetricFamily("headrace_tasks", "Tasks by state.", labels=["pipeline", "state"])
    restarts = GaugeMetricFamily("headrace_task_restarts", "Restarts of the plan's tasks.", labels=["pipeline"])
    held = GaugeMetricFamily("headrace_held_bytes", "Bytes that a task's sink holds.", labels=["pipeline", "task"])
    flying = GaugeMetricFamily("headrace_link_in_flight_bytes", "Credit in use.", labels=["pipeline", "link"])
    moved = GaugeMetricFamily("headrace_link_bytes", "Bytes sent over a link.", labels=["pipeline", "link"])
    frames = GaugeMetricFamily("headrace_link_frames", "Frames sent over a link.", labels=["pipeline", "link"])
    blocked = GaugeMetricFamily("headrace_link_blocked", "Sends that found no credit.", labels=["pipeline", "link"])
    for item in pipelines:
        for state, count in sorted(Counter(task.state for task in item.tasks).items()):
            tasks.add_metric([item.pipeline, state], count)
        restarts.add_metric([item.pipeline], sum(task.restarts for task in item.tasks))
        sender = {link.link: link.sender for link in item.links}
        for task in item.tasks:
            held.add_metric([item.pipeline, task.task], task.progress.held_bytes)
            for link in task.progress.links:
                if sender.get(link.link) == task.task:
                    key = [item.pipeline, link.link]
                    flying.add_metric(key, link.in_flight_bytes)
                    moved.add_metric(key, link.bytes)
                    frames.add_metric(key, link.frames)
                    blocked.add_metric(key, link.blocked)
    return [tasks, restarts, held, flying, moved, frames, blocked]
