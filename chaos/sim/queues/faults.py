"""Faults of a cluster in queues: nodes and stores fail, and people change their minds."""

from __future__ import annotations

from headrace.chaos.sim import NodeFaults
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
