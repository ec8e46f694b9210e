"""The progress of a run while it runs: a live page on a terminal (without one: cli/ui/progress_lines.py)."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.cli.ui.page import ACCENT, FAINT
from headrace.cli.ui.progress_lines import (
    LONG_BATCH_S,
    Meter,
    Progress,
    Waits,
    closed_line,
    input_bytes_read,
    input_bytes_stored,
    share,
    start_line,
    worked_s,
)
from headrace.cli.ui.words import MB, number, percent, safe, seconds
from headrace.protos import control_pb2 as pb
from headrace.store import counted


class LivePage(Progress):
    """A page on a terminal that renews itself and is gone when the run ends."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        #: Uncompressed bytes for the speed, stored ones for the end.
        self._meter, self._stored = Meter(), Meter()
        self._began_at = time.monotonic()
        self._status = pb.PipelineStatus(pipeline=name, state="starting")
        self._waits = Waits()
        self._live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._page)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, status: pb.PipelineStatus) -> None:
        """Show this status."""
        now = time.monotonic()
        self._meter.take(now, input_bytes_read(status))
        self._stored.take(now, input_bytes_stored(status))
        self._status = status
        for line in self._waits.changed(status):
            self.note(f"{self._name}: {line}")

    def note(self, line: str) -> None:
        """Show a line that stays above the page."""
        self._console.print(Text(safe(line), style="yellow"))

    def _page(self) -> RenderableType:
        status, now = self._status, time.monotonic()
        parts: list[RenderableType] = [self._head(status, now)]
        if status.stages:
            parts += [
                self._bar(status, now),
                Text(),
                stage_rows(status, now - self._began_at),
                Text(),
                self._foot(status),
            ]
        return Group(*parts)

    def _head(self, status: pb.PipelineStatus, now: float) -> Text:
        ready = sum(task.state == "ready" for task in status.tasks)
        tasks = counted(len(status.tasks), "task")
        tasks = f"{ready} of {tasks}" if ready < len(status.tasks) else tasks
        rest = f"{status.state or 'starting'}, {seconds(now - self._began_at)}" + (f", {tasks}" if status.tasks else "")
        died = sum(death.count for death in status.deaths)
        rest += f", {counted(died, 'death')}" if died else ""
        return Text.assemble(("● ", ACCENT), (safe(self._name), "bold"), " ", (rest, FAINT))

    def _bar(self, status: pb.PipelineStatus, now: float) -> RenderableType:
        done, whole = input_bytes_stored(status), int(status.input_bytes)
        left = self._stored.left_s(now, whole - done)
        line = Table.grid(padding=(0, 2))
        line.add_column(width=36)
        line.add_column(no_wrap=True)
        rest = f"  {seconds(left)} left" if left is not None else ""
        text = f"{share(done, whole)}  {self._meter.speed / MB:.1f} MB/s{rest}"
        bar = ProgressBar(
            total=max(1, whole),
            completed=min(done, max(1, whole)),
            width=32,
            complete_style=ACCENT,
            finished_style=ACCENT,
        )
        line.add_row(Padding(bar, (0, 0, 0, 2)), Text(text))
        return line

    def _foot(self, status: pb.PipelineStatus) -> Text:
        if status.waits:
            return Text(f"  waits: {safe(status.waits[0])}", style="yellow")
        if line := start_line(status, time.monotonic() - self._began_at):
            return Text(f"  {line}", style="yellow")
        return Text("  in the ledger: " + closed_line(status), style=FAINT)


def stage_rows(status: pb.PipelineStatus, elapsed_s: float) -> RenderableType:
    """A row a stage: its tasks, its records, what it removed, what a core gets through, for how much of their time its
    tasks have worked, and how long one of them is at its batch, where that is long.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=FAINT)
    table.add_column("  stage", min_width=16, overflow="fold")
    for name in ("tasks", "records", "removed", "MB/s a core", "at work", "this batch"):
        table.add_column(name, justify="right", min_width=len(name))
    for stage in status.stages:
        tasks = sum(stage.stage in task.stages and task.state == "ready" for task in status.tasks)
        table.add_row(
            Text("  " + safe(stage.stage), ACCENT),
            str(tasks),
            number(stage.records),
            number(stage.dropped) if stage.dropped else "",
            f"{stage.bytes / stage.cpu_s / MB:,.1f}" if stage.cpu_s > 0 else "",
            percent(min(1.0, worked_s(stage) / elapsed_s / max(1, tasks)), 1.0) if elapsed_s > 0 else "",
            seconds(stage.at_batch_s) if stage.at_batch_s >= LONG_BATCH_S else "",
        )
    return table
