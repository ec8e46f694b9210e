"""`headrace apply` and `status`: commands to a controller elsewhere."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from headrace.cli.commands.canary import GivenCode, check_canary, try_canary
from headrace.cli.commands.run import Interrupts, catch_signals, watch_to_end
from headrace.cli.ui import (
    FAINT,
    CanaryOptions,
    closed_line,
    console,
    death_lines,
    facts_page,
    input_bytes_read,
    links_table,
    megabytes,
    number,
    plain_table,
    print_json,
    progress_on,
    queues_table,
    read_ledger,
    rows_of,
    safe,
    tasks_table,
    title,
    workers_table,
)
from headrace.client import (
    EXIT_INTERRUPTED,
    Client,
    CliError,
    ControllerAt,
    ControllerSilent,
    RunOptions,
    UsageError,
    load,
    pipeline_of,
    with_base,
)
from headrace.controller.core.plan import size
from headrace.protos import codec, control_pb2 as pb
from headrace.stages.runtime import ENVIRONMENT_OF
from headrace.store import counted
from headrace.store.ledger import balance_shown

#: Workers that the page lists; `--json` has them all.
WORKERS_SHOWN_MAX = 40


def show_plan(pipeline: str, made: pb.PlanReply, *, as_json: bool) -> None:
    """Print what an apply would start, where, and why."""
    if as_json:
        print_json({"pipeline": pipeline, **codec.plain(made)})
        return
    out = console()
    count = f"{counted(len(made.tasks), 'task')} on {number(len({task.worker for task in made.tasks}))}"
    out.print(title(pipeline, f"would run {count} of {counted(made.workers, 'worker')}; nothing was started"))
    if made.stops:
        out.print(f"  in the place of {counted(len(made.stops), 'task')} that would end", style=FAINT)
        took = f"; those in force took {made.shared_s:.1f} s" if made.shared_s else ""
        out.print(f"  both share the cores until the new ones are ready{took}", style=FAINT)
        if made.another_index:
            why = safe(made.another_index)
            out.print(f"  another index takes over, which knows what is closed: {why}", style=FAINT)
        out.print("  what is closed stays as it was", style=FAINT)
    out.print_below(
        plain_table(("stages", "why there"), [(item.chain.replace("+", ", "), item.reason) for item in made.chains])
    )
    out.print_below(plain_table(("worker", "tasks", "of", "reserved"), _workers(made), right=(1,)))
    more = len({task.worker for task in made.tasks}) - WORKERS_SHOWN_MAX
    if more > 0:
        out.print(f"  and {number(more)} more; --json has them all", style=FAINT)
    if made.links:
        out.print_below(plain_table(("links from", "to", "transport", "links"), _links(made), right=(3,)))


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


#: Seconds in which the workers of --workers come, and between two looks.
WORKERS_S, WORKERS_LOOK_S = 300.0, 0.5
#: Distributions of another version that `status` names for a worker; `--json` has all of them.
DIFFERENCES_SHOWN = 5


def apply_file(
    path: Path,
    given: list[str],
    at: ControllerAt,
    options: RunOptions,
    *,
    wait: bool,
    dry_run: bool = False,
    base: tuple[str, str] = ("", ""),
    follow_links: bool = False,
    workers: int = 0,
    canary: CanaryOptions | None = None,
    as_json: bool = False,
) -> int:
    """Have a controller run a pipeline file, or say how it would; the exit code."""
    canary = canary or CanaryOptions()
    check_canary(canary, dry_run=dry_run)
    if canary.share and (not options.amend or wait):
        raise UsageError("--canary compares a pipeline with the one that --amend is to change; it goes without --wait")
    pipeline = with_base(load(path, given, follow_links=follow_links), *base)
    facts: dict[str, Any] | None = {}
    with Client(at) as client:
        if workers:
            _await_workers(client, workers)
        client.status()  # fails at once without a controller, not after the deadline of an apply
        if dry_run:
            show_plan(pipeline.name, client.plan(pipeline, options), as_json=as_json)
            return 0
        if canary.share:
            mine = GivenCode(pipeline.stages, pipeline.modules)
            facts = try_canary(pipeline.dataset, pipeline, mine, canary, as_json=as_json)
        if facts is None:
            return 0
        applied = client.apply_or_join(pipeline, options)
        for line in applied.warnings:
            print(f"headrace: {line}", file=sys.stderr)
        if not wait:
            does = f"waits in {safe(applied.waits)}" if applied.waits else "runs"
            line = f"pipeline {pipeline.name} {does}; see `headrace status {pipeline.name}`"
            print(json.dumps(asdict(applied) | ({"canary": facts} if facts else {})) if as_json else line)
            return 0
        if applied.waits:
            print(f"headrace: pipeline {pipeline.name} waits in {safe(applied.waits)}", file=sys.stderr)
        with catch_signals() as interrupts:
            status = _wait(client, pipeline.name, interrupts)
    if status.state == "failed":
        raise CliError(status.failure or "the run failed without a reason")
    show_end(status, as_json=as_json)
    if status.state == "completed":
        return 0
    if not interrupts.asked:
        raise CliError(f"somebody else ended pipeline {safe(pipeline.name)}: it is {status.state}; apply it again")
    return EXIT_INTERRUPTED


def _await_workers(client: Client, count: int) -> None:
    """Return once so many workers are connected, at WORKERS_S with some. Raises CliError for none."""
    deadline, pause, found = time.monotonic() + WORKERS_S, threading.Event(), 0
    while found < count:
        late = time.monotonic() >= deadline
        try:
            found = len(client.status(workers=count).workers)
        except ControllerSilent:
            if late:
                raise
        if late and found < count:
            if not found:
                raise CliError(f"none of {counted(count, 'worker')} came within {WORKERS_S:.0f} s")
            print(f"headrace: {found} of {counted(count, 'worker')} came within {WORKERS_S:.0f} s", file=sys.stderr)
            return
        pause.wait(WORKERS_LOOK_S)


def _wait(client: Client, name: str, interrupts: Interrupts) -> pb.PipelineStatus:
    with progress_on(sys.stderr, name) as progress:
        return watch_to_end(client, name, progress, interrupts, lambda: None)


def show_end(status: pb.PipelineStatus, *, as_json: bool) -> None:
    """The end of a run that was waited for, on standard output."""
    from headrace.cli.ui import balance_page

    balance = balance_shown(read_ledger(status.dataset))
    if as_json:
        print_json({**codec.plain(status), **balance.to_dict()})
        return
    out = console()
    out.print(title(status.pipeline, status.state, good=status.state == "completed"))
    out.print(balance_page(balance))
    for line in death_lines(rows_of(status.deaths)):
        out.print(Text(f"died  {safe(line)}", style="yellow"))
    for line in (*environments(status), *status.notes):
        out.print(Text(f"note  {safe(line)}", style="yellow"))


def environments(status: pb.PipelineStatus) -> list[str]:
    """A line for each worker that has something in another version than where the pipeline was declared."""
    workers = {f"{ENVIRONMENT_OF}{task.task}": task.worker for task in status.tasks}
    unlike = {workers[name]: words for name, words in sorted(status.facts.items()) if name in workers}
    return [f"worker {worker} has {_first(words)}: its output may differ" for worker, words in unlike.items()]


def _first(words: str) -> str:
    items = words.split("; ")
    more = f" and {len(items) - DIFFERENCES_SHOWN} more" if len(items) > DIFFERENCES_SHOWN else ""
    return "; ".join(items[:DIFFERENCES_SHOWN]) + more


def show_status(at: ControllerAt, pipeline: str, *, as_json: bool) -> int:
    """Show what a controller knows; the exit code."""
    with Client(at) as client:
        reply = client.status(pipeline)
    if pipeline and pipeline_of(reply, pipeline) is None:
        raise CliError(f"the controller at {at.address} knows no pipeline {pipeline!r}; see `headrace status`")
    if as_json:
        return print_json(codec.plain(reply))
    out = console()
    out.print(title(f"controller {at.address}", f"process {reply.controller}, Headrace {reply.version}"))
    if reply.trouble:
        out.print(Text(f"  waits: the cluster's log: {safe(reply.trouble)}", style="yellow"))
    if reply.workers:
        out.print_below(workers_table(reply))
    else:
        out.print("  no worker is registered: start one with `headrace worker`", style="yellow")
    if reply.queues:
        out.print_below(queues_table(reply))
    if reply.expelled:
        names = ", ".join(safe(item.replace("/", " ")) for item in reply.expelled)
        out.print(Text(f"  expelled: {names}", style="yellow"))
    for words in death_lines(rows_of(reply.lost)):
        out.print(Text(f"  lost: {safe(words)}", style="yellow"))
    for item in reply.pipelines:
        _show_pipeline(item)
    if not reply.pipelines:
        out.print_below("  no pipeline: give it one with `headrace apply`", style=FAINT)
    return 0


def _applied(status: pb.PipelineStatus) -> list[tuple[str, str]]:
    queue = f" to queue {status.queue}" if status.queue else ""
    return [("applied", f"by {status.applied_by or 'nobody known'}{queue}")] if status.applied_by or queue else []


def _show_pipeline(status: pb.PipelineStatus) -> None:
    out = console()
    out.print_below(title(status.pipeline, status.state, good=status.state in ("running", "completed")))
    if status.state == "queued":
        out.print(facts_page([("dataset", status.dataset), *_applied(status), *(("waits", w) for w in status.waits)]))
        return
    facts = [("dataset", status.dataset), *_applied(status)]
    if status.version:
        read = f"{megabytes(input_bytes_read(status))} read in this run, of {megabytes(status.input_bytes)}"
        facts += [
            ("input", read),
            ("fragments", f"{number(status.fragments_done)} of {number(status.fragments)} closed"),
            ("ledger", closed_line(status)),
        ]
    open_words = codec.balance_from(status.balance).open_words
    facts += [("open", open_words)] if open_words and status.fragments else []
    facts += [("to change", words) for words in status.changes]
    facts += [("not changed", status.refused_change)] if status.refused_change else []
    facts += [("environment", words) for words in environments(status)]
    facts += [("waits", words) for words in status.waits]
    facts += [("died", words) for words in death_lines(rows_of(status.deaths))]
    facts += [("note", words) for words in status.notes]
    facts += [("failure", status.failure)] if status.failure else []
    out.print(facts_page(facts))
    for table in (tasks_table(status), links_table(status)):
        if table is not None:
            out.print_below(table)
