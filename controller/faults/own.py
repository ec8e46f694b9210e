"""A fault that an operator asks of this controller itself, where it was started with --allow-chaos.

It is done by a process of its own (`headrace.chaos.process_faults`), which lets a stopped controller go on again; the
controller knows no fault. Who may ask is judged by the guard. Known weakness: a controller that was killed before its
answer had left is asked again, and killed again, since it has forgotten the fault's name.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys

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
        self._strokes: list[subprocess.Popen[bytes]] = []

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
        self._strokes = [stroke for stroke in self._strokes if stroke.poll() is None]
        command = [sys.executable, "-P", "-m", "headrace.chaos.process_faults", "--pid", str(os.getpid())]
        self._strokes.append(
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
