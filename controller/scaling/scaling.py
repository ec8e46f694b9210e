"""Scaling by itself in a controller: readings of its runs go to their scaling machines, and what these decide is done.

Each decision is a line of the log and, in a cluster with a log, an entry of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Protocol

from headrace.controller.core.cluster import Controller
from headrace.controller.core.messages import AnswerRequest, Event, ScalingDecided, SteerRequested
from headrace.controller.core.run import Run, RunState
from headrace.controller.core.run.tasks import TaskPhase
from headrace.controller.core.scaling import (
    LOOK_AT_TRIAL_S,
    Answered,
    Autoscaler,
    Measured,
    Note,
    ReadingError,
    Rescale,
    ScalingCommand,
    ScalingMode,
)
from headrace.controller.scaling.status_reading import reading_of
from headrace.daemon import about
from headrace.protos import control_pb2 as pb

logger = logging.getLogger("headrace.controller")

#: Seconds that a run has to take a change.
ANSWER_S = 30.0
#: What a reading took, times this, is left to others before the next one.
REST_TIMES = 20.0


#: What scales a run, as a request has it.
_SCALES = (ScalingMode.ADVISE.value, ScalingMode.ON.value)


class Scaled(Protocol):
    """The shell whose runs are scaled."""

    core: Controller
    requests: dict[int, asyncio.Future[AnswerRequest]]

    def expect_answer(self) -> tuple[int, asyncio.Future[AnswerRequest]]:
        """A number for a request, and what becomes its answer."""
        ...

    def post(self, event: Event, cause: str = "", worker: str = "") -> None:
        """Give one event to the core."""
        ...

    def note_scaling(self, pipeline: str, words: str) -> None:
        """Have the status of a run name a decision."""
        ...


class Scaling:
    """The scaling of all runs of a controller that ask for it."""

    def __init__(self, shell: Scaled, status_of: Callable[[str], pb.StatusReply]) -> None:
        self._shell, self._status_of = shell, status_of
        #: By pipeline: the run, and what scales it.
        self._scalers: dict[str, tuple[Run, Autoscaler]] = {}
        #: When each of them is looked at next, seconds, monotonic; a run that is new, at once.
        self._due: dict[str, float] = {}

    async def keep_looking(self) -> None:
        """Look at the runs again and again."""
        while True:
            await asyncio.sleep(LOOK_AT_TRIAL_S)
            try:
                await self.look(time.monotonic())
            except Exception:
                logger.exception("scaling failed this time and is tried again; runs are not affected")

    async def look(self, now: float) -> None:
        """Read each run that is scaled and due, and do what follows."""
        runs = self._shell.core.runs if self._shell.core.leads else {}
        wanted = {name: run for name, run in runs.items() if not run.ended and run.request.autoscale in _SCALES}
        self._scalers = {name: kept for name, kept in self._scalers.items() if wanted.get(name) is kept[0]}
        self._due = {name: at for name, at in self._due.items() if name in self._scalers}
        for name, run in wanted.items():
            if now < self._due.get(name, now):
                continue
            began = time.perf_counter()
            _, scaler = self._scalers.setdefault(name, (run, Autoscaler(ScalingMode(run.request.autoscale))))
            try:
                reading = reading_of(self._status_of(name), name, now).within(self._shell.core.queues.grant(name))
            except ReadingError:
                continue  # a graph that is being changed
            rests_s = REST_TIMES * (time.perf_counter() - began)
            apart = run.reconfiguration.fusible([group.stages for group in reading.groups])
            await self._do(name, scaler, scaler.handle(Measured(reading, _flows(run), apart), now))
            self._due[name] = now + max(scaler.look_s, rests_s)

    async def _do(self, name: str, scaler: Autoscaler, commands: list[ScalingCommand]) -> None:
        for command in commands:
            match command:
                case Note():
                    words = f"scaling: {command.decision.words()}"
                    logger.info("%s", words, extra=about(pipeline=name))
                    self._shell.note_scaling(name, words)
                    self._shell.post(ScalingDecided(name, asdict(command.decision)))
                case Rescale():
                    answer = await self._ask(name, command)
                    await self._do(name, scaler, scaler.handle(answer, time.monotonic()))

    async def _ask(self, name: str, command: Rescale) -> Answered:
        number, answered = self._shell.expect_answer()
        self._shell.post(SteerRequested(number, name, replicas=command.replicas))
        with contextlib.suppress(TimeoutError):
            answer = await asyncio.wait_for(answered, ANSWER_S)
            return Answered(answer.accepted, answer.reason)
        self._shell.requests.pop(number, None)
        return Answered(accepted=False, reason=f"no answer within {ANSWER_S:.0f} s")


def _flows(run: Run) -> bool:
    """Whether the run is running with all of its tasks ready, and no reconfiguration is requested."""
    waits = run.reconfiguration.waiting or run.reconfiguration.stands or run.amendment.busy
    tasks = [task for one in run.task_sets for task in one if not task.plan.alone]
    return run.state is RunState.RUNNING and not waits and all(task.state is TaskPhase.READY for task in tasks)
