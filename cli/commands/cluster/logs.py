"""`headrace logs`: what the controller, its workers and their tasks say, as one story in the order of time.

The controller gathers the lines (docs/guide/logs.md). Clocks of hosts differ, so lines of two hosts that are closer
than that may stand the wrong way round; a cause tells what led to what.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from headrace.cli.ui import ACCENT, BAD, FAINT, print_json, safe
from headrace.client import Client, ControllerAt, ControllerSilent, UsageError
from headrace.daemon import LEVELS, parse, shown
from headrace.protos import control_pb2 as pb
from headrace.store import counted

#: Columns of the process's name; a longer one pushes its line aside.
PROCESS_COLUMNS = 18
#: Lines that were shown last, by which a search that is begun again knows what was shown.
REMEMBERED = 20_000
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_STYLES = {"debug": FAINT, "info": "", "warning": "yellow", "error": BAD}
_AGO = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)([smhd])")


def since_of(text: str, now: float) -> float:
    """`10m` ago, or a time such as 2026-05-04T12:30, in seconds since 1970; 0 for none. Raises UsageError."""
    if not text:
        return 0.0
    if ago := _AGO.fullmatch(text):
        return max(0.0, now - float(ago[1]) * _UNITS_S[ago[2]])
    try:
        return max(0.0, datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError, OSError):
        problem = f"--since {text!r}: give how long ago, such as 30s, 10m, 2h or 1d, or a time such as 2026-05-04T12:30"
        raise UsageError(problem) from None


def show_logs(at: ControllerAt, search: pb.LogSearch, *, lines_max: int, as_json: bool) -> int:
    """Show what a search finds, and with `follow` what comes, until Ctrl-C; the exit code."""
    if search.level and search.level not in LEVELS:
        raise UsageError(f"--level {search.level!r}: give one of {', '.join(LEVELS)}")
    search.lines_max = lines_max
    out, page = Console(file=sys.stdout, highlight=False, soft_wrap=True), _Page(search.follow)
    while True:
        with Client(at) as client:
            client.status()
            try:
                _read(client, search, page, out, as_json=as_json)
                return 0
            except ControllerSilent:
                if not (search.follow and page.lines):
                    raise
        # Another controller leads, or will: go on where this one left off.
        search.since = page.newest_s()
        page.begin_again()


class _Page:
    """The lines of a search: sorted until every node has answered, then as they come."""

    def __init__(self, follow: bool) -> None:
        self.follow = follow
        self.lines: deque[bytes] = deque(maxlen=REMEMBERED)
        self._gathered: list[bytes] | None = []
        self._known: frozenset[bytes] = frozenset()

    def take(self, page: pb.LogPage) -> list[bytes]:
        """The lines to show now."""
        fresh = [line for line in page.lines if line not in self._known]
        if self._gathered is not None:
            self._gathered += fresh
            if not page.last:
                return []
            fresh, self._gathered = self._gathered, None
        fresh.sort(key=lambda line: line[:40])
        self.lines.extend(fresh)
        return fresh

    def begin_again(self) -> None:
        """Another controller is asked: what was shown is not shown again."""
        self._gathered, self._known = [], frozenset(self.lines)

    def newest_s(self) -> float:
        """The time of the newest line, a little earlier."""
        newest = max((parse(line) or {"time": ""})["time"] for line in self.lines)
        return datetime.fromisoformat(newest).timestamp() - 5.0


def _read(client: Client, search: pb.LogSearch, page: _Page, out: Console, *, as_json: bool) -> None:
    for told in client.logs(search):
        fresh = page.take(told)
        if told.last and search.lines_max:
            fresh = fresh[-search.lines_max :]
        lines = [line for line in map(parse, fresh) if line is not None]
        if as_json and not search.follow:
            if told.last:
                print_json({"lines": lines, "missing": list(told.missing)})
                return
            continue
        _print(lines, out, as_json=as_json)
        if told.lost:
            print(f"headrace: {counted(told.lost, 'line')} came too fast and were dropped", file=sys.stderr)
        if told.missing:
            print(f"headrace: no answer from {', '.join(map(safe, told.missing))}; look there", file=sys.stderr)
        if told.last and not search.follow:
            if not page.lines:
                print("headrace: no line is like that; see `headrace logs` without options", file=sys.stderr)
            return


def _print(lines: Iterable[Mapping[str, Any]], out: Console, *, as_json: bool) -> None:
    for line in lines:
        if as_json:
            print(json.dumps(line), flush=True)
        else:
            out.print(line_text(line))


def line_text(line: Mapping[str, Any]) -> Text:
    """A line for people: time, level, process, task, message and cause."""
    when, level, process, message, cause = shown(line)
    style = _STYLES.get(level, "")
    task = str(line.get("task", ""))
    subject = "" if not task or task == process or task in message else f"{task} "
    pipeline = str(line.get("pipeline", ""))
    if not task and pipeline and pipeline not in message:
        subject = f"{pipeline}: "
    text = Text.assemble(
        (f"{safe(when)} ", FAINT),
        (f"{level:<8}", style),
        (f"{safe(process):<{PROCESS_COLUMNS}} ", ACCENT),
        (safe(subject), "bold"),
        (safe(message), style),
    )
    if cause:
        text.append(f"  {safe(cause)}", FAINT)
    for told in str(line.get("traceback", "")).splitlines():
        text.append(f"\n    {safe(told)}", FAINT)
    return text


def search_for(
    pipeline: str, stage: str, task: str, cause: str, level: str, since: str, *, follow: bool
) -> pb.LogSearch:
    """The search of a command line. Raises UsageError."""
    if stage and not pipeline and not task:
        raise UsageError(f"--stage {stage!r}: name its pipeline too")
    return pb.LogSearch(
        pipeline=pipeline,
        stage=stage,
        task=task,
        cause=cause,
        level=level,
        since=since_of(since, time.time()),
        follow=follow,
    )
