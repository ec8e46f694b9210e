"""What the checks see of a simulated cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from headrace.chaos.sim.storage import SimulatedLog, SimulatedManifest, SimulatedObjects
from headrace.chaos.sim.world import Corpus, InputObjects, World
from headrace.controller.core.cluster import Controller
from headrace.controller.core.messages import ChangedInput, TokenOffered, messages as core
from headrace.controller.core.run import Run
from headrace.worker.task import HeldBatches, TaskCore

#: What people ask of a controller, and are answered.
OperatorRequest = core.PipelineRequested | core.SteerRequested | core.DrainRequested | TokenOffered


class Asked(Protocol):
    """A controller, as whoever asks it for something sees it."""

    name: str
    identity: str
    life: int
    alive: bool

    @property
    def token(self) -> str:
        """The name of the request that its newest run came from; empty where there is no run."""
        ...

    def post(self, event: core.Event) -> None:
        """Give it an event."""
        ...


class Folding(Protocol):
    """A controller, as the checker looks into it."""

    name: str
    identity: str
    core: Controller


class ObservedSink(Protocol):
    """A sink in a task."""

    core: HeldBatches[Any, Any]

    def waiting(self) -> int:
        """How many verdicts it holds that name another record."""
        ...


class ObservedTask(Protocol):
    """A task that lives."""

    name: str
    stages: tuple[str, ...]
    alone: bool
    core: TaskCore[Any, Any]


class People(Protocol):
    """Those who ask for runs."""

    choices: set[ChangedInput]


class Network(Protocol):
    """The links between workers."""

    strayed: set[bytes]


class Observed(Protocol):
    """A simulated cluster."""

    world: World
    corpus: Corpus
    inputs: InputObjects
    log: SimulatedLog
    cluster_log: SimulatedLog | None
    objects: SimulatedObjects
    manifest: SimulatedManifest

    @property
    def operator(self) -> People:
        """Those who ask for runs."""
        ...

    @property
    def wires(self) -> Network:
        """The links between workers."""
        ...

    def attempt(self, task: str, attempt: int) -> ObservedTask | None:
        """This attempt of a task, if it lives."""
        ...

    def living(self, run: Run) -> Iterable[ObservedTask]:
        """The tasks that live, and of which a run knows that they do."""
        ...
