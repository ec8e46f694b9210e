"""A dry run's answer: the plan that an apply would make of the workers that there are, and nothing done."""

from __future__ import annotations

from headrace.controller.core.cluster import Controller
from headrace.controller.core.messages import PipelineRequested
from headrace.controller.core.plan import Plan
from headrace.pipeline import PipelineError
from headrace.protos import control_pb2 as pb


def dry_run(core: Controller, request: PipelineRequested) -> pb.ApplyReply:
    """What an apply of this request would start, or why it would not."""
    try:
        made = core.planned(request)
    except PipelineError as error:
        return pb.ApplyReply(accepted=False, reason=str(error))
    return pb.ApplyReply(accepted=True, plan=_reply(made, len(core.workers)))


def _reply(made: Plan, workers: int) -> pb.PlanReply:
    tasks = [
        pb.PlannedTask(
            task=task.name,
            stages=task.stages,
            worker=task.worker,
            cores=task.need.cores,
            memory_bytes=task.need.memory_bytes,
        )
        for task in made.tasks
    ]
    links = [
        pb.LinkStatus(link=link.name, sender=link.sender, receiver=link.receiver, transport=link.transport)
        for link in made.links
    ]
    chains = [pb.PlannedChain(chain=chain, reason=reason) for chain, reason in made.reasons.items()]
    return pb.PlanReply(tasks=tasks, links=links, chains=chains, workers=workers)
