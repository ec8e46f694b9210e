"""Pipelines that people apply: may this one be taken up, when does it begin, and with which plan?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.controller.core.cluster.records import options_of
from headrace.controller.core.messages import AnswerRequest, Command, PipelineRequested
from headrace.controller.core.plan import Plan, plan
from headrace.controller.core.run import ENDED, Run
from headrace.pipeline import Pipeline, PipelineError, validate
from headrace.store import counted
from headrace.store.ledger import RunBegun

if TYPE_CHECKING:
    from headrace.controller.core.cluster.controller import Controller


class Applications:
    """The requests of one leadership that begin runs."""

    def __init__(self, cluster: Controller) -> None:
        self._cluster = cluster
        #: Requests whose `RunBegun` is on its way.
        self._asked: dict[str, PipelineRequested] = {}

    def handle(self, event: PipelineRequested, now: float) -> list[Command]:
        """Take one request; give the commands that follow from it."""
        if (run := self._flowing(event)) is not None:
            return run.handle(event, now)
        queues = self._cluster.queues
        if reason := self._refusal(event) or queues.why_not(event):
            return [AnswerRequest(event.request, accepted=False, reason=reason)]
        return queues.apply(event, now) if queues.queue_of(event) else self.begin(event)

    def begin(self, event: PipelineRequested) -> list[Command]:
        """Begin a run, or have the log say that it begins."""
        if self._cluster.log is None:
            return self._cluster.open_run(event)
        name = str(event.pipeline["name"])
        self._asked[name] = event
        self._cluster.log.submit(RunBegun(name, event.pipeline, options_of(event)))
        return []

    def durable(self, change: RunBegun) -> list[Command]:
        """The log says that a run begins."""
        event = self._asked.pop(change.name, None)
        return self._cluster.open_run(event) if event is not None else []

    def begins(self, name: str) -> bool:
        """Whether a pipeline is about to begin, once the log says so."""
        return name in self._asked

    def drop(self, reason: str) -> list[Command]:
        """This controller leads no more: people ask the new leader."""
        asked, self._asked = self._asked, {}
        return [AnswerRequest(event.request, accepted=False, reason=reason) for event in asked.values()]

    def planned(self, event: PipelineRequested, released: frozenset[str] = frozenset()) -> Plan:
        """The plan that a request would lead to, where these runs give up their cores; nothing is changed.

        PipelineError, with the reason, if to none.
        """
        if (run := self._flowing(event)) is not None:
            return run.amendment.considered(event, run.request, run.works, run.state)[1]
        if refusal := self._refusal(event):
            raise PipelineError(refusal)
        pipeline, cluster = Pipeline.from_dict(event.pipeline), self._cluster
        workers = [worker.facts() for worker in cluster.workers.values() if worker.worker not in cluster.drained]
        return plan(
            pipeline,
            workers,
            fuse=event.fuse,
            replicas=event.replicas,
            places=event.places,
            transports=event.transports,
            taken=cluster.reserved_by_others(pipeline.name, released),
        )

    def _flowing(self, event: PipelineRequested) -> Run | None:
        """The run whose graph a request changes; None where it begins a run."""
        run = self._cluster.runs.get(str(event.pipeline.get("name", "")))
        return run if event.amend and self._cluster.leads and run is not None and not run.ended else None

    def _refusal(self, event: PipelineRequested) -> str:
        """Why a pipeline cannot be taken up; empty if it can."""
        cluster = self._cluster
        if not cluster.leads:
            return cluster.elsewhere
        try:
            pipeline = Pipeline.from_dict(event.pipeline)
            validate(pipeline)
        except PipelineError as error:
            return str(error)
        if cluster.known and not cluster.workers:
            known = counted(len(cluster.known), "worker")
            return f"of {known} none is back at this controller yet: see `headrace status`"
        if pipeline.name in self._asked:
            return f"pipeline {pipeline.name!r} is being applied by somebody else"
        if pipeline.name in cluster.usurpations:
            return f"pipeline {pipeline.name!r} is taken back from another controller: ask again"
        # The log says of one that was taken that it goes on.
        going_on = [
            run
            for name, run in cluster.runs.items()
            if not (run.state in ENDED and run.over) or name in cluster.usurpations
        ]
        for run in going_on:
            if run.pipeline.name == pipeline.name:
                return f"pipeline {pipeline.name!r} is {run.state.value}: stop it first"
        queued = cluster.queues.of_others(event)
        if any(str(other.pipeline["name"]) == pipeline.name for other in queued):
            return f"pipeline {pipeline.name!r} waits in a queue: stop it first"
        return self._writer_of(event.place, pipeline.dataset, going_on, [*self._asked.values(), *queued])

    def _writer_of(self, place: str, dataset: str, going_on: Iterable[Run], asked: Iterable[PipelineRequested]) -> str:
        """Why a dataset cannot be written, since a pipeline writes to that place; empty where none does."""
        writers = [(run.pipeline.name, run.pipeline.dataset, run.place) for run in going_on]
        for event in asked:
            uri = str(event.pipeline["dataset"])
            writers.insert(0, (str(event.pipeline["name"]), uri, event.place or uri))
        for name, uri, taken in writers:
            if taken == (place or dataset):
                same = "" if dataset == uri else f" (it says {uri}, which is the same place)"
                return f"pipeline {name!r} writes to {dataset}{same}: stop it first, or choose another dataset"
        return ""
