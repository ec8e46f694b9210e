"""The forkserver and the worker's side of it, with real processes."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.pipeline.graph import Pipeline
from headrace.protos import control_pb2 as pb
from headrace.stages.library import read, tokenize
from headrace.stages.shipping.preload import MINIFIED, inherited_by
from headrace.stages.tokenizer.engine_choice import engine_names
from headrace.stages.tokenizer.minified import minify, share
from headrace.worker.processes.forkserver import ForkserverClient
from headrace.worker.task.batch.in_flight import InFlightPage
from headrace.worker.task.channel import Channel
from headrace.worker.task.forkserver_main import _preload

DEADLINE_S = 300.0
PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(autouse=True)
def no_reaper_afterwards() -> Iterator[None]:
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class Ward:
    """Asks for tasks, and notes what becomes of the orders."""

    def __init__(self) -> None:
        self.client = ForkserverClient(self._begun, self._failed)
        self.pids: dict[int, int] = {}
        self.failed: dict[int, str] = {}
        self._news = asyncio.Event()
        self._ends: list[tuple[Channel, int]] = []

    def close(self) -> None:
        self.client.close()
        for channel, errors in self._ends:
            channel.close()
            os.close(errors)

    def ask(self) -> tuple[int, Channel, int]:
        """The number of the order, the task's channel, and where its standard error is read."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        page = InFlightPage.create()
        errors, write_end = os.pipe()
        number = self.client.ask((theirs.fileno(), page, write_end))
        theirs.close()
        os.close(page)
        os.close(write_end)
        self._ends.append((Channel(ours), errors))
        return number, *self._ends[-1]

    async def until(self, told: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not told():
                self._news.clear()
                await self._news.wait()

    def _begun(self, number: int, pid: int) -> None:
        self.pids[number] = pid
        self._news.set()

    def _failed(self, number: int, why: str) -> None:
        self.failed[number] = why
        self._news.set()


def run_in_loop(scene: Callable[[Ward], Any]) -> None:
    async def act() -> None:
        ward = Ward()
        try:
            await scene(ward)
        finally:
            ward.close()

    asyncio.run(act())


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def private_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Private_Dirty:"))


async def readable(descriptor: int) -> None:
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, news.set)
    await news.wait()
    loop.remove_reader(descriptor)


async def gone(pid: int) -> int:
    """The exit code, as of a child."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    pidfd = os.pidfd_open(pid)
    loop.add_reader(pidfd, ended.set)
    async with asyncio.timeout(DEADLINE_S):
        await ended.wait()
    loop.remove_reader(pidfd)
    os.close(pidfd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])  # noqa: ASYNC222 - it has ended


def test_a_task_is_its_workers_child_and_tells_it_how_it_ended() -> None:
    async def scene(ward: Ward) -> None:
        orders = [ward.ask() for _ in range(3)]
        await ward.until(lambda: len(ward.pids) == 3)
        pids = [ward.pids[number] for number, _, _ in orders]
        os.kill(pids[0], signal.SIGKILL)
        assert await gone(pids[0]) == -signal.SIGKILL
        orders[1][1].close()
        assert await gone(pids[1]) == 75, "its channel was closed"
        orders[2][1].send(pb.TaskCommand(task="plain/read.0", attempt=1).SerializeToString())
        assert await gone(pids[2]) == 1, "an order that makes no task"
        assert b"Traceback" in os.read(orders[2][2], 1 << 16)

    run_in_loop(scene)


def test_a_forkserver_that_dies_is_replaced_and_takes_no_task_with_it() -> None:
    async def scene(ward: Ward) -> None:
        first, channel, _ = ward.ask()
        await ward.until(lambda: first in ward.pids)
        [forkserver] = [pid for pid in children() if title(pid) == "headrace forkserver" and pid != ward.pids[first]]
        os.kill(forkserver, signal.SIGSTOP)
        lost, _, _ = ward.ask()
        os.kill(forkserver, signal.SIGKILL)
        await ward.until(lambda: lost in ward.failed)
        assert "ended with -9 before it had started this task" in ward.failed[lost]
        second, other, _ = ward.ask()
        await ward.until(lambda: second in ward.pids)
        assert parent_of(ward.pids[first]) == parent_of(ward.pids[second]) == os.getpid()
        for number, end in ((first, channel), (second, other)):
            end.close()
            assert await gone(ward.pids[number]) == 75

    run_in_loop(scene)


async def private_mib(ward: Ward, pipeline: Pipeline) -> float:
    """Memory of its own that a task has when it has its tokenizer."""
    number, channel, _ = ward.ask()
    order = pb.StartTask(pipeline_json=json.dumps(pipeline.to_dict()), stages=["tokenize"])
    channel.send(pb.TaskCommand(task="plain/tokenize.0", attempt=1, start=order).SerializeToString())
    async with asyncio.timeout(DEADLINE_S):
        while not (said := channel.receive()):
            await readable(channel.fileno())
    ready = pb.TaskEvent.FromString(said[0]).ready
    assert ready.facts["tokenizer_engine"] == engine_names()[0]
    # The task tells us over its channel, the forkserver over another: either may come first.
    await ward.until(lambda: number in ward.pids)
    return private_bytes(ward.pids[number]) / (1 << 20)


def test_a_task_inherits_the_tokenizer_that_its_forkserver_was_told_to_load() -> None:
    pipeline = Pipeline.chain("plain", "file:///nowhere", read("*.jsonl"), tokens := tokenize("deepseek"))

    async def scene(ward: Ward) -> None:
        ward.client.open()
        loaded = await private_mib(ward, pipeline)
        ward.client.preload(inherited_by([tokens.to_dict()], "s3://bucket/out"))
        inherited = await private_mib(ward, pipeline)
        assert loaded > 40 > 20 > inherited, f"{loaded:.0f} MiB if it loads it, {inherited:.0f} if it inherits it"
        [forkserver] = [pid for pid in children() if title(pid) == "headrace forkserver"]
        assert len(os.listdir(f"/proc/{forkserver}/task")) == 1, "a thread does not live through a fork"

    run_in_loop(scene)


def test_a_forkserver_loads_a_tokenizers_terse_form() -> None:
    pipeline = Pipeline.chain("plain", "file:///nowhere", read("*.jsonl"), tokens := tokenize("deepseek"))
    facts = tokens.to_dict()["parameters"]
    written = minify(json.loads(Path(facts["tokenizer"]).read_bytes()))

    async def scene(ward: Ward) -> None:
        ward.client.open()
        descriptor, path = share(written)
        ward.client.preload([(MINIFIED, {"path": path, "sha256": facts["sha256"]})])
        ward.client.preload([("headrace.stages.tokenizer.tokenize", {**facts, "tokenizer": "/nowhere.json"})])
        inherited = await private_mib(ward, pipeline)
        os.close(descriptor)
        assert inherited < 20, f"{inherited:.0f} MiB: the task has loaded it"

    run_in_loop(scene)


def test_a_forkserver_that_cannot_load_what_it_is_told_bears_as_ever() -> None:
    async def scene(ward: Ward) -> None:
        ward.client.open()
        ward.client.preload(
            [("headrace.stages.tokenizer.tokenize", {"tokenizer": "/nowhere.json", "sha256": "0"}), ("os", {})]
        )
        number, channel, _ = ward.ask()
        await ward.until(lambda: number in ward.pids)
        channel.close()
        assert await gone(ward.pids[number]) == 75

    run_in_loop(scene)


def test_orphans_that_are_no_tasks_are_let_go() -> None:
    async def scene(ward: Ward) -> None:
        number, channel, _ = ward.ask()
        await ward.until(lambda: number in ward.pids)
        read, write = os.pipe()
        orphan = orphaned(read)
        assert parent_of(orphan) == os.getpid()
        pidfd = os.pidfd_open(orphan)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, ended.set)
        os.close(read)
        os.close(write)
        async with asyncio.timeout(DEADLINE_S):
            await ended.wait()
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        ward.client.reap_strangers({ward.pids[number]})
        assert orphan not in children()
        assert ward.pids[number] in children()
        channel.close()
        assert await gone(ward.pids[number]) == 75

    run_in_loop(scene)


def orphaned(until: int) -> int:
    """A process whose parent is dead, and that lives until there is something to read."""
    script = "import os; pid = os.fork(); pid and (print(pid), os._exit(0)); os.close(1); os.read(0, 1)"
    done = subprocess.run([sys.executable, "-uc", script], stdin=until, stdout=subprocess.PIPE, check=True)
    return int(done.stdout)


def children() -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and parent_of(int(name)) == os.getpid():
                found.append(int(name))
        except OSError:
            continue
    return found


def title(pid: int) -> str:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode().strip()


def test_a_forkserver_gives_back_what_loading_has_left_free(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr("headrace.stages.shipping.preload.preload", lambda module, _: done.append(module))
    monkeypatch.setattr("headrace.stages.runtime.malloc.give_back", lambda: done.append("given back"))
    monkeypatch.setattr("gc.freeze", lambda: done.append("frozen"))
    _preload("headrace.stages.tokenizer.tokenize", {})
    assert done == ["headrace.stages.tokenizer.tokenize", "given back", "frozen"]
