"""What `--wait` says of a change that was refused when its time came: of its own, and of no other."""

from __future__ import annotations

from typing import Any

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


def scaled(**counts: int) -> Any:
    return reconfigure.replan(AT, "p", wait=True, as_json=True, replicas=counts)


def test_what_was_refused_to_another_request_fails_none() -> None:
    assert reconfigure.pause(AT, "p", on=True, wait=True, as_json=True) == 0
    assert scaled(write=2) == 0
    assert scaled(read=90) == 0


def test_a_change_that_could_not_be_made_is_reported() -> None:
    with pytest.raises(CliError, match=f"could not be made any more: {REFUSED}"):
        scaled(read=9)
