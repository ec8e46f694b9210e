"""What people want of runs and workers that live, at the cluster: judged, made durable, then done.

With a cluster's log a wish is an entry before it is answered, so it outlives the leader that took it up. Without one it
is done at once and forgotten with the process.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol, TypeAlias

from headrace.controller.core.cluster.leader import Leadership
from headrace.controller.core.cluster.records import wish_to_plain
from headrace.controller.core.messages import (
    AnswerRequest,
    ClearAdmitted,
    ClearRequested,
    Command,
    DrainRequested,
    SteerAdmitted,
    SteerRequested,
    StopRequested,
    WorkerDrained,
    WorkerRegistered,
)
from headrace.controller.core.run import Run
from headrace.pipeline import PipelineError
from headrace.store.ledger import ClusterState, RunsCleared, RunSteered, RunStopAsked, WorkerDrainAsked

Wish: TypeAlias = StopRequested | SteerRequested | DrainRequested | ClearRequested


class Steered(Protocol):
    """What there is to steer."""

    workers: dict[str, WorkerRegistered]
    runs: dict[str, Run]
    log: Leadership[ClusterState] | None
    drained: set[str]


class Steering:
    """The wishes of one leadership, in the order in which their entries come."""

    def __init__(self, cluster: Steered) -> None:
        self._cluster = cluster
        self._waiting: deque[SteerAdmitted | DrainRequested | ClearAdmitted] = deque()

    def handle(self, event: Wish, now: float) -> list[Command]:
        """Take one wish; give the commands that follow from it."""
        match event:
            case StopRequested():
                return self._stop(event, now)
            case SteerRequested():
                return self._steer(event, now)
            case DrainRequested():
                return self._drain(event, now)
            case ClearRequested():
                return self._clear(event)

    def _stop(self, event: StopRequested, now: float) -> list[Command]:
        """End a run, or have the log say that it is to end."""
        run, log = self._cluster.runs.get(event.pipeline), self._cluster.log
        if run is None:
            return []
        if log is None:
            return run.handle(event, now)
        if event.pipeline in log.ledger.going_on():
            log.submit(RunStopAsked(event.pipeline, event.cancel))
        return []

    def _steer(self, event: SteerRequested, now: float) -> list[Command]:
        """Judge a wish of a run, and have the run see to it."""
        runs, log = self._cluster.runs, self._cluster.log
        run = runs.get(event.pipeline)
        if run is None or run.ended:
            there = ", ".join(sorted(name for name, run in runs.items() if not run.ended)) or "none"
            state = f"is {run.state.value}" if run else "is not here"
            return [_answer(event.request, f"pipeline {event.pipeline!r} {state}; there are: {there}")]
        if log is None:
            return run.handle(event, now)
        try:
            change = run.considered(event)
        except PipelineError as error:
            return [_answer(event.request, str(error))]
        self._waiting.append(SteerAdmitted(event.request, event.pipeline, event.pause, change))
        log.submit(RunSteered(event.pipeline, wish_to_plain(event.pause, change)))
        return []

    def _drain(self, event: DrainRequested, now: float) -> list[Command]:
        """Judge whether a worker can be without tasks, and have it so; or let it have some again."""
        workers, log, drained = self._cluster.workers, self._cluster.log, self._cluster.drained
        if event.worker not in workers and not (event.back and event.worker in drained):
            reason = f"no worker {event.worker!r}; there are: {', '.join(sorted(workers)) or 'none'}"
            return [_answer(event.request, reason)]
        for run in self._cluster.runs.values() if not event.back else ():
            if wrong := run.why_not_without(event.worker):
                return [_answer(event.request, wrong)]
        if log is None:
            return self._drained(event, now)
        self._waiting.append(event)
        log.submit(WorkerDrainAsked(event.worker, event.back))
        return []

    def _clear(self, event: ClearRequested) -> list[Command]:
        """Judge whether pipelines have ended, and forget them."""
        runs, log = self._cluster.runs, self._cluster.log
        going = {name for name, run in runs.items() if not run.over}
        known = set(runs)
        if log is not None:
            going |= log.ledger.going_on().keys()
            known |= log.ledger.runs.keys()
        ended = tuple(sorted(known - going))
        if event.pipeline and event.pipeline not in ended:
            why = _why_not_cleared(runs.get(event.pipeline), known=event.pipeline in known)
            there = ", ".join(ended) or "none"
            return [_answer(event.request, f"pipeline {event.pipeline!r} {why}; those that have ended: {there}")]
        wish = ClearAdmitted(event.request, (event.pipeline,) if event.pipeline else ended)
        if log is None or not wish.names:
            return self._cleared(wish)
        self._waiting.append(wish)
        log.submit(RunsCleared(wish.names))
        return []

    def _cleared(self, wish: ClearAdmitted) -> list[Command]:
        for name in wish.names:
            run = self._cluster.runs.get(name)
            if run is not None and run.over:
                del self._cluster.runs[name]
        return [AnswerRequest(wish.request, accepted=True, warnings=wish.names)]

    def durable(self, now: float) -> list[Command]:
        """The oldest wish that waits is in the log: do it, and answer."""
        wish = self._waiting.popleft()
        if isinstance(wish, DrainRequested):
            return self._drained(wish, now)
        if isinstance(wish, ClearAdmitted):
            return self._cleared(wish)
        run = self._cluster.runs.get(wish.pipeline)
        if run is None or run.ended:
            return [_answer(wish.request, f"pipeline {wish.pipeline!r} has ended meanwhile")]
        return run.handle(wish, now)

    def drop(self, reason: str) -> list[Command]:
        """This controller leads no more; people ask the one that does, where the log may have their wish."""
        waiting, self._waiting = self._waiting, deque()
        return [_answer(wish.request, reason) for wish in waiting]

    def _drained(self, event: DrainRequested, now: float) -> list[Command]:
        commands: list[Command] = [_answer(event.request)]
        if event.back:
            self._cluster.drained.discard(event.worker)
            return commands
        self._cluster.drained.add(event.worker)
        for run in self._cluster.runs.values():
            commands += [] if run.ended else run.handle(WorkerDrained(event.worker), now)
        return commands


def turned_away(event: Wish, reason: str) -> list[Command]:
    """The answer of a controller that does not lead."""
    return [] if isinstance(event, StopRequested) else [_answer(event.request, reason)]


def _why_not_cleared(run: Run | None, *, known: bool) -> str:
    if run is None:
        return "goes on elsewhere" if known else "is not here"
    return "is ending: ask again in a moment" if run.ended else f"is {run.state.value}: stop it first"


def _answer(request: int, reason: str = "") -> AnswerRequest:
    return AnswerRequest(request, accepted=not reason, reason=reason)
