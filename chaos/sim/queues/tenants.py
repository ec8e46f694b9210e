"""The parts of a simulated cluster that several pipelines share, and what each of them has of its own.

Those who share a simulated cluster: they set queues, apply pipelines to them, and change their minds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.chaos.sim.checks import Checker, OperatorRequest
from headrace.chaos.sim.network import Wires
from headrace.chaos.sim.nodes import SimulatedController, SimulatedTask, SimulatedWorker, Site
from headrace.chaos.sim.queues.checks import QueueJudge
from headrace.chaos.sim.storage import SimulatedLog, SimulatedManifest, SimulatedObjects
from headrace.chaos.sim.world import CLUSTER, TIERS, Corpus, InputObjects, make_pipeline
from headrace.controller.core.log import LogLimits
from headrace.controller.core.messages import ChangedInput, messages as core
from headrace.controller.core.run import Run
from headrace.controller.membership import Act, why_not
from headrace.pipeline import Pipeline
from headrace.store.ledger import RunRecord

#: Seconds after which it is looked whether all that is wanted is so, and within which all pipelines are applied.
LOOK_S, APPLIED_S = 1.5, 20.0
QUEUES = ("batch", "research", "urgent")
USERS = ("user/ann", "user/bob")
#: Share of pipelines that ask for all the cores that there are, and of queues with a quota.
ALL_SHARE, QUOTA_SHARE = 0.15, 0.5
#: Share of clusters in which no priority decides, but weights, users and who came first; there one asks for little.
EVEN_SHARE, EVEN_CORES_MAX = 0.5, 3
#: Share of clusters that have no queue before their first pipeline has begun.
OUTSIDE_SHARE = 0.3
#: Cores of a pipeline of which a worker has memory for one task.
HEAVY_CORES_MAX = 2
#: Tasks of a stage of a pipeline that asked for all cores.
ALL_TASKS_MAX = 4


@dataclass(slots=True)
class TenantRequest:
    """One pipeline as it is applied: when, in which words, for the how-manieth time, and what was asked of it since."""

    request: core.PipelineRequested
    due: float
    times: int = 1
    #: Names of applications, each with a user whose stop of it was let through.
    stopped: tuple[tuple[str, str], ...] = ()
    completed: bool = False

    @property
    def token(self) -> str:
        """The request's own name."""
        return f"{self.request.token} {self.times}"


class QueuePeople:
    """Everybody who has a say."""

    def __init__(self, cluster: TenantCluster) -> None:
        self._cluster, self._world = cluster, cluster.world
        rng = self._world.rng
        self._requests: dict[int, OperatorRequest] = {}
        self._request = 0
        #: The priorities that are given.
        self._priorities = (0,) if self._world.chance(EVEN_SHARE) else (-1, 0, 0, 1)
        names = QUEUES[: rng.randint(1, 2) if self._even else rng.randint(2, len(QUEUES))]
        cores = sum(worker.cores for worker in cluster.workers)
        self._asked: dict[str, TenantRequest] = {}
        for name, tenant in cluster.tenants.items():
            request = core.PipelineRequested(
                0,
                tenant.declared.to_dict(),
                token=name,
                queue=rng.choice(names),
                cores=self._cores(tenant.heavy, cores),
                priority=rng.choice(self._priorities),
                by=rng.choice(USERS),
                autoscale=rng.choice(("off", "on")),
            )
            self._asked[name] = TenantRequest(request, self._world.between(0.0, APPLIED_S))
        #: The pipeline that is to begin before there are queues, for so long as there are none.
        self._outside = next(iter(self._asked)) if self._world.chance(OUTSIDE_SHARE) else ""
        if self._outside:
            self._asked[self._outside].due = 0.0
        #: The queues as they are to be.
        self.rules = {name: self._drawn(name) for name in names}

    @property
    def _even(self) -> bool:
        return len(self._priorities) == 1

    @property
    def completed(self) -> bool:
        """Whether every pipeline has come to its end."""
        return all(item.completed for item in self._asked.values())

    def stoppers(self, name: str, token: object) -> set[str]:
        """Who has stopped that application."""
        return {user for stopped, user in self._asked[name].stopped if stopped == token}

    def begin(self) -> None:
        """Look at what is, again and again."""
        self._look()

    # -- what people do --

    def set_queue(self) -> None:
        """Somebody gives a queue another weight, quota or priority."""
        name = self._world.rng.choice(sorted(self.rules))
        self.rules[name] = self._drawn(name)

    def stop(self) -> None:
        """Somebody stops a pipeline, which waits, runs or gives way, if he may, and applies it again."""
        name, user = self._world.rng.choice(sorted(self._asked)), self._world.rng.choice(USERS)
        item, record, cancel = self._asked[name], self._record(name), self._world.chance(0.5)
        for controller in self._cluster.controllers if record is not None and not item.completed else ():
            heard = controller.alive and not controller.frozen and controller.core.leads
            if record is None or record.outcome or not heard:
                continue
            # As the servicer asks, in the same moment.
            if not why_not(user, Act.STOP, name, controller.core.owner(name)):
                item.stopped = (*item.stopped, (str(record.options["token"]), user))
                controller.post(core.StopRequested(name, cancel))

    def scale(self) -> None:
        """A run that scales by itself wants another number of tasks, as its scaling machine would say it."""
        name = self._world.rng.choice(sorted(self._asked))
        item, record = self._asked[name], self._cluster.checker.ledger.going_on().get(name)
        if record is not None and item.request.autoscale == "on":
            most = item.request.cores or self._world.rng.randint(1, ALL_TASKS_MAX)
            stage = self._world.rng.choice(("read", "write"))
            self._ask(core.SteerRequested(0, name, replicas={stage: self._world.rng.randint(1, most)}))

    def drain(self) -> None:
        """Somebody wants a worker to be empty for a while."""
        worker = self._world.rng.choice(self._cluster.workers).name
        self._ask(core.DrainRequested(0, worker))
        self._world.after(self._world.between(0.0, 6.0), self._ask, core.DrainRequested(0, worker, back=True))

    def settle(self) -> None:
        """No fault happens any more: nobody leaves a worker without tasks for ever."""
        if not self.completed:
            self._world.after(LOOK_S, self.settle)
            for worker in sorted(self._cluster.checker.ledger.drained):
                self._ask(core.DrainRequested(0, worker, back=True))

    # -- what they see --

    def ask_soon(self, controller: SimulatedController) -> None:
        """See `Operator`: they look again by themselves."""

    def hear(self, controller: SimulatedController, command: core.AnswerRequest | core.ReportRun) -> None:
        """See `Operator`."""
        request = self._requests.pop(command.request, None) if isinstance(command, core.AnswerRequest) else None
        if request is not None and isinstance(command, core.AnswerRequest) and command.accepted:
            self._cluster.checker.granted(controller, request)

    def _look(self) -> None:
        if self.completed:
            return
        self._world.after(self._world.between(0.5 * LOOK_S, LOOK_S), self._look)
        ledger = self._cluster.checker.ledger
        if self._outside and self._record(self._outside) is None:
            self._ask(replace(self._asked[self._outside].request, queue="", token=self._asked[self._outside].token))
            return
        for name, rule in self.rules.items():
            there = ledger.queues.get(name)
            if there is None or (there.weight, there.cores, there.priority) != (rule.weight, rule.cores, rule.priority):
                self._ask(rule)
        for name, item in self._asked.items():
            record = self._record(name)
            if item.completed or self._world.now < item.due or (record is not None and not record.outcome):
                continue
            if record is not None and record.options["token"] == item.token:
                item.completed = record.outcome == "completed"
                item.times += 1
            if not item.completed and item.request.queue in ledger.queues:
                self._ask(replace(item.request, token=item.token))

    def _record(self, name: str) -> RunRecord | None:
        ledger = self._cluster.checker.ledger
        return ledger.queued.get(name) or ledger.runs.get(name)

    def _ask(self, request: OperatorRequest) -> None:
        """Ask every controller for it: those that do not lead say so."""
        for controller in self._cluster.controllers:
            if controller.alive:
                self._request += 1
                asked = self._requests[self._request] = replace(request, request=self._request)
                controller.post(asked)

    def _cores(self, heavy: bool, most: int) -> int:
        """How many cores somebody asks for; those whose tasks need a worker each ask for few."""
        if heavy:
            return self._world.rng.randint(1, HEAVY_CORES_MAX)
        if self._world.chance(ALL_SHARE):
            return 0
        return self._world.rng.randint(1 if self._even else 2, EVEN_CORES_MAX if self._even else max(2, most - 2))

    def _drawn(self, name: str) -> core.QueueRequested:
        """A queue as somebody wants it; whatever waits in it can have what it asks for."""
        rng, priority = self._world.rng, self._world.rng.choice(self._priorities)
        most = sum(worker.cores for worker in self._cluster.workers)
        least = max([item.request.cores for item in self._asked.values() if item.request.queue == name], default=1)
        quota = rng.randint(max(1, least), max(1, least, most)) if self._world.chance(QUOTA_SHARE) else 0
        return core.QueueRequested(0, name, rng.randint(1, 3), quota, priority, by=rng.choice(USERS))


#: Pipelines of one cluster.
TENANTS = (2, 5)
#: Share of pipelines whose tasks reserve memory: two such tasks are one too many for a worker.
HEAVY_SHARE, HEAVY_BYTES = 0.2, 600 << 20


class Tenant:
    """One pipeline with its dataset, on a cluster that others use too."""

    def __init__(self, site: TenantCluster, name: str) -> None:
        self._site, self.world, self.pipeline = site, site.world, name
        self.corpus = corpus = Corpus(site.world, fused=True)
        self.log = SimulatedLog(site.world, f"sim://{name}")
        self.objects = SimulatedObjects(site.world)
        self.manifest = SimulatedManifest(site.world, self.log.store)
        self.inputs = InputObjects(site.world, corpus)
        self.inputs.choices = {ChangedInput.HALT}  # nobody changes it
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
        return self._site.attempt(task, attempt)

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


class TenantCluster(Site):
    """What a seed draws: nodes, queues, and pipelines that want more cores than there are."""

    checker: QueueJudge
    operator: QueuePeople

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        world = self.world
        self.cluster_log = self.log = SimulatedLog(world, CLUSTER)
        self.window_bytes = world.rng.choice((40, 100, 1000))
        self.log_limits = LogLimits(world.rng.choice((3, 8, 1 << 30)))
        self.provable = world.chance(0.4)
        self.wires = Wires(world, self.window_bytes)
        names = [f"tenant{number}" for number in range(world.rng.randint(*TENANTS))]
        self.tenants = {name: Tenant(self, name) for name in names}
        self.checker = QueueJudge(self)
        self.cluster_ledger = self.checker.ledger
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
        """See `Site`."""
        return [self.log, *(tenant.log for tenant in self.tenants.values())]

    def stores(self) -> list[SimulatedLog | SimulatedObjects]:
        """See `Site`."""
        return [*self.logs(), *(tenant.objects for tenant in self.tenants.values())]

    def start(self) -> None:
        """See `Site`."""
        super().start()
        self.operator.begin()
