"""Lines of a log: what one holds, what a search finds, and how a line is shown to people.

A line is one JSON object. `time` (UTC, RFC 3339 with microseconds), `level`, `process` and `message` are always there;
`pipeline`, `stages`, `task`, `attempt`, `worker` and `cause` where they are known; what else a line knows stands in
fields of its own. A **cause** begins with what nobody in the cluster asked for (a person's request, a worker that comes
or goes, a death, a link that was cut, a timer), and everything that the cluster does about it bears its name, from the
controller to the task. Times are those of each host's clock; nothing is decided by them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import traceback
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.pipeline import mask

LEVELS = ("debug", "info", "warning", "error")
#: Bytes of one line; what is longer is cut, and says so.
LINE_BYTES_MAX = 16 << 10
#: The last second of the year 9999.
_LAST_S = 253_402_300_799.0
#: What a task may not say of itself: its worker knows it better.
FIXED = ("time", "level", "process", "message")

_cause: ContextVar[str] = ContextVar("headrace_cause", default="")


def current_cause() -> str:
    """The cause of what goes on in this context; empty where there is none."""
    return _cause.get()


@contextlib.contextmanager
def caused_by(cause: str) -> Iterator[None]:
    """Everything inside, and every task of an event loop that is started inside, bears this cause."""
    token = _cause.set(cause)
    try:
        yield
    finally:
        _cause.reset(token)


def about(**facts: Any) -> dict[str, Any]:
    """The fields of a line, for the `extra` of a logger's call. A task's name brings its pipeline."""
    task = facts.get("task")
    if isinstance(task, str) and "/" in task:
        facts.setdefault("pipeline", task.split("/", 1)[0])
    return {"facts": facts}


def line_of(record: logging.LogRecord, process: str) -> bytes:
    """One record as a line, without the end of the line."""
    facts: Mapping[str, Any] = getattr(record, "facts", {})
    message = record.getMessage()
    if record.exc_info and record.exc_info[0] is not None:
        facts = {**facts, "traceback": "".join(traceback.format_exception(*record.exc_info))}
    level = record.levelname.lower() if record.levelno < logging.CRITICAL else "error"
    return make_line(record.created, level, process, message, facts)


def make_line(when: float | str, level: str, process: str, message: str, facts: Mapping[str, Any]) -> bytes:
    """A line of these; `when` in seconds since 1970, or as another line has it."""
    line: dict[str, Any] = {"time": when if isinstance(when, str) else stamp(when), "level": level, "process": process}
    cause = facts.get("cause") or current_cause()
    line |= {name: value for name, value in facts.items() if name not in FIXED and value not in ("", None)}
    if cause:
        line["cause"] = cause
    line["message"] = message
    data = _encode(line)
    if len(data) > LINE_BYTES_MAX:
        line = {name: value for name, value in line.items() if not isinstance(value, str) or len(value) < 256}
        data = _encode({**line, "message": message[:1024], "cut": f"the line had {len(data)} bytes"})
    return data


def _encode(line: Mapping[str, Any]) -> bytes:
    return mask(json.dumps(line, default=str, ensure_ascii=True, separators=(",", ":"))).encode()


def stamp(seconds: float) -> str:
    """Seconds since 1970 as RFC 3339 in UTC: such texts sort as the times do. The nearest time that this form holds."""
    return (
        datetime.fromtimestamp(min(max(0.0, seconds), _LAST_S), UTC)
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z")
    )


def parse(data: bytes) -> dict[str, Any] | None:
    """A line as an object; None for anything that is no line of a log."""
    if not data.startswith(b'{"time":'):
        return None
    try:
        line = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return line if all(isinstance(line.get(name), str) for name in FIXED) and line["level"] in LEVELS else None


@dataclass(frozen=True, slots=True)
class Search:
    """What lines are wanted; what is empty asks for nothing. `since` is in seconds since 1970."""

    pipeline: str = ""
    stage: str = ""
    task: str = ""
    cause: str = ""
    level: str = ""
    since: float = 0.0

    def finds(self, line: Mapping[str, Any]) -> bool:
        """Whether a line is one of those."""
        if self.pipeline and line.get("pipeline") != self.pipeline:
            return False
        if self.task and line.get("task") != self.task:
            return False
        if self.cause and line.get("cause") != self.cause:
            return False
        if self.stage and self.stage not in str(line.get("stages", "")).split("+"):
            return False
        if self.level in LEVELS and LEVELS.index(line["level"]) < LEVELS.index(self.level):
            return False
        return not self.since or str(line["time"]) >= stamp(self.since)


def shown(line: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """A line for people: time of day, level, process, message, cause."""
    when = str(line["time"])[11:23]
    return when, str(line["level"]), str(line["process"]), str(line["message"]), str(line.get("cause", ""))


def as_text(data: bytes) -> str:
    """One line of a process's standard error for people; what is no line of a log stays as it is."""
    line = parse(data)
    if line is None:
        return printable(data.decode("utf-8", "replace"))
    when, level, process, message, _ = shown(line)
    told = printable(f"{when} {level} {process}: {message}")
    traced = line.get("traceback")
    return "\n".join([told, *map(printable, traced.splitlines())]) if isinstance(traced, str) else told


def printable(text: str) -> str:
    """Text without control characters, which a terminal would obey."""
    return "".join(char if char.isprintable() or char == "\t" else f"\\x{ord(char):02x}" for char in text)
