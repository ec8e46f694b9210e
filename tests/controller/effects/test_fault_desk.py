"""A fault that several ask of one worker: each has the worker's answer, or waits for itself in vain."""

import asyncio

import pytest

from headrace.controller.effects import faults
from headrace.controller.effects.faults import ControllerFaults
from headrace.protos import control_pb2 as pb


def test_who_waits_no_more_for_a_fault_ends_nobody_elses_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def scene() -> None:
        desk = ControllerFaults(lambda worker, message: asked.append(message.fault.fault))
        fault = pb.FaultAsked(worker="w", fault="freeze-1")
        patient = asyncio.ensure_future(desk.request(fault, ["w"]))
        while not asked:
            await asyncio.wait([patient], timeout=0.001)
        monkeypatch.setattr(faults, "ANSWER_S", 0.01)
        assert "did not answer" in (await desk.request(fault, ["w"])).reason
        desk.told("w", pb.FaultTold(fault="freeze-1", accepted=True))
        assert (await asyncio.wait_for(patient, 60)).accepted
        assert not desk._waiting

    asyncio.run(scene())


def test_another_workers_answer_answers_nobody() -> None:
    def both_answer(_worker: str, _message: pb.ToWorker) -> None:
        desk.told("two", pb.FaultTold(fault="f", accepted=True, reason="forged"))
        desk.told("one", pb.FaultTold(fault="f", accepted=True, reason="true"))

    desk = ControllerFaults(both_answer)
    asked = pb.FaultAsked(fault="f", worker="one")
    assert asyncio.run(desk.request(asked, {"one", "two"})).reason == "true"
