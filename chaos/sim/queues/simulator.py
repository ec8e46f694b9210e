"""One simulated cluster in queues: its pipelines, its faults, a quiet time, and the verdict."""

from __future__ import annotations

from headrace.chaos.sim import CLOSE_S, EVENTS_MAX, VACATE_S, SimulationOutcome, until, vacated, without_garbage
from headrace.chaos.sim.queues.faults import QueueFaults
from headrace.chaos.sim.queues.tenants import TenantCluster
from headrace.chaos.sim.world import ViolationError


def simulate_queues(seed: int) -> SimulationOutcome:
    """Run one seed to its end, or to the first invariant that does not hold."""
    with without_garbage():
        return _simulate(seed)


def _simulate(seed: int) -> SimulationOutcome:
    cluster = TenantCluster(seed)
    faults = QueueFaults(cluster)
    violation, number, seconds = "", -1, 0.0
    try:
        seconds = _run(cluster, faults)
    except ViolationError as error:
        violation, number = str(error), error.number
    judge = cluster.checker
    ledgers = [tenant.checker.ledger for tenant in cluster.tenants.values()]
    counts = [item for ledger in ledgers for item in ledger.counts.values()]
    return SimulationOutcome(
        seed=seed,
        events=cluster.world.events,
        faults=tuple(faults.happened),
        pairs=tuple(faults.pairs),
        seconds=seconds,
        entries=len(cluster.log.entries),
        terms=judge.ledger.term,
        truncated=cluster.log.truncated,
        quarantined=sum(item.quarantined for item in counts),
        duplicates=sum(item.duplicate for item in counts),
        ghosts=0,
        repeats=0,
        held=judge.held,
        gone_on=judge.gone_on,
        violation=violation,
        number=number,
        story=tuple(cluster.world.tail()) if violation else (),
    )


def _run(cluster: TenantCluster, faults: QueueFaults) -> float:
    world, people, check = cluster.world, cluster.operator, cluster.checker.check
    cluster.start()
    deadline = faults.plan() + CLOSE_S * len(cluster.tenants)
    events_max = EVENTS_MAX * len(cluster.tenants)
    until(lambda: people.completed, world, check, deadline, "a pipeline has not come to its end", events_max)
    done_at = world.now
    cluster.quiet = True
    cluster.checker.finish()
    deadline = max(deadline, done_at + VACATE_S)
    until(lambda: vacated(cluster.workers), world, check, deadline, "a task is still alive after the end", events_max)
    return done_at
