"""Commands of `headrace`, forked from a process that has imported what they import.

A command that a test waits for takes more than half its processor time for imports. It is a process of its own all the
same, with the arguments, folder, environment and descriptors that it was given; what a command imports and how it
starts is shown by the tests that start an interpreter (`tests.kits.run.kill.headrace`). A run forks its controller, its
worker and, by that, its tasks as it always does, so these have the imports too.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.worker.processes.forkserver_start import environment as environment_of_tasks

#: What is imported once. A fork keeps no threads, and none of these begins one.
PRELOADED = (
    "headrace.cli.main",
    "headrace.cli.commands.dataset.show",
    "headrace.cli.commands.dataset.trace",
    "headrace.client.client",
    "headrace.client.embedded",
    "headrace.cli.commands.run",
    "headrace.cli.run_options",
    "headrace.cli.ui.progress_lines",
    "headrace.controller.__main__",
    "headrace.controller.server",
    "headrace.pipeline.unchanged",
    "headrace.stages.functions.functions",
    "headrace.stages.library.stages",
    "headrace.stages.sources.objects.preflight_check",
    "headrace.worker.__main__",
    "headrace.worker.daemon",
    "headrace.worker.task.forkserver_main",
    "headrace.worker.task.task",
    "grpc._channel",
    "grpc.experimental",
    "headrace.stages.library",
    "pyarrow.compute",
    "pyarrow.parquet",
    "headrace.store.datasets.verify_whole",
    "headrace.store.files.store",
    "headrace.store.ledger.snapshot",
    "headrace.stages.sources.jsonl",
    "headrace.stages.runtime.samples",
    "headrace.stages.text.machine.kernels",
    "headrace.stages.tokenizer.tokenize",
    "headrace.stages.sinks.tokens",
    "gigatoken.gigatoken_rs",
    "typer._click.decorators",
    "importlib.metadata",
    "zoneinfo",
    "csv",
)
#: What begins processes otherwise than by a fork, or begins them anew, is a program of its own, as a user starts it.
PROGRAMS = ("quickstart", "controller", "worker", "cluster", "chaos")
#: Seconds after which a command hangs.
DEADLINE_S = 300.0
_BYTES_MAX = 1 << 20
_RUN = "headrace.cli"


def ended(
    command: list[str],
    cwd: str | Path | None = None,
    timeout: float = DEADLINE_S,
    env: Mapping[str, str] = os.environ,
) -> subprocess.CompletedProcess[str]:
    """A command that `tests.kits.run.kill.headrace` gives, when it has ended: as `subprocess.run` has it, in text."""
    if not _is_forked(command):
        return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=timeout, env=env)
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
        order = {"arguments": command[4:], "cwd": str(cwd or Path.cwd()), "environment": dict(env)}
        pid, answer = _begin(order, said.fileno(), complained.fileno())
        with answer:
            if not _is_readable(answer, timeout):
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(command, timeout)
            status = int(answer.recv(_BYTES_MAX))
        said.seek(0)
        complained.seek(0)
        texts = (said.read().decode(), complained.read().decode())
    return subprocess.CompletedProcess(command, status, *texts)


def _is_forked(command: list[str]) -> bool:
    """Whether the server begins such a command: one that begins no processes of its own."""
    assert command[1:4] == ["-P", "-m", _RUN], command
    return command[4] not in PROGRAMS


def _begin(order: dict[str, Any], *outputs: int) -> tuple[int, socket.socket]:
    """Have a command begun; its process id, and where its exit code will be told."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        socket.send_fds(_server(), [b"command"], [theirs.fileno(), *outputs])
    ours.sendall(json.dumps(order).encode())
    return int(ours.recv(_BYTES_MAX)), ours


def _is_readable(answer: socket.socket, timeout: float | None) -> bool:
    poll = select.poll()
    poll.register(answer, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


@functools.cache
def _server() -> socket.socket:
    """The server of this process; it ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        environment = environment_of_tasks(os.environ)
        command = [sys.executable, "-P", __file__, str(theirs.fileno())]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    atexit.register(_end, ours, process)
    return ours


def _end(ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
    ours.close()
    process.wait()


def serve(orders: socket.socket) -> dict[str, Any] | None:
    """Fork a process for each order; the order in such a process, None in the server when there are no more."""
    poll = select.poll()
    poll.register(orders, select.POLLIN)
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != orders.fileno():
                poll.unregister(descriptor)
                pid, answer = running.pop(descriptor)
                os.close(descriptor)
                _, status = os.waitpid(pid, 0)
                with answer, contextlib.suppress(OSError):
                    answer.sendall(str(os.waitstatus_to_exitcode(status)).encode())
                continue
            _, descriptors, _, _ = socket.recv_fds(orders, 16, 3)
            if not descriptors:
                return None
            answer = socket.socket(fileno=descriptors[0])
            order: dict[str, Any] = json.loads(answer.recv(_BYTES_MAX))
            pid = os.fork()
            if not pid:
                _take_over(descriptors[1:])
                for other in (orders, answer, *(held for _, held in running.values())):
                    other.close()
                for other in running:
                    os.close(other)
                return order
            for output in descriptors[1:]:
                os.close(output)
            answer.sendall(str(pid).encode())
            ends = os.pidfd_open(pid)
            running[ends] = (pid, answer)
            poll.register(ends, select.POLLIN)


def _take_over(outputs: list[int]) -> None:
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
        os.close(output)


def be(order: dict[str, Any]) -> None:
    """The command, as `python -P -m headrace.cli` would begin it."""
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = [_RUN, *order["arguments"]]
    runpy.run_module(_RUN, run_name="__main__", alter_sys=True)


def main() -> None:
    """Serve on the descriptor that is named, until it is closed."""
    gc.disable()
    for name in PRELOADED:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1
    gc.freeze()
    gc.enable()
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        order = serve(orders)
    if order is not None:
        be(order)


if __name__ == "__main__":
    main()
