"""What a worker makes of the ends of its tasks' processes, with real ones."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from headrace.daemon.log_files import LogFiles
from headrace.pipeline.graph import Pipeline
from headrace.protos import control_pb2 as pb
from headrace.stages.library import read
from headrace.worker.core import TaskLimits
from headrace.worker.processes import forkserver
from headrace.worker.processes.forkserver_start import Forkserver
from headrace.worker.processes.processes import Processes, TaskProcess
from headrace.worker.task.batch.in_flight import InFlightPage
from headrace.worker.task.channel import MESSAGE_BYTES_MAX, Channel

DEADLINE_S = 300.0
TASK = "plain/read.0"


class Ward:
    """Starts attempts of one task, and notes what they say and how they end."""

    def __init__(self) -> None:
        self.processes = Processes(self._said, self._exited, lambda *_: None, LogFiles("worker test"))
        self.ready: list[int] = []
        self.exited: dict[int, int] = {}
        self.stories: dict[int, str] = {}
        self._started: set[int] = set()

    def start(self, attempt: int) -> None:
        self._started.add(attempt)
        pipeline = Pipeline.chain("plain", "file:///nowhere", read("*.jsonl"))
        order = pb.StartTask(pipeline_json=json.dumps(pipeline.to_dict()), stages=["read"])
        self.processes.spawn(TASK, attempt, pb.TaskCommand(task=TASK, attempt=attempt, start=order))

    async def end(self) -> None:
        for attempt in self._started - set(self.exited):
            self.processes.kill(TASK, attempt)
        await self.until(lambda: self._started == set(self.exited))
        self.processes.kill_all()

    async def until(self, told: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not told():
                await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.005)

    async def pid(self) -> int:
        """The process of the attempt: that it is ready may be heard before its process id is."""
        await self.until(lambda: bool(self.processes.found(TASK)))
        [(pid, _)] = self.processes.found(TASK)
        return pid

    def _said(self, item: TaskProcess, event: pb.TaskEvent) -> None:
        if event.WhichOneof("event") == "ready":
            self.ready.append(item.attempt)

    def _exited(self, item: TaskProcess, code: int) -> None:
        self.stories[item.attempt] = self.processes.story(item)
        self.exited[item.attempt] = code


def run_in_loop(scene: Callable[[Ward], Any]) -> None:
    async def act() -> None:
        ward = Ward()
        ward.processes.open()
        try:
            await scene(ward)
        finally:
            await ward.end()

    asyncio.run(act())


def test_a_dead_attempt_is_its_ends_to_tell_and_no_orphan() -> None:
    async def scene(ward: Ward) -> None:
        ward.start(1)
        await ward.until(lambda: ward.ready == [1])
        older = await ward.pid()
        ward.start(2)
        await ward.until(lambda: ward.ready == [1, 2])
        assert await ward.pid() != older
        os.kill(older, signal.SIGKILL)
        os.waitid(os.P_PID, older, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it was killed
        # Before the loop hears of that death, the worker looks at its tasks, and for orphans.
        ward.processes.judge(0.0)
        await ward.until(lambda: 1 in ward.exited)
        assert ward.exited == {1: -signal.SIGKILL}

    run_in_loop(scene)


def test_a_dead_tasks_story_ends_though_stderr_stays_open() -> None:
    async def scene(ward: Ward) -> None:
        ward.start(1)
        await ward.until(lambda: ward.ready == [1])
        pid = await ward.pid()
        # What a process that the task has started would inherit.
        errors = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY)
        os.write(errors, b"it is about to break\n")
        ward.processes.kill(TASK, 1)
        await ward.until(lambda: 1 in ward.exited)
        os.close(errors)
        assert ward.stories[1] == "it is about to break"

    run_in_loop(scene)


def test_the_ends_of_tasks_that_were_all_killed_are_no_surprise() -> None:
    async def scene() -> list[dict[str, Any]]:
        ward, surprises = Ward(), list[dict[str, Any]]()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: surprises.append(context))
        ward.processes.open()
        ward.start(1)
        await ward.pid()
        ward.processes.kill_all()
        # The loop is told of the end in its next turn, if it still listens for it.
        for _ in range(3):
            turned = asyncio.Event()
            loop.call_soon(turned.set)
            await turned.wait()
        return surprises

    assert asyncio.run(scene()) == []


def test_a_task_that_cannot_be_watched_is_killed_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def scene(ward: Ward) -> None:
        monkeypatch.setattr(os, "pidfd_open", full)
        ward.start(1)
        await ward.until(lambda: 1 in ward.exited)
        monkeypatch.undo()
        assert ward.exited == {1: -signal.SIGKILL}
        assert "could not watch it: [Errno 24]" in ward.stories[1]

    run_in_loop(scene)


def test_a_forkserver_not_replaced_at_once_is_with_the_next_task(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = [0]

    def full() -> Forkserver:
        tries[0] += 1
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    async def scene(ward: Ward) -> None:
        surprises = list[dict[str, Any]]()
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: surprises.append(context))
        ward.start(1)
        await ward.pid()
        with monkeypatch.context() as patched:
            patched.setattr(forkserver, "start_forkserver", full)
            client = ward.processes._forkserver
            assert client._forkserver is not None
            client._forkserver.process.send_signal(signal.SIGKILL)
            await ward.until(lambda: tries[0] > 0)
        ward.processes.kill(TASK, 1)
        await ward.until(lambda: 1 in ward.exited)
        ward.start(2)
        await ward.until(lambda: 2 in ward.ready)
        assert surprises == []

    run_in_loop(scene)


def began(words: bytes, code: int | None) -> tuple[list[int], list[dict[str, Any]]]:
    """The exit codes that are told of a process which says this, and lives on or exits at once; and the surprises."""

    async def act() -> tuple[list[int], list[dict[str, Any]]]:
        exits, surprises = list[int](), list[dict[str, Any]]()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: surprises.append(context))
        processes = Processes(lambda *_: None, lambda _item, code: exits.append(code), lambda *_: None, LogFiles("w"))
        ours, theirs = socket.socketpair()
        ending = "sys.stdin.read()" if code is None else f"sys.exit({code})"
        speaks = f"import socket, sys; socket.socket(fileno={theirs.fileno()}).send({words!r}); {ending}"
        child = subprocess.Popen(  # noqa: ASYNC220 - this interpreter; it takes no part in the loop
            [sys.executable, "-c", speaks], pass_fds=[theirs.fileno()], stdin=subprocess.PIPE
        )
        theirs.close()
        if code is not None:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it exits at once
        errors, write_end = os.pipe()
        os.close(write_end)
        page = InFlightPage.create()
        item = TaskProcess(
            TASK, 1, Channel(ours), InFlightPage(page), TaskLimits(1.0, 1), errors, LogFiles("w"), {"task": TASK}
        )
        os.close(page)
        processes._processes[TASK] = processes._awaited[1] = item
        if code is None:
            loop.add_reader(item.channel.fileno(), processes._readable, item)
        # Else its last word is not read before its death is heard of.
        processes._begun(1, child.pid)
        async with asyncio.timeout(DEADLINE_S):
            while not exits and not surprises:
                await asyncio.wait([loop.create_future()], timeout=0.005)
        assert child.stdin is not None
        child.stdin.close()
        child.returncode = 0  # it was waited for
        return exits, surprises

    return asyncio.run(act())


NONSENSE = struct.pack("<I", 4) + b"\xff\xff\xff\xff"
TOO_LONG = struct.pack("<I", MESSAGE_BYTES_MAX + 1)


@pytest.mark.parametrize("words", [NONSENSE, TOO_LONG], ids=["nonsense", "too long"])
def test_a_dead_tasks_last_word_that_is_nonsense_kills_nobody(words: bytes) -> None:
    assert began(words, 3) == ([3], [])


@pytest.mark.parametrize("words", [NONSENSE, TOO_LONG], ids=["nonsense", "too long"])
def test_a_task_that_lives_and_breaks_its_channel_is_killed(words: bytes) -> None:
    assert began(words, None) == ([-signal.SIGKILL], [])
