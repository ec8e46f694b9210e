"""A worker's sessions: what it says reaches whoever welcomed it, and nobody else takes it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from headrace.protos import control_pb2 as pb, control_pb2_grpc as rpc
from headrace.worker.membership.session import ControllerSession

DEADLINE_S = 300.0


class Scripted(rpc.ControlServicer):
    """A controller that refuses, or welcomes and hangs up, or welcomes for good: a word of the script a session."""

    def __init__(self, *script: str) -> None:
        self.script = list(script)
        self.heard: list[list[str]] = []
        self.changed = asyncio.Event()

    async def Attend(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.FromWorker], context: Any
    ) -> AsyncIterator[pb.ToWorker]:
        act = self.script.pop(0)
        said: list[str] = []
        self.heard.append(said)
        said.append(str((await anext(request_iterator)).WhichOneof("message")))
        self.changed.set()
        if act == "refuse":
            yield pb.ToWorker(refusal=pb.Refusal(reason="on standby", elsewhere=True))
            return
        yield pb.ToWorker(welcome=pb.Welcome(controller="scripted"))
        if act == "hang up":
            return
        async for message in request_iterator:
            if message.WhichOneof("message") == "task":
                said.append(message.task.task)
                self.changed.set()

    async def until(self, sessions: int, *words: str) -> None:
        """Return when the last of so many sessions has heard these words."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.heard) < sessions or self.heard[-1] != ["register", *words]:
                self.changed.clear()
                await self.changed.wait()


@contextlib.asynccontextmanager
async def serving(*script: str) -> AsyncIterator[tuple[Scripted, str]]:
    """A scripted controller, and its address."""
    controller = Scripted(*script)
    server = grpc.aio.server()
    rpc.add_ControlServicer_to_server(controller, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield controller, f"insecure-tcp:127.0.0.1:{port}"
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def attended(*script: str) -> AsyncIterator[tuple[Scripted, "asyncio.Queue[pb.FromWorker]"]]:
    """A worker with a session at a scripted controller, and its outbox."""
    async with serving(*script) as (controller, address):
        outbox: asyncio.Queue[pb.FromWorker] = asyncio.Queue()
        session = ControllerSession([address], pb.Register, lambda _message: None, outbox)
        running = asyncio.create_task(session.run())
        try:
            yield controller, outbox
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


def event(name: str) -> pb.FromWorker:
    return pb.FromWorker(task=pb.TaskEvent(task=name))


class Coming:
    """A session's stream, of which the test says when the one message comes."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[pb.ToWorker] = asyncio.Queue()

    async def read(self) -> pb.ToWorker:
        return await self.messages.get()


async def turns(count: int) -> None:
    """Let the loop go round so often."""
    for _ in range(count):
        turned = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turned.set_result, None)
        await turned


def test_the_end_is_not_missed_beside_a_message() -> None:
    async def cancelled_after(count: int) -> bool:
        call, outbox = Coming(), asyncio.Queue[pb.FromWorker]()
        session = ControllerSession(["nowhere:1"], pb.Register, lambda _message: None, outbox)
        listening = asyncio.create_task(session._listen(call, "nowhere:1"))
        await turns(5)
        call.messages.put_nowait(pb.ToWorker(heartbeat=pb.Heartbeat()))
        await turns(count)
        listening.cancel()
        await turns(10)
        ended = listening.done()
        listening.cancel()
        await asyncio.wait({listening}, timeout=DEADLINE_S)
        return ended

    assert [asyncio.run(cancelled_after(count)) for count in range(5)] == [True] * 5


def test_what_is_said_between_two_sessions_reaches_the_second() -> None:
    async def scenario() -> list[list[str]]:
        async with attended("refuse", "stay") as (controller, outbox):
            await controller.until(1)
            # The first session is over, or about to be; whoever still listened to the outbox for it would take these.
            for name in ("a", "b", "c"):
                outbox.put_nowait(event(name))
            await controller.until(2, "a", "b", "c")
            return controller.heard

    assert asyncio.run(scenario()) == [["register"], ["register", "a", "b", "c"]]


def test_what_is_said_after_a_session_broke_reaches_the_next() -> None:
    async def scenario() -> list[list[str]]:
        async with attended("hang up", "stay") as (controller, outbox):
            await controller.until(2)
            for name in ("a", "b"):
                outbox.put_nowait(event(name))
            await controller.until(2, "a", "b")
            return controller.heard

    assert asyncio.run(scenario()) == [["register"], ["register", "a", "b"]]


def test_what_waited_is_not_told_to_one_who_refuses() -> None:
    async def scenario() -> list[list[str]]:
        async with attended("refuse", "refuse", "stay") as (controller, outbox):
            outbox.put_nowait(event("a"))
            await controller.until(3, "a")
            return controller.heard

    assert asyncio.run(scenario()) == [["register"], ["register"], ["register", "a"]]


@pytest.mark.parametrize("error", [OSError("too many open files"), TimeoutError("no answer")])
def test_an_error_of_what_a_command_does_ends_no_session(error: OSError) -> None:
    def take(_message: pb.ToWorker) -> None:
        raise error

    async def scenario() -> list[list[str]]:
        async with serving("stay", "stay") as (controller, address):
            session = ControllerSession([address], pb.Register, take, asyncio.Queue())
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(OSError, match=str(error)):
                    await session.run()
            return controller.heard

    assert asyncio.run(scenario()) == [["register"]], "no other session hides it"
