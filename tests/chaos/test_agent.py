"""The agent of a worker does what is asked of it once, says whom it hit, and lets go of what it holds."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from headrace.chaos.agent import Agent, Ends
from headrace.chaos.gates.impairments import Affected, Way
from headrace.chaos.gates.network import NetworkGates
from headrace.protos import control_pb2 as pb
from headrace.transport.core.errors import LinkRefusedError
from headrace.worker.links.gate import HOST, gate_port
from headrace.worker.membership.member import own_addresses

PATIENCE_S = 120.0
LOOK_S = 0.01
ONE, OTHER = "one", "10.1.2.3"


@pytest.fixture
def victim() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that does nothing until it is told to end."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def fault(victim: "subprocess.Popen[bytes]", kind: str, **more: object) -> pb.FaultAsked:
    asked = pb.FaultAsked(fault=kind, worker=ONE, kind=kind, target="task", **more)  # type: ignore[arg-type]
    asked.victims.add(pid=victim.pid, title="headrace task p/s.0")
    return asked


def state(victim: "subprocess.Popen[bytes]") -> str:
    with open(f"/proc/{victim.pid}/stat", encoding="ascii") as file:
        return file.read().rpartition(")")[2].split()[0]


async def until(look: Callable[[], bool], what: str) -> None:
    never = asyncio.Event()
    deadline = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < deadline, what
        with suppress(TimeoutError):
            await asyncio.wait_for(never.wait(), LOOK_S)


@asynccontextmanager
async def agent() -> AsyncIterator[tuple[Agent, list[pb.FaultTold], NetworkGates]]:
    told: list[pb.FaultTold] = []
    with NetworkGates(1, whose=Ends().whose) as gates:
        yield Agent(gates, lambda answer: told.append(pb.FaultTold.FromString(answer.SerializeToString()))), told, gates


def run(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), PATIENCE_S))  # type: ignore[arg-type]


def test_a_fault_is_done_once_by_name_and_its_victim_named(victim: "subprocess.Popen[bytes]") -> None:
    async def scene() -> None:
        async with agent() as (made, told, _):
            made.asked(fault(victim, "kill"))
            assert await asyncio.to_thread(victim.wait, PATIENCE_S) == -signal.SIGKILL
            made.asked(fault(victim, "kill"))
            assert [(item.accepted, list(item.victims)) for item in told] == [(True, ["headrace task p/s.0"])] * 2

    run(scene)


def test_what_is_frozen_goes_on_when_it_is_told_to_be_over(victim: "subprocess.Popen[bytes]") -> None:
    async def scene() -> None:
        async with agent() as (made, told, _):
            made.asked(fault(victim, "freeze", for_s=3600.0))
            await until(lambda: state(victim) == "T", "it stands still")
            made.asked(pb.FaultAsked(fault="freeze", worker=ONE, end=True))
            await until(lambda: state(victim) != "T", "it goes on")
            await made.rest()
            await until(lambda: len(told) == 2, "it is told of")

    run(scene)


def test_what_nobody_is_there_for_or_nobody_knows_is_refused(victim: "subprocess.Popen[bytes]") -> None:
    async def scene() -> None:
        async with agent() as (made, told, _):
            made.asked(pb.FaultAsked(fault="a", worker=ONE, kind="kill", target="task"))
            made.asked(fault(victim, "tickle"))
            made.asked(pb.FaultAsked(fault="b", worker=ONE, end=True))
            assert [item.accepted for item in told] == [False] * 3
            assert [item.reason for item in told] == [
                "worker one: it has no such process",
                "worker one: there is no fault 'tickle'",
                "worker one: it knows nothing of this fault",
            ]

    run(scene)


def test_a_storm_strikes_what_passes_between_its_ends_and_reports_it() -> None:
    async def scene() -> None:
        async with agent() as (made, told, gates):
            asked = pb.FaultAsked(fault="x", worker=ONE, kind="loss", target="ways", share=1.0, for_s=3600.0)
            asked.ends.append(OTHER)
            made.asked(asked)

            def lost() -> bool:
                return not gates.impairments.passed(b"x", Way.LINK, frozenset({ONE, OTHER}))

            await until(lost, "what passes to the other is lost")
            assert gates.impairments.passed(b"x", Way.LINK, frozenset({ONE, "10.1.2.4"}))
            made.asked(pb.FaultAsked(fault="x", worker=ONE, end=True))
            await until(lambda: len(told) == 2, "it is over")
            assert told[1].struck[Affected.BETWEEN.value] >= 1
            assert gates.impairments.passed(b"x", Way.LINK, frozenset({ONE, OTHER}))

    run(scene)


@pytest.fixture
def worker() -> Iterator["subprocess.Popen[bytes]"]:
    """A process with a worker's title, and a UDP port whose number is the first line that it prints."""
    text = (
        "import setproctitle, socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0)); "
        f"setproctitle.setproctitle('headrace worker {ONE}'); print(s.getsockname()[1], flush=True); input()"
    )
    command = [sys.executable, "-c", text]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_remote_end_is_known_by_address_and_a_local_by_worker(
    worker: "subprocess.Popen[bytes]",
) -> None:
    assert worker.stdout is not None
    port = int(worker.stdout.readline())
    ends = Ends()
    assert ends.whose("udp", "10.1.2.3", 7) == "10.1.2.3"
    assert ends.whose("udp", "::ffff:10.1.2.3", 7) == "10.1.2.3"
    assert ends.whose("udp", own_addresses()[0], port) == ONE
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
        mine.bind((HOST, 0))
        assert ends.whose("udp", HOST, mine.getsockname()[1]) == ""


def test_no_gate_lets_other_hosts_in_to_what_is_no_task(
    worker: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worker.stdout is not None
    port = int(worker.stdout.readline())
    monkeypatch.setattr("headrace.worker.links.gate.ANSWER_S", PATIENCE_S)
    with (
        NetworkGates(1, whose=Ends().whose) as gates,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as strangers,
    ):
        strangers.bind((HOST, 0))
        assert gate_port(str(port), gates.registry) != port
        monkeypatch.setattr("headrace.worker.links.gate.ANSWER_S", 0.5)
        with pytest.raises(LinkRefusedError, match="did not answer"):
            gate_port(str(strangers.getsockname()[1]), gates.registry)
