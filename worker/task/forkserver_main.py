"""The forkserver: a process that has imported what tasks import, and forks one when its worker asks for it.

    python -m headrace.worker.task.forkserver_main --control-fd N

A task that is forked starts without the imports, which are most of the start of a Python process, and shares their
memory. Of Headrace's stages the forkserver has imported the commonest, of the user's none; what they load that is large
and does not change (`headrace.stages.shipping.preload`) it loads when it is told of it. It has one thread, keeps no
file open and holds nothing else of any task.

It forks twice. The process between ends at once, and the worker, which has made itself the reaper of orphans
(prctl(2), PR_SET_CHILD_SUBREAPER), becomes the parent of the task: exit codes reach it as those of any child do, and
the death of a forkserver costs no task.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

import msgpack
import setproctitle

from headrace.stages.shipping import preload
from headrace.worker.task.channel import Channel, ChannelClosed

#: What is imported before the first task is asked for. What is missing is missed by the task that wants it.
PRELOADED = (
    "headrace.worker.task.task",
    "pyarrow.compute",
    "pyarrow.parquet",
    "headrace.store.files.store",
    "headrace.stages.sources.jsonl",
    "headrace.stages.runtime.samples",
    "headrace.stages.tokenizer.tokenize",
    "headrace.stages.sinks.tokens",
    "gigatoken.gigatoken_rs",
)
#: What is imported when no task is asked for: each of them would import it where it writes, or runs a user's stage.
PRELOADED_LATER = ("headrace.stages.library.stages", "headrace.stages.shipping.shipping")
#: Descriptors that come with an order: the control channel, the page of what is in hand, standard error.
DESCRIPTORS = 3
#: The number of an order, and the descriptors that came with it.
Order = tuple[int, tuple[int, ...]]
#: Tasks that one process between starts: each costs one copy of this process then, and not two.
TOGETHER_MAX = 16
#: Exit code of a task that never came to be its worker's child.
STRAY = 76
#: Seconds in which the process between must end.
ADOPTION_S = 10.0
_ADOPTION_LOOK_S = 0.0002
_PID_BYTES = 8
_PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Fork tasks until the worker is gone."""
    parser = argparse.ArgumentParser(prog="headrace forkserver")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--worker", type=int, default=0, help="the process id of the worker")
    args = parser.parse_args(argv)
    worker = args.worker or os.getppid()
    _die_with_parent()
    if os.getppid() != worker:
        return 0  # it is gone already, and nobody else will say so
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setproctitle.setproctitle("headrace forkserver")
    current = _current_folder()
    sys.path[:] = [path for path in sys.path if path not in ("", current)]
    _import_all(PRELOADED)
    if current and not os.environ.get("PYTHONSAFEPATH"):
        # User code may lie in the folder where the worker was started. Last: it hides nothing that is installed.
        sys.path.append(current)
    channel = Channel(socket.socket(fileno=args.control_fd))
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    later: tuple[str, ...] = PRELOADED_LATER
    try:
        while True:
            if later and not poll.poll(0):
                _import_all(later[:1])
                later = later[1:]
                continue
            poll.poll(1000)
            orders: list[Order] = []
            # Descriptors end what one receipt takes, so that it has one order.
            while len(orders) < TOGETHER_MAX and poll.poll(0):
                for data in channel.receive():
                    asked = msgpack.unpackb(data)
                    if isinstance(asked, int):
                        orders.append((asked, tuple(channel.descriptors.popleft() for _ in range(DESCRIPTORS))))
                        continue
                    _begin(channel, worker, orders)
                    orders = []
                    _preload(*asked)
            _begin(channel, worker, orders)
    except ChannelClosed:
        return 0


def _current_folder() -> str:
    """Where the worker was started; empty where that is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _import_all(names: Sequence[str]) -> None:
    """Import what is preloaded. It lives on in every task: to look for garbage in it would copy its pages there.

    Nor is it looked at meanwhile, which is a tenth of the time that imports take.
    """
    gc.disable()
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    gc.freeze()
    gc.enable()


def _preload(module: str, parameters: dict[str, Any]) -> None:
    """Load what tasks inherit. What cannot be loaded each of them will try itself, and say what is wrong.

    Loading a tokenizer leaves some 17 MiB free in between, which are given back before tasks are born.
    """
    gc.disable()
    try:
        preload.preload(module, parameters)
    except BaseException as error:  # noqa: BLE001 - a panic of Rust code is no Exception
        print(f"forkserver: {module} is not preloaded: {error}", file=sys.stderr, flush=True)
    from headrace.stages.runtime import give_back  # as late as the others: importing it first would be slower

    give_back()
    gc.freeze()
    gc.enable()


def _begin(forkserver: Channel, worker: int, orders: Sequence[Order]) -> None:
    """Start the tasks that are asked for, and say their process ids, 0 for one that the system would not start."""
    pids = _fork(forkserver, worker, [brought for _, brought in orders]) if orders else []
    for (asked, brought), pid in zip(orders, [*pids, *[0] * (len(orders) - len(pids))], strict=True):
        for descriptor in brought:
            os.close(descriptor)
        forkserver.send(msgpack.packb([asked, pid]))


def _fork(forkserver: Channel, worker: int, orders: Sequence[tuple[int, ...]]) -> list[int]:
    """Start tasks by one process between; the process ids of those that the system would start."""
    told, tell = os.pipe()
    ends, stays = os.pipe()
    between = os.fork()
    if not between:
        try:
            own = os.getpid()
            for brought in orders:
                pid = os.fork()
                if not pid:
                    others = (descriptor for other in orders if other is not brought for descriptor in other)
                    for descriptor in (told, tell, stays, *others):
                        os.close(descriptor)
                    forkserver.close()
                    os.read(ends, 1)
                    os.close(ends)
                    os._exit(_live(own, worker, brought))
                os.write(tell, pid.to_bytes(_PID_BYTES, "little"))
            os._exit(0)
        finally:
            os._exit(1)
    for descriptor in (tell, ends, stays):
        os.close(descriptor)
    os.waitpid(between, 0)
    data = os.read(told, _PID_BYTES * len(orders))
    os.close(told)
    return [int.from_bytes(data[at : at + _PID_BYTES], "little") for at in range(0, len(data), _PID_BYTES)]


def _live(between: int, worker: int, brought: tuple[int, ...]) -> int:
    """Be a task; its exit code."""
    control, in_flight, errors = brought
    # Open until the process is gone: to the worker, who closes the channel and lives has broken it.
    os.dup(control)
    os.dup2(errors, sys.stderr.fileno())
    os.close(errors)
    try:
        if not _adopted(between, worker):
            return STRAY
        _die_with_parent()
        if os.getppid() != worker:
            return STRAY
        _seed_anew()
        from headrace.worker.task import task

        code = task.live(control, in_flight)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:  # noqa: BLE001 - nothing of a task may go on as a forkserver
        traceback.print_exc(file=sys.stderr)
        sys.stderr.flush()
        asked = error.code if isinstance(error, SystemExit) else None
        return asked if isinstance(asked, int) and 0 < asked < 256 else 1
    # The caller exits without more ado: Arrow's and the writer's threads hold nothing that must be flushed, and the
    # ring's memory has views on it.
    return code


def _adopted(between: int, worker: int) -> bool:
    """Wait until the process between is gone; whether the worker is the parent now."""
    deadline = time.monotonic() + ADOPTION_S
    while (parent := os.getppid()) == between and time.monotonic() < deadline:
        time.sleep(_ADOPTION_LOOK_S)
    return parent == worker


def _seed_anew() -> None:
    """Forked processes share the state of numpy's global generator; Python's own is seeded anew by itself."""
    generator = sys.modules.get("numpy.random")
    if generator is not None:
        generator.seed()


def _die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the worker dies (prctl(2)); a closed channel says so too."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    raise SystemExit(main())
