"""`headrace apply --dry-run`: the plan and its reasons, as a page and as JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter

from headrace.cli.ui import FAINT, console, number, plain_table, title
from headrace.client import plain
from headrace.controller.core.plan import size
from headrace.protos import control_pb2 as pb
from headrace.store import counted

#: Workers that the page lists; `--json` has them all.
WORKERS_SHOWN_MAX = 40


def show_plan(pipeline: str, made: pb.PlanReply, *, as_json: bool) -> None:
    """Print what an apply would start, where, and why."""
    if as_json:
        print(json.dumps({"pipeline": pipeline, **plain(made)}))
        return
    out = console(sys.stdout)
    count = f"{counted(len(made.tasks), 'task')} on {number(len({task.worker for task in made.tasks}))}"
    out.print(title(pipeline, f"would run {count} of {counted(made.workers, 'worker')}; nothing was started"))
    out.print()
    out.print(
        plain_table(("stages", "why there"), [(item.chain.replace("+", ", "), item.reason) for item in made.chains])
    )
    out.print()
    out.print(plain_table(("worker", "tasks", "of", "reserved"), _workers(made), right=(1,)))
    more = len({task.worker for task in made.tasks}) - WORKERS_SHOWN_MAX
    if more > 0:
        out.print(f"  and {number(more)} more; --json has them all", style=FAINT)
    if made.links:
        out.print()
        out.print(plain_table(("links from", "to", "transport", "links"), _links(made), right=(3,)))


def _workers(made: pb.PlanReply) -> list[tuple[str, str, str, str]]:
    held: dict[str, list[pb.PlannedTask]] = {}
    for task in made.tasks:
        held.setdefault(task.worker, []).append(task)
    rows: list[tuple[str, str, str, str]] = []
    for worker in sorted(held)[:WORKERS_SHOWN_MAX]:
        tasks = held[worker]
        chains = Counter("+".join(task.stages) for task in tasks)
        cores, memory = sum(task.cores for task in tasks), sum(task.memory_bytes for task in tasks)
        reserved = f"{cores:g} cores, {size(memory)}" if cores or memory else "nothing declared"
        rows.append(
            (worker, number(len(tasks)), ", ".join(f"{count} {chain}" for chain, count in chains.items()), reserved)
        )
    return rows


def _links(made: pb.PlanReply) -> list[tuple[str, str, str, str]]:
    stage = {task.task: "+".join(task.stages) for task in made.tasks}
    kinds = Counter((stage[link.sender], stage[link.receiver], link.transport) for link in made.links)
    return [(*kind, number(count)) for kind, count in kinds.items()]
