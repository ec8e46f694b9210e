"""What the nodes of a simulated cluster need of one another, where they know each other both ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from headrace.chaos.sim.network import Wires
from headrace.chaos.sim.storage import SimulatedLog, SimulatedObjects
from headrace.chaos.sim.world import CLUSTER, ViolationError, World
from headrace.controller.core.log import LogLimits
from headrace.store.ledger import ClusterState

if TYPE_CHECKING:
    from headrace.chaos.sim import SimulatedCluster
    from headrace.chaos.sim.checks import Checker
    from headrace.chaos.sim.nodes.controllers import SimulatedController
    from headrace.chaos.sim.nodes.operator import Operator
    from headrace.chaos.sim.nodes.tasks import SimulatedTask
    from headrace.chaos.sim.nodes.workers import SimulatedWorker
    from headrace.chaos.sim.queues import QueueJudge, QueuePeople, Tenant
    from headrace.controller.core.run import Run

#: All the parts of one simulated cluster, as it is to one pipeline.
Cluster: TypeAlias = "SimulatedCluster | Tenant"


@contextmanager
def core_of(who: str, event: object) -> Iterator[None]:
    """0: no core raises, whatever it is told."""
    try:
        yield
    except ViolationError:
        raise
    except Exception as error:
        raise ViolationError(0, f"{who} on {event}: {type(error).__name__}: {error}") from error


class Site:
    """What the pipelines of one simulated cluster share."""

    #: Who judges what controllers and workers do, and who wants pipelines to run.
    checker: Checker | QueueJudge
    operator: Operator | QueuePeople
    #: The log of the cluster's own leadership; None where each controller decides for itself. And its fold.
    cluster_log: SimulatedLog | None
    cluster_ledger: ClusterState | None
    window_bytes: int
    log_limits: LogLimits
    #: Whether a leader's death can be proved, as on one host.
    provable: bool
    wires: Wires
    #: The log whose entries are counted: that of the one dataset, or of the cluster.
    log: SimulatedLog

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        #: No fault happens any more.
        self.quiet = False
        self.controllers: list[SimulatedController] = []
        self.workers: list[SimulatedWorker] = []

    def of(self, about: str, /) -> Cluster:
        """The cluster as it is to one pipeline: that of a task's name, or of a dataset's log."""
        raise NotImplementedError(about)

    def logs(self) -> list[SimulatedLog]:
        """Every log that there is."""
        raise NotImplementedError

    def stores(self) -> list[SimulatedLog | SimulatedObjects]:
        """All that may fail."""
        raise NotImplementedError

    def log_of(self, uri: str) -> SimulatedLog:
        """The log of that name."""
        return next(log for log in self.logs() if log.uri == uri)

    def leader_alive(self, uri: str) -> bool | None:
        """What this host can prove of the process that the last `Led` of a log names."""
        ledger = self.cluster_ledger if uri == CLUSTER else self.of(uri).checker.ledger
        leader = ledger.leader.get("id") if ledger is not None else None
        if not self.provable or leader is None:
            return None
        return any(controller.alive and controller.identity == leader for controller in self.controllers)

    def attempt(self, task: str, attempt: int) -> SimulatedTask | None:
        """This attempt of a task, if it lives."""
        found = (one for worker in self.workers for one in worker.tasks.values())
        return next((one for one in found if one.alive and (one.name, one.attempt) == (task, attempt)), None)

    def living(self, run: Run) -> list[SimulatedTask]:
        """The tasks that live, and of which a run knows that they do."""
        works = run.works
        return [
            task
            for worker in self.workers
            for task in worker.tasks.values()
            if task.alive and works is not None and works.current(task.name, task.attempt) is not None
        ]

    def start(self) -> None:
        """Everything comes up, one after the other."""
        nodes: list[SimulatedController | SimulatedWorker] = [*self.controllers, *self.workers]
        for node in nodes:
            self.world.after(self.world.between(0.0, 0.5), node.start)
