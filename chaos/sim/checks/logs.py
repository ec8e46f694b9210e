"""What must hold of every log, and of the cluster's own: who leads, which run is where, what people were promised.

A leader that has nothing on its way to the log holds no other opinion than the log: the plan by which tasks run, what
is paused, and which workers are drained. So whoever leads next goes on with the same.

One history for each log of a simulated cluster. It folds what is durable by itself, and compares with that whatever a
controller writes, or has folded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, assert_never

import orjson

from headrace.chaos.sim.storage import SimulatedLog
from headrace.chaos.sim.world import ViolationError
from headrace.controller.core.cluster import plan_from_plain
from headrace.controller.core.log import LeaderState
from headrace.controller.core.messages import TokenOffered, WriteEntry, messages as core
from headrace.controller.core.plan import Plan
from headrace.controller.core.run import Run, RunState
from headrace.store.ledger import (
    ClusterState,
    Entry,
    FoldError,
    Led,
    LogState,
    QueueSet,
    RunAmended,
    RunBegun,
    RunEnded,
    RunGated,
    RunQueued,
    RunRecord,
    RunSteered,
    RunStopAsked,
    RunUnqueued,
    WorkerDrainAsked,
)

if TYPE_CHECKING:
    from headrace.chaos.sim.nodes import SimulatedController

S = TypeVar("S", bound=LogState)
#: What people ask of a controller, and are answered.
OperatorRequest = (
    core.PipelineRequested
    | core.StopRequested
    | core.SteerRequested
    | core.DrainRequested
    | core.QueueRequested
    | TokenOffered
)


class History(Generic[S]):
    """The entries of one log, who leads it, and what a fold knows after each entry."""

    def __init__(self, log: SimulatedLog, ledger: S, summary: Callable[[S], tuple[Any, ...]]) -> None:
        self._log = log
        #: The fold of all that is durable.
        self.ledger = ledger
        self._summary = summary
        self._summaries: list[tuple[Any, ...]] = []
        self._leaders: dict[int, str] = {}
        #: What somebody has tried to write last in a term: number and bytes.
        self._writing: dict[tuple[str, int], tuple[int, bytes]] = {}
        self._folded: dict[str, int] = {}
        self._entries: list[bytes] = []

    def led_by(self, term: int) -> str | None:
        """Who leads a term, once its `Led` is durable."""
        return self._leaders.get(term)

    def write_asked(self, controller: SimulatedController, command: WriteEntry, data: bytes) -> None:
        """1, 3: the bytes of a number never change, and no number is tried before the one below it is known."""
        author = controller.identity, command.entry.term
        before = self._writing.get(author)
        if before is not None:
            number, bytes_before = before
            if command.number == number and data != bytes_before:
                raise ViolationError(1, f"{controller.name} tries other bytes as entry {number} of {command.log}")
            if command.number < number:
                raise ViolationError(3, f"{controller.name} goes back from entry {number} to {command.number}")
        if command.number > len(self._entries):
            raise ViolationError(
                3, f"{controller.name} tries entry {command.number} before {command.number - 1} is known"
            )
        self._writing[author] = (command.number, data)

    def led(self, entry: Entry, writer: str) -> None:
        """2: an entry that has become durable is of a term that its writer leads."""
        for change in entry.changes:
            if isinstance(change, Led):
                self._leaders[change.term] = writer
        leader = self._leaders.get(entry.term)
        if leader != writer:
            raise ViolationError(2, f"an entry of term {entry.term} is by {writer}, the term is that of {leader}")

    def fold(self, number: int, entry: Entry) -> None:
        """4 and others: it follows from the entries before it."""
        self._entries.append(self._log.entries[number])
        try:
            self.ledger.apply(number, entry)
        except FoldError as error:
            raise ViolationError(4, str(error)) from error
        self._summaries.append(self._summary(self.ledger))

    def compare(self, controller: SimulatedController, ledger: S) -> None:
        """1: what a controller has folded is a prefix of the log, and is folded alike."""
        key = f"{controller.identity}/{id(ledger)}"
        if ledger.number < 0 or self._folded.get(key) == ledger.number:
            return
        self._folded[key] = ledger.number
        if ledger.number >= len(self._summaries):
            raise ViolationError(1, f"{controller.name} has folded entry {ledger.number}, which is not durable")
        if self._summary(ledger) != self._summaries[ledger.number]:
            raise ViolationError(1, f"{controller.name} knows other things after entry {ledger.number}")

    def finish(self) -> None:
        """1: no entry has other bytes than it had."""
        if self._entries != self._log.entries:
            raise ViolationError(1, "the bytes of an entry have changed")


class Assignments:
    """The judge of one cluster's log."""

    def __init__(self, log: SimulatedLog) -> None:
        self.history = History(log, ClusterState(), cluster_summary)
        self._begun: set[str] = set()
        self._graphs: list[object] = []
        self._steered: set[bytes] = set()
        #: Runs that were to end, or have.
        self._stopped: set[str] = set()
        self._drained: set[tuple[str, bool]] = set()
        #: The queues that were ever set: name, weight, quota, priority.
        self._queues: set[tuple[str, int, int, int]] = set()
        #: Plans that were compared already: the one in force, and the one in the log.
        self._compared: dict[tuple[str, str], tuple[Plan, object]] = {}

    def durable(self, number: int, entry: Entry, writer: str) -> None:
        """1, 2, 24: an entry has become durable. The fold refuses what cannot follow: a token that is spent twice, a
        run that is begun twice.
        """
        self.history.led(entry, writer)
        for change in entry.changes:
            if isinstance(change, RunGated):
                self._check_gated(number, change)
        self.history.fold(number, entry)
        for change in entry.changes:
            match change:
                case RunBegun() | RunAmended() | RunQueued():
                    self._begun.add(str(change.options["token"]))
                    self._graphs.append(change.pipeline)
                case RunStopAsked() | RunUnqueued() | RunEnded():
                    self._stopped.add(change.name)
                case RunSteered():
                    self._steered.add(_plain(change.request))
                case WorkerDrainAsked():
                    self._drained.add((change.worker, change.back))
                case QueueSet():
                    self._queues.add((change.name, change.weight, change.cores, change.priority))
                case _:
                    pass

    def _check_gated(self, number: int, change: RunGated) -> None:
        record = self.history.ledger.going_on().get(change.name)
        if record is not None and record.gated is not None:
            raise ViolationError(24, f"entry {number} pauses run {change.name} for its gate a second time")

    def commanded(self, controller: SimulatedController, command: core.Command, term: int) -> None:
        """2: who does not lead the cluster commands nothing."""
        if self.history.led_by(term) != controller.identity:
            raise ViolationError(2, f"{controller.name} commands in the cluster's term {term}, not its own: {command}")

    def granted(self, controller: SimulatedController, request: OperatorRequest) -> None:
        """3: what somebody was told is accepted stands in the log, and outlives who said so."""
        match request:
            case core.PipelineRequested():
                # A graph that is in force already is granted at once.
                durable = request.token in self._begun or (request.amend and request.pipeline in self._graphs)
            case core.StopRequested():
                durable = request.pipeline in self._stopped
            case core.SteerRequested():
                durable = any(_covers(made, request) for made in self._steered)
            case core.DrainRequested():
                durable = (request.worker, request.back) in self._drained
            case core.QueueRequested():
                durable = (request.name, request.weight, request.cores, request.priority) in self._queues
            case TokenOffered():
                spent = self.history.ledger.tokens.get(request.token)
                durable = spent is not None and spent.key == request.key
            case _:
                assert_never(request)
        if not durable:
            raise ViolationError(3, f"{controller.name} accepts what no entry of the cluster's log says: {request}")

    def compare(self, controller: SimulatedController) -> None:
        """1: the fold of a prefix; and where nothing is on its way, what is done is what the log says."""
        log, drained = controller.core.log, controller.core.drained
        if log is None:
            return
        self.history.compare(controller, log.ledger)
        if log.state is not LeaderState.LEADING or not log.quiet:
            return
        if log.ledger.drained != drained:
            raise ViolationError(1, f"{controller.name} has {drained} drained, the cluster's log {log.ledger.drained}")
        if log.ledger.leaving != (leaving := controller.core.leaving):
            raise ViolationError(1, f"{controller.name} has {leaving} leaving, the cluster's log {log.ledger.leaving}")
        if unknown := controller.core.workers.keys() - log.ledger.workers.keys():
            raise ViolationError(1, f"{controller.name} has workers that the cluster's log has not: {sorted(unknown)}")
        for name, record in log.ledger.going_on().items():
            run = controller.core.runs.get(name)
            if run is not None and not run.ended:
                self._compare_run(controller.name, name, run, record)

    def _compare_run(self, who: str, name: str, run: Run, record: RunRecord) -> None:
        if run.reconfiguration.pause_wanted != record.paused:
            raise ViolationError(
                1, f"{who} has run {name} paused: {run.reconfiguration.pause_wanted}, the log: {record.paused}"
            )
        if not run.amendment.recording and run.reconfiguration.gated != record.gated:
            raise ViolationError(1, f"{who} has run {name} gated: {run.reconfiguration.gated}, the log: {record.gated}")
        waiting = sum(not change.leave for change in run.reconfiguration.waiting)
        if waiting != len(record.waiting):
            raise ViolationError(
                1, f"{who} has {waiting} requests of run {name} to see to, the log {len(record.waiting)}"
            )
        if run.tasks is None or run.state is RunState.OPENING or run.amendment.recording:
            return
        plan = run.tasks.plan
        known = self._compared.get((who, name))
        if known is not None and known[0] is plan and known[1] is record.plan:
            return
        if record.plan is None or plan_from_plain(record.plan) != plan:
            raise ViolationError(1, f"{who} runs {name} by another plan than the cluster's log has: {plan}")
        self._compared[who, name] = (plan, record.plan)


def _plain(request: Any) -> bytes:
    """The same bytes for the same values, whether they have been in the log or not yet."""
    return orjson.dumps(request, option=orjson.OPT_SORT_KEYS)


def _covers(made: bytes, request: core.SteerRequested) -> bool:
    """Whether a durable request is this one; stages that are fused are scaled together."""
    plain = orjson.loads(made)
    return plain["pause"] == request.pause and all(
        plain["replicas"].get(name) == n for name, n in request.replicas.items()
    )


def cluster_summary(state: ClusterState) -> tuple[Any, ...]:
    """What a fold of the cluster's log knows, in few words; two folds that differ differ here."""
    runs = [
        (
            name,
            run.number,
            run.outcome,
            run.stop_asked,
            (run.paused, run.held, run.since, run.gated),
            _plain((run.plan, run.wished, run.waiting)),
        )
        for name, run in state.runs.items()
    ]
    workers, tokens = sorted(state.workers), sorted((name, spent.key) for name, spent in state.tokens.items())
    queues = sorted((name, item.weight, item.cores, item.priority) for name, item in state.queues.items())
    waiting = [(name, record.since) for name, record in state.queued.items()]
    of_workers = workers, tokens, sorted(state.drained)
    return state.term, state.leader.get("id"), state.resigned, runs, of_workers, queues, waiting
