"""The plan: which tasks there are, which stages each one runs, where, and which links join them.

`plan` is a pure function of its arguments; the same arguments give the same plan. Stages that follow one another one
to one with the same number of replicas and the same place are fused into one task, since the quickest link is none.
Tasks of a pipeline are placed in columns: a worker that takes part runs replicas of every group, and links stay inside
the worker. Only where two stages that follow one another have different places do links join workers, each task of the
one to each of the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.controller.core.places import QUIC, RING, WorkerFacts, check_forced, eligible, places_of, transport_of
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline, chain_order

#: Tasks that one worker may be given for one pipeline.
TASKS_A_WORKER_MAX = 512


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """One task: a fused chain of stages on one worker."""

    name: str
    stages: tuple[str, ...]
    worker: str
    replica: int
    #: The worker's name or label that the task is bound to; empty for none.
    place: str = ""


@dataclass(frozen=True, slots=True)
class LinkPlan:
    """A directed edge between two tasks."""

    name: str
    sender: str
    sender_stage: str
    receiver: str
    receiver_stage: str
    transport: str = RING
    #: What the user asked for; empty for nothing.
    forced: str = ""


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

    def listens(self, task: str) -> bool:
        """Whether a task has an end of a link between workers."""
        return any(link.transport == QUIC and task in (link.sender, link.receiver) for link in self.links)


def groups(pipeline: Pipeline, *, fuse: bool, places: Mapping[str, str] | None = None) -> list[tuple[str, ...]]:
    """The stages in chains that run in one task each, in graph order. `places` are those of all stages."""
    places = places or {}
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
            and places.get(upstream) == places.get(stage.name)
        )
        if joined and upstream is not None:
            chain = tail[upstream]
            chain.append(stage.name)
        else:
            chain = [stage.name]
            chains.append(chain)
        tail[stage.name] = chain
    return [tuple(chain) for chain in chains]


def plan(
    pipeline: Pipeline,
    workers: Sequence[WorkerFacts],
    *,
    fuse: bool = True,
    replicas: int = 0,
    places: Mapping[str, str] | None = None,
    transports: Mapping[str, str] | None = None,
) -> Plan:
    """Tasks and links for a pipeline on these workers. PipelineError if they cannot hold it.

    `replicas` are the tasks of each stage that does not say, 0 for as many as there are cores; `places` gives stages
    their place, before what the pipeline says; `transports` gives links one, by the stage that they lead to.
    """
    if not workers:
        raise PipelineError(f"pipeline {pipeline.name!r}: no worker is registered; start one with `headrace worker`")
    check_forced(pipeline, transports or {})
    place = places_of(pipeline, places or {})
    chains = groups(pipeline, fuse=fuse, places=place)
    wanted = {chain: pipeline.stage(chain[0]).replicas or replicas or None for chain in chains}
    columns = _columns(workers, {chain: place[chain[0]] for chain in chains}, wanted)
    tasks: list[TaskPlan] = []
    for chain in chains:
        replica = 0
        for worker, count in zip(columns[chain], _shares(wanted[chain], columns[chain]), strict=True):
            for _ in range(count):
                name = f"{pipeline.name}/{chain[0]}.{replica}"
                tasks.append(TaskPlan(name, chain, worker.name, replica, place[chain[0]]))
                replica += 1
    _check_load(tasks)
    made = Plan(tuple(tasks), tuple(_links(pipeline, chains, tasks, columns, transports or {})))
    return joined(made, workers)


def joined(made: Plan, workers: Sequence[WorkerFacts]) -> Plan:
    """The plan with the transport of each link as the places of its ends have it. PipelineError if there is none.

    A link to a worker that is away stays what it was.
    """
    facts = {worker.name: worker for worker in workers}
    at = {task.name: task.worker for task in made.tasks}
    links: list[LinkPlan] = []
    for link in made.links:
        ends = [facts.get(at[end]) for end in (link.sender, link.receiver)]
        if ends[0] is not None and ends[1] is not None:
            edge = (link.sender_stage, link.receiver_stage)
            link = replace(link, transport=transport_of(ends[0], ends[1], edge, link.forced))
        links.append(link)
    return Plan(made.tasks, tuple(links))


def move(current: Plan, lost: str, workers: Sequence[WorkerFacts]) -> Plan:
    """The plan with every task of a lost worker on another one, all that are bound to one place together.

    Of the workers that may have them the one with the fewest tasks does; what may run nowhere else stays.
    """
    load = {worker.name: sum(task.worker == worker.name for task in current.tasks) for worker in workers}
    target: dict[str, str] = {}
    for place in dict.fromkeys(task.place for task in current.tasks if task.worker == lost):
        fit = [worker.name for worker in workers if worker.meets(place) and worker.name != lost]
        target[place] = min(fit, key=lambda name: (load[name], name), default=lost)
    tasks = tuple(replace(task, worker=target[task.place]) if task.worker == lost else task for task in current.tasks)
    return joined(Plan(tasks, current.links), workers)


def _columns(
    workers: Sequence[WorkerFacts], places: Mapping[tuple[str, ...], str], wanted: Mapping[tuple[str, ...], int | None]
) -> dict[tuple[str, ...], tuple[WorkerFacts, ...]]:
    """The workers that run each chain: those of its place, and no more than its place's rarest chain has replicas."""
    found: dict[tuple[str, ...], tuple[WorkerFacts, ...]] = {}
    for chain, place in places.items():
        fit = eligible(workers, chain[0], place)
        counts = [wanted[other] or len(fit) for other in places if places[other] == place]
        found[chain] = fit[: min(len(fit), *counts)]
    return found


def _shares(wanted: int | None, columns: Sequence[WorkerFacts]) -> list[int]:
    """How many replicas each worker runs: its cores, or an equal part of what was asked for."""
    if wanted is None:
        return [max(1, worker.cores) for worker in columns]
    each, more = divmod(wanted, len(columns))
    return [each + (1 if index < more else 0) for index in range(len(columns))]


def _check_load(tasks: Sequence[TaskPlan]) -> None:
    per_worker: dict[str, int] = {}
    for task in tasks:
        per_worker[task.worker] = per_worker.get(task.worker, 0) + 1
    for name, count in per_worker.items():
        if count > TASKS_A_WORKER_MAX:
            raise PipelineError(f"worker {name!r} would run {count} tasks, the limit is {TASKS_A_WORKER_MAX}")


def _links(
    pipeline: Pipeline,
    chains: Sequence[tuple[str, ...]],
    tasks: Sequence[TaskPlan],
    columns: Mapping[tuple[str, ...], tuple[WorkerFacts, ...]],
    forced: Mapping[str, str],
) -> list[LinkPlan]:
    """Each task to each task of the next group: on the same worker, or on all where the groups are not in columns."""
    head: Mapping[str, tuple[str, ...]] = {chain[0]: chain for chain in chains}
    links: list[LinkPlan] = []
    for sender in tasks:
        last = sender.stages[-1]
        for stage in pipeline.downstream(last):
            in_columns = columns[sender.stages] == columns[head[stage]]
            for receiver in tasks:
                if receiver.stages == head[stage] and (receiver.worker == sender.worker or not in_columns):
                    name = f"{sender.name}->{receiver.name.removeprefix(pipeline.name + '/')}"
                    wish = forced.get(stage, "")
                    links.append(LinkPlan(name, sender.name, last, receiver.name, stage, forced=wish))
    return links
