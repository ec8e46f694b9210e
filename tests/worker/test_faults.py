"""A worker hands faults to its agent, and refuses them where it has none; a controller passes the answers back."""

import asyncio

from headrace.controller.effects.faults import ControllerFaults
from headrace.protos import control_pb2 as pb
from headrace.worker.faults import WorkerFaults

PATIENCE_S = 120.0
ASKED = pb.FaultAsked(fault="f", worker="one", kind="kill", target="worker")


def test_a_worker_without_permission_refuses_with_a_remedy() -> None:
    said: list[pb.FaultTold] = []
    desk = WorkerFaults("one", lambda _task: [], said.append)
    assert not desk.allows
    desk.asked(ASKED)
    (told,) = said
    assert (told.fault, told.accepted, told.again) == ("f", False, False)
    assert told.reason == "worker one allows no chaos: start it with --allow-chaos"
    assert desk.way_to("10.0.0.1:7420") == "10.0.0.1:7420", "no gate stands before its controller"


def test_a_fault_goes_to_its_worker_and_answers_all_askers() -> None:
    asked: list[tuple[str, pb.ToWorker]] = []
    reached = asyncio.Event()

    def ask(worker: str, message: pb.ToWorker) -> None:
        asked.append((worker, message))
        if len(asked) == 2:
            reached.set()

    desk = ControllerFaults(ask)

    async def scene() -> None:
        both = [asyncio.ensure_future(desk.request(ASKED, ["one", "two"])) for _ in range(2)]
        await asyncio.wait_for(reached.wait(), PATIENCE_S)
        desk.told("two", pb.FaultTold(fault="f", accepted=True))
        desk.told("one", pb.FaultTold(fault="f", accepted=True, victims=["v"]))
        answers = await asyncio.wait_for(asyncio.gather(*both), PATIENCE_S)
        assert [list(answer.victims) for answer in answers] == [["v"], ["v"]], "another worker's word is not taken"
        desk.told("one", pb.FaultTold(fault="f"))  # nobody waits for it any more

    asyncio.run(scene())
    assert [(worker, message.fault.fault) for worker, message in asked] == [("one", "f")] * 2


def test_asking_a_fault_of_an_absent_worker_is_to_be_repeated() -> None:
    desk = ControllerFaults(lambda *_: None)
    told = asyncio.run(desk.request(ASKED, ["two"]))
    assert not told.accepted
    assert told.again
    assert "no worker 'one' is registered" in told.reason
