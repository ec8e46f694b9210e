"""A cluster of one's own for a run with faults: controllers and workers on loopback, and gates on every way between.

Each daemon is started again when it ends, as a service manager with Restart=always does. The ways are those of a
cluster on several hosts: mutual TLS by gRPC and QUIC, with certificates of an authority that is made for the run.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.chaos.gates import NetworkGates, NetworkNamespaces
from headrace.chaos.live.faults import Marked
from headrace.chaos.live.scenario import Clocks, Cluster
from headrace.client import Client, CliError, ControllerSilent, UsageError, controller_at, make_cluster, make_token
from headrace.cluster import PORT_OFFSET, write_secret
from headrace.controller.core.plan import QUIC, places_of
from headrace.controller.membership import ClusterFiles
from headrace.pipeline import Pipeline, chain_order
from headrace.worker.links import HOST, VARIABLE as LINK_GATE

#: The variable that names the worker that a process belongs to.
OWNER = "HEADRACE_CHAOS_OWNER"
#: What bends a process's clock, and by how much.
CLOCK_FOLDER = pathlib.Path(__file__).parents[2] / "clock"
CLOCK = "HEADRACE_CHAOS_CLOCK"
#: Seconds until a daemon is started again, doubled up to the second while it ends at once.
START_AGAIN_S = 0.2
START_AGAIN_S_MAX = 2.0
#: A daemon that lived this long did not end at once, seconds.
LIVED_S = 5.0
#: Seconds in which the cluster must be there.
READY_S = 60.0
_LOOK_S = 0.05
#: Below the kernel's ephemeral ports, so that no other process takes one before a daemon does.
_PORTS = range(24_000, 32_000)


@dataclass(slots=True)
class _Daemon:
    name: str
    arguments: list[str]
    log: pathlib.Path
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    #: What stands before its command so that it runs on a host of its own.
    inside: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    begun_at: float = 0.0
    again_at: float = 0.0
    delay_s: float = START_AGAIN_S
    starts: int = 0


class LocalCluster:
    """The daemons of one run. `marked` is what finds their processes; `root` is the store of the cluster's log."""

    def __init__(
        self,
        folder: pathlib.Path,
        shape: Cluster,
        marked: Marked,
        gates: NetworkGates | NetworkNamespaces,
        root: str,
        *,
        clocks: Clocks | None = None,
        seed: int = 0,
    ) -> None:
        self._marked = marked
        self.folder = folder / "cluster"
        self.workers = shape.worker_names
        self.controllers = tuple(f"c{number}" for number in range(shape.controllers))
        #: The clock of each daemon, seconds ahead and rate, where they are not the host's.
        self.clocks = clocks.draw(seed, (*self.controllers, *self.workers)) if clocks else {}
        host = gates.join() if isinstance(gates, NetworkNamespaces) else HOST
        ports = {name: free_port(host) for name in self.controllers}
        #: Where operators find the controllers: not by the gates.
        self.address = ",".join(f"{host}:{port}" for port in ports.values())
        make_cluster(self.folder, "chaos", self.address.split(","))
        by_gates = {
            name: f"{host}:{port}" if isinstance(gates, NetworkNamespaces) else gates.control(name, port)
            for name, port in ports.items()
        }
        logs = folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self._daemons = [
            _Daemon(name, self._controller(f"{host}:{port}", root, by_gates[name]), logs / f"{name}.log", {OWNER: name})
            for name, port in ports.items()
        ]
        files = ClusterFiles.read(self.folder)
        for name in self.workers:
            token = folder / f"token-{name}"
            write_secret(token, make_token(files, name, 1).encode())
            arguments = ["-m", "headrace.worker", "--join", str(token), "--state", str(folder / f"state-{name}")]
            arguments += ["--controller", ",".join(by_gates.values()), "--cores", str(shape.cores)]
            environment = {OWNER: name}
            inside: tuple[str, ...] = ()
            if isinstance(gates, NetworkNamespaces):
                inside = tuple(gates.host(name).command())
            else:
                environment[LINK_GATE] = gates.registry
            self._daemons.append(_Daemon(name, arguments, logs / f"{name}.log", environment, inside))

    def open(self) -> None:
        """Start all of it, and wait until the workers are registered. Raises CliError."""
        roles = len(self.controllers)
        try:
            for daemon in self._daemons[:roles]:
                self._start(daemon)
            self._wait_for(0)
            for daemon in self._daemons[roles:]:
                # Another thread may have started it: a second one would be refused, and never ended.
                if daemon.process is None:
                    self._start(daemon)
            self._wait_for(len(self.workers))
        except BaseException:
            self.close()
            raise

    def look(self) -> None:
        """Start again what has ended."""
        now = time.monotonic()
        for daemon in self._daemons:
            process = daemon.process
            if process is not None and process.poll() is not None:
                lived = now - daemon.begun_at >= LIVED_S
                daemon.delay_s = START_AGAIN_S if lived else min(START_AGAIN_S_MAX, 2 * daemon.delay_s)
                daemon.process, daemon.again_at = None, now + daemon.delay_s
            elif process is None and now >= daemon.again_at:
                self._start(daemon)

    def close(self) -> None:
        """Ask every daemon to end; who waits for that is the conductor."""
        for daemon in self._daemons:
            if daemon.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    daemon.process.send_signal(signal.SIGTERM)

    def reap(self) -> None:
        """Collect what has ended, so that no zombie stays."""
        for daemon in self._daemons:
            if daemon.process is not None:
                daemon.process.wait(READY_S)

    @staticmethod
    def _controller(address: str, root: str, advertised: str) -> list[str]:
        listen = ["-m", "headrace.controller", "--listen", address]
        return [*listen, "--root", root, "--advertise", advertised]

    def _start(self, daemon: _Daemon) -> None:
        arguments = list(daemon.arguments)
        if daemon.name in self.controllers:
            arguments += ["--cluster", str(self.folder)]
        with open(daemon.log, "ab") as log:
            command = [*daemon.inside, sys.executable, "-P", *arguments]
            daemon.process = self._marked.spawn(command, log, log, {**daemon.environment, **self._clock(daemon.name)})
        daemon.begun_at = time.monotonic()
        daemon.starts += 1

    def _clock(self, name: str) -> dict[str, str]:
        """What makes a daemon's clock go wrong."""
        if name not in self.clocks:
            return {}
        offset_s, rate = self.clocks[name]
        folders = os.pathsep.join(filter(None, (str(CLOCK_FOLDER), os.environ.get("PYTHONPATH", ""))))
        return {"PYTHONPATH": folders, CLOCK: f"{offset_s!r},{rate!r}"}

    def _wait_for(self, workers: int) -> None:
        """Until a controller leads, and has so many workers."""
        deadline = time.monotonic() + READY_S
        with Client(controller_at(self.address, str(self.folder))) as client:
            while True:
                with contextlib.suppress(ControllerSilent):
                    reply = client.status()
                    if not reply.standby and len(reply.workers) >= workers:
                        return
                if time.monotonic() > deadline:
                    lines = [line for daemon in self._daemons for line in _tail(daemon.log)]
                    raise CliError(f"the cluster of the scenario was not ready within {READY_S:.0f} s", lines)
                self.look()
                time.sleep(_LOOK_S)


def free_port(host: str = HOST) -> int:
    """A port of this host that is free, and so is the one behind it, at which nodes join."""
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with contextlib.suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind((host, port))
            second.bind((host, port + PORT_OFFSET))
            return port
    raise CliError(f"{host} has no two free ports in a row from {_PORTS.start} to {_PORTS.stop}")


def _tail(log: pathlib.Path) -> list[str]:
    with contextlib.suppress(OSError):
        size = os.stat(log).st_size
        with open(log, "rb") as file:
            file.seek(max(0, size - 2000))
            return [f"{log.stem}: {line}" for line in file.read().decode("utf-8", "replace").splitlines()[-5:]]
    return []


def places_in(shape: Cluster, pipeline: Pipeline) -> dict[str, str]:
    """The worker of each stage that the scenario places, by the stage's name; {} where it places none.

    With `spread` each stage stands on another worker than the first of the stages before it. Raises UsageError for a
    stage that the pipeline has not.
    """
    known = [stage.name for stage in pipeline.stages]
    strange = sorted(shape.place.keys() - {*known})
    if strange:
        raise UsageError(
            f"[cluster.place] of the scenario: pipeline {pipeline.name!r} has no stage {strange[0]!r}; it has "
            f"{', '.join(known)}"
        )
    if not shape.spread:
        return dict(shape.place)
    workers = shape.worker_names
    found: dict[str, str] = {}
    for stage in chain_order(pipeline.stages):
        before = workers.index(found[flows[0]]) if (flows := pipeline.flows_from(stage.name)) else -1
        found[stage.name] = workers[(before + 1) % len(workers)]
    return found


def layout_options(shape: Cluster, pipeline: Pipeline, *, fuse: bool) -> list[str]:
    """The options of `headrace apply` for places and transports.

    Every link between workers is made to be QUIC, and where stages are not fused, every link: one host has others.
    """
    asked = places_in(shape, pipeline)
    places = places_of(pipeline, asked)
    options = [part for stage, place in asked.items() for part in ("--place", f"{stage}={place}")]
    for stage in pipeline.stages:
        apart = any(places[before] != places[stage.name] for before in pipeline.flows_from(stage.name))
        if stage.after and (apart or not fuse):
            options += ["--transport", f"{stage.name}={QUIC}"]
    return options
