"""A simulated controller: the real Controller core, and a shell that acts out controller/shell.py and server.py."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

from headrace.chaos.sim.network import FencedCommand, SimulatedSession
from headrace.chaos.sim.nodes.parts import Site, core_of
from headrace.chaos.sim.storage import SimulatedLog
from headrace.chaos.sim.world import ViolationError
from headrace.cluster import KEY_BYTES_MIN
from headrace.controller.core.cluster import Controller
from headrace.controller.core.log import LeaderState, fence_of
from headrace.controller.core.messages import messages as core
from headrace.controller.core.run import Run
from headrace.controller.membership import link_ticket
from headrace.store.ledger import FoldError, encode_entry

#: The key that all controllers of a cluster have.
TICKET_KEY = bytes(KEY_BYTES_MIN)
_LEADS = (LeaderState.LEADING, LeaderState.RESIGNING)


class SimulatedController:
    """One controller process, life after life."""

    def __init__(self, cluster: Site, name: str, *, standby: bool) -> None:
        self.cluster, self.name, self.standby = cluster, name, standby
        self.alive = self.frozen = False
        self.life = 0
        self._clock = cluster.world.clock()
        self.identity = ""
        self.core = self._made({})
        self.sessions: dict[str, SimulatedSession] = {}
        self._inbox: deque[tuple[str, core.Event]] = deque()
        self._timer_at: float | None = None
        self._led = False
        #: What this life has on its way to a log, and what it wants to read behind that: one thread does both.
        self._writing: Counter[str] = Counter()
        self._unread: deque[core.ReadLog] = deque()

    # -- its life --

    def start(self) -> None:
        """The process comes up and knows nothing."""
        self.alive, self.frozen, self.life = True, False, self.life + 1
        self.identity = f"{self.name}.{self.life}"
        identity = {"host": self.name, "pid": self.life, "id": self.identity}
        self.core = self._made(identity)
        self._inbox.clear()
        self._timer_at, self._led = None, False
        self._writing.clear()
        self._unread.clear()
        self.cluster.world.note(self.name, "starts as", self.identity)
        self._execute(self.core.open())
        self._set_timer()
        self.cluster.operator.ask_soon(self)

    def _made(self, identity: dict[str, object]) -> Controller:
        cluster, log = self.cluster, self.cluster.cluster_log
        return Controller(
            identity,
            standby=self.standby,
            log=log.uri if log is not None else "",
            log_limits=cluster.log_limits,
        )

    def crash(self) -> None:
        """The process dies; what it has on its way to the log may arrive all the same."""
        self.alive = self.frozen = False
        for session in list(self.sessions.values()):
            session.end("the controller died")
        self.sessions.clear()

    def thaw(self) -> None:
        """Wake up, and believe that no time has passed."""
        if self.frozen:
            self.frozen = False
            self.cluster.world.note(self.name, "thaws")
            while self._inbox and not self.frozen and self.alive:
                worker, event = self._inbox.popleft()
                self._handle(event, worker)
            self._handle(core.TimePassed())

    def admits(self, worker: str, life: int) -> bool:
        """Whether a worker's session would be taken now."""
        older = self.sessions.get(worker)
        if not self.alive or self.frozen or (older is not None and older.life != life):
            return False
        if self.core.log is not None:
            return self.core.leads
        return self.leads or self.cluster.world.chance(0.5)

    def welcome(self, session: SimulatedSession) -> None:
        """A worker comes; the same process may be back before its broken session was noticed."""
        if self.sessions.pop(session.worker.name, None) is not None:
            self.post(core.WorkerLost(session.worker.name, "it opened a new session"))
        self.sessions[session.worker.name] = session

    @property
    def leads(self) -> bool:
        """Whether it leads the cluster, or where that has no log, a run's."""
        if self.core.log is not None:
            return self.core.leads
        return any(run.leadership.state in _LEADS for run in self.core.runs.values())

    def run(self) -> Run | None:
        """Its newest run."""
        return next(reversed(self.core.runs.values()), None)

    @property
    def token(self) -> str:
        """The name of the request that its newest run came from; empty where there is no run."""
        run = self.run()
        return run.request.token if run is not None else ""

    def session_over(self, session: SimulatedSession, reason: str) -> None:
        """A session broke."""
        if self.sessions.get(session.worker.name) is session:
            del self.sessions[session.worker.name]
            self.post(core.WorkerLost(session.worker.name, reason))

    # -- events and commands --

    def post(self, event: core.Event) -> None:
        """Give an event to the core, now or when the process is thawed."""
        self.hear("", event)

    def hear(self, worker: str, event: core.Event) -> None:
        """The same, of an event that came by a worker's session."""
        if self.frozen:
            self._inbox.append((worker, event))
        elif self.alive:
            self._handle(event, worker)

    def _leads_run_of(self, task: str) -> bool:
        """Whether it knows all that a worker may speak of: of one that another has replaced none takes an order."""
        led = self.core.runs[task.split("/", 1)[0]].leadership
        return led.state is LeaderState.LEADING and led.term == self.cluster.of(task).checker.ledger.term

    def _handle(self, event: core.Event, worker: str = "") -> None:
        if worker and isinstance(event, core.TaskEvent):
            believed, why = self.core.witness.hear(worker, event)
            if believed is None:
                return
            if why and self._leads_run_of(event.task):
                raise ViolationError(0, f"{self.name} disbelieves an honest worker: {why}")
            event = believed
            if isinstance(event, core.ShardProposed):
                self.cluster.of(event.task).checker.heard(event)
        world = self.cluster.world
        if not isinstance(event, core.TimePassed):
            world.note(self.name, "handles", event)
        self.cluster.checker.stirred(self)
        if isinstance(event, core.TaskSwept):
            self.cluster.of(event.task).checker.rereading.answered(self, event)
        with core_of(self.name, event):
            try:
                commands = self.core.handle(event, self._clock.at(world.now), worker)
            except FoldError as error:
                raise ViolationError(4, f"{self.name} cannot fold its ledger: {error}") from error
        self._execute(commands)
        self._set_timer()
        self._step_down()

    def _execute(self, commands: Iterable[core.Command]) -> None:
        world, life = self.cluster.world, self.life
        for command in commands:
            match command:
                case core.ReadLog():
                    self._unread.append(command)
                    self._read_on()
                case core.WriteEntry():
                    data = encode_entry(command.entry)
                    self.cluster.checker.write_asked(self, command, data)
                    world.note(self.name, f"writes entry {command.number} of {command.log}")
                    self._writing[command.log] += 1
                    self._log(command).write(command, data, self.identity, self._answer_to(life, command.log))
                case core.WriteSnapshot():
                    self._log(command).snapshot(command, self._answer_to(life))
                case core.TruncateLog():
                    self._log(command).truncate(command)
                case core.WriteManifest():
                    self._write_manifest(command)
                case core.AuditDataset():
                    world.after(self.cluster.of(command.log).checker.gate.seconds(), self._audit, command, life)
                case core.StepDown():
                    world.note(self.name, "steps down:", command.reason)
                    self._send_away()
                case core.AnswerRequest() | core.ReportRun():
                    world.note(self.name, "says", command)
                    self.cluster.operator.hear(self, command)
                case core.SpreadExpulsions():
                    world.note(self.name, "tells who was expelled")
                case _:
                    self._send(command)

    def _audit(self, command: core.AuditDataset, life: int) -> None:
        if life == self.life:
            self.post(self.cluster.of(command.log).checker.gate.answer(command, self.identity))

    def _write_manifest(self, command: core.WriteManifest) -> None:
        cluster, life = self.cluster.of(command.log), self.life
        run = self.core.runs.get(cluster.pipeline)
        if run is not None:
            log, term = command.log, command.term
            cluster.manifest.write(
                run.ledger, lambda error: self._later(core.ManifestWritten(log, term, error, bool(error)), life)
            )

    def _send(self, command: core.WorkerCommand) -> None:
        match command:
            case core.OpenRelay(link=link) | (core.MakeLink() as link):
                name = link.sender
            case _:
                name = command.task
        run = self.core.runs.get(name.split("/", 1)[0])
        given = fence_of(self.core.log, run.leadership if run is not None else None, command)
        self.cluster.checker.commanded(self, command, given)
        if run is not None:
            self.cluster.of(name).checker.rereading.commanded(self, run, command)
        session = self.sessions.get(command.worker)
        if session is not None:
            ticket = b""
            if run is not None and isinstance(command, core.MakeLink):
                ticket = link_ticket(command, run, TICKET_KEY)
            session.tell(FencedCommand(command, given, ticket))

    def _log(self, command: core.ReadLog | core.WriteEntry | core.WriteSnapshot | core.TruncateLog) -> SimulatedLog:
        return self.cluster.log_of(command.log)

    def _read_on(self) -> None:
        """Read those logs that nothing is on its way to."""
        for command in list(self._unread):
            if not self._writing[command.log]:
                self._unread.remove(command)
                self.cluster.world.within(0.005, 0.05, self._read, command, self.life)

    def _answer_to(self, life: int, written: str = "") -> Callable[[core.LogEvent], None]:
        def answer(event: core.LogEvent) -> None:
            self._later(event, life)
            if life == self.life and written:
                self._writing[written] -= 1
                self._read_on()

        return answer

    def _later(self, event: core.Event, life: int) -> None:
        if life == self.life:
            self.post(event)

    def _read(self, command: core.ReadLog, life: int) -> None:
        if life == self.life:
            self.post(self._log(command).read(command, self.cluster.leader_alive(command.log)))

    def _set_timer(self) -> None:
        wake_at = self.core.wake_at()
        if wake_at is not None and (self._timer_at is None or wake_at < self._timer_at):
            self._timer_at = wake_at
            self.cluster.world.at(self._clock.when(wake_at), self._tick, self.life, wake_at)

    def _tick(self, life: int, due: float) -> None:
        if life != self.life or not self.alive or self._timer_at != due:
            return
        self._timer_at = None
        if self.frozen:
            return
        wake_at = self.core.wake_at()
        if wake_at is not None and wake_at <= self._clock.at(self.cluster.world.now):
            self._handle(core.TimePassed())
        else:
            self._set_timer()

    def _step_down(self) -> None:
        """Who was deposed sends its workers away, to find the new leader."""
        if self.core.log is None:
            leads = self.leads
            if self._led and not leads:
                self._send_away()
            self._led = leads

    def _send_away(self) -> None:
        for session in list(self.sessions.values()):
            session.end("the controller leads no more")
