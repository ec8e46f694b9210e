"""A process's log files: its lines on standard error, the last of them in memory, and in a file of bounded size.

Memory is what `headrace logs` reads. A file outlives the process: with a folder, a log files begins with what the files
there hold. A worker's log files has the lines of its tasks too, each task's in a file of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.daemon.log_lines import FIXED, Search, as_text, caused_by, line_of, make_line, parse

#: Bytes of lines that a process remembers.
MEMORY_BYTES_MAX = 8 << 20
#: Bytes at which a file is turned over: one older file stays beside it, with `.1` behind its name.
FILE_BYTES_MAX = 8 << 20
#: Files of a folder; at the next one the oldest is deleted.
FILES_MAX = 256
#: Files that are held open.
OPEN_FILES_MAX = 32
ENDING = ".jsonl"
#: Milliseconds that the rest of a line which is begun waits for room.
REST_MS = 100
#: Lines that a search gets of each process, the newest, unless it asks for another number.
LINES_MAX = 10_000
#: Bytes of lines in one page of an answer.
PAGE_BYTES_MAX = 1 << 20

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LogLine:
    """What a line says."""

    level: str
    message: str


class LogFiles(logging.Handler):
    """Takes what loggers say in this process. Its verbs may be called from any thread.

    `folder` None: lines are in memory and on the descriptor `stream` alone. A full disk and a reader that does not read
    cost lines, which are counted, and hold nobody up.
    """

    def __init__(
        self,
        process: str,
        folder: Path | None = None,
        stream: int | None = None,
        *,
        memory_bytes: int = MEMORY_BYTES_MAX,
    ) -> None:
        super().__init__()
        self._memory_bytes = memory_bytes
        self.process = process
        self._stream = stream
        self._text = stream is not None and os.isatty(stream)
        #: Lines that the stream had no room for.
        self.untold = 0
        self._lines: deque[tuple[bytes, Line]] = deque()
        self._bytes = 0
        self._followers: dict[int, tuple[Search, Callable[[bytes], object]]] = {}
        self._files = Files(folder) if folder is not None else None
        self._guard = threading.Lock()
        for data in self._files.last(memory_bytes) if self._files is not None else ():
            self._remember(data, parse(data) or {})

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record of this process."""
        try:
            self.add(line_of(record, self.process))
        except Exception:  # noqa: BLE001 (a line that cannot be made must not end what it tells of)
            self.handleError(record)

    def add(self, data: bytes) -> None:
        """Take a line that is made."""
        line = parse(data)
        if line is None:
            return
        with self._guard:
            self._remember(data, line)
            if self._files is not None:
                self._files.write(str(line["process"]), data)
            if self._stream is not None:
                told = _write(self._stream, (as_text(data).encode() if self._text else data) + b"\n")
                self.untold += not told
            followers = [tell for search, tell in self._followers.values() if search.finds(line)]
        for tell in followers:
            tell(data)

    def take(self, data: bytes, facts: Mapping[str, Any]) -> LogLine:
        """Take a line of a task's standard error, about which its worker knows `facts`; what it says.

        What is no line of a log (a traceback, a print) becomes one.
        """
        line = parse(data)
        if line is None:
            text = data.decode("utf-8", "replace")
            with caused_by(""):
                self.add(make_line(time.time(), "warning", str(facts["task"]), text, facts))
            return LogLine("warning", text)
        told = {name: value for name, value in line.items() if name not in FIXED}
        with caused_by(""):
            self.add(make_line(line["time"], line["level"], str(facts["task"]), line["message"], {**told, **facts}))
        return LogLine(line["level"], line["message"])

    def read(self, search: Search, lines_max: int) -> list[bytes]:
        """The newest lines that a search finds, in the order in which they were taken."""
        with self._guard:
            return self._found(search, lines_max)

    def follow(self, number: int, search: Search, tell: Callable[[bytes], object], lines_max: int = 0) -> list[bytes]:
        """Tell of each line to come that a search finds, on the thread that says it, until `leave(number)`.

        What was said before is returned as `read` has it: no line is in neither, and none in both.
        """
        with self._guard:
            self._followers[number] = (search, tell)
            return self._found(search, lines_max)

    def _found(self, search: Search, lines_max: int) -> list[bytes]:
        return list(deque((data for data, line in self._lines if line and search.finds(line)), maxlen=lines_max))

    def leave(self, number: int) -> None:
        """Follow no longer."""
        with self._guard:
            self._followers.pop(number, None)

    def _remember(self, data: bytes, line: Line) -> None:
        self._lines.append((data, line))
        self._bytes += len(data)
        while self._bytes > self._memory_bytes:
            self._bytes -= len(self._lines.popleft()[0])


def _write(descriptor: int, data: bytes) -> bool:
    """Write to what may be a pipe that nobody empties; False if it has no room."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    wait_ms = 0
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            if not any(seen & select.POLLOUT for _, seen in poll.poll(wait_ms)):
                return False
            # A pipe that can be written has room for so much at least (pipe(7)).
            view = view[os.write(descriptor, view[: select.PIPE_BUF]) :]
            wait_ms = REST_MS
        return True
    return False


def pages(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Lines in parts of at most PAGE_BYTES_MAX."""
    page: list[bytes] = []
    size = 0
    for line in lines:
        if page and size + len(line) > PAGE_BYTES_MAX:
            yield page
            page, size = [], 0
        page.append(line)
        size += len(line)
    if page:
        yield page


class Files:
    """The files of one folder, one for each process that has lines here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: OrderedDict[str, tuple[int, int]] = OrderedDict()
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o750)

    def write(self, process: str, data: bytes) -> None:
        """Append a line to the file of a process."""
        name = "".join(char if char.isalnum() or char in "-_.@" else "-" for char in process)[:120] + ENDING
        with contextlib.suppress(OSError):
            descriptor, size = self._open.pop(name) if name in self._open else self._opened(name)
            if size + len(data) >= FILE_BYTES_MAX:
                os.close(descriptor)
                os.replace(self._folder / name, self._folder / (name + ".1"))
                descriptor, size = self._opened(name)
            os.write(descriptor, data + b"\n")
            self._open[name] = (descriptor, size + len(data) + 1)
            if len(self._open) > OPEN_FILES_MAX:
                os.close(self._open.popitem(last=False)[1][0])

    def last(self, bytes_max: int) -> list[bytes]:
        """The newest lines of all files together, the oldest first."""
        lines: list[bytes] = []
        for path in self._paths():
            with contextlib.suppress(OSError):
                lines += [line for line in path.read_bytes()[-bytes_max:].split(b"\n") if parse(line)]
        kept: list[bytes] = []
        for line in sorted(lines, key=lambda line: line[:40], reverse=True):
            bytes_max -= len(line)
            if bytes_max < 0:
                break
            kept.append(line)
        return kept[::-1]

    def _opened(self, name: str) -> tuple[int, int]:
        path = self._folder / name
        if not path.exists():
            oldest = sorted(self._paths(), key=lambda item: item.stat().st_mtime)
            for old in oldest[: max(0, len(oldest) - FILES_MAX + 1)]:
                old.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        return descriptor, os.fstat(descriptor).st_size

    def _paths(self) -> list[Path]:
        return [path for path in self._folder.glob("*" + ENDING + "*") if path.name.endswith((ENDING, ENDING + ".1"))]


def keep_log_files(process: str, folder: str = "", *, memory: bool = True) -> LogFiles:
    """Have every logger of this process write into one log files, and it on standard error.

    A task keeps none in memory: its worker has it. Without a `folder` there are no files.
    `HEADRACE_LOG_LEVEL` (debug, info, warning, error) says what is told; `info` without it.
    """
    level = os.environ.get("HEADRACE_LOG_LEVEL", "info").upper()
    kept = MEMORY_BYTES_MAX if memory else 0
    book = LogFiles(process, Path(folder) if folder else None, sys.stderr.fileno(), memory_bytes=kept)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(book)
    # What libraries say of their own work is told from warnings on.
    root.setLevel("WARNING")
    logging.getLogger("headrace").setLevel(level if level in ("DEBUG", "INFO", "WARNING", "ERROR") else "INFO")
    return book


def logs_folder(given: str, own: str) -> str:
    """The folder of a daemon's files: as given, else `own` below HEADRACE_LOGS, else its service's, else none.

    Each daemon needs its own, since it begins with what it finds there.
    """
    every = os.environ.get("HEADRACE_LOGS", "")
    return given or (os.path.join(every, own) if every else os.environ.get("LOGS_DIRECTORY", "").split(":")[0])
