"""All the parts of one simulated cluster, as its nodes see one another."""

from __future__ import annotations

from headrace.chaos.sim.checks import Checker
from headrace.chaos.sim.network import Wires
from headrace.chaos.sim.nodes import Operator, SimulatedController, SimulatedTask, SimulatedWorker
from headrace.chaos.sim.storage import SimulatedLog, SimulatedManifest, SimulatedObjects
from headrace.chaos.sim.world import CLUSTER, CLUSTER_SHARE, DATASET, PIPELINE, TIERS, Corpus, InputObjects, World
from headrace.controller.core.log import CHANGES_MAX, LogLimits
from headrace.controller.core.run import Run


class SimulatedCluster:
    """What a seed draws: how many nodes, which layout, how wide the links."""

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        self.pipeline = PIPELINE
        fuse = world.chance(0.5)
        self.corpus = Corpus(world, fused=fuse)
        self.log = SimulatedLog(world, DATASET)
        #: The log of the cluster's own leadership; None where each controller decides for itself.
        self.cluster_log = SimulatedLog(world, CLUSTER) if world.chance(CLUSTER_SHARE) else None
        self.objects = SimulatedObjects(world)
        self.manifest = SimulatedManifest(world, self.log.store)
        self.inputs = InputObjects(world, self.corpus)
        self.checker = Checker(self)
        self.log.durable = self.checker.durable
        if self.cluster_log is not None and self.checker.assignments is not None:
            self.cluster_log.durable = self.checker.assignments.durable
        #: No fault happens any more.
        self.quiet = False
        self.window_bytes = world.rng.choice((40, 100, 1000))
        #: Where entries between two snapshots are few, the log is truncated again and again; where an entry takes few
        #: changes, what is queued is cut again and again.
        self.log_limits = LogLimits(world.rng.choice((3, 8, 1 << 30)), world.rng.choice((1, 2, CHANGES_MAX)))
        #: Whether a leader's death can be proved, as on one host.
        self.provable = world.chance(0.4)
        self.wires = Wires(world, self.window_bytes)
        self.operator = Operator(self, fuse=fuse, replicas=world.rng.choice((0, 1, 2, 3)))
        names = ["alpha", "beta", "gamma"][: world.rng.randint(1, 3)]
        self.controllers = [
            SimulatedController(self, name, standby=index > 0 and self.cluster_log is None)
            for index, name in enumerate(names)
        ]
        self.workers = [
            SimulatedWorker(self, name, world.rng.randint(1, 2), TIERS[index % 2])
            for index, name in enumerate(
                ["one", "two", "three", "four", "five", "six", "seven"][: world.rng.randint(5, 7)]
            )
        ]

    def of(self, _about: str, /) -> SimulatedCluster:
        """See `Site`: there is one pipeline."""
        return self

    def logs(self) -> list[SimulatedLog]:
        """Every log that there is."""
        return [self.log] if self.cluster_log is None else [self.log, self.cluster_log]

    def stores(self) -> list[SimulatedLog | SimulatedObjects]:
        """All that may fail."""
        return [self.objects, *self.logs()]

    def log_of(self, uri: str) -> SimulatedLog:
        """The log of that name."""
        return next(log for log in self.logs() if log.uri == uri)

    def leader_alive(self, uri: str) -> bool | None:
        """What this host can prove of the process that the last `Led` of a log names."""
        cluster = self.checker.assignments if uri == CLUSTER else None
        leader = (cluster.history if cluster is not None else self.checker.dataset).ledger.leader.get("id")
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
        for controller in self.controllers:
            self.world.after(self.world.between(0.0, 0.5), controller.start)
        for worker in self.workers:
            self.world.after(self.world.between(0.0, 0.5), worker.start)
