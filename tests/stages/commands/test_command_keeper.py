"""What a command starts ends with it, wherever it has gone; and with its task, however that ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.stages.commands.process import CommandFailedError, CommandProcess, KeeperProcess

DEADLINE_S = 300.0
#: Answers each line, and has left a process in a session of its own whose parent is gone; it tells its number.
LEAVES = (
    "import os, sys, time\n"
    "if not os.fork():\n"
    "    os.setsid()\n"
    "    if os.fork(): os._exit(0)\n"
    "    signal = __import__('signal'); [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]\n"
    "    open(sys.argv[1] + '.new', 'w').write(str(os.getpid())); os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
    "    os.close(0); os.close(1); os.close(2); time.sleep(1000); os._exit(0)\n"
    "os.wait()\n"
    "for line in sys.stdin: sys.stdout.write(line)\n"
)
TASK = """
import os, sys, threading
from headrace.stages.commands.process import CommandProcess, KeeperProcess
process = CommandProcess(KeeperProcess(sys.argv[1:]), [0])
print("started", flush=True)
threading.Event().wait()
"""


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline
        select.select([], [], [], 0.01)


def arguments(told: Path) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", LEAVES, str(told)]


def grandchild(told: Path) -> int:
    """A pidfd of the process that the command has left behind."""
    until(told.exists)
    return os.pidfd_open(int(told.read_text()))


def ends(descriptor: int, within_s: float = DEADLINE_S) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    try:
        return bool(poll.poll(within_s * 1000))
    finally:
        os.close(descriptor)


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[KeeperProcess]:
    made = KeeperProcess(arguments(tmp_path / "told"))
    yield made
    if made.lives:
        made.close()


def test_what_a_command_left_behind_ends_when_the_command_is_ended(tmp_path: Path, keeper: KeeperProcess) -> None:
    process = CommandProcess(keeper, [0])
    left = grandchild(tmp_path / "told")
    process.kill()
    assert ends(left, 0.0)


def test_what_a_command_left_ends_with_the_command(tmp_path: Path, keeper: KeeperProcess) -> None:
    process = CommandProcess(keeper, [0])
    left = grandchild(tmp_path / "told")
    process.finish()
    process.judge(DEADLINE_S)
    assert keeper.exit_code(0.0) == 0
    process.kill()
    assert ends(left, 0.0)


def test_a_keeper_starts_one_command_after_the_other(tmp_path: Path, keeper: KeeperProcess) -> None:
    for _ in range(2):
        process = CommandProcess(keeper, [0])
        said: list[bytes] = []
        process.give(b"a line\n")
        process.finish()
        deadline = time.monotonic() + DEADLINE_S
        while not process.ended:
            assert time.monotonic() < deadline
            process.turn(1.0, said.append)
        assert b"".join(said) == b"a line\n"
        process.kill()


def test_a_command_that_does_not_exist_says_so() -> None:
    keeper = KeeperProcess(["/no/such/command"])
    with pytest.raises(CommandFailedError, match="No such file or directory: '/no/such/command'"):
        CommandProcess(keeper, [0])
    keeper.close()


def test_a_killed_keeper_takes_its_command_and_says_so(tmp_path: Path, keeper: KeeperProcess) -> None:
    process = CommandProcess(keeper, [0])
    left, command = grandchild(tmp_path / "told"), os.pidfd_open(process.pid)
    keeper._process.send_signal(signal.SIGKILL)
    assert ends(command)
    with pytest.raises(CommandFailedError, match="the process that starts the command died"):
        process.kill()
    assert not keeper.lives
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(left, signal.SIGKILL)
    os.close(left)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_command_left_behind_ends_with_the_task(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", TASK, *arguments(tmp_path / "told")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == b"started\n"
        left = grandchild(tmp_path / "told")
        task.send_signal(number)
        task.wait(DEADLINE_S)
        assert ends(left)
