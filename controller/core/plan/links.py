"""The links of a plan: which task feeds which, and by what transport.

Where two groups of tasks stand in columns, each task feeds every task of the next group on its own worker. Where they
do not, links join workers; each task of the one group feeds each of the other, as long as these are few. Beyond
LINKS_A_TASK_MAX a task feeds a window of them only, moved along so that every task of either side has a link, and near
ones come first: both sides stand in the order of zone, rack and worker. So the links grow with the tasks, and not with
their square. A task that asks a decider has two links with it: one for questions, one for answers. So has a decider
with each partition of its index.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from headrace.controller.core.plan.locality import WorkerFacts, fallback_of, transport_of
from headrace.controller.core.plan.plans import LinkPlan, Plan, TaskPlan
from headrace.pipeline import Pipeline

#: Tasks of one other group, on other workers, that one task feeds, unless more are needed for each to be fed.
LINKS_A_TASK_MAX = 64

Chain = tuple[str, ...]


def edges(
    pipeline: Pipeline,
    chains: Sequence[Chain],
    tasks: Sequence[TaskPlan],
    columns: Mapping[Chain, tuple[str, ...]],
    workers: Mapping[str, WorkerFacts],
    forced: Mapping[str, str],
) -> list[LinkPlan]:
    """The links of these tasks. PipelineError where two of them can be joined by no transport."""
    head = {chain[0]: chain for chain in chains}
    groups: dict[Chain, list[TaskPlan]] = {chain: [] for chain in chains}
    for task in tasks:
        groups[task.stages].append(task)
    links: list[LinkPlan] = []
    for chain in chains:
        for stage in pipeline.flows_to(chain[-1]):
            receiver = head[stage]
            if columns[chain] == columns[receiver]:
                pairs = _within(groups[chain], groups[receiver])
            else:
                pairs = _across(groups[chain], groups[receiver], workers)
            request = forced.get(stage, "")
            links += [_link(pipeline.name, a, b, (chain[-1], stage), workers, request) for a, b in pairs]
        for stage in chain:
            if asked := pipeline.asks(stage):
                # All of them: there is one task that decides, and each that asks has its answer from it.
                decider, partitions = _roles(groups[head[asked]])
                pairs = [(asking_task, decider) for asking_task in groups[chain]]
                request = forced.get(asked, "")
                links += [_link(pipeline.name, a, b, (stage, asked), workers, request) for a, b in pairs]
                links += [_link(pipeline.name, b, a, (asked, stage), workers, request) for a, b in pairs]
                pairs = [(decider, partition) for partition in partitions]
                links += [_link(pipeline.name, a, b, (asked, asked), workers, request) for a, b in pairs]
                links += [_link(pipeline.name, b, a, (asked, asked), workers, request) for a, b in pairs]
    return links


def _roles(tasks: Sequence[TaskPlan]) -> tuple[TaskPlan, list[TaskPlan]]:
    """Of the tasks of a stage that remembers the one that decides, and the partitions of its index."""
    decider, *partitions = sorted(tasks, key=lambda task: task.replica)
    return decider, partitions


def rejoined(made: Plan, workers: Sequence[WorkerFacts], moved: Collection[str]) -> Plan:
    """The plan with the transports of the links of tasks that were moved. A link to a worker that is away stays."""
    facts = {worker.name: worker for worker in workers}
    links: list[LinkPlan] = []
    for link in made.links:
        if link.sender in moved or link.receiver in moved:
            sender, receiver = (facts.get(made.task(end).worker) for end in (link.sender, link.receiver))
            if sender is not None and receiver is not None:
                edge = (link.sender_stage, link.receiver_stage)
                transport = transport_of(sender, receiver, edge, link.forced)
                fallback = fallback_of(sender, receiver, transport, link.forced)
                link = replace(link, transport=transport, fallback=fallback)
        links.append(link)
    return Plan(made.tasks, tuple(links), made.reasons)


def _within(senders: Sequence[TaskPlan], receivers: Sequence[TaskPlan]) -> list[tuple[TaskPlan, TaskPlan]]:
    """Each to each on its own worker."""
    at: dict[str, list[TaskPlan]] = {}
    for receiver in receivers:
        at.setdefault(receiver.worker, []).append(receiver)
    return [(sender, receiver) for sender in senders for receiver in at.get(sender.worker, ())]


def _across(
    senders: Sequence[TaskPlan], receivers: Sequence[TaskPlan], workers: Mapping[str, WorkerFacts]
) -> list[tuple[TaskPlan, TaskPlan]]:
    """Each to each, or each to a window so that all are fed."""
    if len(receivers) <= LINKS_A_TASK_MAX and len(senders) <= LINKS_A_TASK_MAX:
        return [(sender, receiver) for sender in senders for receiver in receivers]

    def nearness(task: TaskPlan) -> tuple[object, ...]:
        worker = workers[task.worker]
        return (worker.of("zone"), worker.of("rack"), worker.host, worker.name, task.replica)

    feeding, fed = sorted(senders, key=nearness), sorted(receivers, key=nearness)
    window = min(len(fed), max(LINKS_A_TASK_MAX, -(-len(fed) // len(feeding))))
    pairs: list[tuple[TaskPlan, TaskPlan]] = []
    for index, sender in enumerate(feeding):
        start = index * len(fed) // len(feeding)
        pairs += [(sender, fed[(start + step) % len(fed)]) for step in range(window)]
    return pairs


def _link(
    name: str,
    sender: TaskPlan,
    receiver: TaskPlan,
    edge: tuple[str, str],
    workers: Mapping[str, WorkerFacts],
    forced: str,
) -> LinkPlan:
    places = workers[sender.worker], workers[receiver.worker]
    transport = transport_of(*places, edge, forced)
    return LinkPlan(
        f"{sender.name}->{receiver.name.removeprefix(name + '/')}",
        sender.name,
        edge[0],
        receiver.name,
        edge[1],
        transport,
        forced,
        fallback_of(*places, transport, forced),
    )
