"""What `--wait` says of a change that was refused when its time came, of its own alone; and of what never comes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.cli.commands.cluster import reconfigure
from headrace.client import CliError, ControllerAt
from headrace.protos import control_pb2 as pb
from tests.kits.client import ClientStandIn

AT = ControllerAt("127.0.0.1:1")
REFUSED = "read to 9 tasks: no room"


class Refusing(ClientStandIn):
    """A client of a controller that has refused a change."""

    def steer(self, request: pb.SteerRequest) -> tuple[str, ...]:
        return tuple(f"{stage} to {count} tasks" for stage, count in request.replicas.items())

    def status(self, name: str) -> pb.StatusReply:
        state = "paused"
        return pb.StatusReply(pipelines=[pb.PipelineStatus(pipeline=name, state=state, refused_change=REFUSED)])


@pytest.fixture(autouse=True)
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconfigure, "Client", Refusing)


def scaled(**counts: int) -> int:
    return reconfigure.replan(AT, "p", wait=True, as_json=True, replicas=counts)


def test_what_was_refused_to_another_request_fails_none() -> None:
    assert reconfigure.pause(AT, "p", on=True, wait=True, as_json=True) == 0
    assert scaled(write=2) == 0
    assert scaled(read=90) == 0


def test_a_change_that_could_not_be_made_is_reported() -> None:
    with pytest.raises(CliError, match=f"could not be made any more: {REFUSED}"):
        scaled(read=9)


class Ended(ClientStandIn):
    """A client of a controller whose pipeline has this state by now; none for "", and no worker is there."""

    state = ""

    def steer(self, request: pb.SteerRequest) -> tuple[str, ...]:
        return ()

    def stop(self, pipeline: str, *, cancel: bool) -> None:
        pass

    def status(self, name: str = "") -> pb.StatusReply:
        one = pb.PipelineStatus(
            pipeline=name, state=self.state, failure="no room" if self.state == "failed" else self.state
        )
        return pb.StatusReply(pipelines=[one] if self.state else [])


def paused() -> int:
    return reconfigure.pause(AT, "p", on=True, wait=True, as_json=True)


def resumed() -> int:
    return reconfigure.pause(AT, "p", on=False, wait=True, as_json=True)


def stopped() -> int:
    return reconfigure.stop(AT, "p", cancel=False, wait=True, as_json=True)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    monkeypatch.setattr(reconfigure, "Client", Ended)
    # What waits on for nothing does not wait long.
    monkeypatch.setattr(reconfigure, "WAIT_S", 0.0)
    return lambda state: monkeypatch.setattr(Ended, "state", state)


@pytest.mark.parametrize(
    ("ask", "state", "words"),
    [
        *((ask, "cancelled", "p is cancelled by now$") for ask in (paused, resumed, scaled)),
        *((ask, "failed", "p is failed by now: no room") for ask in (paused, resumed, scaled, stopped)),
        *((ask, "", "p was cleared") for ask in (paused, resumed, scaled, stopped)),
    ],
)
def test_a_wait_for_what_never_comes_fails_with_the_reason(
    ask: Callable[[], int], state: str, words: str, now: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    now(state)
    with pytest.raises(CliError, match=words):
        ask()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("ask", "state"),
    [
        *((ask, "completed") for ask in (paused, resumed, scaled, stopped)),
        *((stopped, state) for state in ("stopped", "cancelled")),
    ],
)
def test_a_wait_succeeds_when_its_pipeline_ends_in_order(
    ask: Callable[[], int], state: str, now: Callable[[str], None]
) -> None:
    now(state)
    assert ask() == 0


def test_a_wait_for_a_drained_worker_fails_when_it_left(now: Callable[[str], None]) -> None:
    now("running")
    with pytest.raises(CliError, match="worker one left before it was drained"):
        reconfigure.drain(AT, "one", back=False, wait=True, as_json=True)
