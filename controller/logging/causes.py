"""Names for what begins something in the cluster: `kind.run.number`, where `run` is this process's own.

What follows from an event bears its name: the commands of the core, the entries that are written for it, and what
workers and tasks say and do on these commands. So `headrace logs --cause` shows one story, over all processes.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable

from headrace.controller.core.messages import DecisionAsked, DecisionMade, TokenOffered, messages as core
from headrace.controller.core.run import Run
from headrace.daemon import current_cause

#: The kind of what begins by itself; anything else goes on with the cause that it comes with.
_BEGINNINGS: dict[type[object], str] = {
    core.PipelineRequested: "apply",
    core.StopRequested: "stop",
    core.SteerRequested: "steer",
    core.DrainRequested: "drain",
    core.ClearRequested: "clear",
    core.QueueRequested: "queue",
    core.WorkerRegistered: "joined",
    core.WorkerLost: "lost",
    core.TimePassed: "timer",
    core.ShutdownAsked: "shutdown",
    TokenOffered: "token",
    core.TaskExited: "exit",
    core.TaskFailed: "fault",
    core.LinkLost: "cut",
    core.FragmentWasRead: "read",
    core.FragmentsWereRead: "read",
    core.ShardProposed: "shard",
    core.NeedsAsked: "needs",
    **dict.fromkeys((DecisionAsked, DecisionMade), "decision"),
    core.VerdictsLetGo: "needs",
}


class Causes:
    """Gives names."""

    def __init__(self) -> None:
        self._run = secrets.token_hex(2)
        self._numbers = itertools.count(1)
        #: Why each task that is dead died: it is started again later, when a timer says so.
        self._deaths: dict[str, str] = {}

    def note(self, event: object, runs: Iterable[Run]) -> None:
        """Remember what this event, whose cause is that of this context, is the end of."""
        match event:
            case core.TaskExited(code=code) if code == 0:
                return
            case core.TaskExited() | core.TaskFailed():
                self._deaths[event.task] = current_cause()
            case core.WorkerLost():
                tasks = (task.plan for run in runs for one in run.task_sets for task in one)
                self._deaths |= {task.name: current_cause() for task in tasks if task.worker == event.worker}
            case _:
                pass

    def of_command(self, command: object) -> str:
        """The cause of a command: that of this context, but a task that died is started for its death."""
        match command:
            case core.StartTask():
                return self._deaths.pop(command.task, current_cause())
            case core.ReportRun():
                ended = [name for name in self._deaths if name.startswith(f"{command.pipeline}/")]
                for name in ended:
                    del self._deaths[name]
                return current_cause()
            case _:
                return current_cause()

    def of(self, event: object, told: str = "") -> str:
        """The cause of an event: the one that it came with, else that of this context, else a new one."""
        if told:
            return told
        kind = _BEGINNINGS.get(type(event))
        if kind is None and (going_on := current_cause()):
            return going_on
        return f"{kind or 'start'}.{self._run}.{next(self._numbers)}"
