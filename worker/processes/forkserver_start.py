"""The start of a forkserver; apart from worker/processes/forkserver.py, since it is the first thing that a worker does.

What a forkserver imports takes longer than what its worker does, and a run waits for it. So nothing but this stands
before its start (worker/__main__.py). The first is forked from the worker, which has one thread then. One that
replaces a dead one is a process of its own, since the worker has gRPC's threads by then.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import msgpack

from headrace.daemon import ChildProcess, fork
from headrace.worker.task import Channel

#: What tasks start with; who sets a variable otherwise has it so.
#: A task is one of as many as there are cores and keeps to its own: threads of linear algebra, which numpy makes when
#: it is imported, cost a process a third of its start-up.
#: A task takes and frees some ten MiB a batch, and an allocator that keeps what is freed keeps more the longer it runs
#: (docs/decisions/0020-memory-that-does-not-grow-with-the-input). Arrow has its memory from malloc like all else, in
#: one heap, of which 2 MiB may be free at its end, and what is larger than 2 MiB is a mapping of its own: the sink's
#: writer takes turns with the task's thread, so that a heap for each would hold free memory twice. jemalloc, which is
#: in pyarrow all the same, begins a thread when it is loaded, unless it is told not to; a forkserver forks, and no
#: thread lives through that.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(2 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(2 << 20),
}

#: The parameters of mallopt(3) for what malloc itself reads before a process begins.
_MALLOPT = {"MALLOC_ARENA_MAX": -8, "MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}


@dataclass(frozen=True, slots=True)
class Forkserver:
    """A forkserver's process, the channel on which it is asked for tasks, and what it was told to load, by module."""

    process: ChildProcess
    channel: Channel
    told: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def tell(self, wanted: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Have it load what the next tasks inherit, unless it was told so last: of each module it keeps one."""
        for module, parameters in wanted:
            if self.told.get(module) != parameters:
                self.told[module] = parameters
                self.channel.send(msgpack.packb((module, parameters)))


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of tasks where that of their worker is `given`."""
    return {**_ENVIRONMENT, **given}


def start_forkserver() -> Forkserver:
    """Start one. Raises OSError where the system has no room for a process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs, ExitStack() as kept:
        kept.callback(ours.close)
        process = subprocess.Popen(  # noqa: S603 - this interpreter, and a module of our own
            [
                sys.executable,
                "-P",
                "-m",
                "headrace.worker.task.forkserver_main",
                "--control-fd",
                str(theirs.fileno()),
                "--worker",
                str(os.getpid()),
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment(os.environ),
        )
        kept.pop_all()
    return Forkserver(process, Channel(ours))


def fork_forkserver() -> Forkserver:
    """Fork one from this process, which must have one thread. Raises OSError as `start_forkserver` does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    worker = os.getpid()

    def live() -> int:
        ours.detach()
        _be_born_with(environment(os.environ))
        from headrace.worker.task import main

        return main(["--control-fd", str(theirs.detach()), "--worker", str(worker)])

    with theirs:
        process = fork(live, keep=[theirs.fileno()])
    return Forkserver(process, Channel(ours))


def hear(descriptor: int, forkserver: Forkserver) -> bool:
    """Wait for what tasks will inherit, a line of JSON, and tell the forkserver; False at the end of the pipe.

    Where that is something large, wait for what follows as well: tasks wait until the forkserver has loaded it,
    and controller and forkserver have the cores. Not a byte behind the line is read.

    Neither wait has a deadline but the end of the pipe. At its other end is who forked this process, alone: a run that
    reads its pipeline file, whose code may take any time, and that has begun nothing which could be waited for in vain.
    The pipe ends when it does.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        part = os.read(descriptor, 1)
        if not part:
            return False
        line += part
    wanted = [(str(module), dict(parameters)) for module, parameters in json.loads(line)]
    forkserver.tell(wanted)
    if any(parameters for _, parameters in wanted):
        select.select([descriptor], [], [])
    return True


def _be_born_with(variables: Mapping[str, str]) -> None:
    """Give this process these variables; malloc, which has read its own long ago, is told of them."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for name, value in variables.items():
        if os.environ.get(name) == value:
            continue
        os.environ[name] = value
        if mallopt is not None and name in _MALLOPT:
            mallopt(_MALLOPT[name], int(value))
