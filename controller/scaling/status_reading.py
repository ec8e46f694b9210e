"""A status as a reading of the model: of this process's own run, or of a controller elsewhere."""

from __future__ import annotations

import itertools

from headrace.controller.core.plan import QUIC, SOLITARY
from headrace.controller.core.scaling import Edge, Reading, ReadingError, ScalingLimits, StageCounters, TaskGroup
from headrace.protos import control_pb2 as pb


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
