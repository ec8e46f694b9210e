"""Task processes and the links between them: what the supervisor's commands become.

The memory of what a task's command stages have started: it counts as the task's own. A command is started by a
keeper, a child of the task that all below it fall to when their parents end (`headrace.stages.commands.keeper`). So
the keepers' descendants are all that a command has started, wherever it went. The sum of what each has in memory is
an upper bound, which is quickly read: what forks share counts in each. Only where that bound is over the limit, each
page is divided by those that have it (Pss), which takes the kernel longer.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from headrace.daemon import LINE_BYTES_MAX, LogFiles, about, current_cause
from headrace.pipeline import Base
from headrace.protos import control_pb2 as pb
from headrace.stages.shipping import Inherited, inherited_by
from headrace.worker.core import MEMORY_SHARE, RECORD_S, Held, Memory, TaskLimits, fault
from headrace.worker.links import HostLinks, Lost
from headrace.worker.processes.forkserver import ForkserverClient
from headrace.worker.processes.forkserver_start import Forkserver
from headrace.worker.task import Channel, ChannelClosed, write_on
from headrace.worker.task.batch import STAGES, InFlightPage

#: Processes of a task's commands that are looked at; what more there are has memory that is not seen.
PROCESSES_MAX = 4096
#: The file by which a keeper is known among the children of a task: the task's own code started it with that.
_KEEPER = b"/stages/commands/keeper.py"
#: What cannot be given back by forgetting a file's pages: bytes of the process, and of memory that it shares.
_QUICK = ("RssAnon:", "RssShmem:")
_EXACT = ("Pss_Anon:", "Pss_Shmem:")


def command_bytes(task: int, allowed: int) -> int:
    """Resident bytes of all that the commands of a task have started; exact only where they may exceed `allowed`."""
    processes = _below_keepers(task)
    bound = sum(_sum_of(f"/proc/{pid}/status", _QUICK) for pid in processes)
    if bound <= allowed:
        return bound
    return min(bound, sum(_sum_of(f"/proc/{pid}/smaps_rollup", _EXACT) for pid in processes))


def _below_keepers(task: int) -> list[int]:
    found = [pid for pid in _children(task) if _is_keeper(pid)]
    for pid in found:
        if len(found) >= PROCESSES_MAX:
            break
        found.extend(_children(pid))
    return found[:PROCESSES_MAX]


def _children(pid: int) -> Iterator[int]:
    """The children of all threads of a process; none of one that is gone."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                yield from map(int, file.read().split())


def _is_keeper(pid: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return any(word.endswith(_KEEPER) for word in file.read(1 << 14).split(b"\0"))
    return False


def _sum_of(path: str, fields: tuple[str, ...]) -> int:
    """The sum of these fields, which are in KiB, as bytes."""
    total = 0
    with suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(fields):
                total += int(line.split()[1]) << 10
    return total


logger = logging.getLogger("headrace.worker")

#: The target of a stage that runs an executable.
COMMAND = "headrace.stages.commands.command:Command"
#: Lines of a task's standard error that are kept for its story.
STORY_LINES = 20
_READ_BYTES = 64 << 10
#: Reads after the death of a task: a pipe holds about as much as one of them takes.
_STORY_READS_MAX = 4


@dataclass(slots=True)
class TaskProcess:
    """A task's process, its channel, and the end of what it said on standard error."""

    task: str
    attempt: int
    channel: Channel
    in_flight: InFlightPage
    limits: TaskLimits
    #: The end that is read here of the pipe that is the task's standard error.
    errors: int
    #: Where its lines go, and what its worker knows of it.
    book: LogFiles
    facts: Mapping[str, object]
    #: Its command stages, in words; empty where it has none.
    commands: str = ""
    #: 0 until the forkserver has started it.
    pid: int = 0
    #: Set where it was to be killed before it was there.
    doomed: bool = False
    #: Why this worker killed it, if it did.
    killed_for: str = ""
    #: The cause of the order to end it, if there was one.
    ended_for: str = ""
    story: deque[str] = field(default_factory=lambda: deque[str](maxlen=STORY_LINES))
    #: Whether the other end of `errors` is closed, by the process and by all that it has started.
    said_all: bool = False
    _rest: bytes = b""

    def take_errors(self) -> bool:
        """Read what the process wrote; False where there is nothing, now or ever again."""
        try:
            data = os.read(self.errors, _READ_BYTES)
        except BlockingIOError:
            return False
        self.said_all = not data
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[:LINE_BYTES_MAX] if data else b""
        for line in filter(None, lines):
            told = self.book.take(line, self.facts)
            if told.level != "info":
                self.story.append(told.message)
        return bool(data)

    def memory(self) -> Memory:
        """What it has in memory now, and what its commands have."""
        own = _resident_bytes(self.pid)
        if not self.commands:
            return Memory(own)
        return Memory(own, command_bytes(self.pid, self.limits.task_bytes - own), self.commands)

    def kill(self) -> None:
        """SIGKILL, now or as soon as it is there."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        else:
            self.doomed = True


class Processes:
    """Every task process of this worker. Called on the event loop's thread."""

    def __init__(
        self,
        said: Callable[[TaskProcess, pb.TaskEvent], None],
        exited: Callable[[TaskProcess, int], None],
        lost: Lost,
        book: LogFiles,
    ) -> None:
        self._said = said
        self._exited = exited
        self._book = book
        self._processes: dict[str, TaskProcess] = {}
        self._links = HostLinks(self.send, lost)
        self._forkserver = ForkserverClient(self._begun, self._not_started)
        #: Asked for and not there yet, by the number of the order.
        self._awaited: dict[int, TaskProcess] = {}
        #: Born and not yet waited for, also of attempts that a newer one has taken the place of.
        self._born_pids: set[int] = set()

    def open(self, forkserver: Forkserver | None = None) -> None:
        """Make ready for the first task."""
        self._forkserver.open(forkserver)
        self._links.open()

    @property
    def door(self) -> str:
        """Where other workers of this host bring links."""
        return self._links.door

    def preload(self, wanted: Sequence[Inherited]) -> None:
        """Have ready what the next tasks inherit."""
        self._forkserver.preload(wanted)

    def spawn(self, task: str, attempt: int, order: pb.TaskCommand) -> None:
        """Start a process and give it the order that it starts with.

        Raises OSError where the system has nothing to start it with; nothing is left of it then.
        """
        pipeline = json.loads(order.start.pipeline_json)
        stages = [stage for stage in pipeline["stages"] if stage["name"] in order.start.stages]
        passed = Base.from_dict(pipeline["base"]).passed if pipeline.get("base") else ()
        self.preload(inherited_by(stages, pipeline["dataset"], passed))
        facts = about(task=task, attempt=attempt, stages="+".join(order.start.stages))["facts"]
        limits, commands = _limits(order.start.limits), _commands(stages)
        with ExitStack() as lent, ExitStack() as kept:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            kept.callback(ours.close)
            lent.callback(theirs.close)
            page = InFlightPage.create()
            lent.callback(os.close, page)
            in_flight = InFlightPage(page)
            kept.callback(in_flight.close)
            errors, write_end = os.pipe()
            kept.callback(os.close, errors)
            lent.callback(os.close, write_end)
            os.set_blocking(errors, False)
            number = self._forkserver.ask((theirs.fileno(), page, write_end))
            kept.pop_all()
        item = TaskProcess(task, attempt, Channel(ours), in_flight, limits, errors, self._book, facts, commands)
        self._processes[task] = self._awaited[number] = item
        loop = asyncio.get_running_loop()
        loop.add_reader(item.channel.fileno(), self._readable, item)
        loop.add_reader(errors, self._errors, item)
        self.send(task, attempt, order)

    def send(self, task: str, attempt: int, message: pb.TaskCommand, descriptors: Sequence[int] = ()) -> None:
        """Pass a command on; a task that is gone takes none. Raises OSError where descriptors cannot be passed."""
        item = self._processes.get(task)
        if item is None or item.attempt != attempt:
            return
        try:
            item.channel.send(message.SerializeToString(), descriptors)
        except ChannelClosed:
            item.kill()  # It ends, or would go on without that command.
            return
        write_on(item.channel)

    def found(self, task: str = "") -> list[tuple[int, str]]:
        """Process id and title of a task that lives, or of all."""
        living = [item for item in self._processes.values() if item.pid and task in ("", item.task)]
        return [(item.pid, f"headrace task {item.task}") for item in living]

    def note_end(self, task: str, attempt: int, cause: str) -> None:
        """Remember what led to the order that ends an attempt."""
        item = self._processes.get(task)
        if item is not None and item.attempt == attempt:
            item.ended_for = cause

    def kill(self, task: str, attempt: int) -> None:
        """SIGKILL."""
        item = self._processes.get(task)
        if item is not None and item.attempt == attempt:
            item.kill()

    def judge(self, now: float) -> list[TaskProcess]:
        """The tasks that are to be killed for what a stage does to them; each is told of once."""
        self._forkserver.reap_strangers(self._born_pids)
        guilty: list[TaskProcess] = []
        for item in self._processes.values():
            if item.killed_for or not item.pid:
                continue
            spent_of = functools.partial(_spent_s, item.pid)
            item.killed_for = fault(item.in_flight.read(), item.memory(), item.limits, now, spent_of)
            if item.killed_for:
                logger.warning("kills its process: %s", item.killed_for, extra={"facts": item.facts})
                guilty.append(item)
        return guilty

    def in_hand(self) -> Iterator[tuple[str, int, Held | None, Callable[[int], float]]]:
        """What the thread that runs the stages has in hand, of each task that is there; processor seconds by thread."""
        for item in self._processes.values():
            if item.pid:
                yield item.task, item.attempt, item.in_flight.of(STAGES), functools.partial(_spent_s, item.pid)

    def resident_bytes(self, task: str) -> int:
        """The memory of a task that is its own or its commands'; 0 for one that is not there."""
        item = self._processes.get(task)
        return item.memory().total if item is not None and item.pid else 0

    def story(self, item: TaskProcess) -> str:
        """The end of a task's standard error. What a dead task has started may live, and write there on."""
        for _ in range(_STORY_READS_MAX):
            if item.errors < 0 or not item.take_errors():
                break
        return "\n".join(item.story)

    def link(self, message: pb.MakeLink, worker: str) -> None:
        """Make a link, or the part of it that is this worker's."""
        if message.transport == "quic":
            self._introduce(message)
            return
        sends, receives = (end.peer_worker in ("", worker) for end in (message.receiver_end, message.sender_end))
        self._links.make(message, sends=sends, receives=receives)

    def _introduce(self, message: pb.MakeLink) -> None:
        """Tell the tasks at the ends that are here."""
        ends = (
            (message.sender, message.sender_attempt, message.sender_end),
            (
                message.receiver,
                message.receiver_attempt,
                message.receiver_end,
            ),
        )
        for task, attempt, end in ends:
            command = pb.TaskCommand(task=task, attempt=attempt, cause=current_cause())
            command.open.link.CopyFrom(end)
            command.open.transport = message.transport
            self.send(task, attempt, command)

    def cut_links(self, task: str, attempt: int, reason: str) -> None:
        """Abort every link that one attempt had an end of."""
        self._links.cut((task, attempt), reason)

    def kill_all(self) -> None:
        """End every task at once, and wait for the last; those that are still awaited end with their channels."""
        self._forkserver.close()
        living = [item for item in self._processes.values() if item.pid]
        for item in living:
            item.kill()
        for item in living:
            os.waitpid(item.pid, 0)
            self._born_pids.discard(item.pid)
            self._unwatch(item)
            self._close(item)
        self._processes.clear()
        for item in self._awaited.values():
            item.channel.close()
        self._links.close()

    def _readable(self, item: TaskProcess) -> None:
        try:
            messages = item.channel.receive()
        except ChannelClosed as error:
            # It ends, or has broken the channel and would be waited for in vain.
            logger.info("is killed if it lives: %s", error, extra={"facts": item.facts})
            asyncio.get_running_loop().remove_reader(item.channel.fileno())
            item.kill()
            return
        for data in messages:
            try:
                event = pb.TaskEvent.FromString(data)
            except DecodeError as error:
                logger.warning("kills its process: it says %s", error, extra={"facts": item.facts})
                item.kill()
                return
            self._said(item, event)

    def _errors(self, item: TaskProcess) -> None:
        item.take_errors()
        if item.said_all:
            asyncio.get_running_loop().remove_reader(item.errors)

    def _begun(self, number: int, pid: int) -> None:
        """Learn of the process's end from a pidfd, without a thread or a signal handler."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._not_started(number, f"its worker could not watch it: {error}")
            return
        item = self._awaited.pop(number)
        item.pid = pid
        self._born_pids.add(pid)
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            if pid not in self._born_pids:
                return  # `kill_all` has waited for it.
            # Its last words before that: who says nonsense is killed, and its number may be another's behind it.
            self._readable(item)
            _, status = os.waitpid(pid, 0)
            self._born_pids.discard(pid)
            self._ended(item, os.waitstatus_to_exitcode(status))

        loop.add_reader(pidfd, ended)
        if item.doomed:
            item.kill()

    def _not_started(self, number: int, why: str) -> None:
        """A task that was asked for never came: as if it had been killed, with nothing in hand."""
        item = self._awaited.pop(number)
        item.story.append(why)
        self._ended(item, -signal.SIGKILL)

    def _ended(self, item: TaskProcess, code: int) -> None:
        self._unwatch(item)
        if self._processes.get(item.task) is item:
            del self._processes[item.task]
        self._exited(item, code)
        self._close(item)

    def _unwatch(self, item: TaskProcess) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(item.errors)
        loop.remove_writer(item.channel.fileno())
        loop.remove_reader(item.channel.fileno())

    def _close(self, item: TaskProcess) -> None:
        os.close(item.errors)
        item.errors = -1
        item.channel.close()
        item.in_flight.close()


def _limits(asked: pb.Limits) -> TaskLimits:
    """What the request asks for, else the defaults."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    share = int(memory * MEMORY_SHARE) // max(1, len(os.sched_getaffinity(0)))
    return TaskLimits(asked.record_s or RECORD_S, asked.task_bytes or share)


def _commands(stages: Sequence[Mapping[str, Any]]) -> str:
    """The executables of these stages, by stage; empty where none is a command."""
    found = [(stage["name"], stage["parameters"]["arguments"][0]) for stage in stages if stage["target"] == COMMAND]
    return ", ".join(f'the command {str(program)!r} of stage "{name}"' for name, program in found)


def _spent_s(pid: int, thread: int) -> float:
    """Processor seconds of a thread of a process, to a hundredth; 0 for one that is gone."""
    try:
        with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8", errors="replace") as file:
            # The name before may hold anything but ends with the last parenthesis.
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    """The memory of a process that is its own: rings are their worker's. 0 for one that is gone."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            fields = file.read().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
