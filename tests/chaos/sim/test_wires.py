"""Links between simulated workers: whoever has an end of a making that is over finds that out."""

from types import SimpleNamespace
from typing import Any

from headrace.chaos.sim.network.connections import Wires
from headrace.chaos.sim.world.world import World
from headrace.controller.core.messages.messages import MakeLink


class Worker:
    """A worker with one task, which notes what its ends of links find."""

    def __init__(self, name: str, task: str) -> None:
        self.name, self.alive = name, True
        ours: Any = SimpleNamespace(name=task, attempt=1, epoch=1, alive=True)
        ours.deliver, ours.wake = lambda _message: None, lambda: None
        self.tasks = {(task, 1): ours}
        self.cut: list[int] = []

    def link_cut(self, _task: str, _attempt: int, _link: str, generation: int, _reason: str) -> None:
        self.cut.append(generation)


def test_an_end_learns_that_its_peer_was_told_of_another_making() -> None:
    world = World(0)
    wires = Wires(world, 100)
    sender, receiver = Worker("one", "read"), Worker("two", "write")

    def told(worker: Worker, generation: int) -> None:
        command = MakeLink(
            worker=worker.name,
            link="read->write",
            transport="quic",
            sender="read",
            sender_attempt=1,
            sender_stage="read",
            receiver="write",
            receiver_attempt=1,
            receiver_stage="write",
            epoch=1,
            sender_worker="one",
            receiver_worker="two",
            addresses=(),
            generation=generation,
            relays=(),
        )
        wires.told(worker, command, b"")

    told(receiver, 2)
    told(sender, 1)  # it was frozen, and wakes with an order of long ago
    while world.step():
        pass
    assert receiver.cut == [2], "its end would be thought to stand for ever, and the run with it"
    assert sender.cut == [1]
