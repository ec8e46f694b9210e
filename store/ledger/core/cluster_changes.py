"""The changes of the cluster's own log: which workers and pipelines there are, and what must outlive a controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker attends; its tasks may be anywhere in the plans."""

    worker: str
    host: str
    cores: int


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """A worker's session ended, and its tasks were planned elsewhere."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunBegun:
    """Somebody applied a pipeline. `options` are those of the request, as plain values."""

    name: str
    pipeline: Mapping[str, Any]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunAmended:
    """The graph of a run was changed while it flowed: what it is now, asked how, and where its tasks are."""

    name: str
    pipeline: Mapping[str, Any]
    options: Mapping[str, Any]
    plan: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunPlanned:
    """Where the tasks of a run are, as plain values: a successor goes on with the same plan."""

    name: str
    plan: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunStopAsked:
    """Somebody wants a run to end: with what is held committed, or at once."""

    name: str
    cancel: bool


@dataclass(frozen=True, slots=True)
class RunSteered:
    """Somebody wants a run otherwise: `request` has `pause` (or null), `replicas`, `places` and `transports`."""

    name: str
    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunChanged:
    """The oldest request for another plan is seen to: `plan` is the plan since, and `made` whether it came true."""

    name: str
    plan: Mapping[str, Any]
    made: bool


@dataclass(frozen=True, slots=True)
class WorkerDrainAsked:
    """Somebody wants a worker to have no task of any run; `back`: to be given tasks again.

    `leaves`: the worker itself, since it is about to end; it is given tasks again when it comes anew.
    """

    worker: str
    back: bool
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class RunEnded:
    """A run came to its end: completed, stopped, cancelled or failed with a reason."""

    name: str
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunsCleared:
    """Nobody is to be told any more of these runs, which have ended. One that was begun again since is not meant."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenSpent:
    """A join token was used, once, by the worker that holds this key (its fingerprint)."""

    token: str
    worker: str
    key: str


@dataclass(frozen=True, slots=True)
class MemberExpelled:
    """A member, as role/name, was expelled: only keys that spend a token under that name from now on are let in."""

    member: str


@dataclass(frozen=True, slots=True)
class RunScaled:
    """Scaling decided about a run, or learned what came of it: for people, nothing follows from it."""

    name: str
    decision: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class QueueSet:
    """A queue as it is from now on: its weight, its quota in cores (0: none), its priority, and who said so."""

    name: str
    weight: int
    cores: int
    priority: int
    by: str


@dataclass(frozen=True, slots=True)
class QueueRemoved:
    """A queue is no more. Nothing waited in it or ran by it."""

    name: str
    by: str


@dataclass(frozen=True, slots=True)
class RunQueued:
    """Somebody applied a pipeline to a queue: it waits until `RunBegun`. As there."""

    name: str
    pipeline: Mapping[str, Any]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunUnqueued:
    """A pipeline that waited is not begun any more, and why."""

    name: str
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunHeld:
    """A run gives its cores to another, with everything committed; or, without `held`, goes on. And why."""

    name: str
    held: bool
    reason: str


@dataclass(frozen=True, slots=True)
class RunGated:
    """The gate of a run that flows is broken, and pauses it until somebody resumes it. And why."""

    name: str
    reasons: tuple[str, ...]


ClusterChange = (
    WorkerJoined
    | WorkerLeft
    | RunBegun
    | RunPlanned
    | RunStopAsked
    | RunEnded
    | TokenSpent
    | RunSteered
    | RunChanged
    | WorkerDrainAsked
    | RunsCleared
    | MemberExpelled
    | RunAmended
    | RunScaled
    | QueueSet
    | QueueRemoved
    | RunQueued
    | RunUnqueued
    | RunHeld
    | RunGated
)
