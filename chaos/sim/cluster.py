"""All the parts of one simulated cluster, as its nodes see one another."""

from __future__ import annotations

from headrace.chaos.sim.checks import Checker
from headrace.chaos.sim.network import Wires
from headrace.chaos.sim.nodes import Operator, SimulatedController, SimulatedWorker, Site
from headrace.chaos.sim.storage import SimulatedLog, SimulatedManifest, SimulatedObjects
from headrace.chaos.sim.world import CLUSTER, CLUSTER_SHARE, DATASET, PIPELINE, TIERS, Corpus, InputObjects
from headrace.controller.core.log import CHANGES_MAX, LogLimits


class SimulatedCluster(Site):
    """What a seed draws: how many nodes, which layout, how wide the links."""

    checker: Checker
    operator: Operator

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        world = self.world
        self.pipeline = PIPELINE
        fuse = world.chance(0.5)
        self.corpus = Corpus(world, fused=fuse)
        self.log = SimulatedLog(world, DATASET)
        self.cluster_log = SimulatedLog(world, CLUSTER) if world.chance(CLUSTER_SHARE) else None
        self.objects = SimulatedObjects(world)
        self.manifest = SimulatedManifest(world, self.log.store)
        self.inputs = InputObjects(world, self.corpus)
        self.checker = Checker(self)
        self.log.durable = self.checker.durable
        self.cluster_ledger = None
        if self.cluster_log is not None and self.checker.assignments is not None:
            self.cluster_log.durable = self.checker.assignments.durable
            self.cluster_ledger = self.checker.assignments.history.ledger
        self.window_bytes = world.rng.choice((40, 100, 1000))
        #: Where entries between two snapshots are few, the log is truncated again and again; where an entry takes few
        #: changes, what is queued is cut again and again.
        self.log_limits = LogLimits(world.rng.choice((3, 8, 1 << 30)), world.rng.choice((1, 2, CHANGES_MAX)))
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
        """See `Site`."""
        return [self.log] if self.cluster_log is None else [self.log, self.cluster_log]

    def stores(self) -> list[SimulatedLog | SimulatedObjects]:
        """See `Site`."""
        return [self.objects, *self.logs()]
