"""What people request of runs and workers: judged, made durable, then done.

With a cluster's log a request is an entry before it is answered, so it outlives the leader that took it. Without one it
is done at once and forgotten with the process.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias, assert_never

from headrace.controller.core.cluster.records import change_to_plain
from headrace.controller.core.messages import (
    AnswerRequest,
    ClearAdmitted,
    ClearRequested,
    Command,
    DrainRequested,
    PipelineRequested,
    QueueRequested,
    SteerAdmitted,
    SteerRequested,
    StopRequested,
    WorkerDrained,
)
from headrace.controller.core.run import Run, refusal
from headrace.pipeline import PipelineError
from headrace.store.ledger import RunsCleared, RunSteered, RunStopAsked, WorkerDrainAsked

if TYPE_CHECKING:
    from headrace.controller.core.cluster.controller import Controller

LiveRequest: TypeAlias = StopRequested | SteerRequested | DrainRequested | ClearRequested | QueueRequested


class Requests:
    """The requests of one leadership, in the order of their entries."""

    def __init__(self, cluster: Controller) -> None:
        self._cluster = cluster
        self._waiting: deque[StopRequested | SteerAdmitted | DrainRequested | ClearAdmitted] = deque()
        #: Stops of pipelines that are about to begin, or to wait: what they do is decided when the log has these.
        self._early: list[StopRequested] = []

    def asked_before(self, event: PipelineRequested) -> list[Command] | None:
        """The answer to a request that is known: whoever asked had none, since a leader died. None for a new one."""
        name, log = str(event.pipeline.get("name", "")), self._cluster.log
        record = log.ledger.runs.get(name) if log is not None and self._cluster.leads else None
        run = self._cluster.runs.get(name)
        waiting = self._cluster.queues.waiting.get(name)
        if event.token and waiting is not None and waiting.token == event.token:
            return [AnswerRequest(event.request, accepted=True, waits=self._cluster.queues.waits(name))]
        begun = (run is not None and run.request.token, record is not None and record.options.get("token"))
        if not event.token or event.token not in begun:
            return None
        if run is not None and not run.ended:
            return run.answer_to(event.request)
        reason = run.reason if run is not None else record.reason if record is not None else ""
        failed = (run.state.value if run is not None else record.outcome if record is not None else "") == "failed"
        return [AnswerRequest(event.request, accepted=not failed, reason=reason if failed else "")]

    def handle(self, event: LiveRequest, now: float) -> list[Command]:
        """Take one request; give the commands that follow from it."""
        match event:
            case StopRequested():
                return self._stop(event, now)
            case SteerRequested():
                return self._steer(event, now)
            case DrainRequested():
                return self._drain(event, now)
            case ClearRequested():
                return self._clear(event)
            case QueueRequested():
                return self._cluster.queues.handle(event, now)
            case _:
                assert_never(event)

    def _stop(self, event: StopRequested, now: float) -> list[Command]:
        """End a run, or have the log say that it is to end."""
        name, runs, log = event.pipeline, self._cluster.runs, self._cluster.log
        if self._cluster.applications.begins(name) or self._cluster.queues.comes(name):
            self._early.append(event)
            return []
        waits = name in self._cluster.queues.waiting
        if name not in runs and not waits:
            there = ", ".join(sorted(runs)) or "none"
            return [_answer(event.request, f"no pipeline {name!r}; there are: {there}")]
        if log is None:
            done = self._cluster.queues.stop(name, now) if waits else runs[name].handle(event, now)
            return [*done, _answer(event.request)]
        if not waits and name not in log.ledger.going_on():
            return [_answer(event.request)]  # It has ended.
        self._waiting.append(event)
        if waits:
            return self._cluster.queues.stop(name, now)
        log.submit(RunStopAsked(name, event.cancel))
        return []

    def begun(self, now: float) -> list[Command]:
        """The log has one more pipeline that begins, or waits: see to the stops that came before."""
        early, self._early = self._early, []
        return [command for event in early for command in self._stop(event, now)]

    def _steer(self, event: SteerRequested, now: float) -> list[Command]:
        """Judge the reconfiguration of a run, and have the run make it."""
        runs, log = self._cluster.runs, self._cluster.log
        run = runs.get(event.pipeline)
        if run is None or run.ended:
            there = ", ".join(sorted(name for name, run in runs.items() if not run.ended)) or "none"
            state = f"is {run.state.value}" if run else "is not here"
            return [_answer(event.request, f"pipeline {event.pipeline!r} {state}; there are: {there}")]
        if event.pause is False and run.reconfiguration.held:
            words = self._cluster.queues.waits(event.pipeline) or "its cores are on their way to another"
            return [_answer(event.request, f"pipeline {event.pipeline!r} goes on by itself: {words}")]
        if log is None:
            return run.handle(event, now)
        try:
            change = run.considered(event)
        except PipelineError as error:
            return [refusal(event.request, error)]
        self._waiting.append(SteerAdmitted(event.request, event.pipeline, event.pause, change))
        log.submit(RunSteered(event.pipeline, change_to_plain(event.pause, change)))
        return []

    def _drain(self, event: DrainRequested, now: float) -> list[Command]:
        """Judge whether a worker can be without tasks, and drain it; or give it tasks again."""
        workers, log, drained = self._cluster.workers, self._cluster.log, self._cluster.drained
        if event.worker not in workers and not (event.back and event.worker in drained):
            reason = f"no worker {event.worker!r}; there are: {', '.join(sorted(workers)) or 'none'}"
            return [_answer(event.request, reason)]
        if event.leaves and (event.worker in drained) is not event.back:
            return [_answer(event.request)]  # It is so already, or another drained it.
        if event.leaves and event.back and event.worker not in self._cluster.leaving:
            return [_answer(event.request)]
        try:
            for run in self._cluster.runs.values() if not event.back else ():
                run.check_without(event.worker)
        except PipelineError as error:
            return [refusal(event.request, error)]
        if log is None:
            return self._drained(event, now)
        self._waiting.append(event)
        log.submit(WorkerDrainAsked(event.worker, event.back, event.leaves))
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
        request = ClearAdmitted(event.request, (event.pipeline,) if event.pipeline else ended)
        if log is None or not request.names:
            return self._cleared(request)
        self._waiting.append(request)
        log.submit(RunsCleared(request.names))
        return []

    def _cleared(self, request: ClearAdmitted) -> list[Command]:
        for name in request.names:
            run = self._cluster.runs.get(name)
            if run is not None and run.over:
                del self._cluster.runs[name]
        return [AnswerRequest(request.request, accepted=True, warnings=request.names)]

    def durable(self, now: float) -> list[Command]:
        """The oldest request that waits is in the log: do it, and answer."""
        request = self._waiting.popleft()
        if isinstance(request, DrainRequested):
            return self._drained(request, now)
        if isinstance(request, ClearAdmitted):
            return self._cleared(request)
        run = self._cluster.runs.get(request.pipeline)
        if isinstance(request, StopRequested):
            return [*(run.handle(request, now) if run else ()), _answer(request.request)]
        if run is None or run.ended:
            return [_answer(request.request, f"pipeline {request.pipeline!r} has ended meanwhile")]
        return run.handle(request, now)

    def drop(self, reason: str) -> list[Command]:
        """This controller leads no more: people ask the new leader, whose log may have their request."""
        waiting, self._waiting, self._early = [*self._waiting, *self._early], deque(), []
        return [_answer(request.request, reason) for request in waiting]

    def _drained(self, event: DrainRequested, now: float) -> list[Command]:
        commands: list[Command] = [_answer(event.request)]
        drained, leaving = self._cluster.drained, self._cluster.leaving
        if event.leaves and not event.back and event.worker not in drained:
            leaving.add(event.worker)
        elif not event.leaves or event.back:
            leaving.discard(event.worker)
        if event.back:
            self._cluster.drained.discard(event.worker)
            return commands
        self._cluster.drained.add(event.worker)
        for run in self._cluster.runs.values():
            commands += [] if run.ended else run.handle(WorkerDrained(event.worker), now)
        return commands


def turned_away(event: LiveRequest, reason: str) -> list[Command]:
    """The answer of a controller that does not lead."""
    return [_answer(event.request, reason)]


def _why_not_cleared(run: Run | None, *, known: bool) -> str:
    if run is None:
        return "goes on elsewhere" if known else "is not here"
    return "is ending: ask again in a moment" if run.ended else f"is {run.state.value}: stop it first"


def _answer(request: int, reason: str = "") -> AnswerRequest:
    return AnswerRequest(request, accepted=not reason, reason=reason)
