"""What people request of the controller: events, as those of `messages`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from headrace.controller.core.plan import Change


class ChangedInput(Enum):
    """What becomes of input that changed since it was listed, or vanished while some of it was open."""

    #: What is open stays open, and nothing is read anew: all else is read and closed, then the run ends with an error.
    HALT = "halt"
    #: What is open of it is given up, and the version that is there now is not read.
    DROP = "drop"
    #: What is open of it is given up, and the version that is there now is read as a new object.
    REREAD = "reread"


@dataclass(frozen=True, slots=True)
class Allowance:
    """Quarantined records that are allowed, of one sink: at most `records`, and at most `share` of all; None: any.

    What is closed stays closed: a run that is started again with a wider allowance goes on.
    """

    records: int | None = None
    share: float | None = None


#: Nothing that is lost ends the run.
ANY_LOSS = Allowance()


@dataclass(frozen=True, slots=True)
class PipelineRequested:
    """Somebody applied a pipeline. `request` is returned with the answer."""

    request: int
    pipeline: Mapping[str, Any]
    amend: bool = False
    fuse: bool = True
    replicas: int = 0
    allowance: Allowance = ANY_LOSS
    #: Stage to place, and stage to the transport of the links that lead to it.
    places: Mapping[str, str] = field(default_factory=dict[str, str])
    transports: Mapping[str, str] = field(default_factory=dict[str, str])
    #: When sinks seal, as the names and values of a SealPolicy; empty: as each sink was declared.
    seal: Mapping[str, float] = field(default_factory=dict[str, float])
    #: What one record and one task may take, as the names and values of Limits; 0: as usual.
    limits: Mapping[str, float] = field(default_factory=dict[str, float])
    changed_input: ChangedInput = ChangedInput.HALT
    #: What a version must meet to be published, as the file of the gate has it; empty: nothing. And whether the run
    #: pauses when what is closed does not meet it.
    gate: Mapping[str, Any] = field(default_factory=dict[str, Any])
    gate_pauses: bool = False
    #: Whether it scales by itself: on, advise, or off (also if empty).
    autoscale: str = ""
    #: The request's own name: sent again, it is the same request. Empty: it has none.
    token: str = ""
    #: The one name of the place that the dataset's URI leads to; empty: the URI itself.
    place: str = ""
    #: The version that another graph was made of; empty: any.
    was: str = ""
    #: Who applied it: a member as role/name, or a user of the controller's host; empty: nobody knows.
    by: str = ""
    #: The queue that it waits in (empty: none), the cores that it waits for (0: all), and its priority there.
    queue: str = ""
    cores: int = 0
    priority: int = 0


def amending(event: PipelineRequested, earlier: PipelineRequested) -> PipelineRequested:
    """A request for another graph of a run: what it is to other runs stays as it was applied."""
    return replace(
        event,
        changed_input=earlier.changed_input,
        by=earlier.by,
        queue=earlier.queue,
        cores=earlier.cores,
        priority=earlier.priority,
    )


def same_options(event: PipelineRequested, earlier: PipelineRequested) -> bool:
    """Whether a request for another graph asks for the options that the run has; people may have moved its stages."""
    others = ("request", "pipeline", "amend", "token", "was", "place", "places", "transports")
    own: dict[str, Any] = {name: getattr(earlier, name) for name in others}
    return replace(amending(event, earlier), **own) == earlier


def fixed_options(event: PipelineRequested, earlier: PipelineRequested) -> list[str]:
    """The options of such a request that are not as the run has them, and that no running one gives up."""
    plain = PipelineRequested(0, {})
    names = ("changed_input", "queue", "cores", "priority")
    return [
        name.replace("_", " ")
        for name in names
        if getattr(event, name) not in (getattr(plain, name), getattr(earlier, name))
    ]


@dataclass(frozen=True, slots=True)
class SteerRequested:
    """Somebody wants a pipeline paused, resumed (`pause`: True, False) or planned otherwise; `request` as above."""

    request: int
    pipeline: str
    pause: bool | None = None
    #: Tasks of a stage, its place, and the transport of the links that lead to it, by stage.
    replicas: Mapping[str, int] = field(default_factory=dict[str, int])
    places: Mapping[str, str] = field(default_factory=dict[str, str])
    transports: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class SteerAdmitted:
    """A request of a run was judged and is durable: the run is to see to it."""

    request: int
    pipeline: str
    pause: bool | None
    change: Change


@dataclass(frozen=True, slots=True)
class ScalingDecided:
    """Scaling decided about a run, or learned what came of it: plain values, for the cluster's log."""

    pipeline: str
    decision: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AmendRecorded:
    """A successor would know the changed graph of this pipeline: it may be taken up."""

    pipeline: str


@dataclass(frozen=True, slots=True)
class GateRecorded:
    """A successor would know that its gate pauses this pipeline: it may stand still."""

    pipeline: str


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Somebody wants a worker to have no task of any pipeline; `back`: to be given tasks again.

    `leaves`: the worker itself, which is about to end; `back` undoes no other's drain then.
    """

    request: int
    worker: str
    back: bool = False
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class ClearRequested:
    """Somebody wants to be told no more of a pipeline that has ended; without a name, of all that have."""

    request: int
    pipeline: str = ""


@dataclass(frozen=True, slots=True)
class ClearAdmitted:
    """These pipelines have ended, and that they are cleared is on its way to be durable."""

    request: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueueRequested:
    """Somebody wants a queue to be like this, or to be no more. `request` is returned with the answer."""

    request: int
    name: str
    weight: int = 1
    cores: int = 0
    priority: int = 0
    remove: bool = False
    by: str = ""


@dataclass(frozen=True, slots=True)
class HoldDecided:
    """A run is to give its cores to another, or, without `held`, to go on."""

    pipeline: str
    held: bool


@dataclass(frozen=True, slots=True)
class WorkerDrained:
    """A worker is to have no task any more; every run is told."""

    worker: str


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Somebody wants a pipeline to stop: with what is held committed, or at once.

    `request` is returned with the answer; 0: nobody waits for one.
    """

    pipeline: str
    cancel: bool
    request: int = 0


@dataclass(frozen=True, slots=True)
class ShutdownAsked:
    """This controller is to end in order: another may lead at once."""


@dataclass(frozen=True, slots=True)
class TokenOffered:
    """A node wants to join with a token. `request` is returned with the answer."""

    request: int
    token: str
    worker: str
    #: The fingerprint of the node's key.
    key: str
    #: What a token for several nodes has beside `token`: each slot is spent by one key.
    further: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpelRequested:
    """Somebody wants a member, as role/name, to be one no more. `request` is returned with the answer.

    `noted` are the members that the cluster's folder names, and the roles of which it does not tell all.
    """

    request: int
    member: str
    noted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AuditDataset:
    """Hold what is closed of a dataset against a gate, as its file has it; `final`: no more will be closed.

    `term` is that of the run that asks: the answer is for no later run on the same log.
    """

    log: str
    gate: Mapping[str, Any]
    term: int
    final: bool


@dataclass(frozen=True, slots=True)
class DatasetAudited:
    """Which rows of its gate a dataset breaks; or, with `error`, why that is not known; `stalled`: it may pass."""

    log: str
    term: int
    final: bool
    broken: tuple[str, ...] = ()
    error: str = ""
    stalled: bool = False
