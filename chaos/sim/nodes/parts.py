"""What the nodes of a simulated cluster need of one another, where they know each other both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from headrace.chaos.sim.checks import Asked, Checker, Folding
from headrace.chaos.sim.network import Wires
from headrace.chaos.sim.storage import SimulatedLog, SimulatedManifest, SimulatedObjects
from headrace.chaos.sim.world import Clock, Corpus, InputObjects, Part, ViolationError, World
from headrace.controller.core.log import Fence, LogLimits
from headrace.controller.core.messages import messages as core
from headrace.store.ledger import Range
from headrace.worker.task import messages

if TYPE_CHECKING:
    from headrace.chaos.sim.nodes.controllers import SimulatedController
    from headrace.chaos.sim.nodes.tasks import SimulatedTask
    from headrace.chaos.sim.nodes.workers import SimulatedWorker
    from headrace.controller.core.run import Run


@contextmanager
def core_of(who: str, event: object) -> Iterator[None]:
    """0: no core raises, whatever it is told."""
    try:
        yield
    except ViolationError:
        raise
    except Exception as error:
        raise ViolationError(0, f"{who} on {event}: {type(error).__name__}: {error}") from error


class Judge(Protocol):
    """Who judges what controllers and workers do, of whichever pipeline."""

    def stirred(self, controller: Folding) -> None:
        """A controller's core has been given an event."""
        ...

    def write_asked(self, controller: Asked, command: core.WriteEntry, data: bytes) -> None:
        """What a controller wants to write."""
        ...

    def commanded(self, controller: Asked, command: core.Command, given: Fence) -> None:
        """What a controller commands."""
        ...

    def obeyed(self, worker: str, life: int, given: Fence) -> None:
        """A worker obeys."""
        ...

    def said(self, worker: str, event: core.Event) -> None:
        """A worker reports."""
        ...


class SiteUsers(Protocol):
    """Those who want pipelines to run."""

    def ask_soon(self, controller: Asked) -> None:
        """A controller has come up."""
        ...

    def hear(self, controller: Asked, command: core.AnswerRequest | core.ReportRun) -> None:
        """A controller answers."""
        ...


class Site(Protocol):
    """What the pipelines of one simulated cluster share."""

    world: World
    cluster_log: SimulatedLog | None
    controllers: list[SimulatedController]
    workers: list[SimulatedWorker]
    quiet: bool
    window_bytes: int
    log_limits: LogLimits
    wires: Wires

    @property
    def checker(self) -> Judge:
        """Who judges."""
        ...

    @property
    def operator(self) -> SiteUsers:
        """Who asks."""
        ...

    def of(self, about: str, /) -> Cluster:
        """The cluster as it is to one pipeline: that of a task's name, or of a dataset's log."""
        ...

    def log_of(self, uri: str) -> SimulatedLog:
        """The log of that name."""
        ...

    def leader_alive(self, uri: str) -> bool | None:
        """What this host can prove of the process that leads a log."""
        ...


class Cluster(Protocol):
    """All the parts of one simulated cluster, as it is to one pipeline."""

    world: World
    pipeline: str
    corpus: Corpus
    log: SimulatedLog
    cluster_log: SimulatedLog | None
    objects: SimulatedObjects
    inputs: InputObjects
    manifest: SimulatedManifest
    checker: Checker
    controllers: list[SimulatedController]
    workers: list[SimulatedWorker]
    wires: Wires

    @property
    def quiet(self) -> bool:
        """Whether no fault happens any more."""
        ...

    def living(self, run: Run) -> list[SimulatedTask]:
        """The tasks that live, and of which a run knows that they do."""
        ...


class SimulatedHost(Protocol):
    """A worker, as its tasks see it."""

    cluster: Site
    clock: Clock

    def said(self, event: core.Event) -> None:
        """Pass on what a task says."""
        ...

    def task_gone(self, task: FramePart, code: int) -> None:
        """A task's process ended."""
        ...


class FramePart(Protocol):
    """A task, as its sink and its worker see it."""

    cluster: Cluster
    clock: Clock
    name: str
    attempt: int
    label: str
    alive: bool
    epoch: int
    version: str
    in_hand: tuple[core.InHand, ...]
    killed_for: str
    alone: bool

    def say(self, event: core.Event) -> None:
        """Send an event to the controller."""
        ...

    def die(self, code: int, story: str) -> None:
        """End."""
        ...

    def wake(self) -> None:
        """There may be something to do."""
        ...

    def sleeps(self, action: Callable[..., None], *arguments: Any) -> bool:
        """Whether it is frozen; then the action comes when it wakes."""
        ...

    def outlives(self, stage: str, parts: Sequence[Part], hand: Range | None = None) -> bool:
        """Whether the process lives on after a stage has had these records; `hand` is what it said that it took."""
        ...

    def poison(self, fragment: bytes, ordinal: int, stage: str) -> bool:
        """Whether a record is poison at a stage."""
        ...

    def do(self, event: messages.Event) -> bool:
        """Give its core an event and carry out what follows; whether anything moved."""
        ...
