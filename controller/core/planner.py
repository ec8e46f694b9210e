"""The plan: which tasks there are, which stages each one runs, where, and which links join them.

`plan` is a pure function of its arguments; the same arguments give the same plan. Stages that follow one another one
to one with the same number of replicas are fused into one task, since the quickest link is none. Tasks of a pipeline
are placed in columns: a worker that takes part runs replicas of every group, and links stay inside the worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline, chain_order

#: Tasks that one worker may be given for one pipeline.
TASKS_A_WORKER_MAX = 512


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a plan needs to know of a worker."""

    name: str
    cores: int


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """One task: a fused chain of stages on one worker."""

    name: str
    stages: tuple[str, ...]
    worker: str
    replica: int


@dataclass(frozen=True, slots=True)
class LinkPlan:
    """A directed edge between two tasks."""

    name: str
    sender: str
    sender_stage: str
    receiver: str
    receiver_stage: str
    transport: str = "ring"


@dataclass(frozen=True, slots=True)
class Plan:
    """All tasks and links of one pipeline."""

    tasks: tuple[TaskPlan, ...]
    links: tuple[LinkPlan, ...]

    def task(self, name: str) -> TaskPlan:
        """The task of that name; KeyError if there is none."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise KeyError(name)


def groups(pipeline: Pipeline, *, fuse: bool) -> list[tuple[str, ...]]:
    """The stages in chains that run in one task each, in graph order."""
    chains: list[list[str]] = []
    tail: dict[str, list[str]] = {}
    for stage in chain_order(pipeline.stages):
        upstream = stage.after[0] if len(stage.after) == 1 else None
        joined = (
            fuse
            and upstream is not None
            and upstream in tail
            and tail[upstream][-1] == upstream
            and len(pipeline.downstream(upstream)) == 1
            and pipeline.stage(upstream).replicas == stage.replicas
        )
        if joined and upstream is not None:
            chain = tail[upstream]
            chain.append(stage.name)
        else:
            chain = [stage.name]
            chains.append(chain)
        tail[stage.name] = chain
    return [tuple(chain) for chain in chains]


def plan(pipeline: Pipeline, workers: Sequence[WorkerFacts], *, fuse: bool = True, replicas: int = 0) -> Plan:
    """Tasks and links for a pipeline on these workers. PipelineError if they cannot hold it."""
    if not workers:
        raise PipelineError(f"pipeline {pipeline.name!r}: no worker is registered; start one with `headrace worker`")
    chosen = sorted(workers, key=lambda worker: worker.name)
    chains = groups(pipeline, fuse=fuse)
    wanted = {chain: pipeline.stage(chain[0]).replicas or replicas or None for chain in chains}
    columns = chosen[: min(len(chosen), *(count for count in wanted.values() if count), len(chosen))]
    share = {chain: _shares(wanted[chain], columns) for chain in chains}
    tasks: list[TaskPlan] = []
    for chain in chains:
        replica = 0
        for column, worker in enumerate(columns):
            for _ in range(share[chain][column]):
                tasks.append(TaskPlan(f"{pipeline.name}/{chain[0]}.{replica}", chain, worker.name, replica))
                replica += 1
    per_worker: dict[str, int] = {}
    for task in tasks:
        per_worker[task.worker] = per_worker.get(task.worker, 0) + 1
    for name, count in per_worker.items():
        if count > TASKS_A_WORKER_MAX:
            raise PipelineError(f"worker {name!r} would run {count} tasks, the limit is {TASKS_A_WORKER_MAX}")
    return Plan(tuple(tasks), tuple(_links(pipeline, chains, tasks)))


def move(current: Plan, lost: str, to: str) -> Plan:
    """The plan with every task of a lost worker on another one."""
    tasks = tuple(
        TaskPlan(task.name, task.stages, to, task.replica) if task.worker == lost else task for task in current.tasks
    )
    return Plan(tasks, current.links)


def _shares(wanted: int | None, columns: Sequence[WorkerFacts]) -> list[int]:
    """How many replicas each worker runs: its cores, or an equal part of what was asked for."""
    if wanted is None:
        return [max(1, worker.cores) for worker in columns]
    each, more = divmod(wanted, len(columns))
    return [each + (1 if index < more else 0) for index in range(len(columns))]


def _links(pipeline: Pipeline, chains: Sequence[tuple[str, ...]], tasks: Sequence[TaskPlan]) -> list[LinkPlan]:
    """Each task to each task of the next group on the same worker."""
    head: Mapping[str, tuple[str, ...]] = {chain[0]: chain for chain in chains}
    links: list[LinkPlan] = []
    for sender in tasks:
        last = sender.stages[-1]
        for stage in pipeline.downstream(last):
            for receiver in tasks:
                if receiver.stages == head[stage] and receiver.worker == sender.worker:
                    name = f"{sender.name}->{receiver.name.removeprefix(pipeline.name + '/')}"
                    links.append(LinkPlan(name, sender.name, last, receiver.name, stage))
    return links
