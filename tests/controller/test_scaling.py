"""Scaling in a controller: readings go in, changes and notes of decisions come out."""

import asyncio
import json
from dataclasses import replace

import pytest

from headrace.controller.core.messages.messages import AnswerRequest
from headrace.controller.core.messages.requests import ScalingDecided, SteerRequested
from headrace.controller.core.run.states import RunState
from headrace.controller.scaling import Scaling
from headrace.controller.servicer import Servicer
from headrace.pipeline.graph import Pipeline
from headrace.protos import control_pb2 as pb
from headrace.store.ledger.core.cluster_changes import RunScaled
from tests.kits.controller.cluster_log import CLUSTER, Bench, Store
from tests.kits.controller.core import Stand, fragment, make_pipeline, of


class Shell:
    """A shell around a stand, whose answers to a change the test gives."""

    def __init__(self, stand: Stand, *, accepted: bool = True) -> None:
        self.core, self._accepted = stand.core, accepted
        self.requests: dict[int, asyncio.Future[AnswerRequest]] = {}
        self.posted: list[object] = []
        self.words: list[str] = []

    def expect_answer(self) -> tuple[int, asyncio.Future[AnswerRequest]]:
        number = len(self.requests)
        self.requests[number] = asyncio.get_running_loop().create_future()
        return number, self.requests[number]

    def post(self, event: object, cause: str = "", worker: str = "") -> None:
        self.posted.append(event)
        if isinstance(event, SteerRequested):
            answer = AnswerRequest(event.request, accepted=self._accepted, reason="" if self._accepted else "no room")
            self.requests[event.request].set_result(answer)

    def note_scaling(self, pipeline: str, words: str) -> None:
        self.words.append(words)


def status(second: int) -> pb.StatusReply:
    """A source that could be much quicker than the stage behind it."""
    reply = pb.StatusReply()
    reply.workers.add(worker="w1", host="w1", cores=4, state="registered")
    item = reply.pipelines.add(pipeline="run", sources=["read"], fragments=50, input_bytes=10**9)
    item.stages.add(stage="read", records=second * 50, busy_s=second / 10, stored_bytes=second * 100)
    item.stages.add(stage="keep", records=second * 50, busy_s=float(second))
    for stage in ("read", "keep"):
        item.tasks.add(task=f"run/{stage}.0", stages=[stage], worker="w1", state="ready")
    item.links.add(link="l", sender="run/read.0", receiver="run/keep.0", transport="ring")
    return reply


def stand_of(autoscale: str, pipeline: Pipeline | None = None) -> Stand:
    stand = Stand()
    stand.fuse = False
    stand.join("w1", cores=4)
    stand.listed(stand.ready(stand.apply(pipeline)), fragment(0))
    stand.run.request = replace(stand.run.request, autoscale=autoscale)
    return stand


def looked(stand: Stand, *, seconds: int = 20, accepted: bool = True) -> Shell:
    """What the shell was given in so many seconds."""
    shell, second = Shell(stand, accepted=accepted), 0
    scaling = Scaling(shell, lambda _: status(second))

    async def look() -> None:
        nonlocal second
        for second in range(2, seconds, 2):
            await scaling.look(float(second))

    asyncio.run(look())
    return shell


def test_a_change_is_asked_for_and_noted_with_its_reason() -> None:
    shell = looked(stand_of("on"))
    (asked,) = of(SteerRequested, shell.posted)
    assert asked.replicas["keep"] > 1
    noted = of(ScalingDecided, shell.posted)[0]
    assert (noted.pipeline, noted.decision["kind"]) == ("run", "scale")
    assert noted.decision["reason"] == "bound by tasks of keep"
    assert "keep 1 -> " in shell.words[0]


def test_a_refusal_is_noted() -> None:
    shell = looked(stand_of("on"), accepted=False)
    assert of(ScalingDecided, shell.posted)[-1].decision["outcome"] == "refused: no room"


def test_advice_is_noted_and_nothing_is_changed() -> None:
    shell = looked(stand_of("advise"))
    assert of(SteerRequested, shell.posted) == []
    assert [item.decision["kind"] for item in of(ScalingDecided, shell.posted)] == ["advise"]


@pytest.mark.parametrize("autoscale", ["", "off", "of another release"])
def test_a_run_that_does_not_ask_for_it_is_not_scaled(autoscale: str) -> None:
    assert looked(stand_of(autoscale)).posted == []


def test_a_run_that_is_paused_is_not_scaled() -> None:
    stand = stand_of("on")
    stand.tell(SteerRequested(9, "run", pause=True))
    assert stand.run.state is not RunState.RUNNING
    assert looked(stand).posted == []


def test_chains_that_equal_numbers_would_fuse_are_known() -> None:
    stand = stand_of("on")
    chains = [("read",), ("keep",), ("write",)]
    assert stand.run.reconfiguration.fusible(chains) == []
    stand = Stand()
    stand.join("w1", cores=4)
    stand.ready(stand.apply(make_pipeline(replicas=2)))
    assert stand.run.reconfiguration.fusible(chains) == [(0, 1), (1, 2)]


def test_a_decision_about_a_run_is_an_entry_of_the_clusters_log() -> None:
    store = Store()
    bench = Bench(store, "a")
    bench.begun()
    bench.tell(ScalingDecided("run", {"kind": "scale", "records_s": 1.5}), ScalingDecided("other", {}))
    written = [change for entry in store.logs[CLUSTER] for change in entry.changes if isinstance(change, RunScaled)]
    assert written == [RunScaled("run", {"kind": "scale", "records_s": 1.5})]
    assert store.fold().runs["run"].outcome == ""


def test_a_wish_to_scale_that_is_not_known_is_refused() -> None:
    servicer = Servicer(Shell(Stand()))  # type: ignore[arg-type]
    request = pb.ApplyRequest(pipeline_json=json.dumps(make_pipeline().to_dict()), autoscale="always")
    reply = asyncio.run(servicer.Apply(request, None))
    assert (reply.accepted, reply.reason) == (False, "autoscale 'always' is not known here")
