"""A fault that an operator asks of a worker, on the controller's side: passed on, and the worker's word passed back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container

from headrace.protos import control_pb2 as pb

#: Seconds that a worker has to answer.
ANSWER_S = 5.0


class FaultDesk:
    """What was asked and not answered. Called on the event loop's thread; `ask` sends a message to a worker by name."""

    def __init__(self, ask: Callable[[str, pb.ToWorker], None]) -> None:
        self._ask = ask
        #: By worker and fault, one for each who asked: one that waits no more ends no other's wait.
        self._waiting: dict[tuple[str, str], set[asyncio.Future[pb.FaultTold]]] = {}

    async def request(self, fault: pb.FaultAsked, registered: Container[str]) -> pb.FaultTold:
        """Ask the worker that the fault names; its answer, or why there is none."""
        if fault.worker not in registered:
            return pb.FaultTold(fault=fault.fault, reason=f"no worker {fault.worker!r} is registered", again=True)
        key = fault.worker, fault.fault
        waiting: asyncio.Future[pb.FaultTold] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(waiting)
        self._ask(fault.worker, pb.ToWorker(fault=fault))
        try:
            return await asyncio.wait_for(waiting, ANSWER_S)
        except TimeoutError:
            why = f"worker {fault.worker} did not answer within {ANSWER_S:.0f} s; it may be done yet"
            return pb.FaultTold(fault=fault.fault, reason=why, again=True)
        finally:
            self._waiting[key].discard(waiting)
            if not self._waiting[key]:
                del self._waiting[key]

    def told(self, worker: str, answer: pb.FaultTold) -> None:
        """A worker's answer; one that nobody waits for any more is dropped."""
        for waiting in self._waiting.get((worker, answer.fault), ()):
            if not waiting.done():
                waiting.set_result(answer)
