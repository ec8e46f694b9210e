"""Answers that are held back: until a worker has come, or since another was given just now."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from headrace.controller import servicer as service
from headrace.controller.core.cluster.controller import Controller
from headrace.controller.logs import identity
from headrace.controller.servicer import Servicer
from headrace.controller.shell import Shell
from headrace.protos import control_pb2 as pb
from headrace.store.version import release

#: Longer than anything here takes: what waits as long has failed.
DEADLINE_S = 300.0


def servicer() -> Servicer:
    shell = Shell(Controller(identity()), os.urandom(32))
    shell.begin("127.0.0.1:1")
    return Servicer(shell)


async def registering(over: asyncio.Event) -> AsyncIterator[pb.FromWorker]:
    yield pb.FromWorker(register=pb.Register(worker="w", version=release(), protocol=1, protocol_oldest=1, cores=1))
    await over.wait()


async def come_while_asked() -> tuple[bool, pb.StatusReply]:
    """Ask for one worker, let one come, and return whether the answer waited for it, and the answer."""
    asked, over = servicer(), asyncio.Event()
    answer = asyncio.ensure_future(asked.Status(pb.StatusRequest(workers=1, within_s=DEADLINE_S), None))
    # It runs as far as it can before the time is looked at.
    done, _ = await asyncio.wait({answer}, timeout=0.01)
    waited = not done
    session = asked.Attend(registering(over), None)
    assert (await anext(session)).WhichOneof("message") == "welcome"
    following = asyncio.ensure_future(anext(session))
    try:
        return waited, await asyncio.wait_for(answer, DEADLINE_S)
    finally:
        over.set()
        following.cancel()


def test_a_question_that_asks_for_a_worker_is_answered_when_one_comes() -> None:
    waited, reply = asyncio.run(come_while_asked())
    assert waited
    assert [worker.worker for worker in reply.workers] == ["w"]


def test_a_question_for_a_worker_is_answered_eventually_without_one() -> None:
    asked = pb.StatusRequest(workers=1, within_s=0.01)
    assert not asyncio.run(asyncio.wait_for(_status(asked), DEADLINE_S)).workers


def test_a_question_that_asks_for_none_is_answered_at_once() -> None:
    assert not asyncio.run(asyncio.wait_for(_status(pb.StatusRequest()), DEADLINE_S)).workers


async def _status(request: pb.StatusRequest) -> pb.StatusReply:
    return await servicer().Status(request, None)


class Ending(Servicer):
    """Of its run only the test says whether it has ended."""

    ended = False

    def _over(self, pipeline: str) -> bool:
        return self.ended


async def end_behind_a_change() -> None:
    """Watch a run that changes and, while that is held back, ends; return when the watcher was told."""
    shell = Shell(Controller(identity()), os.urandom(32))
    shell.begin("127.0.0.1:1")
    watched = Ending(shell)
    told = watched.Watch(pb.WatchRequest(pipeline="p"), None)
    await anext(told)
    following = asyncio.ensure_future(anext(told))
    for ended in (False, True):
        # It runs until it waits again.
        done, _ = await asyncio.wait({following}, timeout=0.01)
        assert not done
        watched.ended = ended
        shell._wake_watchers()
    await asyncio.wait_for(following, DEADLINE_S)


def test_the_end_of_a_run_is_told_despite_held_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "BETWEEN_S", 10 * DEADLINE_S)
    asyncio.run(end_behind_a_change())
