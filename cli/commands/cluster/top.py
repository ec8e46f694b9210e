"""`headrace top`: what each stage gets through now, the credit on its links, and the bottlenecks.

A rate is the difference of two readings, over several seconds where there are so many: a stage may take as long for a
batch. A sender that found no credit since the last reading waits for its receiver; a stage that works most of the time
is the one that others wait for. One that is at a batch for long says so.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headrace.cli.ui import ACCENT, FAINT, GOOD, MB, at_batch, number, print_json, safe, title, worked_s
from headrace.client import ENDED, Client, CliError, ControllerAt, pipeline_of
from headrace.protos import control_pb2 as pb
from headrace.store import counted

#: Seconds between two readings.
LOOK_S = 1.0
#: Seconds over which records and bytes a second are an average.
AVERAGE_S = 10.0
#: A stage that works for this share of the time is at its limit.
BUSY_SHARE = 0.75
#: Columns below which the page leaves out what matters least.
NARROW = 110
BAR = 10


@dataclass(frozen=True, slots=True)
class StageRate:
    """One stage between two readings. `busy` is the share of its tasks' time, `waits_for` the stages it waits for.

    `at_batch_s` is for how long it is at its batch, of `batch_records`; of several tasks that which takes longest.
    """

    stage: str
    tasks: int
    records_s: float
    mb_s: float
    busy: float
    in_flight_bytes: int
    waits_for: tuple[str, ...]
    holds_up: tuple[str, ...] = ()
    at_batch_s: float = 0.0
    batch_records: int = 0


def rates(
    before: pb.PipelineStatus,
    now: pb.PipelineStatus,
    seconds: float,
    since: tuple[float, pb.PipelineStatus] | None = None,
) -> list[StageRate]:
    """What each stage did between two readings, in the order of the graph.

    `since` is a reading farther back and the seconds since then, of which records and bytes a second are an average.
    """
    old = {stage.stage: stage for stage in before.stages}
    since_s, oldest = since or (seconds, before)
    eldest = {stage.stage: stage for stage in oldest.stages}
    tasks: dict[str, int] = {}
    for task in now.tasks:
        for name in task.stages:
            tasks[name] = tasks.get(name, 0) + 1
    waits, flying = _links(before, now)
    found: list[StageRate] = []
    for stage in now.stages:
        past = old.get(stage.stage, pb.StageProgress())
        first = eldest.get(stage.stage, pb.StageProgress())
        many = max(1, tasks.get(stage.stage, 0))
        found.append(
            StageRate(
                stage=stage.stage,
                tasks=tasks.get(stage.stage, 0),
                records_s=max(0.0, (stage.records - first.records) / since_s),
                mb_s=max(0.0, (stage.bytes - first.bytes) / since_s / MB),
                busy=min(1.0, max(0.0, (worked_s(stage) - worked_s(past)) / seconds / many)),
                in_flight_bytes=flying.get(stage.stage, 0),
                waits_for=tuple(sorted(waits.get(stage.stage, ()))),
                holds_up=tuple(sorted(sender for sender, held in waits.items() if stage.stage in held)),
                at_batch_s=stage.at_batch_s,
                batch_records=stage.batch_records,
            )
        )
    return found


def _links(before: pb.PipelineStatus, now: pb.PipelineStatus) -> tuple[dict[str, set[str]], dict[str, int]]:
    """Which stages found no credit at which others, and the bytes on their way to each stage."""
    stages = {task.task: task.stages for task in now.tasks}
    ends = {link.link: (link.sender, link.receiver) for link in now.links}
    blocked = {(task.task, link.link): link.blocked for task in before.tasks for link in task.progress.links}
    waits: dict[str, set[str]] = {}
    flying: dict[str, int] = {}
    for task in now.tasks:
        for link in task.progress.links:
            sender, receiver = ends.get(link.link, ("", ""))
            if task.task != sender or receiver not in stages:
                continue
            head, tail = stages[receiver][0], task.stages[-1]
            flying[head] = flying.get(head, 0) + link.in_flight_bytes
            if link.blocked > blocked.get((task.task, link.link), 0):
                waits.setdefault(tail, set()).add(head)
    return waits, flying


def top_page(reply: pb.StatusReply, found: Mapping[str, list[StageRate]], address: str, width: int) -> RenderableType:
    """The whole page, for a terminal of that many columns."""
    states: dict[str, int] = {}
    for worker in reply.workers:
        states[worker.state] = states.get(worker.state, 0) + 1
    count = ", ".join(f"{number(count)} {state}" for state, count in sorted(states.items())) or "none"
    parts: list[RenderableType] = [title(f"controller {address}", f"workers: {count}")]
    for status in reply.pipelines:
        parts += [Text(), _head(status, width)]
        if status.state not in ENDED and status.stages:
            parts.append(_table(found.get(status.pipeline, []), width))
    if not reply.pipelines:
        parts += [Text("  no pipeline: give it one with `headrace apply`", style=FAINT)]
    return Group(*parts)


def _head(status: pb.PipelineStatus, width: int) -> RenderableType:
    living = sum(task.state == "ready" for task in status.tasks)
    said = [status.state]
    if status.version:
        left = status.fragments - status.fragments_done
        said.append(f"{number(living)} of {counted(len(status.tasks), 'task')} ready")
        said.append(f"{number(left)} of {counted(status.fragments, 'fragment')} open")
    restarts = sum(task.restarts for task in status.tasks)
    said += [counted(restarts, "restart")] if restarts else []
    died = sum(death.count for death in status.deaths)
    said += [counted(died, "death")] if died else []
    said += [f"to change: {words}" for words in status.changes]
    line = title(status.pipeline, ", ".join(said), good=status.state in ("running", "completed"))
    line.truncate(width, overflow="ellipsis")
    return line


def _table(stages: list[StageRate], width: int) -> RenderableType:
    wide = width >= NARROW
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=FAINT)
    table.add_column("stage", max_width=28 if wide else 16, overflow="ellipsis", no_wrap=True)
    table.add_column("tasks", justify="right")
    table.add_column("records/s", justify="right")
    table.add_column("MB/s", justify="right")
    table.add_column("at work", no_wrap=True, min_width=BAR + 5 if wide else 4)
    if wide:
        table.add_column("in flight to it", justify="right")
    table.add_column("now", overflow="ellipsis", no_wrap=True, ratio=1)
    for item in stages:
        row: list[RenderableType] = [
            Text(safe(item.stage), ACCENT),
            number(item.tasks),
            f"{item.records_s:,.0f}",
            f"{item.mb_s:,.1f}",
            _bar(item.busy, wide=wide),
        ]
        row += [f"{item.in_flight_bytes / 1024:,.0f} KiB"] if wide else []
        table.add_row(*row, _who(item))
    return Padding(table, (0, 2), expand=False)


def _bar(share: float, *, wide: bool) -> Text:
    style = "yellow" if share >= BUSY_SHARE else GOOD
    full = round(share * BAR)
    bar = "█" * full + "·" * (BAR - full) + " " if wide else ""
    return Text(f"{bar}{share:4.0%}", style=style)


def _who(item: StageRate) -> Text:
    at = at_batch(pb.StageProgress(at_batch_s=item.at_batch_s, batch_records=item.batch_records))
    if item.waits_for:
        who = Text(safe(f"waits for {', '.join(item.waits_for)}"), "yellow")
    elif item.holds_up:
        who = Text(safe(f"holds up {', '.join(item.holds_up)}"), "bold yellow")
    else:
        who = Text("at its limit", "yellow") if item.busy >= BUSY_SHARE else Text("")
    return Text(", ").join(part for part in (who, Text(at, FAINT)) if part)


class Readings:
    """The readings of every pipeline over the last seconds. Time is an argument."""

    def __init__(self) -> None:
        self._before: dict[str, deque[tuple[float, pb.PipelineStatus]]] = {}

    def take(self, reply: pb.StatusReply, now: float) -> dict[str, list[StageRate]]:
        """The rates since the reading before this one; empty at the first."""
        found: dict[str, list[StageRate]] = {}
        known, self._before = self._before, {}
        for status in reply.pipelines:
            past = known.get(status.pipeline, deque[tuple[float, pb.PipelineStatus]]())
            if past and _began_anew(past[-1][1], status):
                past.clear()
            if past and now > past[-1][0]:
                (last_at, last), (first_at, first) = past[-1], past[0]
                found[status.pipeline] = rates(last, status, now - last_at, (now - first_at, first))
            past.append((now, status))
            while len(past) > 2 and past[1][0] <= now - AVERAGE_S:
                past.popleft()
            self._before[status.pipeline] = past
        return found


def _began_anew(before: pb.PipelineStatus, now: pb.PipelineStatus) -> bool:
    """Whether sums of work have fallen: another run, or another controller, counts from the start."""
    old = {stage.stage: stage.busy_s for stage in before.stages}
    return any(stage.busy_s < old.get(stage.stage, 0.0) for stage in now.stages)


def show_top(at: ControllerAt, pipeline: str, *, once: bool, as_json: bool) -> int:
    """Show the page again and again until Ctrl-C, or once; the exit code."""
    console, readings = Console(file=sys.stdout, highlight=False), Readings()
    with Client(at) as client:
        reply = client.status(pipeline)
        if pipeline and pipeline_of(reply, pipeline) is None:
            raise CliError(f"the controller at {at.address} knows no pipeline {pipeline!r}; see `headrace status`")
        readings.take(reply, time.monotonic())
        if once or as_json or not console.is_terminal:
            time.sleep(LOOK_S)
            reply = client.status(pipeline)
            found = readings.take(reply, time.monotonic())
            if as_json:
                rows = {name: [asdict(item) for item in stages] for name, stages in found.items()}
                print_json({"pipelines": rows})
            else:
                console.print(top_page(reply, found, at.address, console.width))
            return 0
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                reply = client.status(pipeline)
                found = readings.take(reply, time.monotonic())
                live.update(top_page(reply, found, at.address, console.width), refresh=True)
                time.sleep(LOOK_S)
