"""What a worker does when a fault is asked of it: it hands it to its agent, or refuses it.

Only a worker that was started with --allow-chaos has an agent (`headrace.chaos.agent`), a process that does faults:
to this worker, to its tasks, and, by gates that stand before its tasks and its controllers, to what passes on its
ways. The worker itself knows no fault; who may ask for one is judged by the controller's guard.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from headrace.daemon import INSECURE, SOCKET
from headrace.protos import control_pb2 as pb
from headrace.transport import LinkRefusedError
from headrace.worker.links import HOST, gate_port
from headrace.worker.membership import join_address
from headrace.worker.task import Channel, ChannelClosed, write_on

logger = logging.getLogger("headrace.worker")

#: Seconds in which an agent must be ready.
READY_S = 20.0
#: What a maker of gates is sent before a controller's address.
_CONTROL = "control "
#: Finds a task's processes, or with "" those of all, the worker's own first: process id and title.
Find = Callable[[str], list[tuple[int, str]]]


class FaultError(RuntimeError):
    """The agent did not come to be."""


class WorkerFaults:
    """Takes what is asked. Called on the event loop's thread; `say` puts an answer on its way."""

    def __init__(self, worker: str, find: Find, say: Callable[[pb.FaultTold], None]) -> None:
        self._worker, self._find, self._say = worker, find, say
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        #: Who makes gates, a socket's path; "" without an agent.
        self.gates = ""

    @property
    def allows(self) -> bool:
        """Whether faults are done here."""
        return self._channel is not None

    def open(self) -> None:
        """Start the agent and wait until it is ready. Raises FaultError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        command = [sys.executable, "-P", "-m", "headrace.chaos.agent", "--worker", self._worker]
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and a module of our own
                [*command, "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._channel = Channel(ours)
        self.gates = self._ready(self._channel)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._channel.fileno(), self._readable, self._channel)
        logger.warning("allows chaos: an operator may kill, freeze and cut off this worker and its tasks")

    def asked(self, fault: pb.FaultAsked) -> None:
        """Have a fault done, or say why not."""
        if self._channel is None:
            why = f"worker {self._worker} allows no chaos: start it with --allow-chaos"
            self._say(pb.FaultTold(fault=fault.fault, reason=why))
            return
        del fault.victims[:]
        for pid, title in self._found(fault):
            fault.victims.add(pid=pid, title=title)
        try:
            self._channel.send(fault.SerializeToString())
        except ChannelClosed:
            return  # It has ended, and so does this worker.
        write_on(self._channel)

    def way_to(self, address: str) -> str:
        """Where to find a controller: by a gate, where there are gates, and a network on the way."""
        if not self.gates or address.startswith(SOCKET):
            return address
        bare = address.removeprefix(INSECURE)
        scheme = address[: len(address) - len(bare)]
        try:
            gate = join_address(HOST, gate_port(f"{_CONTROL}{bare}", self.gates))
            return f"{scheme}{gate}"
        except LinkRefusedError as error:
            logger.warning("no gate before controller %s: %s", address, error)
            return address

    def close(self) -> None:
        """Let the agent end: it does when nothing lasts any more."""
        if self._channel is not None:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self._channel.close()
            self._channel = None

    def _found(self, fault: pb.FaultAsked) -> list[tuple[int, str]]:
        if fault.target == "task":
            return self._find(fault.task) if fault.task else []
        everyone = self._find("")
        return everyone[:1] if fault.target == "worker" else everyone if fault.target == "everything" else []

    def _ready(self, channel: Channel) -> str:
        deadline = time.monotonic() + READY_S
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        try:
            while (left := deadline - time.monotonic()) > 0:
                poll.poll(left * 1000)
                for data in channel.receive():
                    return str(pb.FromAgent.FromString(data).gates)
        except ChannelClosed as error:
            raise FaultError("--allow-chaos: the agent that does faults ended at once, see above") from error
        raise FaultError(f"--allow-chaos: the agent that does faults was not ready within {READY_S:.0f} s")

    def _readable(self, channel: Channel) -> None:
        try:
            for data in channel.receive():
                told = pb.FromAgent.FromString(data).told
                if told.victims:
                    logger.warning("a fault that an operator asked for: %s", ", ".join(told.victims))
                self._say(told)
        except ChannelClosed:
            asyncio.get_running_loop().remove_reader(channel.fileno())
            logger.error("the agent that does faults has ended, and its gates with it: this worker ends too")
            os.kill(os.getpid(), signal.SIGTERM)
