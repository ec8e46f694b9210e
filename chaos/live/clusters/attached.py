"""A cluster that lives: which of its processes run on this host, so that faults can be done to them.

Its daemons are not ours: nothing is started again here, and nothing is ended but what the scenario says.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.chaos.gates import callers, callers_of_socket, holders, holders_of_socket
from headrace.chaos.live.faults import HostReach, Process, ProcessRole, every_process, parent_of
from headrace.chaos.live.scenario import NETWORK, Scenario
from headrace.client import Client, CliError, ControllerAt
from headrace.daemon import INSECURE, SOCKET, host_and_port

#: Generations between a task and its worker that are looked through.
ANCESTORS_MAX = 8


class AttachedCluster:
    """The controllers that are named, where they listen on this host, and its workers and their tasks.

    A worker is known by its name, which it keeps when its service manager starts it again, and by being the process
    that the cluster names, or one that calls its controllers: another cluster may have a worker of that name. Raises
    CliError where nothing of the cluster runs here and something must, ControllerSilent where nobody leads.
    """

    def __init__(self, at: ControllerAt, *, needed: bool = True) -> None:
        with Client(at) as client:
            reply = client.status()
            addresses = list(client.addresses)
        here = socket.gethostname()
        self.workers = tuple(sorted(item.worker for item in reply.workers if item.host == here))
        self._known = {item.pid for item in reply.workers if item.host == here}
        self._titles = {f"headrace worker {name}" for name in self.workers}
        self._called = tuple(addresses)
        #: The controllers that are named and listen on this host.
        self.controllers = tuple(address for address in addresses if _is_here(address))
        if needed and not self.alive():
            raise CliError(f"nothing of the cluster of {at.address} runs on this host, {here}: go to one of its hosts")

    def running_workers(self) -> frozenset[str]:
        """The names of the workers that live here now."""
        return frozenset(item.title.split()[2] for item in self.alive() if item.role is ProcessRole.WORKER)

    def alive(self) -> list[Process]:
        """Those that live now, by title."""
        processes = every_process()
        named = {item.pid for item in processes if item.role is ProcessRole.WORKER and item.title in self._titles}
        self._known |= named.intersection(pid for address in self._called for pid in _calling(address))
        workers = sorted(named & self._known)
        controllers = {pid for address in self.controllers for pid in _serving(address)}
        tasks = [
            item.pid
            for item in processes
            if item.role in (ProcessRole.TASK, ProcessRole.FORKSERVER) and _descends(item.pid, workers)
        ]
        ours = {*workers, *controllers, *tasks}
        found = [item for item in processes if item.pid in ours and item.role is not ProcessRole.OTHER]
        return sorted(found, key=lambda process: (process.title, process.pid))

    def kill(self) -> list[Process]:
        """SIGKILL to all of them, once; those that were hit."""
        killed: list[Process] = []
        for process in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
                killed.append(process)
        return killed


def _serving(address: str) -> list[int]:
    if address.startswith(SOCKET):
        return holders_of_socket(address.removeprefix(SOCKET))
    return holders("tcp", host_and_port(address.removeprefix(INSECURE))[1])


def _calling(address: str) -> list[int]:
    if address.startswith(SOCKET):
        return callers_of_socket(address.removeprefix(SOCKET))
    return callers(host_and_port(address.removeprefix(INSECURE))[1])


def _is_here(address: str) -> bool:
    return address.startswith(SOCKET) or _is_ours(host_and_port(address.removeprefix(INSECURE))[0])


def _is_ours(host: str) -> bool:
    """Whether an address is one of this host's: only then can a socket be bound to it."""
    with contextlib.suppress(OSError):
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
            return True
    return False


def _descends(pid: int, ancestors: list[int]) -> bool:
    for _ in range(ANCESTORS_MAX):
        pid = parent_of(pid)
        if pid in ancestors:
            return True
    return False


@contextmanager
def living(at: ControllerAt, *, here: bool) -> Iterator[tuple[AttachedCluster, HostReach | None]]:
    """Its processes on this host, and what runs elsewhere unless only what is `here` is meant."""
    attached = AttachedCluster(at, needed=here)
    if here:
        yield attached, None
        return
    with HostReach(at, {*attached.running_workers(), *attached.controllers}) as reach:
        yield attached, reach


def permit(at: ControllerAt, scenario: Scenario, *, here: bool) -> None:
    """Raise CliError without a possible victim, or if one does not allow chaos."""
    with living(at, here=here) as (_, reach):
        if reach is None:
            return
        reach.check(scenario)
        if not reach.alive() and not scenario.has(NETWORK):
            AttachedCluster(at)  # refuses, where nothing runs here either
