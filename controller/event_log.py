"""The lines of the controller: what it learns and commands, what begins each, and how `headrace logs` finds them.

What follows from an event bears its name: the commands of the core, the entries that are written for it, and what
workers and tasks say and do on these commands. So `headrace logs --cause` shows one story, over all processes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from headrace.controller.core.messages import (
    DecisionAsked,
    DecisionMade,
    ExpelRequested,
    ServeIndex,
    TokenOffered,
    messages as core,
)
from headrace.controller.core.run import Run
from headrace.daemon import FILE_BYTES_MAX, LINES_MAX, LogFiles, about, current_cause, pages
from headrace.protos import codec, control_pb2 as pb
from headrace.store import counted
from headrace.store.ledger import Beat, Entry

logger = logging.getLogger("headrace.controller")

#: What there is many of, and is told at `debug` alone: no words are made for it otherwise. What is wrong with it ends
#: the run, or a task, and that is told.
_OFTEN = (
    core.FragmentWasRead,
    core.FragmentsWereRead,
    core.ShardProposed,
    core.TaskSwept,
    core.TimePassed,
    core.ReadFragment,
    core.SweepTask,
    core.AnswerProposal,
)
#: A line: its level, its words, and its fields.
_Told = tuple[int, str, dict[str, Any]]


def tell_event(event: object) -> None:
    """A line for an event that says something to people."""
    if isinstance(event, _OFTEN) and not logger.isEnabledFor(logging.DEBUG):
        return
    told = _of_people(event) or _of_workers(event) or _of_tasks(event)
    if told is not None:
        logger.log(told[0], told[1], extra=about(**told[2]))


def tell_command(command: object) -> None:
    """A line for a command."""
    if isinstance(command, _OFTEN) and not logger.isEnabledFor(logging.DEBUG):
        return
    told = _of_command(command)
    if told is not None:
        logger.log(told[0], told[1], extra=about(**told[2]))


def tell_entry(log: str, number: int, entry: Entry, seconds: float) -> None:
    """A line for an entry that has become durable; a heartbeat alone is not worth one."""
    kinds = Counter(type(change).__name__ for change in entry.changes)
    level = logging.DEBUG if set(kinds) <= {Beat.__name__} else logging.INFO
    words = ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in kinds.items())
    facts = about(log=log, entry=number, seconds=round(seconds, 4))
    logger.log(level, "entry %d of %s is durable after %.0f ms: %s", number, log, seconds * 1000, words, extra=facts)


def _of_people(event: object) -> _Told | None:
    match event:
        case core.PipelineRequested():
            name = str(event.pipeline.get("name", ""))
            words = f"{event.by or 'somebody'} applies the pipeline"
            return logging.INFO, words, {"pipeline": name, "amend": event.amend or None}
        case core.StopRequested():
            words = "somebody cancels it" if event.cancel else "somebody stops it"
            return logging.INFO, words, {"pipeline": event.pipeline}
        case core.SteerRequested():
            return logging.INFO, f"reconfiguration requested: {_asked_for(event)}", {"pipeline": event.pipeline}
        case core.DrainRequested():
            words = f"somebody lets worker {event.worker} have tasks again" if event.back else ""
            return logging.INFO, words or f"somebody drains worker {event.worker}", {"worker": event.worker}
        case core.ClearRequested():
            which = {"pipeline": event.pipeline} if event.pipeline else {}
            return logging.INFO, f"somebody clears {'it' if which else 'all that have ended'}", which
        case core.QueueRequested():
            words = "removes" if event.remove else "sets"
            return logging.INFO, f"{event.by or 'somebody'} {words} queue {event.name}", {}
        case ExpelRequested():
            return logging.WARNING, f"somebody expels {event.member.replace('/', ' ')}", {"member": event.member}
        case core.ShutdownAsked():
            return logging.INFO, "is told to end", {}
        case _:
            return None


def _asked_for(event: core.SteerRequested) -> str:
    words = [] if event.pause is None else ["pause" if event.pause else "resume"]
    words += [f"{counted(count, 'task')} of {stage}" for stage, count in event.replicas.items()]
    words += [f"{stage} on {place}" for stage, place in event.places.items()]
    words += [f"{stage} joined by {transport}" for stage, transport in event.transports.items()]
    return ", ".join(words) or "nothing"


def _of_workers(event: object) -> _Told | None:
    match event:
        case core.WorkerRegistered():
            words = f"worker {event.worker} is registered: {event.cores} cores on {event.host}"
            words += f", and has {counted(len(event.tasks), 'task')} still" if event.tasks else ""
            return logging.INFO, words, {"worker": event.worker}
        case core.WorkerLost():
            return logging.WARNING, f"worker {event.worker} is lost: {event.reason}", {"worker": event.worker}
        case _:
            return None


def _of_tasks(event: object) -> _Told | None:
    match event:
        case core.TaskReady():
            return logging.INFO, f"task {event.task} is ready", _task(event)
        case core.TaskExited():
            level = logging.INFO if event.code == 0 else logging.WARNING
            return level, f"task {event.task} ended by {event.words()}", {**_task(event), "code": event.code}
        case core.TaskFailed():
            return logging.ERROR, f"task {event.task} failed: {event.error}", _task(event)
        case core.LinkLost():
            return logging.WARNING, f"link {event.link} was cut: {event.reason}", _task(event)
        case core.SourceListed():
            level = logging.ERROR if event.error else logging.INFO if event.last else logging.DEBUG
            words = f"source {event.stage} lists {counted(len(event.fragments), 'fragment')}"
            return level, f"{words}{': ' + event.error if event.error else ''}", {**_task(event), "last": event.last}
        case core.FragmentWasRead():
            words = f"fragment {event.fragment.hex()} was read: {event.error or counted(event.count, 'record')}"
            return logging.DEBUG, words, _task(event)
        case core.FragmentsWereRead():
            return logging.DEBUG, f"{counted(len(event.reads), 'fragment')} were read", _task(event)
        case core.ShardProposed():
            return (
                logging.DEBUG,
                f"task {event.task} proposes a shard of {counted(len(event.ranges), 'range')}",
                _task(event),
            )
        case _:
            return None


def _of_command(command: object) -> _Told | None:
    match command:
        case core.StartTask():
            words = f"start task {command.task} on worker {command.worker}"
            return logging.INFO, words, {**_task(command), "stages": "+".join(command.stages)}
        case core.StopTask():
            return logging.INFO, f"stop task {command.task}: {command.reason}", _task(command)
        case core.KillTask():
            return logging.WARNING, f"kill task {command.task}: {command.reason}", _task(command)
        case core.SealSink():
            return logging.INFO, f"seal what task {command.task} holds: {command.reason}", _task(command)
        case core.MakeLink():
            words = f"join {command.sender} to {command.receiver} by {command.transport}"
            facts = {"task": command.sender, "link": command.link, "generation": command.generation}
            return logging.INFO, words, {**facts, "worker": command.worker}
        case core.ReadFragment():
            return logging.DEBUG, f"have task {command.task} read {command.fragment.uri}", _task(command)
        case core.SweepTask():
            return logging.DEBUG, f"sweep {command.sweep} through task {command.task}", _task(command)
        case core.AnswerProposal():
            words = f"proposal {command.proposal} of task {command.task}: {command.outcome.value}"
            return logging.DEBUG, f"{words}{': ' + command.reason if command.reason else ''}", _task(command)
        case core.ReleaseClaims():
            words = f"release claims in {counted(len(command.records), 'fragment')} at task {command.task}"
            return logging.INFO, words, _task(command)
        case ServeIndex():
            return logging.INFO, f"have task {command.task} serve its index", _task(command)
        case core.ReportRun():
            level = logging.ERROR if command.outcome == "failed" else logging.INFO
            words = f"the pipeline is {command.outcome}{': ' + command.reason if command.reason else ''}"
            return level, words, {"pipeline": command.pipeline}
        case core.StepDown():
            return logging.WARNING, f"leads no more: {command.reason}", {}
        case _:
            return None


def _task(item: Any) -> dict[str, Any]:
    return {"task": item.task, "attempt": item.attempt}


#: Seconds that workers have to tell what there is.
ANSWER_S = 5.0
#: Seconds between two pages of a search that is followed, empty or not: so its reader knows that it lives.
ALIVE_S = 5.0
#: Pages that wait for a reader; when it is slower than that, the search is over.
WAITING_PAGES_MAX = 1_000


class LogSearches:
    """The searches under way. Called on the event loop's thread; `ask` sends a message to a worker by its name."""

    def __init__(self, book: LogFiles, ask: Callable[[str, pb.ToWorker], None]) -> None:
        self._book, self._ask = book, ask
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Queue[tuple[str, pb.LogPage]]] = {}
        #: Who may answer each: this controller itself, as "", and the workers that were asked.
        self._asked: dict[int, set[str]] = {}

    def told(self, worker: str, page: pb.LogPage) -> None:
        """A worker's page. One that was not asked for, or has no bounds, is dropped."""
        queue = self._waiting.get(page.number)
        wanted = worker in self._asked.get(page.number, ()) and sum(map(len, page.lines)) <= FILE_BYTES_MAX
        if queue is not None and wanted and not queue.full():
            queue.put_nowait((worker, page))

    async def search(self, wanted: pb.LogSearch, workers: Iterable[str]) -> AsyncIterator[pb.LogPage]:
        """Pages of what there is, the last of them with `last`; then, if it is followed, of what comes, without end."""
        number, asked = next(self._numbers), set(workers)
        queue = self._waiting[number] = asyncio.Queue(WAITING_PAGES_MAX)
        self._asked[number] = {"", *asked}
        loop = asyncio.get_running_loop()
        search = codec.search_from(wanted)

        def come(line: bytes) -> None:
            loop.call_soon_threadsafe(self.told, "", pb.LogPage(number=number, lines=[line]))

        try:
            lines_max = wanted.lines_max or LINES_MAX
            follow = self._book.follow
            found = follow(number, search, come, lines_max) if wanted.follow else self._book.read(search, lines_max)
            for lines in pages(found):
                yield pb.LogPage(lines=lines)
            for worker in asked:
                self._ask(worker, pb.ToWorker(logs=pb.LogsAsked(number=number, search=wanted)))
            async for page in self._gather(queue, asked):
                yield page
            while wanted.follow and not queue.full():
                yield await self._next(queue, ALIVE_S) or pb.LogPage()
        finally:
            del self._waiting[number], self._asked[number]
            self._book.leave(number)
            for worker in asked if wanted.follow else ():
                self._ask(worker, pb.ToWorker(logs=pb.LogsAsked(number=number, end=True)))

    async def _gather(self, queue: asyncio.Queue[tuple[str, pb.LogPage]], asked: set[str]) -> AsyncIterator[pb.LogPage]:
        """What each worker has, until all have told or are late; the last page says who is missing."""
        missing, deadline = set(asked), time.monotonic() + ANSWER_S
        while missing and time.monotonic() < deadline:
            try:
                worker, page = await asyncio.wait_for(queue.get(), max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                break
            if page.last:
                missing.discard(worker)
            else:
                yield page
        yield pb.LogPage(last=True, missing=sorted(missing))

    async def _next(self, queue: asyncio.Queue[tuple[str, pb.LogPage]], within_s: float) -> pb.LogPage | None:
        try:
            _, page = await asyncio.wait_for(queue.get(), within_s)
        except TimeoutError:
            return None
        page.last = False
        return page


#: The kind of what begins by itself; anything else goes on with the cause that it comes with.
_BEGINNINGS: dict[type[object], str] = {
    core.PipelineRequested: "apply",
    core.StopRequested: "stop",
    core.SteerRequested: "steer",
    core.DrainRequested: "drain",
    core.ClearRequested: "clear",
    core.QueueRequested: "queue",
    core.WorkerRegistered: "joined",
    core.WorkerLost: "lost",
    core.TimePassed: "timer",
    core.ShutdownAsked: "shutdown",
    TokenOffered: "token",
    core.TaskExited: "exit",
    core.TaskFailed: "fault",
    core.LinkLost: "cut",
    core.FragmentWasRead: "read",
    core.FragmentsWereRead: "read",
    core.ShardProposed: "shard",
    core.NeedsAsked: "needs",
    **dict.fromkeys((DecisionAsked, DecisionMade), "decision"),
    core.VerdictsLetGo: "needs",
}


class Causes:
    """Gives names."""

    def __init__(self) -> None:
        self._run = secrets.token_hex(2)
        self._numbers = itertools.count(1)
        #: Why each task that is dead died: it is started again later, when a timer says so.
        self._deaths: dict[str, str] = {}

    def note(self, event: object, runs: Iterable[Run]) -> None:
        """Remember what this event, whose cause is that of this context, is the end of."""
        match event:
            case core.TaskExited(code=code) if code == 0:
                return
            case core.TaskExited() | core.TaskFailed():
                self._deaths[event.task] = current_cause()
            case core.WorkerLost():
                tasks = (task.plan for run in runs for one in run.task_sets for task in one)
                self._deaths |= {task.name: current_cause() for task in tasks if task.worker == event.worker}
            case _:
                pass

    def of_command(self, command: object) -> str:
        """The cause of a command: that of this context, but a task that died is started for its death."""
        match command:
            case core.StartTask():
                return self._deaths.pop(command.task, current_cause())
            case core.ReportRun():
                ended = [name for name in self._deaths if name.startswith(f"{command.pipeline}/")]
                for name in ended:
                    del self._deaths[name]
                return current_cause()
            case _:
                return current_cause()

    def of(self, event: object, told: str = "") -> str:
        """The cause of an event: the one that it came with, else that of this context, else a new one."""
        if told:
            return told
        kind = _BEGINNINGS.get(type(event))
        if kind is None and (going_on := current_cause()):
            return going_on
        return f"{kind or 'start'}.{self._run}.{next(self._numbers)}"
