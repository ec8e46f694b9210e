"""The worker daemon: connects to a controller, and supervises the task processes of one node.

    python -m headrace.worker --name node1

Tasks talk to it over socket pairs and it passes their words on; what it decides itself (when a process must be killed,
which links are cut) is decided by worker/core/supervisor.py. When the controller is gone the tasks go on with what
they have, and the worker tries to register again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextvars
import itertools
import logging
import os
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, assert_never

import setproctitle
import uvloop

from headrace.daemon import (
    AddressError,
    Effects,
    LogFiles,
    about,
    caused_by,
    check_plain,
    current_cause,
    default_address,
    end_on_surprise,
    end_with_parent,
    hear_on,
    keep_alive,
    keep_log_files,
    notify,
    parse_arguments,
)
from headrace.protos import codec, control_pb2 as pb
from headrace.protos.protocol import PROTOCOL, PROTOCOL_OLDEST
from headrace.stages.shipping import Inherited
from headrace.store import release
from headrace.transport import LinkRefusedError
from headrace.transport.ring import memory_labels
from headrace.worker.arguments import NO_RELAY, worker_parser
from headrace.worker.core import LOOK_S, Fencing, LiveTasks, supervisor as core
from headrace.worker.faults import FaultError, WorkerFaults
from headrace.worker.links import Relaying
from headrace.worker.log_desk import LogDesk
from headrace.worker.membership import (
    ControllerOutbox,
    ControllerSession,
    Departure,
    JoinError,
    Membership,
    end_task,
    host_id,
    membership,
    network_of,
    own_addresses,
    told_by,
)
from headrace.worker.metrics import Counters
from headrace.worker.processes import Forkserver, Processes, TaskProcess

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client.core import Metric

logger = logging.getLogger("headrace.worker")


class Daemon:
    """One worker."""

    def __init__(
        self,
        name: str,
        cores: int,
        book: LogFiles,
        *,
        labels: Sequence[str] = (),
        member: Membership | None = None,
        measured: Mapping[str, float] | None = None,
    ) -> None:
        self._measured = measured or {}
        self.name, self.cores, self._labels = name, cores, (*labels, *memory_labels())
        self._member = member
        self._supervisor = core.Supervisor()
        self._fencing = Fencing()
        self._live = LiveTasks()
        self._processes = Processes(self._said, self._exited, self._lost, book)
        self._desk = LogDesk(book, lambda page: self._say(pb.FromWorker(logs=page)))
        self._faults = WorkerFaults(name, self._found, lambda told: self._say(pb.FromWorker(fault=told)))
        #: What is counted for metrics, and the sessions of which there is one at a time.
        self.counters = Counters()
        self.session: ControllerSession | None = None
        self.departure: Departure | None = None
        #: Deaths get a cause of their own, by this number.
        self._deaths = itertools.count(1)
        self._orders: dict[tuple[str, int], pb.TaskCommand] = {}
        self._outbox = ControllerOutbox()
        #: What is told of the deaths that are being handled.
        self._stories: dict[tuple[str, int], pb.TaskExited] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._relaying: Relaying | None = None
        #: Who was expelled from the cluster, by the last word of a controller.
        self._expelled = pb.Expulsions()

    def open_session(self, addresses: Sequence[str]) -> ControllerSession:
        """This worker's sessions with whichever of these controllers leads."""
        way_to = self._faults.way_to
        self.session = ControllerSession(addresses, self._register, self._take, self._outbox, self._member, way_to)
        return self.session

    def plan_departure(self, within_s: float, notice: str, idle_s: float) -> Departure:
        """How this worker will end."""
        self.departure = made = Departure(self._live, lambda: self.connected, self._say, within_s, notice, idle_s)
        return made

    @property
    def connected(self) -> bool:
        """Whether a controller listens."""
        return self.session is not None and self.session.welcomed

    def metrics(self) -> Iterable[Metric]:
        """What Prometheus reads."""
        from headrace.worker.metrics import families

        relay = self._relaying.statistics() if self._relaying is not None else None
        return families(self.counters, self._processes.resident_bytes, connected=self.connected, relay=relay)

    def open(
        self, forkserver: Forkserver | None = None, relay_port: int = NO_RELAY, *, allow_chaos: bool = False
    ) -> None:
        """Make ready for the first task, and begin to look at tasks. A member of a cluster may relay for others.

        Raises LinkRefusedError and FaultError.
        """
        if allow_chaos:
            self._faults.open()
        if self._member is not None and relay_port != NO_RELAY:
            self._relaying = Relaying(relay_port)
        self._processes.open(forkserver)
        self.look()

    def preload(self, wanted: Sequence[Inherited]) -> None:
        """Have ready what the tasks to come inherit, where it is known before they are asked for."""
        self._processes.preload(wanted)

    def look(self) -> None:
        """See how long stages have been at their batches, and how much memory tasks have; again and again."""
        now = time.monotonic()
        with caused_by(""):
            for item in self._processes.judge(now):
                self._do(core.KillAsked(item.task, item.attempt))
        for task, attempt, held, spent_of in self._processes.in_hand():
            if (progress := self.counters.at_work(task, attempt, held, now, spent_of)) is not None:
                self._say(pb.FromWorker(task=pb.TaskEvent(task=task, attempt=attempt, progress=progress)))
        asyncio.get_running_loop().call_later(LOOK_S, self.look)

    def close(self) -> None:
        """End every task."""
        self._processes.kill_all()
        self._faults.close()
        if self._relaying is not None:
            self._relaying.close()

    def _register(self) -> pb.Register:
        self._desk.forget()
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        register = pb.Register(
            worker=self.name,
            version=release(),
            protocol=PROTOCOL,
            protocol_oldest=PROTOCOL_OLDEST,
            cores=self.cores,
            memory_bytes=memory,
            host=socket.gethostname(),
            pid=os.getpid(),
            host_id=host_id(),
            addresses=own_addresses() if self._member else (),
            labels=self._labels,
            door=self._processes.door,
            relay_addresses=self._relaying.addresses() if self._relaying else (),
            allows_chaos=self._faults.allows,
            measured=self._measured,
            leaving=self.departure is not None and self.departure.leaves,
        )
        for task, entry in self._live.tasks.items():
            running = pb.RunningTask(task=task, attempt=entry.attempt, version=entry.version, epoch=entry.epoch)
            running.ready, running.fenced, running.linked = entry.ready, entry.fenced, entry.linked
            running.waits = entry.waits
            running.facts.update(entry.facts)
            running.addresses.extend(entry.addresses)
            running.stages.extend(entry.stages)
            register.tasks.append(running)
        for link, live in self._live.links.items():
            (_, sender), (_, receiver) = live.sender, live.receiver
            standing = pb.RunningLink(link=link, sender_attempt=sender, receiver_attempt=receiver)
            standing.generation = live.generation
            register.links.append(standing)
        return register

    # -- the controller's words --

    def _take(self, message: pb.ToWorker) -> None:
        if not self._fencing.admits(message.term, message.log, message.log_term):
            logger.warning("a command of term %d is void: a later leader has spoken", message.log_term or message.term)
            return
        with caused_by(message.cause):
            self._obey(message)

    def _obey(self, message: pb.ToWorker) -> None:
        match message.WhichOneof("message"):
            case "welcome":
                logger.info("is connected to process %s, term %d", message.welcome.controller, message.term)
                notify(f"STATUS=connected to controller {message.welcome.controller} as {self.name}")
                self._expel(message.welcome.expelled)
            case "expelled":
                self._expel(message.expelled)
            case "task":
                self._task_command(message.task)
            case "relay":
                if self._relaying is not None:
                    self._relaying.open(message.relay)
            case "link":
                self._link(message.link)
            case "kill":
                kill = message.kill
                logger.warning("kill it: %s", kill.reason, extra=about(task=kill.task, attempt=kill.attempt))
                self._processes.note_end(kill.task, kill.attempt, message.cause)
                self._do(core.KillAsked(kill.task, kill.attempt))
            case "stay":
                if self.departure is not None:
                    self.departure.cannot(message.stay.reason)
            case "logs":
                self._desk.asked(message.logs)
            case "fault":
                self._faults.asked(message.fault)
            case _:
                pass

    def _expel(self, expelled: pb.Expulsions) -> None:
        """Have every task cut its links with who was expelled; those to come learn it as they start."""
        if expelled == self._expelled:
            return
        self._expelled = expelled
        for task, entry in self._live.tasks.items():
            told = pb.TaskCommand(task=task, attempt=entry.attempt, expelled=expelled)
            self._processes.send(task, entry.attempt, told)

    def _task_command(self, message: pb.TaskCommand) -> None:
        if message.WhichOneof("command") == "start":
            if message.start.listens and self._member is not None:
                message.start.network.CopyFrom(network_of(self._member))
                message.start.network.gates = self._faults.gates
                message.start.network.expelled.CopyFrom(self._expelled)
            self._orders[message.task, message.attempt] = message
            self._do(core.StartAsked(message.task, message.attempt))
            return
        self._processes.send(message.task, message.attempt, message)
        if message.WhichOneof("command") == "serve":
            self._live.serves(message.task, message.attempt)
        if message.WhichOneof("command") == "answer":
            self.counters.answered(message.task, message.attempt, message.answer)
        if message.WhichOneof("command") == "stop":
            self._processes.note_end(message.task, message.attempt, message.cause)
            self._do(core.TaskStopAsked(message.task, message.attempt))

    def _link(self, message: pb.MakeLink) -> None:
        ends = (message.sender, message.sender_attempt), (message.receiver, message.receiver_attempt)
        self._live.linked(message.link, *ends, message.generation)
        self._processes.link(message, self.name)

    # -- the tasks' words --

    def _said(self, _item: TaskProcess, event: pb.TaskEvent) -> None:
        kind = event.WhichOneof("event")
        self.counters.said(event)
        if kind == "ready":
            self._live.ready(event.task, event.attempt, event.ready.facts, tuple(event.ready.addresses))
        elif kind == "lost":
            self._live.cut(event.lost.link, event.lost.generation)
        self._say(pb.FromWorker(task=event))

    def _lost(self, end: tuple[str, int], link: str, generation: int, reason: str, apart: bool) -> None:
        """A link to another worker of this host could not be made, or has ended."""
        self._live.cut(link, generation)
        lost = pb.LinkLost(link=link, generation=generation, reason=reason, apart=apart)
        self._say(pb.FromWorker(task=pb.TaskEvent(task=end[0], attempt=end[1], cause=current_cause(), lost=lost)))

    def _exited(self, item: TaskProcess, code: int) -> None:
        with caused_by(item.ended_for or f"exit.{self.name}.{next(self._deaths)}"):
            self._ended(item, code)

    def _ended(self, item: TaskProcess, code: int) -> None:
        exited = pb.TaskExited(story=self._processes.story(item)[-4000:], killed_for=item.killed_for)
        ending = f"signal {-code}" if code < 0 else f"exit code {code}"
        level = logging.INFO if code == 0 else logging.WARNING
        logger.log(level, "process %d ended with %s", item.pid, ending, extra={"facts": {**item.facts, "code": code}})
        for held in item.in_flight.read():
            for inner in held.items:
                exited.in_hand.add(stage=inner.stage, range=codec.range_to(inner.range))
        self._gone(item.task, item.attempt, code, exited)

    def _gone(self, task: str, attempt: int, code: int, exited: pb.TaskExited) -> None:
        """An attempt is over; `exited` is what is told of it."""
        self._stories[task, attempt] = exited
        self._live.exited(task, attempt)
        self.counters.ended(task, attempt, code, exited.killed_for)
        self._do(core.ProcessExited(task, attempt, code))
        self._stories.pop((task, attempt), None)

    def _do(self, event: core.Event) -> None:
        for command in self._supervisor.handle(event, time.monotonic()):
            match command:
                case core.SpawnProcess():
                    self._spawn(self._orders.pop((command.task, command.attempt)))
                case core.KillProcess():
                    self._processes.kill(command.task, command.attempt)
                case core.CutLinks():
                    self._processes.cut_links(command.task, command.attempt, command.reason)
                case core.ReportExit():
                    self._report_exit(command)
                case _:
                    assert_never(command)
        self._set_timer()

    def _spawn(self, order: pb.TaskCommand) -> None:
        task, attempt, start = order.task, order.attempt, order.start
        where = about(task=task, attempt=attempt, stages="+".join(start.stages))
        self.counters.began(task, attempt)
        born = start.version, start.epoch, start.stages
        self._live.started(task, attempt, *born, fenced=start.fenced, waits=start.waits)
        try:
            self._processes.spawn(task, attempt, order)
        except OSError as error:
            logger.warning("could not be started: %s", error, extra=where)
            story = f"its worker could not start it: {error}"
            self._gone(task, attempt, -signal.SIGKILL, pb.TaskExited(story=story))
            return
        logger.info("is started", extra=where)

    def _report_exit(self, command: core.ReportExit) -> None:
        exited = self._stories.get((command.task, command.attempt), pb.TaskExited())
        exited.code = command.code
        event = pb.TaskEvent(task=command.task, attempt=command.attempt, cause=current_cause(), exited=exited)
        self._say(pb.FromWorker(task=event))

    def _say(self, message: pb.FromWorker) -> None:
        self._outbox.put_nowait(message)
        if not self.connected:
            self._outbox.trim()

    def _found(self, task: str) -> list[tuple[int, str]]:
        """The processes of a task; of everything, with this one first."""
        return [*([] if task else [(os.getpid(), f"headrace worker {self.name}")]), *self._processes.found(task)]

    def _set_timer(self) -> None:
        wake_at = self._supervisor.wake_at()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_at is not None:
            delay = max(0.0, wake_at - time.monotonic())
            own = contextvars.Context()
            self._timer = asyncio.get_running_loop().call_later(delay, self._do, core.WatchTimePassed(), context=own)


async def work(
    args: argparse.Namespace,
    controller: str,
    *,
    book: LogFiles,
    name: str,
    member: Membership | None = None,
    forkserver: Forkserver | None = None,
) -> int:
    """Attend until a signal, a notice, the lifeline's end, or a refusal; the exit code. `args`: of `worker_parser`."""
    loop = asyncio.get_running_loop()
    daemon = Daemon(name, args.cores, book, labels=args.label, member=member, measured=dict(args.fact))
    departure = daemon.plan_departure(args.drain, args.notice, args.idle)
    hear_on(loop, departure.ask)

    def let_go() -> None:
        # Its end would be told at each turn of the loop, for as long as this process takes to end.
        loop.remove_reader(args.lifeline_fd)
        departure.end()

    if args.lifeline_fd >= 0:
        loop.add_reader(args.lifeline_fd, let_go)
    try:
        scraped = _serve_metrics(args.metrics, daemon) if args.metrics else None
    except OSError as error:
        logger.error(
            "cannot serve metrics on %s: %s; choose another address with --metrics", args.metrics, error.strerror
        )
        return 1
    try:
        daemon.open(forkserver, args.relay_port, allow_chaos=args.allow_chaos)
    except LinkRefusedError as error:
        logger.error("%s; choose another port with --relay-port", error)
        return 1
    except (FaultError, OSError) as error:
        logger.error("this worker cannot make ready: %s", error)
        return 1
    notify(f"READY=1\nSTATUS=looks for a controller at {controller}")
    effects, surprises = Effects(), list[int]()

    def surprised() -> None:
        surprises.append(1)
        departure.end()

    end_on_surprise(loop, surprised)
    watched = effects.start("the watchdog", keep_alive())
    running = effects.start("the sessions with controllers", _attend(daemon, controller, args.controller_fd))
    waiting = effects.start("the wait for the end", departure.wait())
    try:
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        notify("STOPPING=1")
        for task in (running, waiting, watched):
            await end_task(task)
        daemon.close()
        if scraped is not None:
            scraped.shutdown()
    if surprises:
        return 1
    refused = running.result() if running.done() and not running.cancelled() else ""
    if refused:
        logger.error("the controller refuses this worker: %s", refused)
        return 1
    return 0


def _serve_metrics(address: str, daemon: Daemon) -> WSGIServer:
    from headrace.daemon import serve_metrics

    server = serve_metrics(address, daemon.metrics)
    logger.info("metrics on %s:%d", address.rpartition(":")[0] or "127.0.0.1", server.server_port)
    return server


async def _attend(daemon: Daemon, controller: str, controller_fd: int) -> str:
    """Attend until this worker is refused; the reason."""
    if controller_fd >= 0:
        controller = await told_by(controller_fd, daemon.preload)
    addresses = [address.strip() for address in controller.split(",") if address.strip()]
    if not addresses:
        return ""
    session = daemon.open_session(addresses)
    await session.run()
    return session.refused


def main(argv: Sequence[str] | None = None, forkserver: Forkserver | None = None) -> int:
    """Parse arguments and work, with this forkserver if one is started already."""
    args = parse_arguments(worker_parser(), argv)
    end_with_parent(args.lifeline_fd)
    book = keep_log_files(f"worker {args.name}", args.logs)
    try:
        member = membership(args.join, args.state)
        controller = args.controller or (",".join(member.controllers) if member else default_address())
        if member is None:
            for address in controller.split(","):
                check_plain(address.strip())
    except (JoinError, AddressError) as error:
        logger.error("%s", error)
        return 1
    if member:
        from headrace.cluster import utc_now, why_renew

        if why := why_renew(member.credentials, utc_now()):
            logger.warning("%s: join the cluster again, with an empty --state", why)
    name = member.name if member else args.name
    book.process = f"worker {name}"
    setproctitle.setproctitle(f"headrace worker {name}")
    return uvloop.run(work(args, controller, book=book, name=name, member=member, forkserver=forkserver))
