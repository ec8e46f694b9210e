"""The fold of the cluster's log: the workers, the pipelines and the spent tokens that a new leader begins with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from headrace.store.ledger.core.cluster_changes import (
    MemberExpelled,
    QueueRemoved,
    QueueSet,
    RunAmended,
    RunBegun,
    RunChanged,
    RunEnded,
    RunGated,
    RunHeld,
    RunPlanned,
    RunQueued,
    RunScaled,
    RunsCleared,
    RunSteered,
    RunStopAsked,
    RunUnqueued,
    TokenSpent,
    WorkerDrainAsked,
    WorkerJoined,
    WorkerLeft,
)
from headrace.store.ledger.core.entries import Change
from headrace.store.ledger.core.log_state import FoldError, ForeignLog, LogState

#: Runs that have ended and are still told of.
ENDED_RUNS_MAX = 64


@dataclass(slots=True)
class RunRecord:
    """A run as the log knows it. `outcome` is empty as long as it goes on."""

    pipeline: Mapping[str, Any]
    options: Mapping[str, Any]
    #: The number of the entry that began it.
    number: int
    plan: Mapping[str, Any] | None = None
    #: Whether somebody asked for its end, and if so, whether at once.
    stop_asked: bool | None = None
    outcome: str = ""
    reason: str = ""
    #: Whether it is to stand still; what else was wished and came true, merged; and the requests that wait, in order.
    paused: bool = False
    wished: Mapping[str, Any] = field(default_factory=dict[str, Any])
    waiting: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    #: Whether its cores are another's, and since which entry it counts as that old in its queue.
    held: bool = False
    since: int = -1
    #: Whether its gate has paused it, and why; False: somebody has resumed it since, and it pauses no more.
    gated: bool | None = None
    broken: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class ClusterState(LogState):
    """All that the cluster's log says up to entry `number`."""

    workers: dict[str, WorkerJoined] = field(default_factory=dict[str, WorkerJoined])
    runs: dict[str, RunRecord] = field(default_factory=dict[str, RunRecord])
    #: Spent join tokens, by their fingerprint.
    tokens: dict[str, TokenSpent] = field(default_factory=dict[str, TokenSpent])
    #: Workers that are to have no task.
    drained: set[str] = field(default_factory=set[str])
    #: Those of them that nobody but themselves drained: they are about to end.
    leaving: set[str] = field(default_factory=set[str])
    #: Members that were expelled, as role/name, and the keys that were let in under that name since.
    expelled: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    #: The queues, and the pipelines that wait in them, the oldest first.
    queues: dict[str, QueueSet] = field(default_factory=dict[str, QueueSet])
    queued: dict[str, RunRecord] = field(default_factory=dict[str, RunRecord])

    def going_on(self) -> dict[str, RunRecord]:
        """The runs that have not ended."""
        return {name: run for name, run in self.runs.items() if not run.outcome}

    def _drained(self, change: WorkerDrainAsked) -> None:
        if change.leaves and not change.back and change.worker not in self.drained:
            self.leaving.add(change.worker)
        elif not change.leaves or change.back:
            self.leaving.discard(change.worker)
        (self.drained.discard if change.back else self.drained.add)(change.worker)

    def _change(self, number: int, change: Change) -> None:
        match change:
            case WorkerJoined():
                self.workers[change.worker] = change
            case WorkerLeft():
                self.workers.pop(change.worker, None)
            case RunBegun():
                self._begun(number, change)
            case WorkerDrainAsked():
                self._drained(change)
            case QueueSet() | QueueRemoved() | RunQueued() | RunUnqueued():
                self._of_queues(number, change)
            case (
                RunPlanned()
                | RunStopAsked()
                | RunSteered()
                | RunChanged()
                | RunAmended()
                | RunHeld()
                | RunGated()
                | RunEnded()
            ):
                run = self.runs.get(change.name)
                # A request and an end can be on their way together: what comes behind the end moves nothing.
                if run is not None and not run.outcome:
                    _move(run, change)
            case RunScaled():
                pass
            case RunsCleared():
                self.runs = {
                    name: run for name, run in self.runs.items() if not run.outcome or name not in change.names
                }
            case TokenSpent():
                if change.token in self.tokens:
                    raise FoldError(f"entry {number} spends join token {change.token} a second time")
                if not is_of_expelled(self.expelled, self.tokens.values(), change.worker, change.key):
                    self.expelled.get(f"worker/{change.worker}", []).append(change.key)
                self.tokens[change.token] = change
            case MemberExpelled():
                self.expelled[change.member] = []
                self.workers.pop(change.member.removeprefix("worker/"), None)
            case _:
                raise ForeignLog(f"entry {number}: {type(change).__name__} does not belong into the cluster's log")

    def _begun(self, number: int, change: RunBegun) -> None:
        if change.name in self.going_on():
            raise FoldError(f"entry {number} begins {change.name!r}, which has not ended")
        waited = self.queued.pop(change.name, None)
        since = number if waited is None else waited.since
        self._note(change.name, RunRecord(change.pipeline, change.options, number, since=since))

    def _of_queues(self, number: int, change: QueueSet | QueueRemoved | RunQueued | RunUnqueued) -> None:
        match change:
            case QueueSet():
                self.queues[change.name] = change
            case QueueRemoved():
                self.queues.pop(change.name, None)
            case RunQueued():
                self.queued[change.name] = RunRecord(change.pipeline, change.options, number, since=number)
            case RunUnqueued():
                record = self.queued.pop(change.name, None)
                if record is not None and change.name not in self.going_on():
                    record.outcome, record.reason = change.outcome, change.reason
                    self._note(change.name, record)
            case _:
                assert_never(change)

    def _note(self, name: str, record: RunRecord) -> None:
        self.runs.pop(name, None)
        ended = [name for name, run in self.runs.items() if run.outcome]
        for old in ended[: max(0, len(ended) - ENDED_RUNS_MAX + 1)]:
            del self.runs[old]
        self.runs[name] = record


def is_of_expelled(expelled: Mapping[str, Collection[str]], spent: Iterable[TokenSpent], worker: str, key: str) -> bool:
    """Whether a key is one that a worker had when it was expelled: no token lets it in again."""
    let_in = expelled.get(f"worker/{worker}")
    if let_in is None or key in let_in:
        return False
    return any((item.worker, item.key) == (worker, key) for item in spent)


def _move(
    run: RunRecord,
    change: RunPlanned | RunStopAsked | RunSteered | RunChanged | RunAmended | RunHeld | RunGated | RunEnded,
) -> None:
    match change:
        case RunHeld():
            run.held = change.held
        case RunGated():
            run.gated, run.broken = True, list(change.reasons)
        case RunAmended():
            run.pipeline, run.options, run.plan = change.pipeline, change.options, change.plan
            # Another graph may be paused by its gate as well.
            run.gated = run.gated or None
        case RunPlanned():
            run.plan = change.plan
        case RunStopAsked():
            run.stop_asked = bool(run.stop_asked) or change.cancel
        case RunSteered():
            request = dict(change.request)
            pause = request.pop("pause", None)
            run.paused = run.paused if pause is None else bool(pause)
            if pause is False and run.gated:
                run.gated, run.broken = False, []
            if any(request.values()):
                run.waiting.append(request)
        case RunChanged():
            run.plan = change.plan
            request = dict(run.waiting.pop(0)) if run.waiting else {}
            if change.made:
                run.wished = {
                    key: {**run.wished.get(key, {}), **request.get(key, {})} for key in {*run.wished, *request}
                }
        case RunEnded():
            run.outcome, run.reason, run.plan = change.outcome, change.reason, None
        case _:
            assert_never(change)
