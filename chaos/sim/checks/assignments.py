"""What must hold of the cluster's own log: who leads, which run is where, what people were promised.

A leader that has nothing on its way to the log holds no other opinion than the log: the plan by which tasks run, what
is paused, and which workers are drained. So whoever leads next goes on with the same.
"""

from __future__ import annotations

from typing import Any, assert_never

import orjson

from headrace.chaos.sim.checks.history import History
from headrace.chaos.sim.checks.observed import Asked, Folding, OperatorRequest
from headrace.chaos.sim.storage import SimulatedLog
from headrace.chaos.sim.world import ViolationError
from headrace.controller.core.cluster import plan_from_plain
from headrace.controller.core.log import LeaderState
from headrace.controller.core.messages import TokenOffered, messages as core
from headrace.controller.core.plan import Plan
from headrace.controller.core.run import Run, RunState
from headrace.store.ledger import (
    ClusterState,
    Entry,
    QueueSet,
    RunAmended,
    RunBegun,
    RunGated,
    RunQueued,
    RunRecord,
    RunSteered,
    WorkerDrainAsked,
)


class Assignments:
    """The judge of one cluster's log."""

    def __init__(self, log: SimulatedLog) -> None:
        self.history = History(log, ClusterState(), cluster_summary)
        self._begun: set[str] = set()
        self._graphs: list[object] = []
        self._steered: set[bytes] = set()
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

    def commanded(self, controller: Asked, command: core.Command, term: int) -> None:
        """2: who does not lead the cluster commands nothing."""
        if self.history.led_by(term) != controller.identity:
            raise ViolationError(2, f"{controller.name} commands in the cluster's term {term}, not its own: {command}")

    def granted(self, controller: Asked, request: OperatorRequest) -> None:
        """3: what somebody was told is accepted stands in the log, and outlives who said so."""
        match request:
            case core.PipelineRequested():
                # A graph that is in force already is granted at once.
                durable = request.token in self._begun or (request.amend and request.pipeline in self._graphs)
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

    def compare(self, controller: Folding) -> None:
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
