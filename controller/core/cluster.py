"""The controller's machine: the workers that there are, and the runs that they carry.

`handle(event, now)` is its door. It routes an event to the run that it concerns and keeps the registry of workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.controller.core.messages import (
    AnswerRequest,
    Command,
    EntryRefused,
    EntryUnresolved,
    EntryWritten,
    FragmentWasRead,
    KillTask,
    LinkLost,
    LogRead,
    ManifestWritten,
    PipelineRequested,
    ShardProposed,
    SourceListed,
    StopRequested,
    TaskExited,
    TaskFailed,
    TaskReady,
    TaskSwept,
    TimePassed,
    WorkerLost,
    WorkerRegistered,
)
from headrace.controller.core.run import Run
from headrace.controller.core.run_states import ENDED
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline
from headrace.pipeline.validate import validate

#: Runs that have ended and are still shown.
ENDED_RUNS_MAX = 64


class Controller:
    """All that the controller knows, apart from what its shell does for it."""

    def __init__(self, identity: Mapping[str, Any], *, standby: bool = False) -> None:
        self.identity = dict(identity)
        self.workers: dict[str, WorkerRegistered] = {}
        self.runs: dict[str, Run] = {}
        self._standby = standby

    def handle(self, event: object, now: float) -> list[Command]:
        """Take one event; give the commands that follow from it."""
        match event:
            case WorkerRegistered():
                return self._registered(event, now)
            case WorkerLost():
                self.workers.pop(event.worker, None)
                return [command for run in self.runs.values() for command in run.handle(event, now)]
            case PipelineRequested():
                return self._requested(event)
            case StopRequested():
                run = self.runs.get(event.pipeline)
                return run.handle(event, now) if run else []
            case LogRead() | EntryWritten() | EntryRefused() | EntryUnresolved() | ManifestWritten():
                writer = self._by_log(event.log)
                return writer.handle(event, now) if writer else []
            case TaskReady() | TaskExited() | TaskFailed() | SourceListed() | FragmentWasRead():
                return self._to_task(event.task, event, now)
            case ShardProposed() | TaskSwept() | LinkLost():
                return self._to_task(event.task, event, now)
            case TimePassed():
                return [command for run in self.runs.values() for command in run.handle(event, now)]
            case _:
                raise TypeError(f"the controller knows no {type(event).__name__}")

    def wake_at(self) -> float | None:
        """When `handle(TimePassed())` is wanted next."""
        times = [run.wake_at() for run in self.runs.values()]
        return min((time for time in times if time is not None), default=None)

    def _to_task(self, task: str, event: object, now: float) -> list[Command]:
        run = self.runs.get(task.split("/", 1)[0])
        return run.handle(event, now) if run else []

    def _by_log(self, log: str) -> Run | None:
        """The newest run on a log; an older one has handed it over."""
        for run in reversed(self.runs.values()):
            if run.leadership.log == log:
                return run
        return None

    def _registered(self, event: WorkerRegistered, now: float) -> list[Command]:
        self.workers[event.worker] = event
        commands: list[Command] = []
        for name, attempt in event.tasks:
            owner = self.runs.get(name.split("/", 1)[0])
            current = owner.crew.current(name, attempt) if owner and owner.crew else None
            if current is None or current.plan.worker != event.worker:
                commands.append(KillTask(event.worker, name, attempt, "nobody knows this attempt any more"))
        for run in self.runs.values():
            commands += run.worker_joined(event.facts(), now)
        return commands

    def _requested(self, event: PipelineRequested) -> list[Command]:
        def refuse(reason: str) -> list[Command]:
            return [AnswerRequest(event.request, accepted=False, reason=reason)]

        try:
            pipeline = Pipeline.from_dict(event.pipeline)
            validate(pipeline)
        except PipelineError as error:
            return refuse(str(error))
        for run in self.runs.values():
            if run.state in ENDED and run.over:
                continue
            if run.pipeline.name == pipeline.name:
                return refuse(f"pipeline {pipeline.name!r} is {run.state.value}: stop it first")
            if run.pipeline.dataset == pipeline.dataset:
                return refuse(f"pipeline {run.pipeline.name!r} writes to {pipeline.dataset}: choose another dataset")
        self.runs.pop(pipeline.name, None)
        self._forget_old()
        run = Run(
            pipeline,
            identity=self.identity,
            workers=[worker.facts() for worker in self.workers.values()],
            request=event.request,
            amend=event.amend,
            fuse=event.fuse,
            replicas=event.replicas,
            allowance=event.allowance,
            places=event.places,
            transports=event.transports,
            standby=self._standby,
        )
        self.runs[pipeline.name] = run
        return run.open()

    def _forget_old(self) -> None:
        ended = [name for name, run in self.runs.items() if run.over]
        for name in ended[: max(0, len(ended) - ENDED_RUNS_MAX)]:
            del self.runs[name]
