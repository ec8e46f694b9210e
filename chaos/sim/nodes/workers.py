"""A simulated worker: the real Supervisor, and a shell that acts out worker/daemon.py."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, assert_never

from headrace.chaos.sim.network import FencedCommand, SimulatedLink, SimulatedSession
from headrace.chaos.sim.nodes.parts import Site
from headrace.chaos.sim.nodes.tasks import SimulatedTask
from headrace.controller.core.messages import dedup, messages as core
from headrace.worker.core import Fencing, LiveTasks, supervisor

#: Seconds that a worker stays with a controller that leads nothing, and of silence that it bears.
LOOK_S = 4.0
SILENCE_S = 5.0
#: Seconds of a worker's silence that its controller bears, and of a node's that its peers on links do.
HEARD_S = 10.0
IDLE_S = 10.0
#: Seconds in which a worker that has left is not there.
AWAY_S = 1.0


class SimulatedWorker:
    """One node."""

    def __init__(self, cluster: Site, name: str, cores: int, tier: str) -> None:
        self.cluster, self.name, self.cores, self.tier = cluster, name, cores, tier
        self.alive = False
        #: Whether it is about to end.
        self.leaves = False
        self.clock = cluster.world.clock()
        self.tasks: dict[tuple[str, int], SimulatedTask] = {}
        self.session: SimulatedSession | None = None
        self._life = 0
        self._supervisor = supervisor.Supervisor()
        self._orders: dict[tuple[str, int], core.StartTask] = {}
        self._links: dict[str, SimulatedLink] = {}
        #: What the tasks say while no controller listens is kept and sent later, as the daemon does.
        self._outbox: deque[core.Event] = deque()
        self._fencing, self._live = Fencing(), LiveTasks()
        self._next = 0
        self._seeking = False
        #: What dead tasks had in hand, and what their worker killed them for.
        self._stories: dict[tuple[str, int], SimulatedTask] = {}
        self._timer_at: float | None = None
        #: Until when the daemon is stopped and does not know it, and what waits for it meanwhile, in order.
        self.frozen_until = 0.0
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def links(self) -> list[SimulatedLink]:
        """The links that stand."""
        return list(self._links.values())

    # -- its life --

    def start(self) -> None:
        """The daemon comes up, with nothing but its name."""
        self.alive, self._life = True, self._life + 1
        self._supervisor = supervisor.Supervisor()
        self._outbox.clear()
        self._links.clear()
        self._fencing, self._live = Fencing(), LiveTasks()
        self._timer_at, self._seeking = None, False
        self._waiting.clear()
        self.frozen_until = 0.0
        self.cluster.world.note(self.name, "starts")
        self._seek()

    def leave(self, for_s: float) -> None:
        """It is about to end, and says so to each controller that it registers with; then it ends and comes anew."""
        if not self.alive or self.leaves:
            return
        self.leaves = True
        self.cluster.world.note(self.name, "leaves")
        if self.session is not None:
            self.session.controller.post(core.DrainRequested(0, self.name, leaves=True))
        self.cluster.world.after(for_s, self._gone, self._life)

    def _gone(self, life: int) -> None:
        if self.alive and self.leaves and self._life == life:
            self.crash()
            self.cluster.world.after(AWAY_S, self._return, life)

    def _return(self, life: int) -> None:
        if not self.alive and self._life == life:
            self.start()

    def crash(self) -> None:
        """The node dies, and every task with it."""
        self.alive = self.leaves = False
        for task in list(self.tasks.values()):
            task.alive = False
        self.tasks.clear()
        self.cluster.wires.worker_gone(self.name)
        if self.session is not None:
            self.session.end("the worker died")
            self.session = None

    def freeze(self, for_s: float, *, node: bool) -> None:
        """Stop the daemon for a while, or the whole node: every task with it."""
        world = self.cluster.world
        self.frozen_until = world.now + for_s
        world.at(self.frozen_until, self._thaw, self._life)
        if self.session is not None:
            world.after(HEARD_S, self._unheard, self.session)
        if node:
            for task in self.tasks.values():
                task.freeze(self.frozen_until)
            world.after(IDLE_S, self._unreached, self._life)

    def thaw(self) -> None:
        """Wake up now."""
        self.frozen_until = min(self.frozen_until, self.cluster.world.now)
        self._thaw(self._life)

    def _thaw(self, life: int) -> None:
        if life != self._life or not self.alive or self._sleeps:
            return
        if self._waiting:
            self.cluster.world.note(self.name, f"thaws, and finds {len(self._waiting)} messages")
        while self._waiting and self.alive and not self._sleeps:
            action, arguments = self._waiting.popleft()
            action(*arguments)

    @property
    def _sleeps(self) -> bool:
        return self.cluster.world.now < self.frozen_until

    def _postponed(self, action: Callable[..., None], *arguments: Any) -> bool:
        """Whether it is stopped; then the action comes when it wakes, behind what came before."""
        if self._sleeps:
            self._waiting.append((action, arguments))
        return self._sleeps

    def _unheard(self, session: SimulatedSession) -> None:
        """Its controller has heard nothing for long, and gives it up."""
        if self._sleeps and self.session is session:
            session.end("the worker is silent")

    def _unreached(self, life: int) -> None:
        """Its peers have heard nothing for long: they cut their links."""
        if self._sleeps and life == self._life:
            self.cluster.wires.unreached(self.name)

    # -- finding a controller --

    def _seek(self) -> None:
        world = self.cluster.world
        if not self._seeking and self.session is None and self.alive:
            self._seeking = True
            world.after(world.between(0.05, 0.6), self._try, self._life)

    def _try(self, life: int) -> None:
        if life != self._life or not self.alive or self._postponed(self._try, life):
            return
        self._seeking = False
        controller = self.cluster.controllers[self._next % len(self.cluster.controllers)]
        if not controller.admits(self.name, self._life):
            self._next += 1
            self._seek()
            return
        session = self.session = SimulatedSession(controller, self, self._life)
        controller.welcome(session)
        running = tuple(
            core.RunningTask(
                task,
                entry.attempt,
                entry.version,
                entry.epoch,
                entry.ready,
                fenced=entry.fenced,
                linked=entry.linked,
                stages=entry.stages,
                waits=entry.waits,
            )
            for task, entry in self._live.tasks.items()
        )
        links = tuple(
            core.RunningLink(link, live.sender[1], live.receiver[1], live.generation)
            for link, live in self._live.links.items()
        )
        self.cluster.world.note(self.name, f"registers with {controller.name}, running", running)
        event = core.WorkerRegistered(
            self.name,
            self.name,
            self.cores,
            1 << 30,
            tasks=running,
            links=links,
            addresses=(self.name,),
            labels=(self.tier,),
            leaves=self.leaves,
        )
        session.report(event)
        while self._outbox and session.open:
            session.report(self._outbox.popleft())
        self.cluster.world.after(LOOK_S, self._look, session)

    def _look(self, session: SimulatedSession) -> None:
        """Is the controller worth staying with?"""
        if self.session is not session or not session.open or self._postponed(self._look, session):
            return
        if session.controller.frozen:
            self.cluster.world.after(SILENCE_S, session.end, "the controller is silent")
        elif not session.controller.leads:
            session.end("the controller leads nothing")
        else:
            self.cluster.world.after(LOOK_S, self._look, session)

    def turn_to(self, index: int) -> None:
        """Leave whoever is attended and try that controller next."""
        self._next = index - 1
        if self.session is not None:
            self.session.end("the worker looks for another controller")

    def session_left(self, session: SimulatedSession) -> None:
        """The session broke at this end alone; try the same controller."""
        if self.session is session and not self._postponed(self.session_left, session):
            self.session = None
            self._seek()

    def session_over(self, session: SimulatedSession) -> None:
        """The session broke; try the next controller."""
        if self.session is session and not self._postponed(self.session_over, session):
            self.session = None
            self._next += 1
            self._seek()

    # -- the controller's words --

    def take(self, order: FencedCommand) -> None:
        """Obey, unless a later leader has spoken, of the cluster or of the dataset."""
        if not self.alive or self._postponed(self.take, order):
            return
        command, given, ticket = order
        if not self._fencing.admits(given.term, given.log, given.log_term):
            return
        self.cluster.checker.obeyed(self.name, self._life, given)
        self.cluster.world.note(self.name, "is told", command)
        match command:
            case core.StartTask():
                self._orders[command.task, command.attempt] = command
                self._supervise(supervisor.StartAsked(command.task, command.attempt))
            case core.KillTask():
                self._supervise(supervisor.KillAsked(command.task, command.attempt))
            case core.MakeLink():
                self._make_link(command, ticket)
            case core.StopTask():
                self._pass_on(command.task, command.attempt, command)
                self._supervise(supervisor.TaskStopAsked(command.task, command.attempt))
            case core.ListSource() | core.ReadFragment() | core.SweepTask() | core.SealSink() | core.AnswerProposal():
                self._pass_on(command.task, command.attempt, command)
            case core.AnswerNeeds() | core.ReleaseClaims() | dedup.AskDecision() | dedup.AnswerDecision():
                self._pass_on(command.task, command.attempt, command)
            case dedup.ServeIndex():
                self._live.serves(command.task, command.attempt)
                self._pass_on(command.task, command.attempt, command)
            case _:
                raise TypeError(f"a worker understands no {command}")

    def _pass_on(self, task: str, attempt: int, message: object) -> None:
        living = self.tasks.get((task, attempt))
        if living is not None:
            living.deliver(message)

    def link_cut(self, task: str, attempt: int, link: str, generation: int, reason: str) -> None:
        """An end of a link between workers found it cut."""
        if self._postponed(self.link_cut, task, attempt, link, generation, reason):
            return
        self._live.cut(link, generation)
        self.said(core.LinkLost(task, attempt, link, generation, reason))

    def _make_link(self, command: core.MakeLink, ticket: bytes) -> None:
        if command.sender_worker != command.receiver_worker:
            ends = (command.sender, command.sender_attempt), (command.receiver, command.receiver_attempt)
            self._live.linked(command.link, *ends, command.generation)
            self.cluster.wires.told(self, command, ticket)
            return
        sender = self.tasks.get((command.sender, command.sender_attempt))
        receiver = self.tasks.get((command.receiver, command.receiver_attempt))
        if sender is None or receiver is None:
            return
        ends = (command.sender, command.sender_attempt), (command.receiver, command.receiver_attempt)
        self._live.linked(command.link, *ends, command.generation)
        window = self.cluster.window_bytes
        link = SimulatedLink(self.cluster.world, command, sender, receiver, window)
        self._links[command.link] = link
        for task in (sender, receiver):
            self.cluster.wires.replace(self, task, command)
        receiver.deliver(("open", link))
        sender.deliver(("open", link))

    # -- the tasks' words, and their deaths --

    def said(self, event: core.Event) -> None:
        """Pass on what a task says."""
        self.cluster.checker.said(self.name, event)
        self._pass_up(event)

    def _pass_up(self, event: core.Event) -> None:
        if self._postponed(self._pass_up, event):
            return
        if isinstance(event, core.TaskReady):
            self._live.ready(event.task, event.attempt, event.facts)
        if self.session is not None and self.session.open:
            self.session.report(event)
        else:
            self._outbox.append(event)

    def task_gone(self, task: SimulatedTask, code: int) -> None:
        """A process ended; its exit is seen a little later."""
        world = self.cluster.world
        world.after(world.between(0.001, 0.1), self._exited, task, code, self._life)

    def _exited(self, task: SimulatedTask, code: int, life: int) -> None:
        if life == self._life and self.alive and not self._postponed(self._exited, task, code, life):
            self.tasks.pop((task.name, task.attempt), None)
            self._live.exited(task.name, task.attempt)
            self._stories[task.name, task.attempt] = task
            self._supervise(supervisor.ProcessExited(task.name, task.attempt, code))
            self._stories.pop((task.name, task.attempt), None)

    def _supervise(self, event: supervisor.Event) -> None:
        for command in self._supervisor.handle(event, self.clock.at(self.cluster.world.now)):
            match command:
                case supervisor.SpawnProcess():
                    self._spawn(self._orders.pop((command.task, command.attempt)))
                case supervisor.KillProcess():
                    task = self.tasks.get((command.task, command.attempt))
                    if task is not None:
                        task.die(-9, "killed by its worker")
                case supervisor.CutLinks():
                    self._cut(command)
                case supervisor.ReportExit():
                    self._report_exit(command)
                case _:
                    assert_never(command)
        self._set_timer()

    def _report_exit(self, command: supervisor.ReportExit) -> None:
        dead = self._stories.get((command.task, command.attempt))
        in_hand, killed_for = (dead.in_hand, dead.killed_for) if dead else ((), "")
        self.said(core.TaskExited(command.task, command.attempt, command.code, in_hand=in_hand, killed_for=killed_for))

    def _spawn(self, order: core.StartTask) -> None:
        task = SimulatedTask(self, order)
        self.tasks[order.task, order.attempt] = task
        born = order.version, order.epoch, order.stages
        self._live.started(order.task, order.attempt, *born, fenced=order.fenced, waits=order.waits)
        self.cluster.world.after(self.cluster.world.between(0.05, 0.6), task.begin)

    def _cut(self, command: supervisor.CutLinks) -> None:
        self.cluster.wires.task_gone(command.task, command.attempt)
        for name, link in list(self._links.items()):
            ends = [end for end in (link.sender, link.receiver) if end is not None]
            if any((end.name, end.attempt) == (command.task, command.attempt) for end in ends):
                link.open = False
                del self._links[name]
                for end in ends:
                    end.deliver(("close", link))

    def _set_timer(self) -> None:
        wake_at = self._supervisor.wake_at()
        if wake_at is not None and (self._timer_at is None or wake_at < self._timer_at):
            self._timer_at = wake_at
            self.cluster.world.at(self.clock.when(wake_at), self._tick, self._life)

    def _tick(self, life: int) -> None:
        if life == self._life and self.alive and not self._postponed(self._tick, life):
            self._timer_at = None
            self._supervise(supervisor.WatchTimePassed())
