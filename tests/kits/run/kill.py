"""Kill everything that a run started, at a seeded moment, as a power cut would."""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

#: The variable by which every process of a run is found: environments are inherited.
MARK = "HEADRACE_TEST_MARK"
RUN_S_MAX = 300.0
_LOOK_S = 0.002
#: Seconds that the kernel may take for the death of what it kills.
_DEATH_S_MAX = 60.0
#: A command that kills itself just behind the nth call of a method: no clock decides how far it has come.
DIES_BEHIND = """
import importlib, itertools, os, signal, sys
from headrace.cli.main import invoke

module, _, path = sys.argv[1].partition(":")
owner, method = path.split(".")
owner = getattr(importlib.import_module(module), owner)
called, numbers, last = getattr(owner, method), itertools.count(1), int(sys.argv[2])

def dying(*arguments, **named):
    done = called(*arguments, **named)
    if next(numbers) == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return done

setattr(owner, method, dying)
sys.exit(invoke(sys.argv[3:]))
"""


@dataclass(slots=True)
class Marked:
    """A command whose every descendant can be found."""

    command: list[str]
    cwd: pathlib.Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command,
            cwd=self.cwd,
            # SPT_NOENV: a process title must not be written over the environment that the mark stands in.
            env={**os.environ, MARK: self.mark, "SPT_NOENV": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def alive(self) -> list[int]:
        """Process ids of everything that carries the mark."""
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb", buffering=0) as environ:
                if wanted in environ.readall():
                    found.append(int(name))
        return found

    def memory_left(self) -> list[str]:
        """Named shared memory, and maps of ring memory by what carries the mark; other runs may go on beside this."""
        left = [str(path) for path in pathlib.Path("/dev/shm").glob("*headrace*")]
        for pid in self.alive():
            try:
                if "memfd:headrace" in pathlib.Path(f"/proc/{pid}/maps").read_text():
                    left.append(f"/proc/{pid}/maps")
            except OSError:
                continue
        return left

    def kill(self) -> int:
        """SIGKILL to all, until two looks find none (one in the midst of `exec` has no mark); how many there were."""
        killed: set[int] = set()
        deadline = time.monotonic() + _DEATH_S_MAX
        looks = 0
        while looks < 2:
            living = [pid for pid in self.alive() if not _zombie(pid)]
            looks = 0 if living else looks + 1
            assert time.monotonic() < deadline, f"processes that SIGKILL does not end: {living}"
            for pid in living:
                killed.add(pid)
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        return len(killed)


def kill_after_entries(run: Marked, count: Callable[[], int], entries: int, delay_s: float) -> bool:
    """Start the run and kill everything `delay_s` after the ledger has `entries` entries; False if it ended before."""
    process = run.start()
    deadline = time.monotonic() + RUN_S_MAX
    fd = os.pidfd_open(process.pid)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    try:
        while count() < entries:
            assert time.monotonic() < deadline, f"{count()} ledger entries after {RUN_S_MAX} s"
            if poll.poll(_LOOK_S * 1000):
                return False
        ended = bool(poll.poll(delay_s * 1000))
        run.kill()
        return not ended
    finally:
        os.close(fd)
        process.communicate()


def count_entries(ledger: pathlib.Path) -> int:
    try:
        return sum(name.endswith(".msgpack") for name in os.listdir(ledger))
    except FileNotFoundError:
        return 0


def headrace(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "headrace.cli", *arguments]


def dies_behind(method: str, calls: int, *arguments: str) -> list[str]:
    """The command, killed just behind so many calls of a method, which is named as `module:Class.method`."""
    return [sys.executable, "-P", "-c", DIES_BEHIND, method, str(calls), *arguments]


def _zombie(pid: int) -> bool:
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text[text.rindex(")") + 2] in "ZX"
