"""Controllers and workers as daemons, each in a process that can be killed, frozen and thawed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from headrace.client.client import Client, ControllerSilent, RunOptions
from headrace.client.pipeline_file import load
from headrace.daemon.log_lines import as_text
from headrace.protos import control_pb2 as pb
from tests.kits.run.kill import Marked, headrace

PATIENCE_S = 120.0
LOOK_S = 0.02
ENDED = ("completed", "stopped", "cancelled", "failed")
#: No variables besides.
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
T = TypeVar("T")


def until(look: Callable[[], T], what: str, patience_s: float = PATIENCE_S) -> T:
    """The first true answer of `look`; fails, saying what was waited for."""
    deadline = time.monotonic() + patience_s
    pause = threading.Event()
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not within {patience_s:.0f} s"
        pause.wait(LOOK_S)
    return found


class Daemon:
    """One process with a log, and what can be done to it."""

    def __init__(self, folder: Path, name: str, *command: str, environment: Mapping[str, str] = NOTHING) -> None:
        self.name, self.environment = name, environment
        self.marked = Marked(headrace(*command), folder)
        self.log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.marked.command,
                cwd=self.marked.cwd,
                env={**os.environ, "HEADRACE_TEST_MARK": self.marked.mark, "SPT_NOENV": "1", **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def says(self, words: str) -> str:
        """The rest of the line behind `words`, once it stands in the log."""

        def look() -> str:
            assert self.process is not None
            assert self.process.poll() is None, f"{self.name} has ended: {self.text()}"
            lines = [line for line in self.text().splitlines() if words in line]
            return lines[-1].split(words, 1)[1].strip() if lines else ""

        return until(look, f"{self.name} says {words!r}")

    def text(self) -> str:
        return "\n".join(as_text(line) for line in self.log.read_bytes().splitlines())

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to it and all that it started."""
        self.marked.kill()
        if self.process is not None:
            self.process.wait(PATIENCE_S)


class Cluster:
    """Controllers of one root, and workers that know them all."""

    def __init__(self, home: Path, folder: Path, root: str) -> None:
        self.home, self.folder, self.root = home, folder, root
        #: Entries between two snapshots; 0: as usual.
        self.snapshot_entries = 0
        self.controllers: dict[str, Daemon] = {}
        self.addresses: dict[str, str] = {}
        self.workers: dict[str, Daemon] = {}

    def add_controller(self, name: str, *, root: str = "", environment: Mapping[str, str] = NOTHING) -> Daemon:
        """Another controller of the root, which it may reach by a way of its own; again where it was before."""
        listen = self.addresses.get(name) or f"unix:{self.folder}/sockets/{name}.sock"
        command = ("controller", "--listen", listen, "--root", root or self.root)
        daemon = Daemon(self.folder, name, *command, environment=environment)
        if self.snapshot_entries:
            own = ["-m", "headrace.controller", *daemon.marked.command[5:]]
            daemon.marked.command[2:] = [*own, "--snapshot-entries", str(self.snapshot_entries)]
        daemon.start()
        self.controllers[name] = daemon
        self.addresses[name] = daemon.says("serves on")
        return daemon

    def add_worker(self, name: str, cores: int = 1, *, environment: Mapping[str, str] = NOTHING) -> Daemon:
        arguments = ("worker", "--controller", self.known(), "--name", name, "--cores", str(cores))
        daemon = Daemon(self.home, name, *arguments, environment=environment)
        daemon.log = self.folder / f"{name}.log"
        daemon.start()
        self.workers[name] = daemon
        return daemon

    def known(self) -> str:
        return ",".join(self.addresses.values())

    def ask(self, name: str, pipeline: str = "") -> pb.StatusReply | None:
        """What one controller says; None if it does not answer."""
        with Client(self.addresses[name]) as client:
            try:
                reply: pb.StatusReply = client._call("Status", pb.StatusRequest(pipeline=pipeline), 2.0)
            except ControllerSilent:
                return None
            return reply

    def leads(self, name: str) -> bool:
        reply = self.ask(name)
        return reply is not None and not reply.standby

    def leader(self) -> str:
        """The one controller that leads, once there is one."""
        return until(lambda: next((name for name in self.controllers if self.leads(name)), ""), "a controller leads")

    def wait_for_workers(self, name: str = "") -> None:
        wanted = len(self.workers)

        def look() -> bool:
            reply = self.ask(name or self.leader())
            return reply is not None and len(reply.workers) == wanted

        until(look, f"{wanted} workers are registered")

    def apply(self, pipeline: str, *parameters: str, options: RunOptions | None = None) -> str:
        """Have the leader run a pipeline file; its name."""
        before = os.getcwd()
        os.chdir(self.home)
        try:
            made = load(self.home / pipeline, list(parameters))
        finally:
            os.chdir(before)
        with Client(self.known()) as client:
            client.apply(made, options or RunOptions())
        return made.name

    def status(self, pipeline: str) -> pb.PipelineStatus | None:
        """The pipeline by the word of whoever leads."""
        for name in self.controllers:
            reply = self.ask(name, pipeline)
            if reply is not None and not reply.standby and reply.pipelines:
                return reply.pipelines[0]
        return None

    def wait_for_end(self, pipeline: str) -> pb.PipelineStatus:
        def look() -> Any:
            status = self.status(pipeline)
            return status if status is not None and status.state in ENDED else None

        found: pb.PipelineStatus = until(look, f"{pipeline} ends", 2 * PATIENCE_S)
        return found

    def close(self) -> None:
        for daemon in [*self.workers.values(), *self.controllers.values()]:
            if daemon.process is not None:
                daemon.kill()


@contextlib.contextmanager
def cluster(
    home: Path, folder: Path, root: str, *, workers: int = 2, first_root: str = "", snapshot_entries: int = 0
) -> Iterator[Cluster]:
    """Controllers `a`, which leads and may reach the root by a way of its own, and `b`; workers that are registered."""
    made = Cluster(home, folder, root)
    made.snapshot_entries = snapshot_entries
    try:
        made.add_controller("a", root=first_root)
        until(lambda: made.leads("a"), "the first controller leads")
        made.add_controller("b")
        for index in range(workers):
            made.add_worker(f"w{index}")
        made.wait_for_workers("a")
        yield made
    finally:
        made.close()
