"""Several pipelines on one simulated cluster, in queues: who gives way, who begins, and that nothing is lost by it."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.chaos.sim.queues.checks import QueueJudge as QueueJudge
    from headrace.chaos.sim.queues.mutants import MUTANTS as MUTANTS
    from headrace.chaos.sim.queues.simulator import simulate_queues as simulate_queues
    from headrace.chaos.sim.queues.tenants import QueuePeople as QueuePeople, Tenant as Tenant
else:
    __getattr__ = door(__name__)
