"""The task table of one run: which attempt of each task is alive, when the next one starts, and how many died."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from enum import Enum

from headrace.controller.core.log import InvalidTransitionError
from headrace.controller.core.plan import Plan, TaskPlan

#: Seconds before a task that died starts again, doubled for each death in a row up to RESTART_S_MAX.
RESTART_S = 0.1
RESTART_S_MAX = 10.0
#: DeathCounts in a row after which a run gives up.
DEATHS_MAX = 8
#: Seconds that a task may take to build its stages; a model that is loaded from a slow disk must fit.
START_S_MAX = 300.0
#: Seconds that a task must have been ready for its earlier deaths to be forgotten.
HEALTHY_S = 20.0

#: Names and causes of one run that are told apart; what comes when there are as many is counted with OTHERS.
KINDS_MAX = 64
#: Characters of a cause.
CAUSE_MAX = 200
#: Attempts of a task in one term. A worker may still run what an earlier leader started; its numbers are lower.
ATTEMPTS_A_TERM = 1 << 20


class TaskPhase(Enum):
    """Where a task stands."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"


class TaskTurn(Enum):
    """What moves a task."""

    START_DUE = "start due"
    ADOPTED = "adopted"
    BECAME_READY = "became ready"
    EXITED = "exited"
    STOP_ASKED = "stop asked"


TRANSITIONS: dict[tuple[TaskPhase, TaskTurn], TaskPhase] = {
    (TaskPhase.WAITING, TaskTurn.START_DUE): TaskPhase.STARTING,
    (TaskPhase.WAITING, TaskTurn.ADOPTED): TaskPhase.STARTING,
    (TaskPhase.STARTING, TaskTurn.BECAME_READY): TaskPhase.READY,
    (TaskPhase.STARTING, TaskTurn.EXITED): TaskPhase.WAITING,
    (TaskPhase.READY, TaskTurn.EXITED): TaskPhase.WAITING,
    (TaskPhase.WAITING, TaskTurn.STOP_ASKED): TaskPhase.STOPPED,
    (TaskPhase.STARTING, TaskTurn.STOP_ASKED): TaskPhase.STOPPED,
    (TaskPhase.READY, TaskTurn.STOP_ASKED): TaskPhase.STOPPED,
}


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """Who an attempt of a task was given to, and what it is."""

    worker: str
    stages: tuple[str, ...]
    alone: bool = False


@dataclass(slots=True)
class RunTask:
    """One task and its attempts. The number of an attempt is never used again, nor lower in a later term."""

    plan: TaskPlan
    state: TaskPhase = TaskPhase.WAITING
    attempt: int = 0
    deaths: int = 0
    restarts: int = 0
    #: When a waiting task starts, and when a starting one was started.
    start_at: float = 0.0
    ready_at: float = 0.0
    story: str = ""
    #: Where the living attempt takes links of other workers.
    addresses: tuple[str, ...] = ()

    def turn(self, turn: TaskTurn) -> None:
        """Move along the table; InvalidTransitionError if it knows no such step."""
        target = TRANSITIONS.get((self.state, turn))
        if target is None:
            raise InvalidTransitionError(f"task {self.plan.name}: {self.state.value} on {turn.value!r}")
        self.state = target


class TaskTable:
    """Every task of one plan."""

    def __init__(self, plan: Plan, term: int = 0) -> None:
        self._before = term * ATTEMPTS_A_TERM
        self.tasks: dict[str, RunTask] = {task.name: RunTask(task, attempt=self._before) for task in plan.tasks}
        #: The last attempts of tasks that are no more: a task of that name may come again.
        self._retired: dict[str, int] = {}

    def add(self, plan: TaskPlan) -> RunTask:
        """One more task; it starts at once."""
        task = self.tasks[plan.name] = RunTask(plan, attempt=self._retired.pop(plan.name, self._before))
        return task

    def follow(self, other: TaskTable) -> None:
        """Number attempts above those of a table whose names may come again here."""
        for name, attempt in {**other._retired, **{task.plan.name: task.attempt for task in other}}.items():
            if name in self.tasks:
                self.tasks[name].attempt = max(self.tasks[name].attempt, attempt)
            else:
                self._retired[name] = max(self._retired.get(name, 0), attempt)

    def retire(self, task: RunTask) -> None:
        """A task is no more."""
        self._retired[task.plan.name] = task.attempt
        del self.tasks[task.plan.name]

    def replace(self, task: RunTask, plan: TaskPlan, now: float) -> None:
        """The task is planned otherwise: its next attempt starts at once."""
        if task.state is not TaskPhase.WAITING:
            task.turn(TaskTurn.EXITED)
        task.plan, task.start_at, task.deaths, task.addresses = plan, now, 0, ()

    def __iter__(self) -> Iterator[RunTask]:
        return iter(self.tasks.values())

    def current(self, name: str, attempt: int) -> RunTask | None:
        """The task if `attempt` is its living attempt; None for news of the dead."""
        task = self.tasks.get(name)
        if task is None or task.attempt != attempt or task.state not in (TaskPhase.STARTING, TaskPhase.READY):
            return None
        return task

    @property
    def stable(self) -> bool:
        """Whether each task is ready."""
        return all(task.state is TaskPhase.READY for task in self)

    def due(self, now: float, workers: Container[str], but: Container[str] = ()) -> list[RunTask]:
        """Move the tasks of these workers whose time has come to their next attempt, and give them; none of `but`."""
        started: list[RunTask] = []
        for task in (task for task in self if task.plan.name not in but):
            if task.state is TaskPhase.WAITING and now >= task.start_at and task.plan.worker in workers:
                task.turn(TaskTurn.START_DUE)
                task.attempt = max(task.attempt, self._before) + 1
                task.start_at = now
                started.append(task)
        return started

    def may_adopt(self, task: RunTask, attempt: int) -> bool:
        """Whether a living attempt is the newest: this leader's last one, or an earlier leader's where it has none."""
        return attempt == task.attempt or (task.attempt == self._before and 0 < attempt <= self._before)

    def adopt(self, task: RunTask, attempt: int, now: float, *, ready: bool) -> None:
        """Go on with an attempt that an earlier leader started."""
        task.turn(TaskTurn.ADOPTED)
        task.attempt, task.start_at = attempt, now
        if ready:
            task.turn(TaskTurn.BECAME_READY)
            task.ready_at = now

    def late(self, now: float) -> list[RunTask]:
        """The tasks that have not become ready in time."""
        return [task for task in self if task.state is TaskPhase.STARTING and now >= task.start_at + START_S_MAX]

    def died(self, task: RunTask, story: str, now: float, *, blamed: bool = True) -> bool:
        """Note a death and set the next start; False if the task has died too often in a row.

        A task that is not `blamed` died with its worker, which says nothing about the task.
        """
        if task.state is TaskPhase.READY and now >= task.ready_at + HEALTHY_S:
            task.deaths = 0
        task.turn(TaskTurn.EXITED)
        task.deaths += blamed
        task.restarts += 1
        task.story = story
        task.start_at = now + min(RESTART_S_MAX, RESTART_S * 2 ** max(0, task.deaths - 1))
        return task.deaths < DEATHS_MAX

    def wake_at(self, workers: Container[str]) -> float | None:
        """When the next task of these workers is due, or any is late."""
        times = [
            task.start_at + (START_S_MAX if task.state is TaskPhase.STARTING else 0.0)
            for task in self
            if task.state is TaskPhase.STARTING or (task.state is TaskPhase.WAITING and task.plan.worker in workers)
        ]
        return min(times, default=None)


@dataclass(frozen=True, slots=True)
class Death:
    """Who died, and of what: `what` is `task` or `worker`, `name` its name, and `cause` a line."""

    what: str
    name: str
    cause: str


@dataclass(slots=True)
class DeathCounts:
    """How often each of them died, those that died first before the others."""

    counts: dict[Death, int] = field(default_factory=dict[Death, int])

    def note(self, what: str, name: str, cause: str) -> None:
        """One more."""
        line = " ".join(cause.split())
        death = Death(what, name, line if len(line) <= CAUSE_MAX else f"{line[: CAUSE_MAX - 1]}…")
        if death not in self.counts and len(self.counts) >= KINDS_MAX:
            death = Death(what, "others", "of causes that are not told apart any more")
        self.counts[death] = self.counts.get(death, 0) + 1

    def add(self, other: DeathCounts) -> None:
        """Those of a version that was tried."""
        for death, count in other.counts.items():
            self.counts[death] = self.counts.get(death, 0) + count
