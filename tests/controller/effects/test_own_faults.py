"""A controller that allows chaos has a fault done to itself, once by its name; any other refuses it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from headrace.chaos import process_faults
from headrace.controller.effects.faults import OwnFaults
from headrace.protos import control_pb2 as pb

PATIENCE_S = 120.0


@pytest.fixture
def victim() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that does nothing until it is told to end."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def wait_for_state(victim: "subprocess.Popen[bytes]", wanted: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with open(f"/proc/{victim.pid}/stat", encoding="ascii") as file:
            if file.read().rpartition(")")[2].split()[0] in wanted:
                return
        assert time.monotonic() < deadline, wanted
        threading.Event().wait(0.01)


@pytest.mark.parametrize(("kind", "number"), [("kill", signal.SIGKILL), ("restart", signal.SIGTERM)])
def test_a_stroke_ends_the_process_that_it_is_meant_for(
    victim: "subprocess.Popen[bytes]", kind: str, number: int
) -> None:
    assert (
        subprocess.call([sys.executable, "-m", process_faults.__name__, "--pid", str(victim.pid), "--kind", kind]) == 0
    )
    assert victim.wait(PATIENCE_S) == -number


def test_what_is_stopped_goes_on(victim: "subprocess.Popen[bytes]") -> None:
    command = [
        sys.executable,
        "-m",
        process_faults.__name__,
        "--pid",
        str(victim.pid),
        "--kind",
        "freeze",
        "--for-s",
        "1",
    ]
    with subprocess.Popen(command) as stroke:
        wait_for_state(victim, "T")
        assert stroke.wait(PATIENCE_S) == 0
    wait_for_state(victim, "SR")


def test_a_fault_is_begun_once_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: begun.append(command))
    own = OwnFaults()
    own.allow()
    asked = pb.FaultAsked(fault="f.1", controller="c:1", kind="freeze", for_s=2.0)
    first, again = own.asked(asked), own.asked(asked)
    assert first == again
    assert list(first.victims) == ["headrace controller c:1"]
    (command,) = begun
    assert command[-6:] == ["--pid", str(os.getpid()), "--kind", "freeze", "--for-s", "2.0"]


def test_a_controller_that_allows_none_says_what_to_do() -> None:
    told = OwnFaults().asked(pb.FaultAsked(fault="f", controller="c:1", kind="kill"))
    assert not told.accepted
    assert told.reason == "controller c:1: it allows no chaos: start it with --allow-chaos"


def test_a_fault_that_is_none_of_a_controller_is_refused() -> None:
    own = OwnFaults()
    own.allow()
    told = own.asked(pb.FaultAsked(fault="f", controller="c:1", kind="partition"))
    assert not told.accepted
    assert told.reason.startswith("controller c:1: it knows no fault 'partition'")
