"""What a plan is: tasks, the links between them, and the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.controller.core.plan.locality import QUIC, RING
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
