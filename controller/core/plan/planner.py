"""The plan: which tasks there are, which stages each one runs, where, and which links join them.

`plan` is a pure function of its arguments; the same arguments give the same plan. Stages that follow one another one
to one with the same number of replicas and the same place are fused into one task, since the quickest link is none.
Tasks of a pipeline are placed in columns: a worker that takes part runs replicas of every group, and links stay inside
the worker. Only where two stages that follow one another have different places do links join workers (`edges`). How
many replicas a worker gets is `placement`'s to say.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heapreplace

from headrace.controller.core.plan.locality import INLINE, WorkerFacts, check_forced, places_of
from headrace.controller.core.plan.placement import NOTHING, Need, Stock, need_of, place, total
from headrace.controller.core.plan.plans import LinkPlan, Plan, TaskPlan, edges, rejoined, reserved
from headrace.pipeline import Pipeline, PipelineError, StageKind, chain_order
from headrace.store import counted

#: Tasks that one worker may be given for one pipeline.
TASKS_A_WORKER_MAX = 512

Chain = tuple[str, ...]


def groups(
    pipeline: Pipeline,
    *,
    fuse: bool,
    places: Mapping[str, str] | None = None,
    counts: Mapping[str, int] | None = None,
    transports: Mapping[str, str] | None = None,
) -> list[tuple[str, ...]]:
    """The stages in chains that run in one task each, in graph order. `places` are those of all stages.

    A stage that remembers has a task of its own: the tasks before it ask it, and records flow past it. `counts` are the
    tasks of stages, before what the pipeline says. A stage for whose link `transports` has anything
    but inline is not fused to the one before: it is to have that link.
    """
    places, counts, transports = places or {}, counts or {}, transports or {}

    def wanted(stage: str) -> int | None:
        return counts.get(stage) or pipeline.stage(stage).replicas

    chains: list[list[str]] = []
    tail: dict[str, list[str]] = {}
    for stage in chain_order(pipeline.stages):
        before = pipeline.flows_from(stage.name)
        upstream = before[0] if len(before) == 1 and stage.kind is not StageKind.STATEFUL else None
        joined = (
            fuse
            and upstream is not None
            and upstream in tail
            and tail[upstream][-1] == upstream
            and pipeline.flows_to(upstream) == (stage.name,)
            and wanted(upstream) == wanted(stage.name)
            and places.get(upstream) == places.get(stage.name)
            and transports.get(stage.name, INLINE) == INLINE
            and _asks_one(pipeline, (*tail[upstream], stage.name))
        )
        if joined and upstream is not None:
            chain = tail[upstream]
            chain.append(stage.name)
        else:
            chain = [stage.name]
            chains.append(chain)
        tail[stage.name] = chain
    return [tuple(chain) for chain in chains]


def _asks_one(pipeline: Pipeline, chain: Chain) -> bool:
    """Whether a task with these stages asks one decider at most."""
    return len({asked for stage in chain if (asked := pipeline.asks(stage))}) < 2


def plan(
    pipeline: Pipeline,
    workers: Sequence[WorkerFacts],
    *,
    fuse: bool = True,
    replicas: int = 0,
    places: Mapping[str, str] | None = None,
    transports: Mapping[str, str] | None = None,
    counts: Mapping[str, int] | None = None,
    current: Plan | None = None,
    taken: Mapping[str, Need] | None = None,
) -> Plan:
    """Tasks and links for a pipeline on these workers. PipelineError if they cannot hold it.

    `replicas` are the tasks of each stage that does not say, 0 for as many as there are cores; `places` gives stages
    their place, before what the pipeline says; `transports` gives links one, by the stage that they lead to;
    `counts` gives stages their tasks, before what the pipeline says. What stands in `current` keeps its name and worker
    where the plan has a task for those stages there; `taken` is what others reserve, by worker.
    """
    if not workers:
        raise PipelineError(f"pipeline {pipeline.name!r}: no worker is registered; start one with `headrace worker`")
    check_forced(pipeline, transports or {})
    where = places_of(pipeline, places or {})
    counts = counts or {}
    chains = groups(pipeline, fuse=fuse, places=where, counts=counts, transports=transports)
    wanted = {
        chain: roles_of(pipeline, chain)
        or counts.get(chain[0])
        or pipeline.stage(chain[0]).replicas
        or replicas
        or None
        for chain in chains
    }
    for chain, count in wanted.items():
        if count is not None and count < 1:
            raise PipelineError(f"stage {chain[0]!r}: {count} tasks are asked for; give 1 or more")
        if count is not None and count > TASKS_A_WORKER_MAX * len(workers):
            on = counted(len(workers), "worker")
            raise PipelineError(f"{on} would run {count} tasks, the limit is {TASKS_A_WORKER_MAX} each")
    placed = place(pipeline, chains, workers, {chain: where[chain[0]] for chain in chains}, wanted, taken)
    _check_load(share for shares in placed.shares.values() for share in shares)
    tasks: list[TaskPlan] = []
    identities = _Identities(current)
    for chain in chains:
        need = need_of(pipeline, chain)
        shares = [(worker.name, count) for worker, count in placed.shares[chain]]
        for worker, replica in identities.numbered(chain, shares, roles_of(pipeline, chain)):
            name = f"{pipeline.name}/{chain[0]}.{replica}"
            tasks.append(TaskPlan(name, chain, worker, replica, where[chain[0]], need))
    facts = {worker.name: worker for worker in workers}
    made = edges(pipeline, chains, tasks, {chain: placed.workers(chain) for chain in chains}, facts, transports or {})
    tasks += identities.solitary(tasks, {worker.name for worker in workers})
    return Plan(tuple(tasks), tuple(made), {"+".join(chain): reason for chain, reason in placed.reasons.items()})


def move(
    current: Plan,
    lost: str | Collection[str],
    workers: Sequence[WorkerFacts],
    taken: Mapping[str, Need] | None = None,
) -> Plan:
    """The plan with every task of one or more lost workers on others; what was bound to one place stays together.

    Of the workers that may have them and have room for what they reserve, the one with the fewest tasks does; what may
    run nowhere else stays. Only what is touched is planned again: n log n in what was lost, one look at the rest.
    """
    gone = {lost} if isinstance(lost, str) else set(lost)
    staying = [worker for worker in workers if worker.name not in gone]
    lost_tasks: dict[tuple[str, str], list[TaskPlan]] = {}
    load = dict.fromkeys((worker.name for worker in staying), 0)
    stock = Stock(staying, taken)
    for task in current.tasks:
        if task.worker in gone:
            lost_tasks.setdefault((task.worker, task.place), []).append(task)
        elif task.worker in load:
            load[task.worker] += 1
            if task.need != NOTHING:
                stock.take(task.worker, task.need, 1)
    heaps: dict[tuple[str, Need], list[tuple[int, str]]] = {}
    target: dict[str, str] = {}
    for (_, where), tasks in lost_tasks.items():
        # Tasks of one chain have no link with one another: each goes where there is room.
        for unit in [tasks] if len({task.stages for task in tasks}) > 1 else [[task] for task in tasks]:
            need = total(task.need for task in unit)
            if (where, need) not in heaps:
                heaps[where, need] = [(load[other.name], other.name) for other in staying if other.meets(where)]
                heapify(heaps[where, need])
            name = _roomiest(heaps[where, need], load, need, stock)
            if name:
                load[name] += len(unit)
                stock.take(name, need, 1)
                target |= {task.name: name for task in unit}
    moved = tuple(replace(task, worker=target[task.name]) if task.name in target else task for task in current.tasks)
    return rejoined(Plan(moved, current.links, current.reasons), workers, target)


def beside(
    current: Plan,
    made: Plan,
    pipeline: Pipeline,
    workers: Sequence[WorkerFacts],
    taken: Mapping[str, Need],
    *,
    stay: bool,
    anew: bool = False,
) -> tuple[Plan, frozenset[str]]:
    """A plan whose tasks live beside those of `current` for a while, and the names of those that are in both.

    The tasks of a stage that remembers are in both, and with `stay` each that is the same in both and so is all that it
    is linked with: between a task that stays and one that leaves or comes nothing may be on its way, but for questions
    to a stage that remembers. All others get names that are free, and those that are solitary are left out. Where a
    stage that remembers gets other tasks, or the index is another (`anew`), none is in both: then another epoch begins.
    PipelineError where a worker has not the memory for both.
    """
    remember = {stage.name for stage in pipeline.stateful}
    old = {task.name: task for task in current.tasks if not task.alone}
    new = {task.name: task for task in made.tasks if not task.alone}
    asked = {task.name for task in (*old.values(), *new.values()) if not remember.isdisjoint(task.stages)}
    same = {
        name
        for name, task in new.items()
        if (stay or name in asked)
        and (known := old.get(name)) is not None
        and (known.stages, known.worker, known.need) == (task.stages, task.worker, task.need)
        and current.listens(name) >= made.listens(name)
    }
    before, behind = ({link.name: link for link in plan.links} for plan in (current, made))
    ends = {name: {link.sender, link.receiver} for name, link in (before | behind).items()}
    others = {name for name in ends if before.get(name) != behind.get(name)}
    if anew or not asked <= same or any(ends[name] <= asked for name in others):
        same = set[str]()
    while parted := {
        end
        for name, joined in ends.items()
        if name in others or not joined - asked <= same
        for end in (joined & same) - asked
    }:
        same -= parted
    leaving = [task for name, task in old.items() if name not in same]
    _check_memory([*leaving, *new.values()], workers, taken)
    return _renamed(pipeline, old, Plan(tuple(new.values()), made.links, made.reasons), same), frozenset(same)


def _check_memory(tasks: Sequence[TaskPlan], workers: Sequence[WorkerFacts], taken: Mapping[str, Need]) -> None:
    mine = reserved([Plan(tuple(tasks), ())])
    for worker in workers:
        need = total([taken.get(worker.name, NOTHING), mine.get(worker.name, NOTHING)])
        if 0 < worker.memory_bytes < need.memory_bytes:
            raise PipelineError(
                f"{worker.name} has not the memory for the tasks that leave and those that come: "
                "stop the pipeline, and apply it with --amend"
            )


def _renamed(pipeline: Pipeline, old: Collection[str], made: Plan, same: Collection[str]) -> Plan:
    """The plan with names that none of `old` has for all tasks but these."""
    taken: dict[str, set[int]] = {}
    for name in (*old, *(task.name for task in made.tasks if task.name not in old)):
        head, _, ordinal = name.rpartition(".")
        taken.setdefault(head, set()).add(int(ordinal))
    tasks: dict[str, TaskPlan] = {}
    for task in made.tasks:
        tasks[task.name] = task
        if task.name in old and task.name not in same:
            head, roles = task.name.rpartition(".")[0], roles_of(pipeline, task.stages)
            blocks = itertools.count(task.replica % roles, roles) if roles else itertools.count()
            number = next(number for number in blocks if number not in taken[head])
            taken[head].add(number)
            tasks[task.name] = replace(task, name=f"{head}.{number}", replica=number)
    links: list[LinkPlan] = []
    for link in made.links:
        sender, receiver = tasks[link.sender].name, tasks[link.receiver].name
        name = f"{sender}->{receiver.removeprefix(pipeline.name + '/')}"
        links.append(replace(link, name=name, sender=sender, receiver=receiver))
    return Plan(tuple(tasks.values()), tuple(links), made.reasons)


def _roomiest(heap: list[tuple[int, str]], load: Mapping[str, int], need: Need, stock: Stock) -> str:
    """The worker with the fewest tasks that has room for a need; empty if none has.

    One without room is dropped for good: it only gets fuller.
    """
    while heap:
        known, name = heap[0]
        if known != load[name]:
            heapreplace(heap, (load[name], name))
        elif stock.holds(name, need) == 0:
            heappop(heap)
        else:
            return name
    return ""


def _check_load(shares: Iterable[tuple[WorkerFacts, int]]) -> None:
    """PipelineError where a worker would have too many tasks; before any is made, since billions may be asked for."""
    counts: dict[str, int] = {}
    for worker, count in shares:
        counts[worker.name] = counts.get(worker.name, 0) + count
    for name, count in counts.items():
        if count > TASKS_A_WORKER_MAX:
            raise PipelineError(f"worker {name!r} would run {count} tasks, the limit is {TASKS_A_WORKER_MAX}")


class _Identities:
    """The tasks of the current plan, by stages and worker: a task whose stages stay on its worker keeps its name."""

    def __init__(self, current: Plan | None) -> None:
        self._numbers: dict[tuple[Chain, str], deque[int]] = {}
        self._solitary: list[TaskPlan] = []
        #: The numbers of each first stage: a name stands for the same stages until its task is gone.
        self._taken: dict[str, set[int]] = {}
        for task in current.tasks if current else ():
            if task.alone:
                self._solitary.append(task)
            else:
                self._taken.setdefault(task.stages[0], set()).add(task.replica)
                self._numbers.setdefault((task.stages, task.worker), deque()).append(task.replica)

    def numbered(self, chain: Chain, shares: Sequence[tuple[str, int]], roles: int) -> list[tuple[str, int]]:
        """A worker and a number for each replica of a chain: the current numbers first, then the lowest free ones.

        Where numbers say which of `roles` a task has, those of tasks that end are free: each of a block has one.
        """
        kept: dict[str, list[int]] = {}
        for worker, count in shares:
            numbers = self._numbers.get((chain, worker), deque[int]())
            kept[worker] = [numbers.popleft() for _ in range(min(count, len(numbers)))]
        staying = {number for numbers in kept.values() for number in numbers}
        taken = self._taken.get(chain[0], set[int]())
        fresh = _free(staying, min(taken, default=0) // roles * roles) if roles else _free(taken)
        return [
            (worker, kept[worker][index] if index < len(kept[worker]) else next(fresh))
            for worker, count in shares
            for index in range(count)
        ]

    def solitary(self, tasks: Sequence[TaskPlan], workers: Collection[str]) -> list[TaskPlan]:
        """The solitary tasks; one whose worker is not there goes where its source's first task is."""
        found: list[TaskPlan] = []
        for task in self._solitary:
            if task.worker not in workers:
                neighbour = next(other for other in tasks if task.stages[0] in other.stages)
                task = replace(task, worker=neighbour.worker, place=neighbour.place)
            found.append(task)
        return found


def roles_of(pipeline: Pipeline, chain: Chain) -> int:
    """How many roles replicas have, 0: all are alike. Of a stage that remembers one decides, others are partitions.

    A task's number is that of its role, or beside tasks that it is to replace, that and a multiple of their number.
    """
    stage = pipeline.stage(chain[0])
    return (stage.replicas or 1) if stage.kind is StageKind.STATEFUL else 0


def _free(taken: Collection[int], number: int = 0) -> Iterator[int]:
    while True:
        if number not in taken:
            yield number
        number += 1
