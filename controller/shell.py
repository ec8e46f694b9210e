"""The controller's shell: it executes what the core commands, and what it learns goes back as an event.

Everything runs on one event loop; the core is called from there alone. Log writes run on a thread of their own and
return as events. The shell keeps what decides nothing: sessions, progress, the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.controller.convert import add_reads, said_together, to_worker
from headrace.controller.core.cluster import Controller, why_not_expelled
from headrace.controller.core.log import LeaderState, fence_of
from headrace.controller.core.messages import ExpelRequested, TaskEvent, TokenOffered, messages as core
from headrace.controller.effects import (
    ControllerFaults,
    LineBudget,
    OwnFaults,
    ReportedProgress,
    TraceIndexes,
    in_words,
    outcome,
)
from headrace.controller.event_log import Causes, LogSearches, tell_command, tell_entry, tell_event
from headrace.controller.logs import Logs
from headrace.controller.membership import introduce
from headrace.controller.session import Session
from headrace.daemon import Effects, LogFiles, about, apart, caused_by, current_cause
from headrace.protos import codec, control_pb2 as pb
from headrace.store import StoreError
from headrace.store.datasets import Dataset, fold_ledger, show_version
from headrace.store.ledger import Closed

if TYPE_CHECKING:
    from headrace.controller.membership import ClusterFiles

#: Events and commands of one log.
_OF_A_LOG = (
    core.LogEvent
    | core.LogCommand
    | core.ManifestWritten
    | core.WriteManifest
    | core.DatasetAudited
    | core.AuditDataset
)

logger = logging.getLogger("headrace.controller")

#: Seconds that a controller which ends in order has to say so in the cluster's log.
RESIGN_S = 3.0
RESIGN_LOOK_S = 0.1
#: Seconds that what is under way has to end when the controller does.
SETTLE_S = 10.0
#: Seconds that the cluster's log has to take the use of a join token.
SPEND_S = 8.0
#: Faults that operators asked for and that are remembered in words.
FAULTS_NOTED_MAX = 64
#: Characters of a cause that a worker tells.
CAUSE_MAX = 256


class Shell:
    """Runs one Controller."""

    def __init__(
        self,
        controller: Controller,
        ticket_key: bytes,
        book: LogFiles | None = None,
        cluster: ClusterFiles | None = None,
    ) -> None:
        self.core, self._cluster = controller, cluster
        self.searches = LogSearches(book or LogFiles("controller"), self.tell_worker)
        self.faults, self.own_faults = ControllerFaults(self.tell_worker), OwnFaults()
        #: The newest that operators asked for, for people.
        self.fault_words: deque[str] = deque(maxlen=FAULTS_NOTED_MAX)
        self._causes = Causes()
        self._ticket_key = ticket_key
        self.sessions: dict[str, Session] = {}
        self.progress: dict[str, ReportedProgress] = {}
        self.requests: dict[int, asyncio.Future[core.AnswerRequest]] = {}
        self._numbers = itertools.count(1)
        self.changed = asyncio.Event()
        self._logs = Logs(cluster=controller.log.log if controller.log else "")
        self.commits = CommitTimes()
        self.refused = RefusedEvents()
        #: Events that wait, each with its cause, and the worker by whose session it came, if by one.
        self._events: deque[tuple[core.Event, str, str]] = deque()
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._effects = Effects()
        self._traces = TraceIndexes(self._effects)

    def post(self, event: core.Event, cause: str = "", worker: str = "") -> None:
        """Give one event to the core, and execute what follows. Called on the loop's thread.

        What follows bears the event's cause: `cause`, or one of its own where it begins by itself. `worker` is by whose
        session it came.
        """
        self._events.append((event, self._causes.of(event, cause), worker))
        if self._draining:
            return
        self._draining = True
        try:
            while self._events:
                following, cause, worker = self._events.popleft()
                with caused_by(cause):
                    tell_event(following)
                    self._causes.note(following, self.core.runs.values())
                    self._step(following, worker)
        finally:
            self._draining = False
        self._logs.keep(self.core.logs)
        self._set_timer()

    def expect_answer(self) -> tuple[int, asyncio.Future[core.AnswerRequest]]:
        """A number for a request, and what becomes its answer, to be waited for; who stops to wait is forgotten."""
        answered: asyncio.Future[core.AnswerRequest] = asyncio.get_running_loop().create_future()
        self.requests = {key: waits for key, waits in self.requests.items() if not waits.done()}
        self.requests[number := next(self._numbers)] = answered
        return number, answered

    async def spend(self, token: str, worker: str, key: str, further: tuple[str, ...]) -> str:
        """Have it durable that a key spends a token; why it may not, or an empty string."""
        noted = self._cluster.spend if self.core.log is None and self._cluster is not None else None
        if noted is not None and (reason := await noted(token, worker, key, further)):
            return reason
        number, answered = self.expect_answer()
        self.post(TokenOffered(number, token, worker, key, further))
        try:
            answer = await asyncio.wait_for(answered, SPEND_S)
        except TimeoutError:
            return f"the cluster's log did not answer within {SPEND_S:.0f} s; ask again with the same token"
        return answer.reason

    async def expel(self, number: int, member: str) -> None:
        """Have the cluster's log say that a member is expelled, or its folder where there is no log."""
        reason = "" if self._cluster else "this controller has no cluster: nobody has a certificate to be taken back"
        noted = frozenset[str]()
        if self._cluster is not None:
            noted = await self._cluster.members()
            try:
                if self.core.log is None and not why_not_expelled(member, self.core.expelled):
                    await self._cluster.expel(member)
            except OSError as error:
                reason = f"the cluster's folder does not take it: {error}"
        if reason:
            self._execute([core.AnswerRequest(number, accepted=False, reason=reason)])
        else:
            self.post(ExpelRequested(number, member, noted))

    def task_event(self, worker: str, message: pb.TaskEvent, event: TaskEvent | None) -> None:
        """Take a task's message that came by a worker's session: progress is kept here, the rest is for the core."""
        if event is None:
            why = self.core.witness.stranger(worker, message.task, message.attempt)
        else:
            event, why = self.core.witness.hear(worker, event)
        progress = None if why else self._progress_of(message.task)
        if progress is not None:
            why = progress.take(message)
        if why:
            self.refused.tell(worker, why)
        if event is not None:
            self.post(event, message.cause[:CAUSE_MAX], worker)

    def tell_worker(self, worker: str, message: pb.ToWorker) -> None:
        """Say something to a worker that is no command of the core; one that is gone is not told."""
        session = self.sessions.get(worker)
        if session is not None:
            message.term = self.term
            session.outbox.put_nowait(message)

    def forget(self, pipelines: Iterable[str]) -> None:
        """Nobody is told of these any more, unless they have begun again."""
        for name in pipelines:
            if name not in self.core.runs:
                self.progress.pop(name, None)

    def note_scaling(self, pipeline: str, words: str) -> None:
        """Have the status of a run name a decision of its scaling."""
        if pipeline in self.core.runs:
            self.progress.setdefault(pipeline, ReportedProgress()).scaling.append(words)

    def note_facts(self, worker: str, tasks: Iterable[pb.RunningTask]) -> None:
        """What tasks had said of themselves to an earlier leader."""
        for task in tasks:
            heard = not self.core.witness.stranger(worker, task.task, task.attempt)
            progress = self._progress_of(task.task) if heard else None
            if progress is not None and (why := progress.note_facts(task.task, task.facts)):
                self.refused.tell(worker, why)

    def begin(self, address: str) -> None:
        """Serve at this address from now on: look who leads."""
        self.core.identity["address"] = address
        self._execute(self.core.open())
        self._set_timer()

    async def resign(self) -> None:
        """Hand the cluster's log over, as far as the store lets us within RESIGN_S."""
        if self.core.log is None:
            return
        self.post(core.ShutdownAsked())
        deadline = time.monotonic() + RESIGN_S
        while self.core.log.state is LeaderState.RESIGNING and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), RESIGN_LOOK_S)

    async def close(self) -> None:
        """Wait for writes under way, for SETTLE_S at most, and end the threads."""
        if self._timer is not None:
            self._timer.cancel()
        self._traces.close()
        await self._effects.settle(SETTLE_S)
        self._logs.close()

    def _step(self, event: core.Event, worker: str) -> None:
        try:
            commands = self.core.handle(event, time.monotonic(), worker)
        except Exception as error:
            logger.exception("the core could not take %s", type(event).__name__)
            commands = self._give_up(event, in_words(error))
            if not commands:
                self._send_off(event, error)
        self._execute(commands)

    def _execute(self, commands: Iterable[core.Command]) -> None:
        for command, *more in said_together(commands):
            with caused_by(self._causes.of_command(command)):
                try:
                    self._do(command, more)
                except Exception as error:  # noqa: BLE001 - whatever it is, it ends as an event
                    self._failed(command, error)

    def _failed(self, command: core.Command, error: Exception) -> None:
        """A command raised: that ends as an event, or it ends the run that it was for."""
        if not isinstance(error, StoreError):
            logger.error("%s failed", type(command).__name__, exc_info=error)
        event = outcome(command, error)
        if event is not None:
            self.post(event)
        elif not isinstance(command, core.TruncateLog):
            self._execute(self._give_up(command, in_words(error)))

    def _do(self, command: core.Command, more: Sequence[core.Command] = ()) -> None:
        """Carry out a command; one for a worker together with `more` that may go in one message with it."""
        for told in (command, *more):
            tell_command(told)
        match command:
            case core.ReadLog():
                self._start(command, self._logs.read(command))
            case core.WriteEntry():
                self._start(command, self._write(command))
            case core.WriteSnapshot():
                self._start(command, self._logs.snapshot(command))
            case core.TruncateLog():
                self._start(command, self._logs.truncate(command))
            case core.WriteManifest():
                self._start(command, self._manifest(command))
            case core.AuditDataset():
                self._start(command, self._audit(command))
            case core.AnswerRequest():
                waiting = self.requests.pop(command.request, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(command)
            case core.StepDown():
                self._send_away(command.reason)
                self._wake_watchers()
            case core.SpreadExpulsions():
                self._spread(command.cut)
            case core.ReportRun():
                if (progress := self.progress.get(command.pipeline)) is not None:
                    progress.end()
                self._wake_watchers()
            case _:
                self._send(command, more)

    def _send(self, command: core.WorkerCommand, more: Sequence[core.Command]) -> None:
        link = command.link if isinstance(command, core.OpenRelay) else command
        name = link.sender if isinstance(link, core.MakeLink) else link.task
        pipeline = name.split("/", 1)[0]
        run = self.core.runs.get(pipeline)
        introduction = None
        if isinstance(link, core.MakeLink) and run is not None:
            introduction = introduce(link, run, self._ticket_key, self.core.workers)
        term, seal, limits = run.leadership.term if run else 0, None, None
        if run is not None and isinstance(command, core.StartTask):
            options = run.amendment.options(command.task, run.works) or run.request
            seal, limits = _policy(options.seal), _limits(options.limits)
        message = to_worker(command, term, seal, limits, introduction)
        session = self.sessions.get(command.worker)
        if session is None or message is None:
            return
        add_reads(message, more)
        message.term, message.cause = self.term, current_cause()
        if message.WhichOneof("message") == "task":
            message.task.cause = message.cause
        given = fence_of(self.core.log, run.leadership if run else None, command)
        message.log, message.log_term = given.log, given.log_term
        session.outbox.put_nowait(message)

    @property
    def term(self) -> int:
        """The term of the cluster's log in which this controller acts, 0 without one."""
        return self.core.log.term if self.core.log is not None else 0

    def _spread(self, cut: str) -> None:
        """Part with a member that was expelled, and tell every worker who was."""
        role, _, name = cut.partition("/")
        if role == "worker":
            if (session := self.sessions.pop(name, None)) is not None:
                reason = f"worker {name!r} was expelled from the cluster"
                session.outbox.put_nowait(pb.ToWorker(refusal=pb.Refusal(reason=reason)))
                session.outbox.put_nowait(None)
            self.refused.forget(name)
            self.post(core.WorkerLost(name, "it was expelled from the cluster"))
        for worker in self.sessions:
            self.tell_worker(worker, pb.ToWorker(expelled=codec.expulsions_to(self.core.expelled)))

    def _send_away(self, reason: str) -> None:
        refusal = pb.Refusal(reason=reason, elsewhere=True, leader=str(self.core.leader.get("address", "")))
        for session in self.sessions.values():
            session.outbox.put_nowait(pb.ToWorker(refusal=refusal))
            session.outbox.put_nowait(None)
        self.sessions.clear()
        self.progress.clear()

    def _give_up(self, about: core.Event | core.Command, reason: str) -> list[core.Command]:
        """End the runs that an event or a command is about."""
        log, task = None, ""
        if isinstance(about, _OF_A_LOG):
            log = about.log
        elif isinstance(about, core.TaskEvent | core.TaskCommand | core.KillTask):
            task = about.task
        commands: list[core.Command] = []
        for name, run in self.core.runs.items():
            if run.leadership.log == log or task.partition("/")[0] == name:
                commands += run.give_up(reason)
        return commands

    def _send_off(self, event: core.Event, error: Exception) -> None:
        """An event of no run could not be taken: refuse who asked, or part from that worker, or end."""
        worker = event.worker if isinstance(event, core.WorkerRegistered | core.WorkerLost) else ""
        if isinstance(event, core.AnsweredRequest):  # whoever asked may have gone
            self._execute([core.AnswerRequest(event.request, accepted=False, reason=in_words(error))])
        elif (session := self.sessions.pop(worker, None)) is not None:
            session.outbox.put_nowait(None)
        else:
            context = {"message": f"nobody is left to tell of {type(event).__name__}", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def _start(self, command: core.Command, work: Awaitable[core.Event | None]) -> None:
        self._effects.start(type(command).__name__, self._see_through(command, work))

    async def _see_through(self, command: core.Command, work: Awaitable[core.Event | None]) -> None:
        """Carry a command out: it ends as an event, whatever it raises."""
        try:
            event = await work
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends as an event
            self._failed(command, error)
        else:
            if event is not None:
                self.post(event)
        self._wake_watchers()

    async def _write(self, command: core.WriteEntry) -> core.Event:
        began = time.monotonic()
        event = await self._logs.write(command)
        if isinstance(event, core.EntryWritten):
            seconds = time.monotonic() - began
            self.commits.take(seconds)
            if any(isinstance(change, Closed) for change in command.entry.changes):
                self._note_closed(command.log)
            tell_entry(command.log, command.number, command.entry, seconds)
        return event

    def _note_closed(self, log: str) -> None:
        for name, run in self.core.runs.items():
            if run.leadership.log == log and name in self.progress:
                self.progress[name].closed_at = time.monotonic()
                self._traces.closed(log, run.ledger)

    async def _manifest(self, command: core.WriteManifest) -> core.Event | None:
        run = next((run for run in reversed(self.core.runs.values()) if run.leadership.log == command.log), None)
        if run is None:
            return None
        dataset = Dataset(self._logs.store(command.log), run.ledger)
        described = await apart(f"the manifest of {command.log}", dataset.describe)
        if run.leadership.state not in (LeaderState.LEADING, LeaderState.RESIGNING):
            return None  # whoever leads by now writes one; this fold is no leader's any more
        # Made here, where the fold stands still; a later entry's manifest is left alone.
        manifest = dataset.manifest(described)
        said = await apart(f"the manifest of {command.log}", lambda: show_version(dataset, manifest))
        if said:
            logger.warning(said)
        await self._traces.ended(command.log, run.ledger)
        return core.ManifestWritten(command.log, command.term)

    async def _audit(self, command: core.AuditDataset) -> core.Event:
        """Read in a thread of its own what the ledger says by now: the run's fold goes on meanwhile."""
        # Here, since numpy and Arrow come with it.
        from headrace.store.history import broken_rows, parse_gate

        store, gate = self._logs.store(command.log), parse_gate(command.gate)

        def rows() -> tuple[str, ...]:
            return tuple(map(str, broken_rows(Dataset(store, fold_ledger(store)), gate, final=command.final)))

        broken = await apart(f"an audit of {command.log}", rows)
        return core.DatasetAudited(command.log, command.term, command.final, broken)

    def _progress_of(self, task: str) -> ReportedProgress | None:
        pipeline = task.split("/", 1)[0]
        if pipeline not in self.core.runs:
            return None
        return self.progress.setdefault(pipeline, ReportedProgress())

    def _set_timer(self) -> None:
        wake_at = self.core.wake_at()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_at is not None:
            delay = max(0.0, wake_at - time.monotonic())
            own = contextvars.Context()
            self._timer = asyncio.get_running_loop().call_later(delay, self.post, core.TimePassed(), context=own)

    def _wake_watchers(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def _policy(seal: Mapping[str, float]) -> pb.SealPolicy | None:
    if not seal:
        return None
    target, held = int(seal.get("target_bytes", 0)), int(seal.get("held_bytes_max", 0))
    return pb.SealPolicy(target_bytes=target, held_bytes_max=held, age_s=seal.get("age_s", 0.0))


def _limits(limits: Mapping[str, float]) -> pb.Limits:
    return pb.Limits(record_s=limits.get("record_s", 0.0), task_bytes=int(limits.get("task_bytes", 0)))


class RefusedEvents:
    """One controller's; those of a worker are forgotten with its session."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[str, LineBudget] = {}

    def tell(self, worker: str, why: str) -> None:
        """Something was not believed."""
        if line := self._told.setdefault(worker, LineBudget()).line(why, self._clock()):
            logger.warning("not believed: %s", line, extra=about(worker=worker))

    def forget(self, worker: str) -> None:
        """Its session is over."""
        self._told.pop(worker, None)


#: Upper bounds in seconds; what is slower is counted behind the last.
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class CommitTimes:
    """Entries written by this controller, by the time that their writing took."""

    total_s: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))

    def take(self, seconds: float) -> None:
        """An entry was answered for after so long."""
        self.total_s += seconds
        self.counts[sum(seconds > bound for bound in BOUNDS_S)] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as Prometheus has them."""
        found: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], self.counts, strict=True):
            running += count
            found.append((bound, float(running)))
        return found
