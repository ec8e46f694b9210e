"""Hosts made of network namespaces, a bridge between them, and a cluster that runs on them as daemons."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from headrace.chaos.gates.namespaces import Host, NetworkNamespaces
from headrace.cluster.certificates import write_secret
from tests.kits.run.kill import MARK, headrace

PATIENCE_S = 120.0
PORT = 7420
#: Answers each line with the status, as `headrace status --json` does: a command for each look would keep a core busy.
LOOKOUT = """
import json, sys
from headrace.client.client import Client, controller_at
from headrace.protos.codec import plain
with Client(controller_at("", sys.argv[1])) as client:
    for _ in sys.stdin:
        print(json.dumps(plain(client.status())), flush=True)
"""


def wait_for(what: Callable[[], Any], why: str, patience_s: float = PATIENCE_S) -> Any:
    """The first true answer of `what`, which is asked again and again."""
    deadline = time.monotonic() + patience_s
    pause = threading.Event()
    while not (answer := what()):
        assert time.monotonic() < deadline, f"not within {patience_s:.0f} s: {why}"
        pause.wait(0.05)
    return answer


class Net(NetworkNamespaces):
    """Hosts with the addresses of docs/guide/cluster.md, which may be kept from each other."""

    def __init__(self) -> None:
        super().__init__("10.77.0")

    def apart(self, *names: str) -> None:
        """These hosts reach the others and not each other."""
        for name in names:
            self.in_hub("link", "set", self.hosts[name].port, "type", "bridge_slave", "isolated", "on")

    def together(self) -> None:
        for host in self.hosts.values():
            self.in_hub("link", "set", host.port, "type", "bridge_slave", "isolated", "off")


@dataclass
class Daemon:
    """A process on a host, and the file that it writes its log to."""

    process: subprocess.Popen[bytes]
    log: pathlib.Path

    def said(self, words: str) -> str:
        """The first line of its log with these words; empty if there is none."""
        return next((line for line in self.log.read_text().splitlines() if words in line), "")

    def wait_for(self, words: str) -> str:
        line: str = wait_for(lambda: self.said(words) or self.ended(), f"{words!r} in {self.log}")
        assert words in line, f"ended without saying {words!r}: {self.log.read_text()}"
        return line

    def ended(self) -> str:
        return "" if self.process.poll() is None else "ended"


@dataclass
class Cluster:
    """A cluster's folder, its hosts and its daemons."""

    net: Net
    folder: pathlib.Path
    port: int = PORT
    #: The store of the cluster's log; empty for none.
    root: str = ""
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    daemons: dict[str, Daemon] = field(default_factory=dict)
    lookout: subprocess.Popen[str] | None = None

    @property
    def files(self) -> pathlib.Path:
        return self.folder / "cluster"

    def start(self, host: Host, name: str, *arguments: str, cwd: pathlib.Path | None = None) -> Daemon:
        log = self.folder / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                host.command(*headrace(*arguments)),
                cwd=cwd or self.folder,
                # SPT_NOENV: a process title must not be written over the environment that the mark stands in.
                env={**os.environ, MARK: self.mark, "SPT_NOENV": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.daemons[name] = Daemon(process, log)
        return self.daemons[name]

    def call(self, host: Host, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "HEADRACE_CLUSTER": str(self.files)}
        return subprocess.run(
            host.command(*headrace(*arguments)),
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=environment,
            timeout=300,
        )

    def init(self, host: Host) -> str:
        """Make the cluster, with its controller on `host`; the first token."""
        made = self.call(host, "cluster", "init", str(self.files), "--controller", f"{host.address}:{self.port}")
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    def token(self, name: str) -> str:
        made = self.call(next(iter(self.net.hosts.values())), "cluster", "token", str(self.files), "--name", name)
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    def token_file(self, name: str) -> pathlib.Path:
        """A file that holds a token for this worker."""
        path = self.folder / f"token-{name}"
        write_secret(path, self.token(name).encode())
        return path

    def controller(self, host: Host) -> Daemon:
        listen = ("--listen", f"{host.address}:{self.port}")
        root = ("--root", self.root) if self.root else ()
        daemon = self.start(host, "controller", "controller", "--cluster", str(self.files), *listen, *root)
        daemon.wait_for("serves on")
        return daemon

    def worker(self, host: Host, name: str, *more: str) -> Daemon:
        state = ("--state", str(self.folder / f"state-{name}"))
        return self.start(host, name, "worker", "--join", str(self.token_file(name)), *state, "--cores", "1", *more)

    def status(self, host: Host) -> dict[str, Any]:
        """What the controller knows, as seen from the first host that asks."""
        if self.lookout is None:
            self.lookout = subprocess.Popen(
                host.command(sys.executable, "-P", "-c", LOOKOUT, str(self.files)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        asked, told = self.lookout.stdin, self.lookout.stdout
        assert asked is not None
        assert told is not None
        asked.write("\n")
        asked.flush()
        status: dict[str, Any] = json.loads(told.readline())
        return status

    def wait_for_workers(self, host: Host, count: int) -> None:
        wait_for(lambda: len(self.status(host)["workers"]) == count, f"{count} workers registered")

    def close(self) -> None:
        if self.lookout is not None:
            self.lookout.communicate(timeout=PATIENCE_S)
        for daemon in self.daemons.values():
            if daemon.process.poll() is None:
                daemon.process.kill()
            daemon.process.wait(PATIENCE_S)


@contextmanager
def cluster_of(folder: pathlib.Path, *names: str) -> Iterator[tuple[Cluster, dict[str, Host]]]:
    """A cluster with its controller on a host of its own and a worker on each of the named ones, all registered."""
    net = Net()
    cluster = Cluster(net, folder)
    try:
        hub = net.host("ctl")
        cluster.init(hub)
        cluster.controller(hub)
        for name in names:
            cluster.worker(net.host(name), name)
        cluster.wait_for_workers(hub, len(names))
        yield cluster, net.hosts
    finally:
        cluster.close()
        net.close()
