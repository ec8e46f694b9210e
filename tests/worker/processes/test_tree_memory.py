"""What a command stage has started counts as the memory of its task, wherever it has gone, and once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from headrace.stages.commands.process import KeeperProcess
from headrace.worker.core.watchdog import Memory, TaskLimits, fault
from headrace.worker.processes.processes import command_bytes

MIB = 1 << 20
LIMIT = 1 << 50
#: Each says when it has what it takes, and lives until its standard input ends.
GRANDCHILD = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
held = b"x" * (64 << 20)
os.write(1, b"there")
sys.stdin.read()
"""
SHARED = """
import os, sys
held = b"x" * (64 << 20)
forked = 0
while forked < 3 and os.fork():
    forked += 1
if forked == 3:
    os.write(1, b"there")
sys.stdin.read()
"""
MAPPED = """
import mmap, os, sys
held = mmap.mmap(-1, 64 << 20)
held.write(b"x" * (64 << 20))
os.write(1, b"there")
sys.stdin.read()
"""

Started = Callable[[str], None]


@pytest.fixture
def started() -> Iterator[Started]:
    """Starts a Python program through a keeper of this process, and waits until it says that it is there."""
    keepers: list[tuple[KeeperProcess, list[int]]] = []

    def start(program: str) -> None:
        keeper = KeeperProcess([sys.executable, "-c", program])
        stdin, stdout = os.pipe(), os.pipe()
        keepers.append((keeper, [stdin[1], stdout[0]]))
        keeper.start([stdin[0], stdout[1], 2])
        for descriptor in (stdin[0], stdout[1]):
            os.close(descriptor)
        assert os.read(stdout[0], 5) == b"there"

    yield start
    for keeper, descriptors in keepers:
        keeper.close()
        for descriptor in descriptors:
            os.close(descriptor)


@pytest.mark.parametrize("program", [GRANDCHILD, MAPPED], ids=["in a grandchild", "shared memory"])
def test_what_a_command_takes_counts_wherever_it_takes_it(started: Started, program: str) -> None:
    before = command_bytes(os.getpid(), LIMIT)
    started(program)
    grown = command_bytes(os.getpid(), LIMIT) - before
    assert 64 * MIB <= grown < 110 * MIB


def test_what_forks_share_counts_once_where_it_matters(started: Started) -> None:
    started(SHARED)
    bound = command_bytes(os.getpid(), LIMIT)
    assert bound >= 4 * 64 * MIB, "the quick look counts each process"
    assert 64 * MIB <= command_bytes(os.getpid(), 100 * MIB) < 140 * MIB


def test_other_children_of_a_task_are_not_its_commands() -> None:
    ours, theirs = socket.socketpair()
    with ours, subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=theirs.fileno()):
        theirs.close()
        assert command_bytes(os.getpid(), LIMIT) == 0
        ours.shutdown(socket.SHUT_RDWR)


def test_a_task_that_is_gone_has_none() -> None:
    assert command_bytes(1 << 22, LIMIT) == 0


def test_a_task_is_ended_for_its_command_by_name() -> None:
    memory = Memory(100 * MIB, 300 * MIB, "the command 'grow' of stage \"clean\"")
    assert fault([], memory, TaskLimits(task_bytes=400 * MIB), 0.0, lambda _: 0.0) == ""
    assert fault([], memory, TaskLimits(task_bytes=399 * MIB), 0.0, lambda _: 0.0) == (
        "it took 400 MiB of memory, of which the command 'grow' of stage \"clean\" and what that has started have "
        "300 MiB, the cap of a task is 399 MiB"
    )
