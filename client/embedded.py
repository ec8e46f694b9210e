"""The controller and the worker of an embedded run: processes that live exactly as long as this one.

Both hold the read end of a pipe, the lifeline, whose write end is here alone: when this process ends, however it
ends, they read the end of the pipe and go. The worker starts first, before the command has imported what it needs. It
is told through a pipe of its own what its tasks will inherit, once the pipeline is known, and then where the controller
is that was started meanwhile.

Where this process has one thread, as at its very start, both are forked
(docs/decisions/0014-processes-are-forked-and-inherit-what-is-large): they begin with what all need (SHARED), and share
its memory. They wait for a word before they import the rest, so that the worker's forkserver has the cores first. A
replacement of a dead process is started, not forked.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Self

from headrace.client.errors import CliError, ControllerDied, ProcessDied
from headrace.daemon import SOCKET, SOCKET_NAME, ChildProcess, Nook, fork, may_fork, read_private
from headrace.stages.shipping import MINIFIED

if TYPE_CHECKING:
    from headrace.stages.shipping import Inherited

#: Seconds in which the controller must serve, and the worker register.
START_S = 30.0
#: Seconds that both have to end by themselves before they are killed.
END_S = 10.0
#: Seconds in which a process whose connection broke is seen to be dead.
DEATH_S = 2.0
#: Workers that are started in the place of dead ones, in one run.
WORKER_RESTARTS_MAX = 5
#: Times that a dead or frozen controller is started again in one run.
RESTARTS_MAX = 5
#: Where the page of a run is served; a controller that takes another's place keeps the port.
ANY_PORT = "127.0.0.1:0"
#: Bytes of the page's address.
URL_BYTES_MAX = 256
#: Lines and bytes of a dead process's log that are shown.
STORY_LINES = 20
STORY_BYTES = 16 << 10
AGAIN = "run the same command again: it continues where it stopped"
#: Imports that the forkserver needs first, and controller, worker or command as well.
SHARED = (
    "argparse",
    "setproctitle",
    "ssl",
    "headrace.pipeline.graph",
    "headrace.protos.control_pb2",
    "headrace.stages.sources.objects.inputs",
    "headrace.stages.tokenizer.vocabulary",
    "headrace.store.files.store",
    "headrace.daemon.log_files",
)


@dataclass(slots=True)
class _Child:
    name: str
    process: ChildProcess
    log: IO[bytes]


class Embedded:
    """Starts a controller and a worker on this machine, and ends them with the `with` block.

    With `forks` both are forked, for which this process must have one thread. With `page` the controller serves a page.
    Raises OSError where there is no folder for their socket that is this user's alone.
    """

    def __init__(self, cores: int, *, forks: bool = False, page: bool = False) -> None:
        self.started_at = time.monotonic()
        #: The socket folder of this run's controllers, closed to other users of this host.
        self._nook = Nook("run")
        self._page_file = self._nook.path / "page.url" if page else None
        self._address = ""
        self._lifeline_read, self._lifeline = os.pipe()
        self._ready = self._held = -1
        #: Descriptors for the worker's forkserver.
        self._shared: list[int] = []
        told_read, self._told = os.pipe()
        self._restarts = 0
        self._cores, self._worker_restarts = cores, 0
        #: How each worker ended in whose place another was started.
        self.worker_endings: list[str] = []
        self._children: list[_Child] = []
        try:
            # Before the controller: a run waits longest for the worker's forkserver, whose imports need a core.
            arguments = ["--controller-fd", str(told_read), "--name", "local", "--cores", str(cores)]
            if forks:
                self._fork("worker", arguments, told_read, told_read)
                self._fork_controller()
            else:
                self._start("worker", "headrace.worker", arguments, told_read)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(told_read)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_controller(self) -> None:
        """Start the controller, if that is not done: `address` will not have to wait for all of its imports."""
        if self._held >= 0:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._held, b"\n")
            os.close(self._held)
            self._held = -1
        if not any(child.name == "controller" for child in self._children):
            self._start_controller()

    def address(self) -> str:
        """Where the controller serves; waits for it, and passes it on to the worker. Raises ProcessDied."""
        if self._address:
            return self._address
        self.start_controller()
        self._address = self._served()
        with contextlib.suppress(BrokenPipeError):
            os.write(self._told, f"{self._address}\n".encode())
        return self._address

    def preload(self, wanted: Sequence[Inherited], parsed: Mapping[str, Any] | None = None) -> None:
        """Tell the worker what the tasks to come will inherit; before `address`, or it is too late to matter.

        A worker that was forked waits for it, though it be nothing. Of `parsed`, tokenizers' files by their hashes, it
        is given those that are wanted in the form that is loaded soonest.
        """
        if self._address:
            return
        from headrace.stages.tokenizer import is_for_gigatoken, minify, share

        sooner: list[Inherited] = []
        for _, parameters in wanted:
            sha256 = str(parameters.get("sha256", ""))
            if not parsed or sha256 not in parsed or not is_for_gigatoken(parameters):
                continue
            with contextlib.suppress(OSError):  # without memory for it the forkserver loads the file
                descriptor, path = share(minify(parsed[sha256]))
                self._shared.append(descriptor)
                sooner.append((MINIFIED, {"path": path, "sha256": sha256}))
        with contextlib.suppress(BrokenPipeError):
            os.write(self._told, f"{json.dumps([*sooner, *wanted])}\n".encode())

    def restart_controller(self, why: str) -> str:
        """Start the controller again where it served, once it is dead for certain; the worker finds it by itself.

        How it ended, in words. Raises ProcessDied with `why` when that has been done RESTARTS_MAX times, or does not
        help.
        """
        child = next(child for child in self._children if child.name == "controller")
        if self._restarts >= RESTARTS_MAX:
            raise ProcessDied(f"{why}, for the {RESTARTS_MAX + 1}th time; {AGAIN}", self._story("controller"))
        self._restarts += 1
        code = child.process.poll()
        ending = _ending(code) if code is not None else "did not answer any more, and was killed"
        child.process.kill()
        child.process.wait()
        self._children.remove(child)
        child.log.close()
        os.close(self._ready)
        self._start_controller()
        self._served()
        return ending

    def _start_controller(self) -> None:
        self._ready, ready_write = os.pipe()
        try:
            arguments = [*self._listening(), "--ready-fd", str(ready_write)]
            self._start("controller", "headrace.controller", arguments, ready_write)
        finally:
            os.close(ready_write)

    def _fork_controller(self) -> None:
        """Fork a controller that waits until `start_controller`."""
        self._ready, ready_write = os.pipe()
        word, self._held = os.pipe()
        try:
            arguments = [*self._listening(), "--ready-fd", str(ready_write)]
            self._fork("controller", arguments, word, ready_write, word)
        finally:
            os.close(ready_write)
            os.close(word)

    def _listening(self) -> list[str]:
        """Where a controller of this run serves, the first as well as one that takes its place."""
        page = ["--page", ANY_PORT, "--page-file", str(self._page_file)] if self._page_file else []
        return ["--listen", f"{SOCKET}{self._nook.path / SOCKET_NAME}", *page]

    def page(self) -> str:
        """The page's address with its key, once the controller serves; empty without one. Raises OSError."""
        return read_private(self._page_file, URL_BYTES_MAX).decode("latin-1").strip() if self._page_file else ""

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
                    self.worker_endings.append(_ending(code))
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
        self._start("worker", "headrace.worker", arguments)
        return True

    def pids(self) -> tuple[int, ...]:
        """The process ids of controller and worker."""
        return tuple(child.process.pid for child in sorted(self._children, key=lambda child: child.name))

    def close(self) -> None:
        """Let go of the lifeline, and see both end; kill what stays."""
        for fd in (self._lifeline, self._lifeline_read, self._ready, self._told, self._held, *self._shared):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._lifeline = self._lifeline_read = self._ready = self._told = self._held = -1
        self._shared.clear()
        deadline = time.monotonic() + END_S
        for child in self._children:
            if not _ends(child.process, max(0.1, deadline - time.monotonic())):
                child.process.kill()
            child.process.wait()
            child.log.close()
        self._children.clear()
        self._nook.close()

    def _start(self, name: str, module: str, arguments: list[str], *pipes: int) -> None:
        """A process in a session of its own: Ctrl-C is for this one, which decides what becomes of them."""
        log = _open_log(name)
        process = subprocess.Popen(  # noqa: S603 - this interpreter, and arguments of our own
            [sys.executable, "-P", "-m", module, *arguments, "--lifeline-fd", str(self._lifeline_read)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(*pipes, self._lifeline_read),
            start_new_session=True,
        )
        self._children.append(_Child(name, process, log))

    def _fork(self, name: str, arguments: list[str], word_fd: int, *pipes: int) -> None:
        """The same by a fork: a child that waits for a word on a descriptor before it imports what it needs."""
        log = _open_log(name)

        def live() -> int:
            os.setsid()
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), 0)
            for descriptor in (1, 2):
                os.dup2(log_fd, descriptor)
            os.close(log_fd)
            import setproctitle

            setproctitle.setproctitle(f"headrace {name}")
            if not sys.flags.safe_path:
                del sys.path[0]  # the folder of the command, or the one where it was given
            main = importlib.import_module(f"headrace.{name}.__main__").main
            return int(main([*arguments, "--lifeline-fd", str(self._lifeline_read)], word_fd))

        log_fd = log.fileno()
        process = fork(live, keep=[*pipes, log_fd, self._lifeline_read])
        self._children.append(_Child(name, process, log))

    def _story(self, name: str) -> list[str]:
        """The last lines that a process wrote."""
        child = next(child for child in self._children if child.name == name)
        size = os.fstat(child.log.fileno()).st_size
        tail = os.pread(child.log.fileno(), STORY_BYTES, max(0, size - STORY_BYTES))
        from headrace.daemon import as_text

        lines = [text for line in tail.splitlines()[-STORY_LINES:] for text in as_text(line).splitlines()]
        return [f"{name}: {line}" for line in lines]


def _open_log(name: str) -> IO[bytes]:
    folder = os.environ.get("HEADRACE_LOGS")
    if not folder:
        return tempfile.TemporaryFile(prefix="headrace-")  # has no name, so nothing stays behind
    os.makedirs(folder, exist_ok=True)
    return open(os.path.join(folder, f"{name}.log"), "w+b")


_begun: list[Embedded] = []


def begin() -> None:
    """Start a controller and a worker for the run that is going to ask for them."""
    for name in SHARED:
        importlib.import_module(name)
    if any("s3://" in argument for argument in sys.argv):
        importlib.import_module("headrace.store.s3.store")  # its client takes 0.15 s, and all three need it
    _begun.append(Embedded(usable_cores(), forks=may_fork(), page="--page" in sys.argv))


def begun_or_new(*, page: bool = False) -> Embedded:
    """Those that were begun, or others, with a page if it is wanted. Raises CliError where none can be."""
    try:
        return _begun.pop() if _begun else Embedded(usable_cores(), page=page)
    except OSError as error:
        raise CliError(f"the run cannot have processes of its own: {error}") from error


def _ends(process: ChildProcess, within_s: float) -> bool:
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
