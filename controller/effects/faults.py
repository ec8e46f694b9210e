"""Faults that an operator asks for: of a worker, which they are passed on to, or of this controller itself.

The controller's own are allowed with --allow-chaos, and done by a process of its own (`headrace.chaos.process_faults`),
which lets a stopped controller go on again. The guard judges who may ask. Known weakness: a controller that was killed
before its answer had left is asked and killed again, since it has forgotten the fault's name.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Container

from headrace.protos import control_pb2 as pb

logger = logging.getLogger("headrace.controller")

#: What can be done to a controller; faults of the network are done by the gates of workers.
KINDS = ("kill", "restart", "freeze", "slow")
#: Faults that are remembered; the oldest is forgotten.
REMEMBERED_MAX = 4096


class OwnFaults:
    """Does each fault once, if it is allowed."""

    def __init__(self) -> None:
        self.allowed = False
        self._known: dict[str, pb.FaultTold] = {}
        self._attackers: list[subprocess.Popen[bytes]] = []

    def allow(self) -> None:
        """From now on operators may ask."""
        self.allowed = True
        logger.warning("allows chaos: an operator may kill and freeze this controller")

    def asked(self, fault: pb.FaultAsked) -> pb.FaultTold:
        """Have it begin, and tell of it."""
        if not self.allowed:
            return self._refused(fault, "it allows no chaos: start it with --allow-chaos")
        if fault.kind not in KINDS:
            return self._refused(fault, f"it knows no fault {fault.kind!r}, but {', '.join(KINDS)}")
        if fault.fault not in self._known:
            self._begin(fault)
        return self._known[fault.fault]

    def _begin(self, fault: pb.FaultAsked) -> None:
        self._attackers = [attacker for attacker in self._attackers if attacker.poll() is None]
        command = [sys.executable, "-P", "-m", "headrace.chaos.process_faults", "--pid", str(os.getpid())]
        self._attackers.append(
            subprocess.Popen(  # noqa: S603 - this interpreter, and a module of our own
                [*command, "--kind", fault.kind, "--for-s", str(fault.for_s)],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        told = self._known[fault.fault] = pb.FaultTold(fault=fault.fault, accepted=True)
        told.victims.append(f"headrace controller {fault.controller}")
        logger.warning("a fault that an operator asked for: %s of this controller", fault.kind)
        if len(self._known) > REMEMBERED_MAX:
            del self._known[next(iter(self._known))]

    @staticmethod
    def _refused(fault: pb.FaultAsked, why: str) -> pb.FaultTold:
        return pb.FaultTold(fault=fault.fault, reason=f"controller {fault.controller}: {why}")


#: Seconds that a worker has to answer.
ANSWER_S = 5.0


class ControllerFaults:
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
