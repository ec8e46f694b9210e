"""What a worker makes of the ends of its tasks' processes, with real ones."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from typing import Any

from headrace.daemon.log_files import LogFiles
from headrace.pipeline.graph import Pipeline
from headrace.protos import control_pb2 as pb
from headrace.stages.library import read
from headrace.worker.processes.processes import Processes, TaskProcess

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
