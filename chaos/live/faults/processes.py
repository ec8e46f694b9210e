"""The processes of one run, found by a mark in their environment, and what can be done to them.

Environments are inherited, so a mark finds every descendant, also one whose parent is dead. What a process is can be
read from its title. Processes are signalled through a pidfd: a number that the kernel has given to another process in
the meantime is never hit.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import IO

from headrace.daemon import ending_with_this

MARK = "HEADRACE_CHAOS_MARK"
#: Seconds in which processes that were sent SIGKILL must be gone.
KILL_S_MAX = 10.0
_PAUSE_S = 0.002
#: Characters of a stranger's command line that are kept.
TITLE_MAX = 80


class ProcessRole(Enum):
    """What a process of a run is."""

    COMMAND = "command"
    CONTROLLER = "controller"
    WORKER = "worker"
    TASK = "task"
    FORKSERVER = "forkserver"
    OTHER = "other"


_MODULES = {
    "headrace.controller": ProcessRole.CONTROLLER,
    "headrace.worker": ProcessRole.WORKER,
    "headrace.worker.task.forkserver_main": ProcessRole.FORKSERVER,
    "headrace.cli": ProcessRole.COMMAND,
    "headrace.cli.main": ProcessRole.COMMAND,
}


@dataclass(frozen=True, slots=True)
class Process:
    """A living process. `stage` is the first stage of a task's chain, "" for all else.

    One of another host has the name of the `worker` that it belongs to, a task its `task` as well, or the address of
    the `controller` that it is, and no pid here.
    """

    pid: int
    role: ProcessRole
    title: str
    stage: str = ""
    worker: str = ""
    task: str = ""
    controller: str = ""

    @property
    def elsewhere(self) -> bool:
        """Whether it is one of another host."""
        return bool(self.worker or self.controller)


@dataclass(slots=True)
class Marked:
    """A command whose every descendant can be found."""

    command: Sequence[str]
    cwd: pathlib.Path
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self, out: IO[bytes], errors: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start it once; its output goes to the two files."""
        return self.spawn(self.command, out, errors, {})

    def spawn(
        self, command: Sequence[str], out: IO[bytes], errors: IO[bytes], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start another command under the same mark."""
        # SPT_NOENV: a process title must not be written over the environment that the mark stands in.
        own = {**ending_with_this(), MARK: self.mark, "SPT_NOENV": "1"}
        return subprocess.Popen(  # noqa: S603 - a command of this run
            list(command),
            cwd=self.cwd,
            env={**os.environ, **self.environment, **environment, **own},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )

    def alive(self) -> list[Process]:
        """Everything that carries the mark and is no zombie, by title."""
        found = every_process(f"{MARK}={self.mark}".encode())
        return sorted(found, key=lambda process: (process.title, process.pid))

    def kill(self) -> list[Process]:
        """SIGKILL to all until none is left: a worker may have started a task in the meantime. Those that were hit."""
        killed: dict[int, Process] = {}
        deadline = time.monotonic() + KILL_S_MAX
        while living := self.alive():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(living)} processes live {KILL_S_MAX:.0f} s after SIGKILL: {living}")
            for process in living:
                killed.setdefault(process.pid, process)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(_PAUSE_S)
        return list(killed.values())


class Handle:
    """A hold on one process, which stays on that process; close it."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._pidfd = os.pidfd_open(process.pid)

    def send(self, number: signal.Signals) -> bool:
        """Signal it; False if it is gone."""
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def close(self) -> None:
        """Let go of it."""
        os.close(self._pidfd)


def hold(processes: Sequence[Process]) -> list[Handle]:
    """Handles on those that still live."""
    handles: list[Handle] = []
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            handles.append(Handle(process))
    return handles


def matching(target: str, processes: Sequence[Process], ways: Mapping[str, Sequence[str]]) -> list[Process]:
    """The processes that a target may mean; `everything` means all of them, all else one of them.

    `ways` gives for `sink` and `stage:NAME` the stages that may head the task which runs it, the likeliest first.
    A task that has not said yet what it runs is met by `task` only.
    """
    if target == "everything":
        return list(processes)
    if target not in ways:
        return [process for process in processes if process.role.value == target]
    tasks = [process for process in processes if process.role is ProcessRole.TASK]
    head = next((stage for stage in ways[target] if any(task.stage == stage for task in tasks)), None)
    return [task for task in tasks if task.stage == head]


def every_process(mark: bytes = b"") -> list[Process]:
    """Every process of this host that is no zombie and may be looked at, and has the mark in its environment."""
    found: list[Process] = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                marked = not mark or mark in (entry / "environ").read_bytes().split(b"\0")
                if marked and not _zombie(entry):
                    found.append(_described(int(entry.name), (entry / "cmdline").read_bytes()))
    return found


def _described(pid: int, cmdline: bytes) -> Process:
    title = " ".join(cmdline.decode("utf-8", "replace").replace("\0", " ").split())
    if title.startswith("headrace task "):
        name = title.split()[2]
        return Process(pid, ProcessRole.TASK, title, name.rpartition("/")[2].rpartition(".")[0])
    for module, role in _MODULES.items():
        if title.startswith(f"headrace {role.value}"):
            return Process(pid, role, title)
        if f" -m {module} " in f"{title} ":
            # The command keeps the title that it was started with; the others set theirs as soon as they can.
            return Process(
                pid,
                role,
                "headrace, the command" if role is ProcessRole.COMMAND else f"headrace {role.value}, starting",
            )
    return Process(pid, ProcessRole.OTHER, title[:TITLE_MAX])


def parent_of(pid: int) -> int:
    """The parent of a process; 0 for one that is gone."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    return int(text[text.rindex(")") + 2 :].split()[1])


def _zombie(entry: pathlib.Path) -> bool:
    text = (entry / "stat").read_text(encoding="ascii", errors="replace")
    return text[text.rindex(")") + 2] in "ZX"
