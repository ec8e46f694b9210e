"""The worker's machine: which task processes live, what is done about each, and what a registration says of them.

It decides nothing about the pipeline: the controller says which attempt runs here. It sees to it that an attempt that
was told to end does end, that its links are cut when it dies, and that the controller hears of each death.

Which commands a worker obeys: those of no lower term than it has heard of, of the cluster and of each run's log. A
leader that was frozen may wake and go on talking before it learns that others have led. What it orders by then is
void, also for a task that this worker has no longer: a start is the very command that would do harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

#: Seconds that a task may take to end by itself.
STOP_GRACE_S = 5.0


class ProcessState(Enum):
    """Where a task's process stands."""

    RUNNING = "running"
    STOPPING = "stopping"
    KILLED = "killed"
    GONE = "gone"


class ProcessTurn(Enum):
    """What moves it."""

    STOP_ASKED = "stop asked"
    KILL_ASKED = "kill asked"
    GRACE_OVER = "grace over"
    EXITED = "exited"


TRANSITIONS: dict[tuple[ProcessState, ProcessTurn], ProcessState] = {
    (ProcessState.RUNNING, ProcessTurn.STOP_ASKED): ProcessState.STOPPING,
    (ProcessState.RUNNING, ProcessTurn.KILL_ASKED): ProcessState.KILLED,
    (ProcessState.RUNNING, ProcessTurn.EXITED): ProcessState.GONE,
    (ProcessState.STOPPING, ProcessTurn.STOP_ASKED): ProcessState.STOPPING,
    (ProcessState.STOPPING, ProcessTurn.KILL_ASKED): ProcessState.KILLED,
    (ProcessState.STOPPING, ProcessTurn.GRACE_OVER): ProcessState.KILLED,
    (ProcessState.STOPPING, ProcessTurn.EXITED): ProcessState.GONE,
    (ProcessState.KILLED, ProcessTurn.STOP_ASKED): ProcessState.KILLED,
    (ProcessState.KILLED, ProcessTurn.KILL_ASKED): ProcessState.KILLED,
    (ProcessState.KILLED, ProcessTurn.EXITED): ProcessState.GONE,
}


@dataclass(frozen=True, slots=True)
class OfAttempt:
    """What concerns one attempt of a task."""

    task: str
    attempt: int


@dataclass(frozen=True, slots=True)
class StartAsked(OfAttempt):
    """The controller wants this attempt here."""


@dataclass(frozen=True, slots=True)
class TaskStopAsked(OfAttempt):
    """A task was told to end by itself."""


@dataclass(frozen=True, slots=True)
class KillAsked(OfAttempt):
    """An attempt must not go on."""


@dataclass(frozen=True, slots=True)
class ProcessExited(OfAttempt):
    """A process is gone; `code` is negative for a signal."""

    code: int


@dataclass(frozen=True, slots=True)
class WatchTimePassed:
    """A timer has run out."""


@dataclass(frozen=True, slots=True)
class SpawnProcess(OfAttempt):
    """Start a process for an attempt."""


@dataclass(frozen=True, slots=True)
class KillProcess(OfAttempt):
    """Send SIGKILL."""


@dataclass(frozen=True, slots=True)
class CutLinks(OfAttempt):
    """Abort every link of an attempt, so that its peers learn of its death."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReportExit(OfAttempt):
    """Tell the controller."""

    code: int


Event = StartAsked | TaskStopAsked | KillAsked | ProcessExited | WatchTimePassed
Command = SpawnProcess | KillProcess | CutLinks | ReportExit


@dataclass(slots=True)
class _Process:
    task: str
    attempt: int
    state: ProcessState = ProcessState.RUNNING
    kill_at: float | None = None

    def turn(self, turn: ProcessTurn) -> None:
        target = TRANSITIONS.get((self.state, turn))
        if target is None:
            raise ValueError(f"task {self.task} attempt {self.attempt}: {self.state.value} on {turn.value!r}")
        self.state = target


class Supervisor:
    """The state machine of one worker."""

    def __init__(self) -> None:
        self._processes: dict[str, _Process] = {}

    def running(self) -> list[tuple[str, int]]:
        """The attempts that live, for a registration."""
        return [(process.task, process.attempt) for process in self._processes.values()]

    def alive(self, task: str, attempt: int) -> bool:
        """Whether that attempt lives here."""
        process = self._processes.get(task)
        return process is not None and process.attempt == attempt

    def wake_at(self) -> float | None:
        """When `handle(TimePassed())` is wanted next."""
        times = [process.kill_at for process in self._processes.values() if process.kill_at is not None]
        return min(times, default=None)

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event; give the commands that follow from it."""
        match event:
            case StartAsked():
                return self._start(event)
            case TaskStopAsked():
                return self._stop(event, now)
            case KillAsked():
                return self._kill(event.task, event.attempt, ProcessTurn.KILL_ASKED)
            case ProcessExited():
                return self._exited(event)
            case WatchTimePassed():
                late = [p for p in self._processes.values() if p.kill_at is not None and now >= p.kill_at]
                return [command for p in late for command in self._kill(p.task, p.attempt, ProcessTurn.GRACE_OVER)]
            case _:
                assert_never(event)

    def _start(self, event: StartAsked) -> list[Command]:
        commands: list[Command] = []
        older = self._processes.get(event.task)
        if older is not None:
            if older.attempt >= event.attempt:
                return []
            # The controller gave the older attempt up; its death needs no report, its links no longer matter.
            commands.append(KillProcess(older.task, older.attempt))
            commands.append(CutLinks(older.task, older.attempt, "a newer attempt takes its place"))
        self._processes[event.task] = _Process(event.task, event.attempt)
        return [*commands, SpawnProcess(event.task, event.attempt)]

    def _stop(self, event: TaskStopAsked, now: float) -> list[Command]:
        process = self._processes.get(event.task)
        if process is not None and process.attempt == event.attempt:
            process.turn(ProcessTurn.STOP_ASKED)
            if process.state is ProcessState.STOPPING and process.kill_at is None:
                process.kill_at = now + STOP_GRACE_S
        return []

    def _kill(self, task: str, attempt: int, turn: ProcessTurn) -> list[Command]:
        process = self._processes.get(task)
        if process is None or process.attempt != attempt or process.state is ProcessState.KILLED:
            return []
        process.turn(turn)
        process.kill_at = None
        return [KillProcess(task, attempt)]

    def _exited(self, event: ProcessExited) -> list[Command]:
        process = self._processes.get(event.task)
        if process is None or process.attempt != event.attempt:
            return []
        process.turn(ProcessTurn.EXITED)
        del self._processes[event.task]
        ending = f"signal {-event.code}" if event.code < 0 else f"exit code {event.code}"
        return [
            CutLinks(event.task, event.attempt, f"task {event.task} died by {ending}"),
            ReportExit(event.task, event.attempt, event.code),
        ]


#: Logs whose terms are remembered; beyond it the one that was longest without a command is forgotten.
LOGS_MAX = 4096


class Fencing:
    """The highest terms that this worker has heard of."""

    def __init__(self) -> None:
        self.term = 0
        self._logs: dict[str, int] = {}

    def admits(self, term: int, log: str = "", log_term: int = 0) -> bool:
        """Whether to do what a command of these terms says; `term` 0 is a controller without a cluster's log."""
        if term < self.term or log_term < self._logs.get(log, 0):
            return False
        self.term = term
        if log and log_term:
            self._logs.pop(log, None)
            self._logs[log] = log_term
            if len(self._logs) > LOGS_MAX:
                del self._logs[next(iter(self._logs))]
        return True


@dataclass(slots=True)
class LiveTask:
    """One attempt that lives here: what it was started with, and what it said when it was ready."""

    attempt: int
    version: str
    epoch: int
    stages: tuple[str, ...]
    fenced: bool = False
    #: Whether what it remembers waits for its epoch.
    waits: bool = False
    ready: bool = False
    #: Whether it has had a link, cut since or not.
    linked: bool = False
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveLink:
    """A link with an end here, and the attempts that it joins."""

    sender: tuple[str, int]
    receiver: tuple[str, int]
    generation: int


class LiveTasks:
    """The tasks and links of one worker."""

    def __init__(self) -> None:
        self.tasks: dict[str, LiveTask] = {}
        self.links: dict[str, LiveLink] = {}

    def started(
        self,
        task: str,
        attempt: int,
        version: str,
        epoch: int,
        stages: Iterable[str],
        *,
        fenced: bool = False,
        waits: bool = False,
    ) -> None:
        """An attempt was started here."""
        self.tasks[task] = LiveTask(attempt, version, epoch, tuple(stages), fenced, waits)

    def serves(self, task: str, attempt: int) -> None:
        """An attempt was told that its epoch is raised."""
        entry = self.tasks.get(task)
        if entry is not None and entry.attempt == attempt:
            entry.waits = False

    def ready(self, task: str, attempt: int, facts: Mapping[str, str], addresses: tuple[str, ...] = ()) -> None:
        """An attempt has built its stages."""
        entry = self.tasks.get(task)
        if entry is not None and entry.attempt == attempt:
            entry.ready, entry.facts, entry.addresses = True, dict(facts), addresses

    def exited(self, task: str, attempt: int) -> None:
        """An attempt is gone, and its links with it."""
        entry = self.tasks.get(task)
        if entry is not None and entry.attempt == attempt:
            del self.tasks[task]
        for name in [name for name, link in self.links.items() if (task, attempt) in (link.sender, link.receiver)]:
            del self.links[name]

    def linked(self, link: str, sender: tuple[str, int], receiver: tuple[str, int], generation: int = 0) -> None:
        """A link was made that has an end here, if that end lives."""
        mine = [entry for name, entry in self.tasks.items() if (name, entry.attempt) in (sender, receiver)]
        for entry in mine:
            entry.linked = True
        if mine:
            self.links[link] = LiveLink(sender, receiver, generation)

    def cut(self, link: str, generation: int) -> None:
        """A link was found cut."""
        found = self.links.get(link)
        if found is not None and found.generation == generation:
            del self.links[link]
