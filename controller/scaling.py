"""Scaling by itself in a controller: readings of its runs go to their scaling machines, and what these decide is done.

Each decision is a line of the log and, in a cluster with a log, an entry of it.

A status as a reading of the model: of this process's own run, or of a controller elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from headrace.controller.core.messages import ScalingDecided, SteerRequested
from headrace.controller.core.plan import QUIC, SOLITARY
from headrace.controller.core.run import Run, RunState
from headrace.controller.core.run.tasks import TaskPhase
from headrace.controller.core.scaling import (
    LOOK_AT_TRIAL_S,
    Answered,
    Autoscaler,
    Edge,
    Measured,
    Note,
    Reading,
    ReadingError,
    Rescale,
    ScalingCommand,
    ScalingLimits,
    ScalingMode,
    StageCounters,
    TaskGroup,
)
from headrace.daemon import about
from headrace.protos import control_pb2 as pb

if TYPE_CHECKING:
    from headrace.controller.shell import Shell


def reading_of(reply: pb.StatusReply, pipeline: str, at: float) -> Reading:
    """What a status of one moment says of a pipeline. ReadingError for one that is not there, or cannot be."""
    status = next((item for item in reply.pipelines if item.pipeline == pipeline), None)
    if status is None:
        there = ", ".join(item.pipeline for item in reply.pipelines) or "none"
        raise ReadingError(f"there is no pipeline {pipeline!r}; there are: {there}")
    tasks = [task for task in status.tasks if task.state != "stopped" and not _is_solitary(task)]
    groups: dict[tuple[str, ...], list[pb.TaskStatus]] = {}
    for task in tasks:
        groups.setdefault(tuple(task.stages), []).append(task)
    fixed, queued, edges = {*status.fixed}, *_links(status)
    reading = Reading(
        at=at,
        sources=tuple(status.sources),
        stages=tuple(
            StageCounters(
                item.stage,
                item.records,
                item.busy_s + item.guessed_s,
                item.cpu_s,
                item.dropped,
                item.bytes,
                item.stored_bytes,
            )
            for item in status.stages
        ),
        groups=tuple(
            TaskGroup(
                stages,
                len(of),
                max(task.cores for task in of),
                max(task.memory_bytes for task in of),
                fixed=not fixed.isdisjoint(stages),
                queued_bytes=queued.get(stages[0], 0),
            )
            for stages, of in groups.items()
        ),
        edges=edges,
        limits=_limits(reply, tasks),
        cores=sum(worker.cores for worker in reply.workers if worker.worker in {task.worker for task in tasks}),
        input_bytes=status.input_bytes,
        store_bytes=sum(item.stored_bytes for item in status.stages),
        network_bytes=_network_bytes(status),
        fragments_open=status.fragments - status.fragments_done,
    )
    reading.check()
    return reading


def _is_solitary(task: pb.TaskStatus) -> bool:
    return task.task.rpartition("/")[2].startswith(SOLITARY)


def _limits(reply: pb.StatusReply, tasks: list[pb.TaskStatus]) -> ScalingLimits:
    """What workers have that no other pipeline has reserved."""
    cores, memory, known, hosts = 0.0, 0.0, True, set[str]()
    own: dict[str, list[pb.TaskStatus]] = {}
    for task in tasks:
        own.setdefault(task.worker, []).append(task)
    for worker in reply.workers:
        if worker.state != "registered":
            continue
        here = own.get(worker.worker, [])
        others = worker.cores_reserved - sum(task.cores for task in here)
        cores += max(0.0, worker.cores - max(0.0, others))
        taken = worker.memory_reserved_bytes - sum(task.memory_bytes for task in here)
        memory += max(0.0, worker.memory_bytes - max(0.0, taken))
        known &= worker.memory_bytes > 0
        hosts.add(worker.host)
    return ScalingLimits(cores, memory if known else 0, max(1, len(hosts)))


def _links(status: pb.PipelineStatus) -> tuple[dict[str, int], tuple[Edge, ...]]:
    """Bytes on their way to each chain, by its first stage; and how records go from stage to stage."""
    stages = {task.task: tuple(task.stages) for task in status.tasks if not _is_solitary(task)}
    fixed = {*status.fixed}
    ends = {link.link: (link.sender, link.receiver) for link in status.links}
    queued: dict[str, int] = {}
    for task in status.tasks:
        for link in task.progress.links:
            sender, receiver = ends.get(link.link, ("", ""))
            if sender == task.task and receiver in stages:
                head = stages[receiver][0]
                queued[head] = queued.get(head, 0) + link.in_flight_bytes
    pairs = {(stages[a], stages[b]) for a, b in ends.values() if a in stages and b in stages}
    asking = {before for before, behind in pairs if fixed & {*behind}}
    inner = [pair for chain in dict.fromkeys(stages.values()) for pair in itertools.pairwise(chain)]
    edges = [Edge(before, behind) for before, behind in inner]
    for before, behind in sorted(pairs):
        if fixed.isdisjoint(before + behind):
            edges.append(Edge(before[-1], behind[0], past=before in asking))
    return queued, tuple(edges)


def _network_bytes(status: pb.PipelineStatus) -> int:
    """Bytes that senders moved to other workers."""
    over = {link.link: link.sender for link in status.links if link.transport == QUIC}
    return sum(link.bytes for task in status.tasks for link in task.progress.links if over.get(link.link) == task.task)


logger = logging.getLogger("headrace.controller")

#: Seconds that a run has to take a change.
ANSWER_S = 30.0
#: What a reading took, times this, is left to others before the next one.
REST_TIMES = 20.0


#: What scales a run, as a request has it.
_SCALES = (ScalingMode.ADVISE.value, ScalingMode.ON.value)


class Scaling:
    """The scaling of all runs of a controller that ask for it."""

    def __init__(self, shell: Shell, status_of: Callable[[str], pb.StatusReply]) -> None:
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
