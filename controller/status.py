"""The status that people and the CLI see: a reading of the core and of the tasks' progress."""

from __future__ import annotations

import os
import time
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.controller.core.plan import NOTHING
from headrace.controller.core.run import Run
from headrace.controller.core.run.tasks import Deaths, Task, TaskState
from headrace.protos import codec, control_pb2 as pb
from headrace.store.ledger import balance_of

if TYPE_CHECKING:
    from headrace.controller.shell import Shell


def reply(shell: Shell, version: str, pipeline: str = "") -> pb.StatusReply:
    """The workers, and the pipelines (or the one asked for)."""
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
                cores_reserved=need.cores,
                memory_reserved_bytes=need.memory_bytes,
                allows_chaos=worker.worker in shell.sessions and shell.sessions[worker.worker].allows_chaos,
            )
        )
    answer.lost.extend(_deaths(shell.core.lost))
    answer.expelled.extend(sorted(member for member, let_in in shell.core.expelled.items() if not let_in))
    if shell.core.log is not None:
        _, answer.trouble = shell.core.log.trouble(time.monotonic())
    for name, run in shell.core.runs.items():
        if pipeline in ("", name):
            answer.pipelines.append(_pipeline(run, shell.progress.get(name) or RunProgress()))
    known = shell.core.log.ledger.runs if shell.core.log is not None else {}
    for name, record in known.items():
        if pipeline in ("", name) and name not in shell.core.runs:
            # It ended under an earlier leader, or goes on under another one.
            dataset, state = str(record.pipeline.get("dataset", "")), record.outcome or "elsewhere"
            told = pb.PipelineStatus(pipeline=name, dataset=dataset, state=state, failure=record.reason)
            answer.pipelines.append(told)
    return answer


def _deaths(deaths: Deaths) -> list[pb.Death]:
    return [
        pb.Death(what=death.what, name=death.name, cause=death.cause, count=count)
        for death, count in deaths.counts.items()
    ]


def _pipeline(run: Run, progress: RunProgress) -> pb.PipelineStatus:
    listed = run.listing.counts()
    living = {(task.plan.name, task.attempt) for task in run.tasks or ()}
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
        shards=len(run.ledger.shards),
        failure=run.reason,
        facts={**progress.facts, "bytes_resumed": str(run.bytes_resumed)},
        first_batch_s=(progress.first_batch_at or progress.started_at) - progress.started_at,
        records_resumed=run.records_resumed,
        stages=_in_order(run, progress, living),
        changes=[change.words() for change in run.reconfiguration.waiting],
        refused_change=run.reconfiguration.refused,
        waits=_waits(run, progress),
        notes=run.listing.notes(),
        balance=codec.balance_to(balance_of(run.ledger)),
        held_by_dead=progress.held_by_dead(living),
        deaths=_deaths(run.deaths),
    )
    for sink, counts in run.ledger.counts.items():
        status.counts[sink].CopyFrom(codec.counts_to(counts))
    for task in run.tasks or ():
        status.tasks.append(_task(task, progress))
    if run.tasks is not None:
        via = progress.relays()
        for link in run.tasks.plan.links:
            status.links.append(
                pb.LinkStatus(
                    link=link.name,
                    sender=link.sender,
                    receiver=link.receiver,
                    transport=run.tasks.links.transport(link),
                    generation=run.tasks.links.generation(link.name),
                    trouble=run.tasks.links.trouble(link.name),
                    via=via.get(link.name, ""),
                )
            )
    return status


def _waits(run: Run, progress: RunProgress) -> list[str]:
    """What holds the run up until it passes: a log or a sink whose store is full, or does not answer."""
    told = [run.trouble(time.monotonic())]
    for task in run.tasks or ():
        latest = progress.of(task.plan.name, task.attempt)
        if latest is not None and task.state is TaskState.READY:
            told.append(latest.trouble)
    return sorted({words for words in told if words})


def _in_order(run: Run, progress: RunProgress, living: Container[tuple[str, int]]) -> list[pb.StageProgress]:
    """What stages did, in the order of the graph."""
    order = {stage.name: index for index, stage in enumerate(run.pipeline.stages)}
    # When the run has ended, nobody is at work any more.
    stages = progress.stages(() if run.ended else living, time.monotonic())
    return sorted(stages, key=lambda stage: order.get(stage.stage, len(order)))


def _worker_state(shell: Shell, worker: str) -> str:
    if worker not in shell.core.drained:
        return "registered"
    living = (run for run in shell.core.runs.values() if not run.ended)
    busy = any(task.plan.worker == worker for run in living for task in run.tasks or ())
    return "draining" if busy else "drained"


def _task(task: Task, progress: RunProgress) -> pb.TaskStatus:
    status = pb.TaskStatus(
        task=task.plan.name,
        stages=task.plan.stages,
        worker=task.plan.worker,
        state=task.state.value,
        attempt=task.attempt,
        restarts=task.restarts,
    )
    latest = progress.of(task.plan.name, task.attempt)
    if latest is not None:
        status.progress.CopyFrom(latest)
    return status


#: Seconds for which a stage that was at a batch is taken to be at it still, without a word of its worker.
GUESSED_S_MAX = 1.0
#: Stages and links in one report.
ROWS_MAX = 65_536


@dataclass(slots=True)
class RunProgress:
    """Progress of one run: the newest report of each attempt, and what dead attempts had done."""

    started_at: float = field(default_factory=time.monotonic)
    first_batch_at: float | None = None
    facts: dict[str, str] = field(default_factory=dict[str, str])
    latest: dict[tuple[str, int], pb.Progress] = field(default_factory=dict[tuple[str, int], pb.Progress])
    #: When each of these came, seconds, monotonic.
    heard_at: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])

    def take(self, message: pb.TaskEvent) -> None:
        """Note a report."""
        kind = message.WhichOneof("event")
        if kind == "ready":
            self.facts.update(message.ready.facts)
        elif kind == "progress" and len(message.progress.stages) + len(message.progress.links) <= ROWS_MAX:
            self.latest[message.task, message.attempt] = message.progress
            self.heard_at[message.task, message.attempt] = time.monotonic()
            if self.first_batch_at is None and any(stage.records for stage in message.progress.stages):
                self.first_batch_at = time.monotonic()

    def of(self, task: str, attempt: int) -> pb.Progress | None:
        """The newest report of one attempt."""
        return self.latest.get((task, attempt))

    def relays(self) -> dict[str, str]:
        """The workers that relay links, by link, as the newest attempts of their senders say."""
        newest = sorted(self.latest.items(), key=lambda item: item[0][1])
        return {link.link: link.via for _, progress in newest for link in progress.links if link.via}

    def held_by_dead(self, living: Container[tuple[str, int]]) -> int:
        """Records that the sinks of all other attempts held when they reported last."""
        return sum(progress.held_records for attempt, progress in self.latest.items() if attempt not in living)

    def stages(self, living: Container[tuple[str, int]] = (), now: float = 0.0) -> list[pb.StageProgress]:
        """The sum over all attempts, a row a stage, in the order first seen.

        A living attempt that was at a batch when it was heard of last has been at it since, up to `now`. What it worked
        since is a guess, and told apart: sums of work never fall.
        """
        return sum_stages(
            _since(stage, now - self.heard_at[attempt]) if attempt in living else _ended(stage)
            for attempt, progress in self.latest.items()
            for stage in progress.stages
        )


def _since(stage: pb.StageProgress, seconds: float) -> pb.StageProgress:
    if not stage.at_batch_s:
        return stage
    more = min(GUESSED_S_MAX, max(0.0, seconds))
    later = pb.StageProgress()
    later.CopyFrom(stage)
    later.guessed_s, later.at_batch_s = more, stage.at_batch_s + more
    return later


def _ended(stage: pb.StageProgress) -> pb.StageProgress:
    """What an attempt had done that is no more, and so is at nothing now."""
    if not stage.at_batch_s:
        return stage
    ended = pb.StageProgress()
    ended.CopyFrom(stage)
    ended.at_batch_s, ended.batch_records = 0.0, 0
    return ended


def sum_stages(parts: Iterable[pb.StageProgress]) -> list[pb.StageProgress]:
    """Reports of the same stage added up; of the batches that they are at the one that takes longest."""
    sums: dict[str, pb.StageProgress] = {}
    for part in parts:
        total = sums.setdefault(part.stage, pb.StageProgress(stage=part.stage))
        total.records += part.records
        total.bytes += part.bytes
        total.busy_s += part.busy_s
        total.cpu_s += part.cpu_s
        total.guessed_s += part.guessed_s
        if part.at_batch_s > total.at_batch_s:
            total.at_batch_s, total.batch_records = part.at_batch_s, part.batch_records
        total.dropped += part.dropped
        total.skipped_bytes += part.skipped_bytes
        total.stored_bytes += part.stored_bytes
    return list(sums.values())
