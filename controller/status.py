"""The status that people and the CLI see: a reading of the core and of the tasks' progress."""

from __future__ import annotations

import os
import time
from collections.abc import Container
from typing import TYPE_CHECKING

from headrace.controller.core.cluster import QueueUse
from headrace.controller.core.messages import PipelineRequested
from headrace.controller.core.plan import NOTHING
from headrace.controller.core.run import Run
from headrace.controller.core.run.tasks import DeathCounts, RunTask, TaskPhase
from headrace.controller.effects import ReportedProgress
from headrace.pipeline import Pipeline, StageKind
from headrace.protos import codec, control_pb2 as pb
from headrace.store.ledger import RunRecord, balance_of, empty_sinks

if TYPE_CHECKING:
    from headrace.controller.shell import Shell


def reply(shell: Shell, version: str, pipeline: str = "") -> pb.StatusReply:
    """The workers, and the pipelines (or the one asked for)."""
    answer = cluster_status(shell, version)
    for name, run in shell.core.runs.items():
        if pipeline in ("", name):
            answer.pipelines.append(_pipeline(run, shell.progress.get(name) or ReportedProgress()))
            answer.pipelines[-1].waits.extend(queue_waits(shell, name))
    for status in [*queued_runs(shell), *earlier_runs(shell)]:
        if pipeline in ("", status.pipeline):
            answer.pipelines.append(status)
    return answer


def cluster_status(shell: Shell, version: str) -> pb.StatusReply:
    """All but the pipelines."""
    answer = pb.StatusReply(controller=str(os.getpid()), version=version)
    answer.standby, answer.term = not shell.core.leads, shell.term
    answer.allows_chaos = shell.own_faults.allowed
    answer.leader = str(shell.core.leader.get("address", ""))
    reserved = shell.core.reserved_by_others("")
    for worker in shell.core.workers.values():
        need = reserved.get(worker.worker, NOTHING)
        answer.workers.append(
            pb.WorkerStatus(
                worker=worker.worker,
                host=worker.host,
                cores=worker.cores,
                pid=worker.pid,
                state=_worker_state(shell, worker.worker),
                labels=worker.labels,
                addresses=worker.addresses,
                memory_bytes=worker.memory_bytes,
                cores_reserved=need.cores,
                memory_reserved_bytes=need.memory_bytes,
                allows_chaos=worker.worker in shell.sessions and shell.sessions[worker.worker].allows_chaos,
            )
        )
    answer.lost.extend(_deaths(shell.core.lost))
    answer.expelled.extend(sorted(member for member, let_in in shell.core.expelled.items() if not let_in))
    answer.queues.extend(map(_queue, shell.core.queues.uses()))
    if shell.core.log is not None:
        _, answer.trouble = shell.core.log.trouble(time.monotonic())
    return answer


def _queue(use: QueueUse) -> pb.QueueStatus:
    rule = use.rule
    return pb.QueueStatus(
        queue=rule.name,
        weight=rule.weight,
        cores_max=rule.cores,
        priority=rule.priority,
        cores=use.cores,
        fair_share=use.share,
        granted=use.granted,
        waiting=use.waiting,
    )


def queue_waits(shell: Shell, pipeline: str) -> list[str]:
    """The place of a run in its queue, in words, if its cores are another's."""
    return list(filter(None, [shell.core.queues.waits(pipeline)]))


def queued_runs(shell: Shell) -> list[pb.PipelineStatus]:
    """The pipelines that have not begun, and those that were stopped before they did."""
    queues = shell.core.queues
    found = [_unbegun(event, "queued", queues.waits(name)) for name, event in queues.waiting.items()]
    stopped = {name: event for name, event in queues.dropped.items() if name not in shell.core.runs}
    return [*found, *(_unbegun(event, "cancelled", "") for event in stopped.values())]


def _unbegun(event: PipelineRequested, state: str, waits: str) -> pb.PipelineStatus:
    return pb.PipelineStatus(
        pipeline=str(event.pipeline["name"]),
        dataset=str(event.pipeline["dataset"]),
        state=state,
        version=Pipeline.from_dict(event.pipeline).version(),
        waits=filter(None, [waits]),
        applied_by=event.by,
        queue=event.queue,
        queue_cores=event.cores,
    )


def earlier_runs(shell: Shell) -> list[pb.PipelineStatus]:
    """The runs that ended under an earlier leader, or go on under another one, without figures and version."""
    known = shell.core.log.ledger.runs if shell.core.log is not None else {}
    return [
        pb.PipelineStatus(
            pipeline=name,
            dataset=_dataset_of(record),
            state=record.outcome or "elsewhere",
            failure=record.reason,
            applied_by=str(record.options.get("by", "")),
            notes=[f"another controller led it; its records: `headrace dataset show {_dataset_of(record)}`"],
        )
        for name, record in known.items()
        if name not in shell.core.runs and name not in shell.core.queues.waiting
    ]


def _dataset_of(record: RunRecord) -> str:
    return str(record.pipeline.get("dataset", ""))


def _deaths(deaths: DeathCounts) -> list[pb.Death]:
    return [
        pb.Death(what=death.what, name=death.name, cause=death.cause, count=count)
        for death, count in deaths.counts.items()
    ]


def pipeline_status(run: Run, progress: ReportedProgress, living: Container[tuple[str, int]]) -> pb.PipelineStatus:
    """A run without its tasks, links and stages, which may be many."""
    listed, shown = run.listing.counts(), progress.shown(run.ledger, ended=run.ended)
    status = pb.PipelineStatus(
        pipeline=run.pipeline.name,
        dataset=run.pipeline.dataset,
        state=run.state.value,
        version=run.version,
        term=run.leadership.term,
        epoch=run.ledger.epoch,
        ledger_entries=run.ledger.number + 1,
        fragments=listed.fragments,
        fragments_done=listed.done,
        input_bytes=listed.size,
        shards=len(shown.shards),
        failure=run.reason,
        facts={**progress.facts, "bytes_resumed": str(run.bytes_resumed)},
        first_batch_s=(progress.first_batch_at or progress.started_at) - progress.started_at,
        records_resumed=run.records_resumed,
        changes=[*filter(None, [run.amendment.words(run.works)]), *_waiting(run)],
        refused_change=run.reconfiguration.refused or run.amendment.refused,
        waits=_waits(run, progress),
        notes=[*run.listing.notes(), *(empty_sinks(run.ledger) if run.ended else ()), *progress.scaling],
        balance=codec.balance_to(balance_of(shown)),
        held_by_dead=progress.held_by_dead(living),
        ledger_lag_s=0.0 if run.ended else progress.ledger_lag_s(living, time.monotonic()),
        sources=[stage.name for stage in run.pipeline.of_kind(StageKind.SOURCE)],
        fixed=[stage.name for stage in run.pipeline.of_kind(StageKind.STATEFUL)],
        deaths=_deaths(run.deaths),
        applied_by=run.request.by,
        queue=run.request.queue,
        queue_cores=run.request.cores,
    )
    for sink, counts in shown.counts.items():
        status.counts[sink].CopyFrom(codec.counts_to(counts))
    return status


def _pipeline(run: Run, progress: ReportedProgress) -> pb.PipelineStatus:
    living = {(task.plan.name, task.attempt) for one in run.task_sets for task in one}
    status = pipeline_status(run, progress, living)
    status.stages.extend(_in_order(run, progress, living))
    via = progress.relays()
    for one in run.task_sets:
        status.tasks.extend(_task(task, progress) for task in one)
        for link in one.own_links:
            status.links.append(
                pb.LinkStatus(
                    link=link.name,
                    sender=link.sender,
                    receiver=link.receiver,
                    transport=one.links.transport(link),
                    generation=one.links.generation(link.name),
                    trouble=one.links.trouble(link.name),
                    via=via.get(link.name, ""),
                )
            )
    return status


def _waiting(run: Run) -> list[str]:
    return [change.words() for change in run.reconfiguration.waiting]


def _waits(run: Run, progress: ReportedProgress) -> list[str]:
    """What holds the run up until it passes: a log or a sink whose store is full, or does not answer."""
    told = [run.trouble(time.monotonic())]
    for task in (task for one in run.task_sets for task in one):
        latest = progress.of(task.plan.name, task.attempt)
        if latest is not None and task.state is TaskPhase.READY:
            told.append(latest.trouble)
    return sorted({words for words in told if words})


def _in_order(run: Run, progress: ReportedProgress, living: Container[tuple[str, int]]) -> list[pb.StageProgress]:
    """What stages did, in the order of the graph."""
    order = {stage.name: index for index, stage in enumerate(run.pipeline.stages)}
    # When the run has ended, nobody is at work any more.
    stages = progress.stages(() if run.ended else living, time.monotonic())
    return sorted(stages, key=lambda stage: order.get(stage.stage, len(order)))


def _worker_state(shell: Shell, worker: str) -> str:
    if worker not in shell.core.drained:
        return "registered"
    living = (run for run in shell.core.runs.values() if not run.ended)
    busy = any(task.plan.worker == worker for run in living for one in run.task_sets for task in one)
    return "draining" if busy else "drained"


def _task(task: RunTask, progress: ReportedProgress) -> pb.TaskStatus:
    status = pb.TaskStatus(
        task=task.plan.name,
        stages=task.plan.stages,
        worker=task.plan.worker,
        state=task.state.value,
        attempt=task.attempt,
        restarts=task.restarts,
        cores=task.plan.need.cores,
        memory_bytes=task.plan.need.memory_bytes,
    )
    latest = progress.of(task.plan.name, task.attempt)
    if latest is not None:
        status.progress.CopyFrom(latest)
    return status
