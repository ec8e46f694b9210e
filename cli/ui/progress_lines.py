"""The progress of a run as lines, for logs and pipes, and what a page on a terminal shows as well.

Nothing here imports rich, which takes 0.04 s of processor time while a run's processes start.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import IO, Self

from headrace.cli.ui.report import RunProgress
from headrace.cli.ui.words import MB, megabytes, padding, say, seconds
from headrace.protos import codec, control_pb2 as pb
from headrace.store import counted

#: Variables by which rich takes any stream for a terminal.
_TERMINAL_VARIABLES = {"FORCE_COLOR", "TTY_COMPATIBLE"}
#: Seconds over which the speed shown is an average.
SPEED_WINDOW_S = 5.0
#: Seconds between two lines where there is no terminal.
LINE_S = 5.0
#: Seconds without a task that is ready after which it is said why that may be.
START_S = 5.0
#: Seconds at one batch from which it is said that a stage is at it.
LONG_BATCH_S = 2.0
#: Seconds of a run before its end is foretold.
FORETELL_S = 2.0
#: Digits of a number of bytes that is believed.
_DIGITS_MAX = 18


class Progress:
    """What shows a run; used as a context, from one thread."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Put in order what was changed, such as a terminal."""

    def update(self, status: pb.PipelineStatus) -> None:
        """Show this status."""

    def note(self, line: str) -> None:
        """Show a line that stays."""


class Meter:
    """Bytes over time: the speed now, the share done, and the time left. Time is an argument."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()
        self._began_at: float | None = None

    def take(self, now: float, done: int) -> None:
        """`done` bytes were read up to `now`."""
        if done and self._began_at is None:
            self._began_at = now
        self._points.append((now, done))
        while len(self._points) > 2 and self._points[1][0] <= now - SPEED_WINDOW_S:
            self._points.popleft()

    @property
    def speed(self) -> float:
        """Bytes a second over the last seconds."""
        (t0, b0), (t1, b1) = self._points[0], self._points[-1]
        return (b1 - b0) / (t1 - t0) if t1 > t0 else 0.0

    def left_s(self, now: float, rest: int) -> float | None:
        """Seconds until `rest` more bytes are read; None as long as it would be a guess."""
        if self._began_at is None or now - self._began_at < FORETELL_S or self.speed <= 0 or rest <= 0:
            return None
        return rest / self.speed


def source_stages(status: pb.PipelineStatus) -> list[pb.StageProgress]:
    """The stages of a status that read input."""
    return [stage for stage in status.stages if stage.stage in status.sources]


def input_bytes_read(status: pb.PipelineStatus) -> int:
    """Uncompressed bytes that the sources of this run have read."""
    return sum(stage.bytes for stage in source_stages(status))


def input_bytes_stored(status: pb.PipelineStatus) -> int:
    """Bytes of the input, as it is stored, that were read in this run or closed before it."""
    text = status.facts.get("bytes_resumed", "")
    before = int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX else 0
    whole = int(status.input_bytes)
    done = before + sum(stage.stored_bytes for stage in source_stages(status))
    return min(done, whole) if whole else done


def worked_s(stage: pb.StageProgress) -> float:
    """Seconds for which the tasks of a stage have worked up to now, at what they are at now too."""
    return stage.busy_s + stage.guessed_s


def at_batch(stage: pb.StageProgress) -> str:
    """What a stage is at, where that takes long; else nothing."""
    if stage.at_batch_s < LONG_BATCH_S:
        return ""
    what = counted(stage.batch_records, "record") if stage.batch_records else "a batch"
    return f"at {what} for {seconds(stage.at_batch_s)}"


class Waits:
    """Tells once when a run begins to wait for a store, and once when it continues."""

    def __init__(self) -> None:
        self._waiting = False

    def changed(self, status: pb.PipelineStatus) -> list[str]:
        """The lines to say now. What waits after the first is not said again: it is the same store."""
        before, self._waiting = self._waiting, bool(status.waits)
        if self._waiting and not before:
            return [f"waits: {status.waits[0]}; nothing is lost, and the run continues by itself"]
        return ["continues"] if before and not self._waiting else []


def start_line(status: pb.PipelineStatus, elapsed_s: float) -> str:
    """Why no task is ready yet, where that takes long; else nothing."""
    if elapsed_s < START_S or not status.tasks or any(task.state == "ready" for task in status.tasks):
        return ""
    if status.state not in {"opening", "running"} or input_bytes_read(status):
        return ""
    return "tasks start; filters and dedup are compiled at their first use on a machine"


class Lines(Progress):
    """A line at each change of state and every few seconds, if it says something new; for logs and pipes."""

    def __init__(self, stream: IO[str], name: str) -> None:
        self._stream = stream
        self._name = name
        self._meter = Meter()
        self._began_at = time.monotonic()
        self._next_at = 0.0
        self._state = ""
        self._line = ""
        self._start_told = False
        self._waits = Waits()

    def update(self, status: pb.PipelineStatus) -> None:
        """Print a line if it is time for one."""
        now = time.monotonic()
        done, whole = input_bytes_stored(status), int(status.input_bytes)
        self._meter.take(now, input_bytes_read(status))
        for line in self._waits.changed(status):
            self.note(f"{self._name}: {line}")
        if not self._start_told and (line := start_line(status, now - self._began_at)):
            self._start_told = True
            self.note(f"{self._name}: {line}")
        if now < self._next_at and status.state == self._state:
            return
        self._next_at, self._state = now + LINE_S, status.state
        speed = f", {self._meter.speed / MB:.1f} MB/s" if self._meter.speed and status.state == "running" else ""
        parts = [f"{share(done, whole)}{speed}"] if done else []
        parts += [f"in the ledger: {closed_line(status)}"] if status.shards else []
        parts += [f"{stage.stage} is {words}" for stage in status.stages if (words := at_batch(stage))]
        line = f"{self._name}: {status.state}" + (": " if parts else "") + "; ".join(parts)
        if line != self._line:
            self._line = line
            self.note(line)

    def note(self, line: str) -> None:
        """Print a line."""
        say(line, self._stream)


class Calls(Progress):
    """Calls a function with how far a run is, for programs."""

    def __init__(self, call: Callable[[RunProgress], object], name: str) -> None:
        self._call = call
        self._last = RunProgress(name, "starting", 0.0, 0, 0, 0, 0)
        self._began_at = time.monotonic()
        self._waits = Waits()

    def update(self, status: pb.PipelineStatus) -> None:
        """Say where the run is."""
        balance = codec.balance_from(status.balance)
        self._last = RunProgress(
            pipeline=self._last.pipeline,
            state=status.state,
            seconds=time.monotonic() - self._began_at,
            bytes_read=input_bytes_stored(status),
            bytes_total=int(status.input_bytes),
            records_closed=balance.records_closed,
            tokens=balance.counts.tokens,
            notes=tuple(self._waits.changed(status)),
        )
        self._call(self._last)

    def note(self, line: str) -> None:
        """Say a line."""
        self._call(replace(self._last, seconds=time.monotonic() - self._began_at, notes=(line,)))


def share(done: int, whole: int) -> str:
    """How much is done of how much; the whole is not known before all input is listed."""
    return f"{megabytes(done)} of {megabytes(whole)}" if whole else megabytes(done)


def closed_line(status: pb.PipelineStatus) -> str:
    """What the ledger holds by now."""
    balance = codec.balance_from(status.balance)
    counts = balance.counts
    found = [(balance.records_closed, "record"), (balance.shards, "shard")]
    if counts.tokens:
        found.insert(1, (counts.tokens, "token"))
    line = ", ".join(counted(count, word) for count, word in found)
    return line + (f", {padding(balance)} padding" if counts.sequences else "")


def progress_on(stream: IO[str], name: str) -> Progress:
    """A live page on a terminal, else lines. Where the environment says that a stream is one, rich is asked."""
    if not stream.isatty() and not _TERMINAL_VARIABLES & os.environ.keys():
        return Lines(stream, name)
    from headrace.cli.ui.page import console
    from headrace.cli.ui.progress import LivePage

    made = console(stream, live=True)
    return LivePage(made, name) if made.is_terminal and not made.is_dumb_terminal else Lines(stream, name)
