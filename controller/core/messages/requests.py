"""What people want of a run or a worker that lives: events, as those of `messages`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.controller.core.plan import Change


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
    """A wish of a run was judged and is durable: the run is to see to it."""

    request: int
    pipeline: str
    pause: bool | None
    change: Change


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Somebody wants a worker to have no task of any pipeline; `back`: to be given tasks again."""

    request: int
    worker: str
    back: bool = False


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
class WorkerDrained:
    """A worker is to have no task any more; every run is told."""

    worker: str


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Somebody wants a pipeline to stop: with what is held committed, or at once."""

    pipeline: str
    cancel: bool


@dataclass(frozen=True, slots=True)
class ShutdownAsked:
    """This controller is to end in order: another may lead at once."""
