"""What a controller cannot do yet is asked for again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from headrace.client import Client, client as timing
from headrace.protos import control_pb2 as pb, control_pb2_grpc as rpc

REFUSED = "the graph of the pipeline is being changed: try again"


class Scripted(rpc.ControlServicer):
    """A controller that gives these answers in turn, the last one for ever."""

    def __init__(self) -> None:
        self.replies = [pb.SteerReply(accepted=True)]
        self.asked = 0

    def Steer(self, request: pb.SteerRequest, context: Any) -> pb.SteerReply:  # noqa: N802
        """The next answer."""
        self.asked += 1
        return self.replies[min(self.asked, len(self.replies)) - 1]

    def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:  # noqa: N802
        """It leads."""
        return pb.StatusReply()


@pytest.fixture
def controller() -> Iterator[tuple[Scripted, Client]]:
    servicer, server = Scripted(), grpc.server(ThreadPoolExecutor(2))
    rpc.add_ControlServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with Client(f"insecure-tcp:127.0.0.1:{port}") as client:
        yield servicer, client
    server.stop(None).wait()


def test_what_passes_is_asked_again_until_it_is_granted(controller: tuple[Scripted, Client]) -> None:
    servicer, client = controller
    later = pb.SteerReply(reason=REFUSED, again=True)
    servicer.replies = [later, later, pb.SteerReply(accepted=True, changes=["one"])]
    assert client.steer(pb.SteerRequest(pipeline="run", pause=True)) == ("one",)
    assert servicer.asked == 3


def test_what_does_not_pass_is_asked_once(controller: tuple[Scripted, Client]) -> None:
    servicer, client = controller
    servicer.replies = [pb.SteerReply(reason="no worker w")]
    with pytest.raises(timing.CliError, match="no worker w"):
        client.steer(pb.SteerRequest(worker="w"))
    assert servicer.asked == 1


def test_who_asks_in_vain_is_told_why_in_time(
    controller: tuple[Scripted, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    servicer, client = controller
    monkeypatch.setattr(timing, "FAILOVER_S", 0.0)
    servicer.replies = [pb.SteerReply(reason=REFUSED, again=True)]
    with pytest.raises(timing.CliError, match="is being changed"):
        client.steer(pb.SteerRequest(pipeline="run", pause=True))
    assert servicer.asked == 1, "the time is over with the first answer"
