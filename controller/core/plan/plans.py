"""What a plan is: tasks, the links between them, by what transport, and the reasons.

Where two groups of tasks stand in columns, each task feeds every task of the next group on its own worker. Where they
do not, links join workers; each task of the one group feeds each of the other, as long as these are few. Beyond
LINKS_A_TASK_MAX a task feeds a window of them only, moved along so that every task of either side has a link, and
near ones come first: both sides stand in the order of zone, rack and worker. So the links grow with the tasks, and
not with their square. A task that asks a decider has two links with it: one for questions, one for answers. So has a
decider with each partition of its index.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.controller.core.plan.locality import QUIC, RING, WorkerFacts, fallback_of, transport_of
from headrace.controller.core.plan.placement import NOTHING, Need, total
from headrace.pipeline import Pipeline
from headrace.store import counted


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """One task: a fused chain of stages on one worker."""

    name: str
    stages: tuple[str, ...]
    worker: str
    replica: int
    #: The worker's name or label that the task is bound to; empty for none.
    place: str = ""
    #: The cores and memory that are reserved for it.
    need: Need = NOTHING
    #: The solitary task: it has no links, and takes one record at a time.
    alone: bool = False


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
    #: What takes its place where the two workers cannot pass memory to each other; empty for nothing.
    fallback: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """What a plan is to be otherwise. `leave` is a worker that may have no task any more."""

    replicas: Mapping[str, int] = field(default_factory=dict[str, int])
    places: Mapping[str, str] = field(default_factory=dict[str, str])
    transports: Mapping[str, str] = field(default_factory=dict[str, str])
    leave: str = ""

    @property
    def empty(self) -> bool:
        """Nothing is to be otherwise."""
        return not (self.replicas or self.places or self.transports or self.leave)

    def words(self) -> str:
        """For people."""
        parts = [f"{stage} to {counted(count, 'task')}" for stage, count in self.replicas.items()]
        parts += [f"{stage} to {place}" for stage, place in self.places.items()]
        parts += [f"{stage} joined by {transport}" for stage, transport in self.transports.items()]
        parts += [f"worker {self.leave} left"] if self.leave else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class RequestedChanges:
    """What people requested of a run under earlier leaders: a pause, the changes made, and those that wait.

    `held`: its cores are another's. `gated`: whether its gate has paused it, and `broken` why; False if it was resumed
    since.
    """

    pause: bool = False
    held: bool = False
    made: Change = field(default_factory=Change)
    waiting: tuple[Change, ...] = ()
    gated: bool | None = None
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """All tasks and links of one pipeline."""

    tasks: tuple[TaskPlan, ...]
    links: tuple[LinkPlan, ...]
    #: Why each chain stands where it does, for people; by its stages' names joined by `+`.
    reasons: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)
    _by_name: dict[str, TaskPlan] = field(init=False, repr=False, compare=False)
    _listening: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {task.name: task for task in self.tasks})
        quic = (link for link in self.links if QUIC in (link.transport, link.fallback))
        ends = (end for link in quic for end in (link.sender, link.receiver))
        object.__setattr__(self, "_listening", frozenset(ends))

    def task(self, name: str) -> TaskPlan:
        """The task of that name; KeyError if there is none."""
        return self._by_name[name]

    def find(self, name: str) -> TaskPlan | None:
        """The task of that name, if there is one."""
        return self._by_name.get(name)

    def listens(self, task: str) -> bool:
        """Whether a task has an end of a link between workers."""
        return task in self._listening


def reserved(plans: Iterable[Plan]) -> dict[str, Need]:
    """What the tasks of these plans reserve, by worker; one that is in several counts once."""
    taken: dict[str, Need] = {}
    for task in {task.name: task for plan in plans for task in plan.tasks}.values():
        if task.need != NOTHING:
            taken[task.worker] = total((taken.get(task.worker, NOTHING), task.need))
    return taken


#: The part of a solitary task's name after the pipeline's.
SOLITARY = "solitary"


@dataclass(frozen=True, slots=True, order=True)
class Route:
    """A way through the graph; each that is needed has one solitary task."""

    source: str
    sink: str


def stages_on(pipeline: Pipeline, route: Route) -> tuple[str, ...]:
    """The stages from its source to its sink, first to last; KeyError if none leads there."""
    stages = [route.sink]
    while stages[0] != route.source:
        before = pipeline.stage(stages[0]).after
        reachable = [name for name in before if name == route.source or route.source in _above(pipeline, name)]
        if not reachable:
            raise KeyError(f"no way from {route.source} to {route.sink}")
        stages.insert(0, reachable[0])
    return tuple(stages)


def _above(pipeline: Pipeline, name: str) -> set[str]:
    """Every stage that a stage's records have passed."""
    found: set[str] = set()
    waiting = list(pipeline.stage(name).after)
    while waiting:
        stage = waiting.pop()
        if stage not in found:
            found.add(stage)
            waiting += pipeline.stage(stage).after
    return found


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
