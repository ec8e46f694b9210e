"""The controller and the worker of an embedded run: processes that live exactly as long as this one.

Both hold the read end of a pipe, the lifeline, whose write end is here alone: when this process ends, however it
ends, they read the end of the pipe and go. The worker starts first, before the command has imported what it needs. It
is told through a pipe of its own what its tasks will inherit, once the pipeline is known, and then where the controller
is that was started meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

from headrace.cli.errors import ControllerDied, ProcessDied

if TYPE_CHECKING:
    from headrace.stages.inherited import Inherited

#: Seconds in which the controller must serve, and the worker register.
START_S = 30.0
#: Seconds that both have to end by themselves before they are killed.
END_S = 10.0
#: Seconds in which a process whose connection broke is seen to be dead.
DEATH_S = 2.0
#: Seconds in which the port of a dead controller is free again, where a connection of somebody else has got it.
PORT_S = 10.0
#: Workers that are started in the place of dead ones, in one run.
WORKER_RESTARTS_MAX = 5
#: Times that a dead or frozen controller is started again in one run.
RESTARTS_MAX = 5
#: Lines and bytes of a dead process's log that are shown.
STORY_LINES = 20
STORY_BYTES = 16 << 10
AGAIN = "run the same command again: it goes on where it stopped"


@dataclass(slots=True)
class _Child:
    name: str
    process: subprocess.Popen[bytes]
    log: IO[bytes]


class Embedded:
    """Starts a controller and a worker on this machine, and ends them with the `with` block."""

    def __init__(self, cores: int) -> None:
        self.started_at = time.monotonic()
        self._address = ""
        self._lifeline_read, self._lifeline = os.pipe()
        self._ready = -1
        told_read, self._told = os.pipe()
        self._restarts = 0
        self._cores, self._worker_restarts = cores, 0
        self._children: list[_Child] = []
        try:
            # Before the controller: a run waits longest for the worker's nursery, whose imports want a core.
            arguments = ["--controller-fd", str(told_read), "--name", "local", "--cores", str(cores)]
            self._start("worker", "headrace.worker", [*arguments, *self._lifeline_arguments()], told_read)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(told_read)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start_controller(self) -> None:
        """Start the controller, if that is not done: `address` will not have to wait for all of its imports."""
        if not any(child.name == "controller" for child in self._children):
            self._start_controller("127.0.0.1:0")

    def address(self) -> str:
        """Where the controller serves; waits for it, and passes it on to the worker. Raises ProcessDied."""
        if self._address:
            return self._address
        self.start_controller()
        self._address = self._served()
        with contextlib.suppress(BrokenPipeError):
            os.write(self._told, f"{self._address}\n".encode())
        return self._address

    def preload(self, wanted: Sequence[Inherited]) -> None:
        """Tell the worker what the tasks to come will inherit; before `address`, or it is too late to matter."""
        if wanted and not self._address:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._told, f"{json.dumps(wanted)}\n".encode())

    def restart_controller(self, why: str) -> None:
        """Start the controller again where it served, once it is dead for certain; the worker finds it by itself.

        Raises ProcessDied with `why` when that has been done RESTARTS_MAX times, or does not help.
        """
        child = next(child for child in self._children if child.name == "controller")
        if self._restarts >= RESTARTS_MAX:
            raise ProcessDied(f"{why}, for the {RESTARTS_MAX + 1}th time; {AGAIN}", self._story("controller"))
        self._restarts += 1
        child.process.kill()
        child.process.wait()
        self._children.remove(child)
        child.log.close()
        os.close(self._ready)
        _wait_until_free(self._address, PORT_S)
        self._start_controller(self._address)
        self._served()

    def _start_controller(self, listen: str) -> None:
        self._ready, ready_write = os.pipe()
        arguments = ["--listen", listen, "--ready-fd", str(ready_write), *self._lifeline_arguments()]
        try:
            self._start("controller", "headrace.controller", arguments, ready_write)
        finally:
            os.close(ready_write)

    def _lifeline_arguments(self) -> tuple[str, str]:
        return "--lifeline-fd", str(self._lifeline_read)

    def _served(self) -> str:
        """Wait until the controller serves; where. Raises ProcessDied."""
        deadline = time.monotonic() + START_S
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._ready], [], [], left)[0]:
                raise ProcessDied(f"the controller did not serve within {START_S:.0f} s", self._story("controller"))
            part = os.read(self._ready, 256)
            if not part:
                self.check(within_s=DEATH_S)
                raise ProcessDied("the controller ended before it served", self._story("controller"))
            line += part
        return line.decode().strip()

    def check(self, *, within_s: float = 0.0) -> None:
        """Raise ProcessDied if the controller ends within `within_s` seconds; a dead worker is replaced."""
        deadline = time.monotonic() + within_s
        while True:
            for child in self._children:
                code = child.process.poll()
                if code is not None and child.name == "worker" and self._restart_worker(child):
                    break
                if code is not None:
                    died = ControllerDied if child.name == "controller" else ProcessDied
                    raise died(f"the {child.name} {_ending(code)}; {AGAIN}", self._story(child.name))
            if time.monotonic() >= deadline:
                return
            time.sleep(0.02)

    def _restart_worker(self, dead: _Child) -> bool:
        """Start a worker in the place of a dead one, whose tasks died with it; False if that was done too often."""
        if not self._address or self._worker_restarts >= WORKER_RESTARTS_MAX:
            return False
        self._worker_restarts += 1
        self._children.remove(dead)
        dead.log.close()
        arguments = ["--controller", self._address, "--name", "local", "--cores", str(self._cores)]
        self._start("worker", "headrace.worker", [*arguments, *self._lifeline_arguments()])
        return True

    def pids(self) -> tuple[int, ...]:
        """The process ids of controller and worker."""
        return tuple(child.process.pid for child in sorted(self._children, key=lambda child: child.name))

    def close(self) -> None:
        """Let go of the lifeline, and see both end; kill what stays."""
        for fd in (self._lifeline, self._lifeline_read, self._ready, self._told):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._lifeline = self._lifeline_read = self._ready = self._told = -1
        deadline = time.monotonic() + END_S
        for child in self._children:
            if not _ends(child.process, max(0.1, deadline - time.monotonic())):
                child.process.kill()
            child.process.wait()
            child.log.close()
        self._children.clear()

    def _start(self, name: str, module: str, arguments: list[str], *pipes: int) -> None:
        """A process in a session of its own: Ctrl-C is for this one, which decides what becomes of them."""
        folder = os.environ.get("HEADRACE_LOGS")
        if folder:
            os.makedirs(folder, exist_ok=True)
            log: IO[bytes] = open(os.path.join(folder, f"{name}.log"), "w+b")  # noqa: SIM115 - closed by close()
        else:
            log = tempfile.TemporaryFile(prefix="headrace-")  # noqa: SIM115 - has no name, so nothing stays behind
        process = subprocess.Popen(  # noqa: S603 - this interpreter, and arguments of our own
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(*pipes, self._lifeline_read),
            start_new_session=True,
        )
        self._children.append(_Child(name, process, log))

    def _story(self, name: str) -> list[str]:
        """The last lines that a process wrote."""
        child = next(child for child in self._children if child.name == name)
        size = os.fstat(child.log.fileno()).st_size
        tail = os.pread(child.log.fileno(), STORY_BYTES, max(0, size - STORY_BYTES))
        from headrace.transport.log_lines import as_text

        lines = [text for line in tail.splitlines()[-STORY_LINES:] for text in as_text(line).splitlines()]
        return [f"{name}: {line}" for line in lines]


_begun: list[Embedded] = []


def begin() -> None:
    """Start a controller and a worker for the run that is going to ask for them."""
    _begun.append(Embedded(usable_cores()))


def begun_or_new() -> Embedded:
    """Those that were begun, or others."""
    return _begun.pop() if _begun else Embedded(usable_cores())


def _ends(process: subprocess.Popen[bytes], within_s: float) -> bool:
    """Whether a process ends in time. Popen.wait looks every 50 ms; the kernel tells at once."""
    if process.poll() is not None:
        return True
    descriptor, poll = os.pidfd_open(process.pid), select.poll()
    poll.register(descriptor, select.POLLIN)
    try:
        return bool(poll.poll(within_s * 1000))
    finally:
        os.close(descriptor)


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        word = signal.Signals(-code).name
    except ValueError:
        word = "unknown"
    return f"was killed by signal {-code} ({word})"


def seconds_since_start() -> float:
    """How long this process has lived, the start of the interpreter included."""
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _wait_until_free(address: str, seconds: float) -> None:
    """Return when somebody can listen at this address, or after so many seconds: who cannot then says so.

    The kernel gives a port that nobody listens at to any connection that leaves this host.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((host, int(port)))
            return
        time.sleep(0.05)
