"""The worker daemon: attends a controller, and supervises the task processes of one node.

    python -m headrace.worker.daemon --controller 127.0.0.1:7420 --name node1

Tasks talk to it over socket pairs and it passes their words on; what it decides itself (when a process must be killed,
which links are cut) is decided by worker/core/supervisor.py. When the controller is gone the tasks go on with what
they have, and the worker tries to register again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import grpc
import setproctitle
import uvloop

from headrace.protos import control_pb2 as pb
from headrace.protos import control_pb2_grpc as rpc
from headrace.transport.notify import keep_alive, notify
from headrace.worker.addresses import host_id, own_addresses
from headrace.worker.core import supervisor as core
from headrace.worker.core.watching import LOOK_S
from headrace.worker.joining import JoinError, Membership
from headrace.worker.member import check_plain, membership, network_of, open_channel
from headrace.worker.processes import Processes, TaskProcess

logger = logging.getLogger("headrace.worker")

DEFAULT_CONTROLLER = "127.0.0.1:7420"

MESSAGE_BYTES_MAX = 64 << 20
#: Seconds between two heartbeats, and of silence after which a session is given up.
HEARTBEAT_S = 1.0
#: Seconds before a lost session is opened again, doubled each time up to RECONNECT_S_MAX.
RECONNECT_S = 0.2
RECONNECT_S_MAX = 5.0
#: Messages that wait for a controller that is away; tasks repeat what matters (proposals), so older ones may go.
WAITING_MESSAGES_MAX = 100_000


class Daemon:
    """One worker."""

    def __init__(self, name: str, cores: int, *, labels: Sequence[str] = (), member: Membership | None = None) -> None:
        self.name, self.cores, self._labels = name, cores, tuple(labels)
        self._member = member
        self._supervisor = core.Supervisor()
        self._processes = Processes(self._said, self._exited)
        self._orders: dict[tuple[str, int], pb.TaskCommand] = {}
        self._outbox: asyncio.Queue[pb.FromWorker] = asyncio.Queue(WAITING_MESSAGES_MAX)
        #: What is told of the deaths that are being handled.
        self._stories: dict[tuple[str, int], pb.TaskExited] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.refused = ""

    async def attend(self, address: str) -> None:
        """Attend the controller, again and again, until it refuses this worker."""
        delay = RECONNECT_S
        while not self.refused:
            try:
                await self._session(address)
                delay = RECONNECT_S
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                    self.refused = str(error.details())
                    break
                why = f"{error.code().name} {error.details()}"
                logger.warning("controller %s: %s; trying again in %.1f s", address, why, delay)
            if not self.refused:
                await asyncio.sleep(delay)
                delay = min(RECONNECT_S_MAX, delay * 2)

    def look(self) -> None:
        """See how long stages have been at their batches, and how much memory tasks have; again and again."""
        for item in self._processes.judge(time.monotonic()):
            self._do(core.KillAsked(item.task, item.attempt))
        asyncio.get_running_loop().call_later(LOOK_S, self.look)

    def close(self) -> None:
        """End every task."""
        self._processes.kill_all()

    async def _session(self, address: str) -> None:
        options = [
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ]
        async with open_channel(address, self._member, options) as channel:
            stub = rpc.ControlStub(channel)  # type: ignore[no-untyped-call]
            call = stub.Attend(self._messages())
            async for message in call:
                self._take(message)

    async def _messages(self) -> AsyncIterator[pb.FromWorker]:
        """What this worker says in one session: who it is, then everything that waits."""
        yield pb.FromWorker(register=self._register())
        while True:
            try:
                yield await asyncio.wait_for(self._outbox.get(), HEARTBEAT_S)
            except TimeoutError:
                yield pb.FromWorker(heartbeat=pb.Heartbeat(sent=time.monotonic_ns()))

    def _register(self) -> pb.Register:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        register = pb.Register(
            worker=self.name,
            version=version("headrace"),
            cores=self.cores,
            memory_bytes=memory,
            host=socket.gethostname(),
            pid=os.getpid(),
            host_id=host_id(),
            addresses=own_addresses() if self._member else (),
            labels=self._labels,
        )
        for task, attempt in self._supervisor.running():
            register.tasks.append(pb.RunningTask(task=task, attempt=attempt))
        return register

    # -- the controller's words --

    def _take(self, message: pb.ToWorker) -> None:
        kind = message.WhichOneof("message")
        # An attempt's number begins with its log's term, so a lower term moves no attempt that lives here. A start for
        # a task that is gone is not held against its term yet: terms of different datasets cannot be compared, and a
        # worker attends one controller only.
        match kind:
            case "welcome":
                notify(f"STATUS=attends controller {message.welcome.controller} as {self.name}")
            case "refusal":
                self.refused = message.refusal.reason
            case "task":
                self._task_command(message.task)
            case "link":
                self._processes.link(message.link)
            case "kill":
                self._do(core.KillAsked(message.kill.task, message.kill.attempt))
            case _:
                pass

    def _task_command(self, message: pb.TaskCommand) -> None:
        if message.WhichOneof("command") == "start":
            if message.start.listens and self._member is not None:
                message.start.network.CopyFrom(network_of(self._member))
            self._orders[message.task, message.attempt] = message
            self._do(core.StartAsked(message.task, message.attempt))
            return
        self._processes.send(message.task, message.attempt, message)
        if message.WhichOneof("command") == "stop":
            self._do(core.StopAsked(message.task, message.attempt))

    # -- the tasks' words --

    def _said(self, _item: TaskProcess, event: pb.TaskEvent) -> None:
        if not self._outbox.full():
            self._outbox.put_nowait(pb.FromWorker(task=event))

    def _exited(self, item: TaskProcess, code: int) -> None:
        exited = pb.TaskExited(story=self._processes.story(item)[-4000:], killed_for=item.killed_for)
        for held in item.hands.read():
            for inner in held.items:
                exited.in_hand.add(stage=inner.stage, range=pb.Range(**asdict(inner.range)))
        self._stories[item.task, item.attempt] = exited
        self._do(core.ProcessExited(item.task, item.attempt, code))
        self._stories.pop((item.task, item.attempt), None)

    def _do(self, event: core.Event) -> None:
        for command in self._supervisor.handle(event, time.monotonic()):
            match command:
                case core.SpawnProcess():
                    order = self._orders.pop((command.task, command.attempt))
                    self._processes.spawn(command.task, command.attempt, order)
                case core.KillProcess():
                    self._processes.kill(command.task, command.attempt)
                case core.CutLinks():
                    self._processes.cut_links(command.task, command.attempt, command.reason)
                case core.ReportExit():
                    self._report_exit(command)
        self._set_timer()

    def _report_exit(self, command: core.ReportExit) -> None:
        exited = self._stories.get((command.task, command.attempt), pb.TaskExited())
        exited.code = command.code
        event = pb.TaskEvent(task=command.task, attempt=command.attempt, exited=exited)
        self._outbox.put_nowait(pb.FromWorker(task=event))

    def _set_timer(self) -> None:
        wake_at = self._supervisor.wake_at()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_at is not None:
            delay = max(0.0, wake_at - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._do, core.TimePassed())


async def work(
    controller: str,
    *,
    name: str,
    cores: int,
    labels: Sequence[str] = (),
    member: Membership | None = None,
    controller_fd: int = -1,
    lifeline_fd: int = -1,
) -> int:
    """Attend until a signal, the lifeline's end, or a refusal; the exit code."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    if lifeline_fd >= 0:
        loop.add_reader(lifeline_fd, told.set)
    daemon = Daemon(name, cores, labels=labels, member=member)
    daemon.look()
    notify(f"READY=1\nSTATUS=looks for a controller at {controller}")
    watched = asyncio.create_task(keep_alive())
    attending = asyncio.create_task(_attend(daemon, controller, controller_fd))
    waiting = asyncio.create_task(told.wait())
    try:
        await asyncio.wait({attending, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        notify("STOPPING=1")
        for task in (attending, waiting, watched):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        daemon.close()
    if daemon.refused:
        logger.error("the controller refuses this worker: %s", daemon.refused)
        return 1
    return 0


async def _attend(daemon: Daemon, controller: str, controller_fd: int) -> None:
    if controller_fd >= 0:
        controller = await asyncio.to_thread(_read_line, controller_fd)
    if controller:
        await daemon.attend(controller)


def _read_line(descriptor: int) -> str:
    with os.fdopen(descriptor) as pipe:
        return pipe.readline().strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and work."""
    parser = argparse.ArgumentParser(prog="headrace worker", description="Run the tasks of one node.")
    parser.add_argument(
        "--controller", default="", help=f"the controller's address; else the cluster's, else {DEFAULT_CONTROLLER}"
    )
    parser.add_argument("--name", default=socket.gethostname(), help="this worker's name; each has its own")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="cores to offer")
    parser.add_argument("--label", action="append", default=[], help="a label of this worker, such as disk=ssd")
    parser.add_argument("--join", default="", metavar="TOKEN", help="become a member of the token's cluster first")
    parser.add_argument("--state", type=Path, help="the folder that holds this member's key and certificate")
    parser.add_argument("--controller-fd", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--lifeline-fd", type=int, default=-1, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        member = membership(args.join, args.state)
        controller = args.controller or (member.controllers[0] if member else DEFAULT_CONTROLLER)
        if member is None:
            check_plain(controller)
    except JoinError as error:
        logger.error("%s", error)
        return 1
    name = member.name if member else args.name
    setproctitle.setproctitle(f"headrace worker {name}")
    return uvloop.run(
        work(
            controller,
            name=name,
            cores=args.cores,
            labels=args.label,
            member=member,
            controller_fd=args.controller_fd,
            lifeline_fd=args.lifeline_fd,
        )
    )


if __name__ == "__main__":
    raise SystemExit(main())
