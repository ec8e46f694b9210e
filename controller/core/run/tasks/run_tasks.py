"""The tasks of one run and the links between them: started when due, joined when both ends are ready."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.controller.core.messages import (
    Command,
    KillTask,
    RunningTask,
    SealSink,
    ServeIndex,
    StartTask,
    StopTask,
    SweepTask,
    TaskFailed,
    TaskReady,
)
from headrace.controller.core.plan import (
    SOLITARY,
    LinkPlan,
    Need,
    Plan,
    Route,
    TaskPlan,
    WorkerFacts,
    move,
    roles_of,
    stages_on,
)
from headrace.controller.core.run.tasks.run_links import RunLinks
from headrace.controller.core.run.tasks.task_table import (
    START_S_MAX,
    AttemptFacts,
    RunTask,
    TaskPhase,
    TaskTable,
    TaskTurn,
)
from headrace.pipeline import Pipeline


@dataclass(slots=True)
class IndexStanding:
    """Whether an index of this epoch has served, and whether it is lost, so that it is to begin anew."""

    served: bool = False
    lost: bool = False


_ALIVE = (TaskPhase.STARTING, TaskPhase.READY)
#: Attempts of one task whose workers are remembered, the newest: the dead may have last words.
REMEMBERED_MAX = 16


class RunTasks:
    """A plan in the flesh."""

    def __init__(self, plan: Plan, pipeline: Pipeline, version: str, term: int) -> None:
        self.plan = plan
        self.table = TaskTable(plan, term)
        self._graph, self._version = pipeline, version
        self._pipeline = pipeline.to_dict()
        #: The stages that remember.
        self._stateful = frozenset(stage.name for stage in pipeline.stateful)
        self.links = RunLinks(plan)
        #: The number of its first solitary task, above those of the version beside which it runs.
        self.first_solitary = 0
        #: Whom each attempt was given to, by task and attempt.
        self._attempts: dict[str, dict[int, AttemptFacts]] = {}
        self.index = IndexStanding()
        #: The epoch that they are started in before it is raised; 0: the dataset's.
        self.ahead = 0
        #: The tasks that are of the plan beside which this one is carried out as well: that one has them in its care.
        self.guests: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[RunTask]:
        """Its tasks, without guests."""
        return (task for task in self.table if task.plan.name not in self.guests)

    def current(self, name: str, attempt: int) -> RunTask | None:
        """The task if `attempt` is its living attempt; None for news of the dead."""
        return self.table.current(name, attempt)

    def attempt(self, name: str, attempt: int) -> AttemptFacts | None:
        """Whom an attempt was given to, dead or alive; None for one that nobody was given here."""
        return self._attempts.get(name, {}).get(attempt)

    def _remember(self, task: RunTask) -> None:
        """Remember whom the attempt that begins is given to."""
        attempts = self._attempts.setdefault(task.plan.name, {})
        attempts[task.attempt] = AttemptFacts(task.plan.worker, task.plan.stages, task.plan.alone)
        while len(attempts) > REMEMBERED_MAX:
            del attempts[next(iter(attempts))]

    def begin_beside(self, other: RunTasks, guests: frozenset[str], ahead: int = 0) -> None:
        """Begin beside another plan, with whose tasks these are shared; `ahead`: in this epoch, with another index."""
        self.follow(other)
        self.ahead, self.guests = ahead, guests
        self.index = IndexStanding() if ahead else other.index
        self.table.tasks |= {name: other.table.tasks[name] for name in guests}
        self.links.share(other.links, guests, self.plan)

    @property
    def own_links(self) -> list[LinkPlan]:
        """The links of its plan, without those between guests."""
        return [link for link in self.plan.links if not {link.sender, link.receiver} <= self.guests]

    @property
    def guests_elsewhere(self) -> bool:
        """Whether one of these has been planned on another worker than here."""
        return any(self.table.tasks[name].plan.worker != self.plan.task(name).worker for name in self.guests)

    def inherit_guests(self, other: RunTasks) -> None:
        """Those of the other plan leave: what is of both belongs to this one from now on."""
        other.guests, self.guests = self.guests, frozenset[str]()
        for name in other.guests:
            self.table.tasks[name].plan = self.plan.task(name)

    def follow(self, other: RunTasks) -> None:
        """Go on behind the numbers of tasks whose names may come again, and know whom their attempts were given to."""
        self.table.follow(other.table)
        self.links.follow(other.links)
        for name, attempts in other._attempts.items():
            self._attempts[name] = {**attempts, **self._attempts.get(name, {})}

    @property
    def links_missing(self) -> bool:
        """Until every link stands, a source would read and have nowhere to send."""
        return self.links.missing

    def on_worker(self, worker: str) -> list[RunTask]:
        """The living tasks of one worker."""
        return [task for task in self if task.state in _ALIVE and task.plan.worker == worker]

    def waiting_on(self, worker: str) -> list[RunTask]:
        """The tasks of one worker that have no living attempt."""
        return [task for task in self.table if task.state is TaskPhase.WAITING and task.plan.worker == worker]

    def late(self, now: float) -> list[TaskFailed]:
        """The tasks that have not become ready in time, as if they had said so."""
        reason = f"not ready after {START_S_MAX:.0f} s"
        return [TaskFailed(task.plan.name, task.attempt, reason, final=False) for task in self.table.late(now)]

    def move(self, lost: str, workers: Sequence[WorkerFacts], taken: Mapping[str, Need]) -> None:
        """Plan the tasks of a lost worker on the ones with the fewest tasks. PipelineError if no link can join them."""
        self.plan = move(self.plan, lost, workers, taken)
        for task in self:
            task.plan = self.plan.task(task.plan.name)

    def change(self, plan: Plan, now: float, reason: str) -> tuple[list[Command], list[str]]:
        """Put another plan in the place of this one: the orders to the tasks that end, and the names of those.

        A task that the plan keeps runs on: it has the same stages on the same worker, and can take its links.
        """
        return self._change(plan, now, reason, keeps=True)

    def _change(self, plan: Plan, now: float, reason: str, *, keeps: bool) -> tuple[list[Command], list[str]]:
        old, self.plan = self.plan, plan
        stops: list[Command] = []
        gone: list[str] = []
        for task in list(self.table):
            made, name = plan.find(task.plan.name), task.plan.name
            if keeps and made is not None and _kept(task, old, plan):
                task.plan = made
                continue
            gone.append(name)
            if task.state in _ALIVE:
                stops.append(StopTask(task.plan.worker, name, task.attempt, reason))
            if made is None:
                self.table.retire(task)
            else:
                self.table.replace(task, made, now)
        for made in plan.tasks:
            if made.name not in self.table.tasks:
                self.table.add(made)
        self.links.replan(plan)
        return stops, gone

    def solitary(self, route: Route) -> RunTask:
        """The solitary task of a route; planned, where the source's first task is, if there is none yet."""
        replica = self.first_solitary + sum(task.plan.alone for task in self.table)
        stages = stages_on(self._graph, route)
        for task in self.table:
            if task.plan.alone and task.plan.stages == stages:
                return task
        neighbour = next(task for task in self.plan.tasks if route.source in task.stages)
        name = f"{self._graph.name}/{SOLITARY}.{replica}"
        plan = TaskPlan(name, stages, neighbour.worker, replica, neighbour.place, alone=True)
        self.plan = replace(self.plan, tasks=(*self.plan.tasks, plan))
        return self.table.add(plan)

    def start_due(self, now: float, epoch: int, workers: Container[str]) -> list[Command]:
        """Start the attempts whose time has come, on workers that are there.

        A stage that remembers is fenced where an index of this epoch has been there before: what that one has let
        through is not known to another.
        """
        due = self.table.due(now, workers, self.guests)
        for task in due:
            self._remember(task)
        again = any(self._remembers(task) for task in due) and self.index.served
        self.index.lost = self.index.lost or again
        return [
            StartTask(
                worker=task.plan.worker,
                task=task.plan.name,
                attempt=task.attempt,
                stages=task.plan.stages,
                pipeline=self._pipeline,
                version=self._version,
                epoch=self.ahead or epoch,
                replica=self._role(task.plan),
                listens=self.plan.listens(task.plan.name),
                alone=task.plan.alone,
                fenced=again and self._remembers(task),
                waits=self.ahead > 0 and self._remembers(task),
            )
            for task in due
        ]

    def _role(self, plan: TaskPlan) -> int:
        """Which of several tasks it is, and of a stage that remembers whether it decides: 0 does."""
        roles = 0 if plan.alone else roles_of(self._graph, plan.stages)
        return plan.replica % roles if roles else plan.replica

    def serve(self, position: int) -> list[Command]:
        """The epoch that they were started in is raised: their index serves, with what is kept at this entry."""
        if not self.ahead:
            return []
        self.ahead, self.index.served = 0, True
        waiting = (task for task in self if self._remembers(task) and task.state in _ALIVE)
        return [ServeIndex(task.plan.worker, task.plan.name, task.attempt, position) for task in waiting]

    @property
    def deciders(self) -> list[RunTask]:
        """The tasks that decide on duplicates, one a stage that remembers, of which an attempt lives."""
        deciding = (task for task in self.table if self._remembers(task) and not self._role(task.plan))
        return [task for task in deciding if task.state in _ALIVE]

    def adopt(self, task: RunTask, found: RunningTask, now: float) -> bool:
        """Go on with an attempt that a worker still has; False where that must not be.

        So with an index that another leader started and that never had a link: that leader may have given it up,
        unheard of, and let another one serve. One that waits for its epoch may have missed that it is raised. Where one
        is fenced, the epoch was about to be raised, and is now.
        """
        started_here = task.attempt == found.attempt
        if found.waits or not self.table.may_adopt(task, found.attempt):
            return False
        if self._remembers(task):
            if not (started_here or found.linked or found.fenced):
                return False
            self.index.lost = self.index.lost or found.fenced
            self.index.served = self.index.served or found.ready
        self.table.adopt(task, found.attempt, now, ready=found.ready)
        self._remember(task)
        task.addresses = found.addresses
        return True

    def found_fenced(self, task: RunTask) -> None:
        """A decider lets nothing through, since a partition of its index was lost: the epoch is raised.

        Whoever led when that happened knew it too, but may have died of it; and the lost partition may have come back.
        """
        self.index.lost = self.index.lost or self._remembers(task)

    def _remembers(self, task: RunTask) -> bool:
        """Whether a task has the index or a partition of it; a solitary one asks it."""
        return not task.plan.alone and not self._stateful.isdisjoint(task.plan.stages)

    def ends_index(self, plan: Plan) -> bool:
        """Whether another plan ends a task of an index that serves."""
        return self.index.served and any(self._remembers(task) and not _kept(task, self.plan, plan) for task in self)

    def renew(self, now: float, reason: str) -> tuple[list[Command], list[str]]:
        """The epoch was raised: end every task, to be started anew in it; the orders, and the names of the tasks."""
        self.index.served = self.index.lost = False
        return self._change(self.plan, now, reason, keeps=False)

    def ready(self, event: TaskReady, now: float, epoch: int, workers: Mapping[str, WorkerFacts]) -> list[Command]:
        """A task is ready: join it to those of its peers that are."""
        task = self.table.current(event.task, event.attempt)
        if task is None or task.state is TaskPhase.READY:
            return []
        task.turn(TaskTurn.BECAME_READY)
        self.index.served = self.index.served or (self._remembers(task) and not self.ahead)
        task.ready_at, task.addresses = now, event.addresses
        return self.join(now, epoch, workers)

    def join(self, now: float, epoch: int, workers: Mapping[str, WorkerFacts]) -> list[Command]:
        """Make the links that are due."""
        return list(self.links.make(self.plan, self.table, self.ahead or epoch, now, workers))

    def wake_at(self, workers: Container[str]) -> float | None:
        """When a task or a link is due, or a task late; tasks of workers that are away wait for those."""
        times = (self.table.wake_at(workers), self.links.wake_at(self.plan, self.table))
        return min((time for time in times if time is not None), default=None)

    def sweep(self, number: int, *, halt: bool, leaving: Container[str] = ()) -> list[Command]:
        """Let a marker pass every task; it halts those that leave."""
        return [
            SweepTask(task.plan.worker, task.plan.name, task.attempt, number, halt or task.plan.name in leaving)
            for task in self
        ]

    def seal(self, sinks: Sequence[str], reason: str) -> list[SealSink]:
        """Have every sink seal what it gathers."""
        return [
            SealSink(task.plan.worker, task.plan.name, task.attempt, reason)
            for task in self
            if task.plan.stages[-1] in sinks
        ]

    def kill(self, reason: str) -> list[Command]:
        """Kill every task that may live, also those that were asked to stop: what a run does that has no term."""
        living = (task for task in self if task.state is not TaskPhase.WAITING and task.attempt)
        return [KillTask(task.plan.worker, task.plan.name, task.attempt, reason) for task in living]

    def stop(self, reason: str) -> list[Command]:
        """Ask every living task to end, and start none again."""
        commands: list[Command] = []
        for task in self:
            if task.state in _ALIVE:
                commands.append(StopTask(task.plan.worker, task.plan.name, task.attempt, reason))
            if task.state is not TaskPhase.STOPPED:
                task.turn(TaskTurn.STOP_ASKED)
        return commands


def _kept(task: RunTask, old: Plan, plan: Plan) -> bool:
    """Whether a task of one plan runs on in another: it is there, and can take its links."""
    one, other = task.plan, plan.find(task.plan.name)
    if other is None or (one.stages, one.worker, one.alone) != (other.stages, other.worker, other.alone):
        return False
    return old.listens(one.name) >= plan.listens(one.name)
