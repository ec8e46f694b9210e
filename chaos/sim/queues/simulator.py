"""One simulated cluster in queues: its pipelines, its faults, a quiet time, and the verdict.

Faults of a cluster in queues: nodes and stores fail, and people change their minds.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.chaos.sim import (
    CLOSE_S,
    EVENTS_MAX,
    VACATE_S,
    NodeFaults,
    SimulationOutcome,
    outcome_of,
    until,
    vacated,
    without_garbage,
)
from headrace.chaos.sim.queues.tenants import TenantCluster

#: Seconds within which a worker that says that it is about to end has ended.
LEAVES_S = 6.0


class QueueFaults(NodeFaults):
    """The misfortunes of one seed."""

    def __init__(self, cluster: TenantCluster) -> None:
        self._people = cluster.operator
        super().__init__(
            cluster,
            [
                (self.kill_task, 6),
                (self.kill_worker, 3),
                (self.crash_controller, 5),
                (self.freeze_controller, 5),
                (self.retire_controller, 2),
                (self.break_session, 3),
                (self.leave_session, 2),
                (self.freeze_task, 2),
                (self.freeze_worker, 2),
                (self.freeze_node, 2),
                (self.part_workers, 3),
                (self.trouble_store, 2),
                (self.lose_store, 2),
                (self.set_queue, 6),
                (self.stop_pipeline, 2),
                (self.drain_worker, 3),
                (self.leave_worker, 2),
                (self.scale_run, 3),
            ],
        )

    def set_queue(self) -> bool:
        """Somebody gives a queue another weight, quota or priority."""
        self._people.set_queue()
        return True

    def stop_pipeline(self) -> bool:
        """Somebody stops a pipeline, wherever it stands, and applies it again."""
        self._people.stop()
        return True

    def scale_run(self) -> bool:
        """A run that scales by itself gets more tasks, or fewer."""
        self._people.scale()
        return True

    def drain_worker(self) -> bool:
        """Somebody wants a worker to be empty for a while."""
        self._people.drain()
        return True

    def leave_worker(self) -> bool:
        """A worker is about to end, says so, and comes anew."""
        worker = self._world.rng.choice(self._site.workers)
        worker.leave(self._world.between(0.0, LEAVES_S))
        return True

    def settle(self) -> None:
        """See `NodeFaults`."""
        self._people.settle()


@without_garbage()
def simulate_queues(seed: int, *, dense: bool = False) -> SimulationOutcome:
    """Run one seed to its end, or to the first invariant that does not hold."""
    cluster = TenantCluster(seed)
    faults, judge = QueueFaults(cluster), cluster.checker
    ledgers = [tenant.checker.ledger for tenant in cluster.tenants.values()]
    outcome = outcome_of(seed, cluster, faults, ledgers, lambda: _run(cluster, faults, dense=dense))
    return replace(outcome, held=judge.held, gone_on=judge.gone_on)


def _run(cluster: TenantCluster, faults: QueueFaults, *, dense: bool) -> float:
    world, people, check = cluster.world, cluster.operator, cluster.checker.check
    cluster.start()
    deadline = faults.plan(dense=dense) + CLOSE_S * len(cluster.tenants)
    events_max = EVENTS_MAX * len(cluster.tenants)
    until(lambda: people.completed, world, check, deadline, "a pipeline has not come to its end", events_max)
    done_at = world.now
    cluster.quiet = True
    cluster.checker.finish()
    deadline = max(deadline, done_at + VACATE_S)
    until(lambda: vacated(cluster.workers), world, check, deadline, "a task is still alive after the end", events_max)
    return done_at
