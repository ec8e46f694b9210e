"""The parts of a simulated cluster that several pipelines share, and what each of them has of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.chaos.sim.checks import Checker
from headrace.chaos.sim.network import Wires
from headrace.chaos.sim.nodes import SimulatedController, SimulatedTask, SimulatedWorker
from headrace.chaos.sim.queues.checks import QueueJudge
from headrace.chaos.sim.queues.people import QueuePeople
from headrace.chaos.sim.storage import SimulatedLog, SimulatedManifest, SimulatedObjects
from headrace.chaos.sim.world import CLUSTER, TIERS, Corpus, InputObjects, World, make_pipeline
from headrace.controller.core.log import LogLimits
from headrace.controller.core.messages import ChangedInput
from headrace.controller.core.run import Run
from headrace.pipeline import Pipeline

#: Pipelines of one cluster, and the bytes of memory of each worker.
TENANTS = (2, 5)
MEMORY_BYTES = 1 << 30
#: Share of pipelines whose tasks reserve memory: two such tasks are one too many for a worker.
HEAVY_SHARE, HEAVY_BYTES = 0.2, 600 << 20


@dataclass(slots=True)
class Choices:
    """What people chose about changed input; here nobody changes it."""

    choices: set[ChangedInput]


class Tenant:
    """One pipeline with its dataset, on a cluster that others use too."""

    def __init__(self, site: TenantCluster, name: str) -> None:
        self._site, self.world, self.pipeline = site, site.world, name
        self.corpus = corpus = Corpus(site.world, fused=True)
        self.log = SimulatedLog(site.world, f"sim://{name}")
        self.objects = SimulatedObjects(site.world)
        self.manifest = SimulatedManifest(site.world, self.log.store)
        self.inputs = InputObjects(site.world, corpus)
        self.operator = Choices({ChangedInput.HALT})
        #: The judge of the cluster's own log is the cluster's.
        self.cluster_log: SimulatedLog | None = None
        self.controllers, self.workers, self.wires = site.controllers, site.workers, site.wires
        self.checker = Checker(self)
        self.log.durable = self.checker.durable
        self.checker.gate.options = {}
        #: Whether where its tasks run depends on more than cores.
        self.heavy = site.world.chance(HEAVY_SHARE)
        self.demands = corpus.spread or self.heavy
        made = make_pipeline(1, corpus.sinks, dedups=corpus.dedups, spread=corpus.spread, partitions=corpus.partitions)
        stages = tuple(
            replace(stage, memory_bytes=HEAVY_BYTES) if self.heavy and not stage.after else stage
            for stage in made.stages
        )
        self.declared = Pipeline(name, self.log.uri, stages)

    @property
    def quiet(self) -> bool:
        """Whether no fault happens any more."""
        return self._site.quiet

    def attempt(self, task: str, attempt: int) -> SimulatedTask | None:
        """This attempt of a task, if it lives."""
        found = (one for worker in self.workers for one in worker.tasks.values())
        return next((one for one in found if one.alive and (one.name, one.attempt) == (task, attempt)), None)

    def living(self, run: Run) -> list[SimulatedTask]:
        """The tasks that live, and of which a run knows that they do."""
        return self._site.living(run)

    def holds(self, run: Run) -> str:
        """What of it lies open at a sink that lives, so that it has not sealed; empty if nothing does."""
        for task in self.living(run):
            for item in task.sink.core.ranges() if task.sink is not None else ():
                state = self.checker.ledger.fragments[item.fragment]
                closed = state.of(task.sink.name).overlap(item.first, item.end) if task.sink is not None else []
                if sum(end - first for first, end in closed) < item.count:
                    return f"{task.label} holds records {item.first}..{item.end - 1}"
        return ""


class TenantCluster:
    """What a seed draws: nodes, queues, and pipelines that want more cores than there are."""

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        self.log = SimulatedLog(world, CLUSTER)
        self.cluster_log: SimulatedLog | None = self.log
        #: No fault happens any more.
        self.quiet = False
        self.window_bytes = world.rng.choice((40, 100, 1000))
        self.log_limits = LogLimits(world.rng.choice((3, 8, 1 << 30)))
        self.provable = world.chance(0.4)
        self.wires = Wires(world, self.window_bytes)
        self.controllers: list[SimulatedController] = []
        self.workers: list[SimulatedWorker] = []
        names = [f"tenant{number}" for number in range(world.rng.randint(*TENANTS))]
        self.tenants = {name: Tenant(self, name) for name in names}
        self.checker = QueueJudge(self)
        self.log.durable = self.checker.durable
        self.controllers += [
            SimulatedController(self, name, standby=False) for name in ("alpha", "beta")[: world.rng.randint(1, 2)]
        ]
        self.workers += [
            SimulatedWorker(self, name, world.rng.randint(1, 2), TIERS[index % 2])
            for index, name in enumerate(["one", "two", "three", "four", "five"][: world.rng.randint(4, 5)])
        ]
        self.operator = QueuePeople(self)

    def of(self, about: str, /) -> Tenant:
        """See `Site`."""
        return self.tenants[about.removeprefix("sim://").split("/", 1)[0]]

    def logs(self) -> list[SimulatedLog]:
        """Every log that there is."""
        return [self.log, *(tenant.log for tenant in self.tenants.values())]

    def stores(self) -> list[SimulatedLog | SimulatedObjects]:
        """All that may fail."""
        return [*self.logs(), *(tenant.objects for tenant in self.tenants.values())]

    def log_of(self, uri: str) -> SimulatedLog:
        """See `Site`."""
        return next(log for log in self.logs() if log.uri == uri)

    def leader_alive(self, uri: str) -> bool | None:
        """See `Site`."""
        ledger = self.checker.ledger if uri == CLUSTER else self.of(uri).checker.ledger
        leader = ledger.leader.get("id")
        if not self.provable or leader is None:
            return None
        return any(controller.alive and controller.identity == leader for controller in self.controllers)

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
        self.operator.begin()
