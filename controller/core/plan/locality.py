"""Where stages may run, and by what their tasks are joined: the rules that a plan follows.

A **place** is a worker's name or one of its labels (`disk=ssd`). A stage that names none goes where the stage before it
goes; one with none before it, or with several, goes anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.pipeline import Pipeline, PipelineError, chain_order

RING = "ring"
PIPE = "pipe"
QUIC = "quic"
#: The label of a worker whose processor orders memory weakly: rings were shown right where it is ordered.
WEAK_MEMORY = "memory=weak"
#: What joins stages of one task: no link of a plan.
INLINE = "inline"


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a plan needs to know of a worker."""

    name: str
    cores: int
    #: Equal for two workers of one host; empty where a worker did not say.
    host: str = ""
    labels: tuple[str, ...] = ()
    #: Where its tasks can be reached by others; none for a worker of no cluster, which has no certificate.
    addresses: tuple[str, ...] = ()
    #: 0 where a worker did not say.
    memory_bytes: int = 0
    #: Whether other workers of its host can bring it memory.
    door: bool = False
    #: Whether it relays for workers that cannot reach each other.
    relays: bool = False
    #: What was measured on its host, by name; none where nobody did.
    measured: tuple[tuple[str, float], ...] = ()

    def of(self, kind: str) -> tuple[str, ...]:
        """Its labels of one kind: `rack=r1` is of kind `rack`."""
        return tuple(label for label in self.labels if label.partition("=")[0] == kind)

    def meets(self, place: str) -> bool:
        """Whether a stage with that place may run here."""
        return place in ("", self.name) or place in self.labels


def places_of(pipeline: Pipeline, asked: Mapping[str, str]) -> dict[str, str]:
    """The place of every stage, `asked` before what the pipeline declares. PipelineError for a stage that is not there.

    A stage without one inherits that of the single stage before it.
    """
    _known_stages(pipeline, asked, "place")
    places: dict[str, str] = {}
    for stage in chain_order(pipeline.stages):
        inherited = places[before[0]] if len(before := pipeline.flows_from(stage.name)) == 1 else ""
        places[stage.name] = asked.get(stage.name, stage.on) or inherited
    return places


def eligible(workers: Sequence[WorkerFacts], stage: str, place: str) -> tuple[WorkerFacts, ...]:
    """The workers on which a stage may run, by name. PipelineError if there is none."""
    found = tuple(sorted((worker for worker in workers if worker.meets(place)), key=lambda worker: worker.name))
    if not found:
        known = (
            "; ".join(
                " ".join((worker.name, *worker.labels)) for worker in sorted(workers, key=lambda worker: worker.name)
            )
            or "none"
        )
        raise PipelineError(
            f"stage {stage!r} is placed on {place!r}: no worker has that name or label; there are: {known}"
        )
    return found


def transport_of(sender: WorkerFacts, receiver: WorkerFacts, edge: tuple[str, str], forced: str = "") -> str:
    """What joins a task of one worker to a task of another. PipelineError, with the reason, if `forced` cannot."""
    where = f"stages {edge[0]!r} on worker {sender.name!r} and {edge[1]!r} on worker {receiver.name!r}"
    if forced == INLINE:
        raise PipelineError(
            f"{where} cannot be joined by inline: it is a call inside one task, and these two are not fused; "
            "stages of the same tasks and the same place are, unless --no-fuse says otherwise"
        )
    if forced not in ("", RING, PIPE, QUIC):
        raise PipelineError(
            f"{where}: there is no transport {forced!r}; a link can be made to be {RING}, {PIPE} or {QUIC}"
        )
    apart = _why_apart(sender, receiver)
    if forced in (RING, PIPE) and apart:
        raise PipelineError(f"{where} cannot be joined by a {forced}: it is of one host, and {apart}")
    weak = next((worker.name for worker in (sender, receiver) if WEAK_MEMORY in worker.labels), "")
    if forced == RING and weak:
        raise PipelineError(
            f"{where} cannot be joined by a ring: memory of worker {weak!r} is weakly ordered; "
            f"leave it to the planner, which takes a {PIPE}"
        )
    if forced != QUIC and not apart:
        return forced or (PIPE if weak else RING)
    for worker in (sender, receiver):
        if not worker.addresses:
            raise PipelineError(
                f"{where} can only be joined by QUIC, and worker {worker.name!r} has no certificate: "
                "make a cluster with `headrace cluster init`, and have the worker join it"
            )
    return QUIC


def fallback_of(sender: WorkerFacts, receiver: WorkerFacts, transport: str, forced: str) -> str:
    """What joins two tasks where two workers turn out to be unable to pass memory to each other; empty for nothing."""
    passed = transport in (RING, PIPE) and sender.name != receiver.name and not forced
    return QUIC if passed and sender.addresses and receiver.addresses else ""


def _why_apart(sender: WorkerFacts, receiver: WorkerFacts) -> str:
    """Why the two cannot share memory or descriptors; empty if they can."""
    if sender.name == receiver.name:
        return ""
    if not sender.host or sender.host != receiver.host:
        return "they are on different hosts"
    for worker in (sender, receiver):
        if not worker.door:
            return f"worker {worker.name!r} has no door through which another could bring it"
    return ""


def check_forced(pipeline: Pipeline, forced: Mapping[str, str]) -> None:
    """PipelineError for a transport that is asked for where there is no link."""
    _known_stages(pipeline, forced, "transport")
    for stage in forced:
        if not pipeline.stage(stage).after:
            raise PipelineError(f"stage {stage!r} reads from no other: a transport is asked for at a link's receiver")


def _known_stages(pipeline: Pipeline, asked: Mapping[str, str], what: str) -> None:
    names = [stage.name for stage in pipeline.stages]
    for stage in asked:
        if stage not in names:
            known = ", ".join(names)
            raise PipelineError(f"a {what} is asked for stage {stage!r}, and there is none: the pipeline has {known}")
