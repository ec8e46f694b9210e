"""A worker's session, where something comes between its welcome and its registration."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from typing import cast

import grpc
import pytest

from headrace.controller import session as session_module
from headrace.controller.convert import task_event
from headrace.controller.core.cluster.controller import Controller
from headrace.controller.core.cluster.requests import Requests
from headrace.controller.core.messages import messages as m
from headrace.controller.logs import identity
from headrace.controller.servicer import Servicer
from headrace.controller.shell import Shell
from headrace.protos import control_pb2 as pb, control_pb2_grpc as rpc
from headrace.protos.protocol import PROTOCOL
from tests.kits.controller.core import Stand

Session = AsyncGenerator[pb.ToWorker, None]


def register(pid: int, cores: int = 1, *, leaving: bool = False) -> pb.Register:
    made = pb.Register(worker="w", version=version("headrace"), host="h", pid=pid, cores=cores, leaving=leaving)
    made.protocol = made.protocol_oldest = PROTOCOL
    return made


class House:
    """A controller without a log, and the sessions of one worker."""

    def __init__(self) -> None:
        self.shell = Shell(Controller(identity()), bytes(32))
        self.shell.begin("127.0.0.1:1")
        self._servicer = Servicer(self.shell)

    async def greet(self, pid: int, cores: int = 1, *, leaving: bool = False) -> tuple[Session, pb.ToWorker]:
        """A session that has got its first answer, and has yet to ask for the next."""

        async def says() -> AsyncIterator[pb.FromWorker]:
            yield pb.FromWorker(register=register(pid, cores, leaving=leaving))
            await asyncio.get_running_loop().create_future()

        session = cast("Session", self._servicer.Attend(says(), None))
        return session, await anext(session)


def play(scene: Callable[[House], Awaitable[None]]) -> None:
    async def act() -> None:
        house = House()
        async with asyncio.timeout(60):
            await scene(house)
        await house.shell.close()

    asyncio.run(act())


async def until(what: Callable[[], bool]) -> None:
    """Within the deadline of the scene."""
    while not what():
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.001)


async def told(session: Session) -> list[str | None]:
    """What is said in the rest of a session that is over."""
    return [message.WhichOneof("message") async for message in session]


def test_a_worker_that_dies_at_its_welcome_frees_its_name() -> None:
    async def scene(house: House) -> None:
        first, _ = await house.greet(pid=1)
        registered = asyncio.ensure_future(anext(first))
        await until(lambda: "w" in house.shell.core.workers)
        again, _ = await house.greet(pid=1)
        await again.aclose()
        assert not house.shell.sessions
        assert "w" not in house.shell.core.workers
        registered.cancel()
        third, answer = await house.greet(pid=3)
        assert answer.WhichOneof("message") == "welcome", answer
        await third.aclose()

    play(scene)


def test_a_session_followed_before_registering_registers_no_more() -> None:
    async def scene(house: House) -> None:
        older, _ = await house.greet(pid=1, cores=1)
        newer, _ = await house.greet(pid=1, cores=2)
        going = asyncio.ensure_future(anext(newer))
        await until(lambda: "w" in house.shell.core.workers)
        assert await told(older) == []
        assert house.shell.core.workers["w"].cores == 2
        going.cancel()

    play(scene)


def test_a_controller_that_steps_down_between_welcome_and_registration_takes_nobody_in() -> None:
    async def scene(house: House) -> None:
        session, _ = await house.greet(pid=1)
        house.shell._send_away("it no longer leads")
        assert await told(session) == ["refusal"]
        assert "w" not in house.shell.core.workers

    play(scene)


def test_a_worker_whose_leaving_is_refused_at_its_hello_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Requests, event: m.DrainRequested, now: float) -> list[m.Command]:
        return [m.AnswerRequest(event.request, accepted=False, reason="nobody else has a GPU")]

    async def scene(house: House) -> None:
        session, _ = await house.greet(pid=1, leaving=True)
        message = await anext(session)
        assert message.stay.reason == "nobody else has a GPU", message
        assert not house.shell.sessions["w"].leaves, "it may ask again"
        await session.aclose()

    monkeypatch.setattr(Requests, "_drain", refused)
    play(scene)


async def greeting(house: House, message: pb.FromWorker) -> pb.ToWorker:
    async def says() -> AsyncIterator[pb.FromWorker]:
        yield message
        await asyncio.get_running_loop().create_future()

    session = cast("Session", house._servicer.Attend(says(), None))
    answer = await anext(session)
    await session.aclose()
    return answer


def test_registering_late_or_out_of_bounds_is_refused_by_name() -> None:
    async def scene(house: House) -> None:
        bad = pb.Register(worker="w", version=version("headrace"), cores=-1)
        for message in (pb.FromWorker(heartbeat=pb.Heartbeat()), pb.FromWorker(register=bad)):
            answer = await greeting(house, message)
            assert answer.WhichOneof("message") == "refusal"
            assert "no worker registers so" in answer.refusal.reason
            assert not house.shell.sessions

    play(scene)


def test_what_a_session_says_of_anothers_task_changes_nothing_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(house: House) -> None:
        event = pb.TaskEvent(task="run/read.0", attempt=1, failed=pb.TaskFailed(error="x", final=True))
        house.shell.task_event("w", event, task_event(event))
        progress = pb.TaskEvent(task="run/read.0", attempt=1, progress=pb.Progress(held_bytes=1))
        house.shell.task_event("w", progress, task_event(progress))
        assert not house.shell.progress

    play(scene)
    assert [record.getMessage()[:42] for record in caplog.records if "not believed" in record.getMessage()] == [
        "not believed: worker w speaks of attempt 1"
    ] * 2


def test_a_report_that_cannot_be_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        stand = Stand()
        stand.join("w")
        stand.apply()
        (task, attempt), shell = stand.task(), Shell(stand.core, bytes(32))
        event = pb.TaskEvent(task=task, attempt=attempt, progress=pb.Progress(held_bytes=-1))
        shell.task_event("w", event, task_event(event))
        assert shell.progress["run"].of(task, attempt) is None
        assert caplog.messages == [f"not believed: attempt {attempt} of task {task} reports held_bytes of -1"]

    asyncio.run(scene())


def test_who_takes_nothing_is_let_go_of_and_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a real connection: the stream of one that does not read lets no word through, not even the last."""
    monkeypatch.setattr(session_module, "OUTBOX_BYTES_MAX", 8 << 20)

    async def scene(house: House) -> None:
        server = grpc.aio.server()
        rpc.add_ControlServicer_to_server(Servicer(house.shell), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for turn in range(2):
                call = rpc.ControlStub(channel).Attend()  # type: ignore[no-untyped-call]
                await call.write(pb.FromWorker(register=register(pid=1)))
                await until(lambda: "w" in house.shell.core.workers)
                for _ in range(40):
                    house.shell.tell_worker("w", pb.ToWorker(refusal=pb.Refusal(reason="x" * (1 << 20))))
                await until(lambda: not house.shell.sessions)
                assert "w" not in house.shell.core.workers, turn
                call.cancel()
        await server.stop(None)

    play(scene)


def test_what_waits_for_a_worker_is_counted_while_it_waits() -> None:
    async def scene(house: House) -> None:
        ended: list[bool] = []
        outbox = session_module.SessionOutbox("w", lambda: ended.append(True))
        message = pb.ToWorker(refusal=pb.Refusal(reason="x" * (1 << 20)))
        waiting = session_module.OUTBOX_BYTES_MAX // message.ByteSize()
        for _ in range(2):
            for _ in range(waiting):
                outbox.put_nowait(message)
            assert [await outbox.get() for _ in range(waiting)] == [message] * waiting
        for _ in range(waiting + 2):
            outbox.put_nowait(message)
        assert (ended, outbox.qsize(), await outbox.get()) == ([True], 1, None)
        outbox.put_nowait(message)
        assert outbox.empty()

    play(scene)
