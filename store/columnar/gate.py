"""The gate before Parquet, ORC and Arrow IPC of others: they are decoded in a child, which may die of it.

A footer says how long its lists are before they come, and a page what it unpacks to; a library that believes them takes
gigabytes for a file of 300 bytes, or ends the process. So the child (`headrace.store.columnar.child`) decodes, with
memory and processor time that are bounded, and has no file: whoever holds the gate reads for it, and hears of
what a disk or a store says. What comes back is checked before it is believed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.store.columnar import child
from headrace.store.columnar.readers import MAGIC, PARQUET_READER, check

#: Bytes of a footer: one of a file of a thousand columns and a thousand row groups has a tenth.
FOOTER_BYTES_MAX: Final = 1 << 30
#: Bytes of one answer.
ANSWER_BYTES_MAX: Final = child.ROWS_MEMORY_BYTES_MAX
#: Seconds in which a child says something: what it computes has its own bound, of processor time.
SILENT_S_MAX: Final = 600.0
#: Gates that wait for the next file, each with a process.
GATES_KEPT: Final = 2
#: How many times fewer rows at a time are tried where so many took too much memory.
FEWER: Final = 64
#: Bytes that are read at once from the end of a file.
_TAIL_BYTES: Final = 64 << 10
_END_BYTES: Final = 8
_PIPE_BYTES: Final = 1 << 20
_SHAPE: Final = struct.Struct("<qqq")
#: How the child takes memory: what it frees goes back, so that a bound means the same at each order. A little may stay,
#: since pages that come and go with each batch are a tenth of its work.
_ALLOCATION: Final = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(16 << 20),
}
#: What the child runs. It has no use for numpy, which would be half of the time in which it starts; nor is garbage
#: looked for among what it imports. Its argument is how much it gives way, as nice(2) counts.
_START: Final = (
    "import gc, os, sys; gc.disable(); os.nice(int(sys.argv[1])); sys.modules['numpy'] = None; "
    "from headrace.store.columnar.child import main; main()"
)
#: So much gives way who reads a dataset's own tables, as an index does that begins beside a flow.
SIDECAR_NICE: Final = 10


class UnsoundColumns(ValueError):  # noqa: N818 (named after what is so)
    """A footer or pages that cannot be decoded; what was asked for is not there."""


class _Overwhelmed(Exception):  # noqa: N818 (named after what is so)
    """The child took more memory than it has, or ended."""


class SeekableReader(Protocol):
    """A file that is open."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go to a byte; the new position."""
        ...

    def read(self, size: int, /) -> bytes | None:
        """Up to `size` bytes; fewer at the end of a block, none only at the end."""
        ...


def footer_of(raw: SeekableReader) -> bytes:
    """The footer of a Parquet file that is open; empty where there is none. Raises UnsoundColumns.

    One is refused that says it is larger than the file, or than FOOTER_BYTES_MAX.
    """
    size = raw.seek(0, os.SEEK_END)
    raw.seek(max(0, size - _TAIL_BYTES))
    tail = _read(raw, min(size, _TAIL_BYTES))
    raw.seek(0)
    if len(tail) < _END_BYTES + len(MAGIC) or tail[-4:] != MAGIC:
        return b""
    (length,) = struct.unpack("<I", tail[-_END_BYTES:-4])
    if length + _END_BYTES + len(MAGIC) > size or length > FOOTER_BYTES_MAX:
        raise UnsoundColumns(f"it says it has {length} bytes, of {size}")
    if length + _END_BYTES <= len(tail):
        return bytes(tail[-_END_BYTES - length : -_END_BYTES])
    raw.seek(size - _END_BYTES - length)
    footer = _read(raw, length)
    raw.seek(0)
    return footer


@dataclass(frozen=True, eq=False)
class ColumnarHead:
    """What a footer says. `numbers`: `[group, 2 + 2 * column]`, rows and bytes, then first byte and bytes of each."""

    schema: pa.Schema
    numbers: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """How many row groups there are."""
        return len(self.numbers)

    def rows(self, index: int) -> int:
        """Rows of a row group."""
        return int(self.numbers[index, 0])

    def row_bytes(self, index: int) -> int:
        """Bytes of a row on average, not compressed, as the footer has it; at least one."""
        return max(1, int(self.numbers[index, 1]) // max(1, self.rows(index)))

    def first_byte(self, index: int) -> int:
        """The byte at which a row group's data begins; 0 where it has none."""
        places = self.numbers[index, 2::2]
        return int(places[places > 0].min(initial=1 << 62)) if (places > 0).any() else 0

    def stored_bytes(self, index: int) -> int:
        """Bytes of a row group as it lies in the file."""
        return int(self.numbers[index, 3::2].sum())

    def column_chunks(self, index: int) -> list[tuple[int, int]]:
        """The first byte of each column of a row group, and its bytes."""
        places = self.numbers[index, 2:].reshape(-1, 2).tolist()
        return [(first, size) for first, size in places if size > 0]


class ColumnarGate:
    """One child, which gives way by `nice`, and the file that it decodes. A gate that is let go of ends its child."""

    def __init__(self, nice: int = 0) -> None:
        self._nice = nice
        self._child: subprocess.Popen[bytes] | None = None
        self._end: Any = None
        self._raw: SeekableReader | None = None
        self._footer, self._size, self._kind = b"", 0, PARQUET_READER
        #: Whether the child has this file open.
        self._ready = False
        #: What it answered of the footer above.
        self._head: ColumnarHead | None = None

    def open(self, raw: SeekableReader, footer: bytes = b"", kind: int = PARQUET_READER) -> ColumnarHead:
        """What the footer of a file says, which only Parquet's hands over. Raises UnsoundColumns, and as `raw` does.

        `raw` is read from until another file is opened, or the gate is closed.
        """
        self._raw, self._size = raw, raw.seek(0, os.SEEK_END)
        known, self._ready = bool(footer) and self._footer == footer, False
        if not known:
            self._footer, self._head = footer, None
        self._kind = kind
        while True:
            used = self._child is not None
            try:
                return self._opened()
            except _Overwhelmed as error:
                if not used:
                    raise UnsoundColumns(f"{error}{self._footer_size()}") from error

    def rows(self, index: int, step: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a row group, up to `step` at a time; of Parquet these columns, of those that it has.

        Raises UnsoundColumns, and what `raw` raises.
        """
        given = 0
        while True:
            try:
                for rows in self._rows(index, step, given, columns):
                    given += rows.num_rows
                    yield rows
                return
            except _Overwhelmed as error:
                if step == 1:
                    raise UnsoundColumns(str(error)) from error
                step = max(1, step // FEWER)

    def let_go(self) -> None:
        """Forget the file, and keep the child for the next one."""
        self._raw, self._ready = None, False

    def close(self) -> None:
        """End the child; what is asked next starts another."""
        if self._end is not None:
            self._end()
        self._child = self._end = None
        self._ready = False

    @property
    def pid(self) -> int:
        """The process of the child, which is started if there is none."""
        return self._living().pid

    # -- orders --

    def _opened(self) -> ColumnarHead:
        if not self._ready or self._child is None:
            what, data = self._ask(child.OPEN, self._size, len(self._footer), self._kind, data=self._footer)
            if what != child.HEAD:
                raise UnsoundColumns(f"{_words(data)}{self._footer_size()}")
            self._head = self._head or _head_of(data)
            self._ready = True
        assert self._head is not None
        return self._head

    def _footer_size(self) -> str:
        return f"; it has {len(self._footer)} bytes" if self._footer else ""

    def _rows(self, index: int, step: int, behind: int, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        self._opened()
        if columns is not None:
            names = "\0".join(columns).encode()
            self._ask(child.COLUMNS, len(names), 0, 0, data=names)
        order = child.ROWS
        while True:
            what, data = self._ask(order, index, step, behind)
            if what == child.FAULT:
                raise UnsoundColumns(_words(data))
            if what == child.END:
                return
            yield _rows_of(data, step)
            order = child.MORE

    def _ask(self, order: bytes, *numbers: int, data: bytes = b"") -> tuple[bytes, memoryview]:
        """What the child answers once it has the bytes that it asks for. Raises _Overwhelmed, and as `raw` does."""
        running = self._living()
        try:
            _send(running, child.ORDER.pack(order, *numbers), data)
            while True:
                what, size = child.ANSWER.unpack(_take(running, child.ANSWER.size))
                if not 0 <= size <= ANSWER_BYTES_MAX:
                    raise UnsoundColumns(f"the process that decodes it gave an answer of {size} bytes")
                answer = _take(running, size)
                if what == child.FULL:
                    raise _Overwhelmed("decoding it takes more memory than its size allows")
                if what != child.BYTES:
                    return what, answer
                found = self._bytes_at(*child.PLACE.unpack(answer))
                _send(running, child.COUNT.pack(len(found)), found)
        except (BrokenPipeError, EOFError) as error:
            raise self._dead(running) from error
        except BaseException:
            # whatever it was, what the child says next is no answer to what it is asked next
            self.close()
            raise

    def _bytes_at(self, at: int, size: int) -> bytes:
        assert self._raw is not None
        if not (0 <= at <= self._size and 0 <= size <= child.QUESTION_BYTES):
            raise UnsoundColumns(f"the process that decodes it asked for {size} bytes at byte {at}")
        self._raw.seek(at)
        return _read(self._raw, size)

    def _dead(self, running: subprocess.Popen[bytes]) -> Exception:
        """What is to be raised for a child that ended, or fell silent."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(1)
        code = running.returncode
        self.close()
        if code is None:
            return UnsoundColumns(f"the process that decodes it was silent for {SILENT_S_MAX:.0f} s")
        if code == -signal.SIGXCPU:
            return UnsoundColumns(f"decoding it takes more than {child.ORDER_CPU_S} s of processor time")
        return _Overwhelmed(f"decoding it ended the process that was to try it, with {_exit(code)}")

    def _living(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            command = [sys.executable, "-P", "-c", _START, str(self._nice)]
            self._child = subprocess.Popen(  # noqa: S603 (our own module)
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env={**os.environ, **_ALLOCATION},
            )
            for stream in (self._child.stdin, self._child.stdout):
                assert stream is not None
                with contextlib.suppress(OSError):
                    fcntl.fcntl(stream, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            self._end = weakref.finalize(self, _end, self._child)
            self._ready = False
        return self._child


#: Gates of this process that nobody has, for whoever comes next; what it was forked from has its own.
_free: dict[int, list[ColumnarGate]] = {}
_lock = threading.Lock()


@contextlib.contextmanager
def open_columns(raw: SeekableReader) -> Iterator[tuple[ColumnarGate, ColumnarHead]]:
    """A gate with an open Parquet file, and what its footer says. Raises UnsoundColumns."""
    footer = footer_of(raw)
    if not footer:
        raise UnsoundColumns("no Parquet has its last bytes")
    with _lock:
        free = _free.setdefault(os.getpid(), [])
        gate = free.pop() if free else ColumnarGate(SIDECAR_NICE)
    try:
        yield gate, gate.open(raw, footer)
    finally:
        gate.let_go()
        with _lock:
            if len(free) < GATES_KEPT:
                free.append(gate)


def _head_of(data: bytearray | memoryview) -> ColumnarHead:
    """Raises UnsoundColumns where the child gave what it does not give."""
    try:
        size, groups, columns = _SHAPE.unpack_from(data)
        told = memoryview(data)[_SHAPE.size : _SHAPE.size + size]
        numbers = np.frombuffer(data, "<i8", offset=_SHAPE.size + size).reshape(groups, 2 + 2 * columns)
        schema = pa.ipc.read_schema(pa.py_buffer(told))
        schema.names  # noqa: B018 (those that are no UTF-8 raise where they are looked at)
        return ColumnarHead(schema, numbers)
    except (pa.ArrowException, OSError, ValueError, OverflowError, struct.error) as error:
        raise UnsoundColumns(f"the process that decodes it gave no head: {error}") from error


def _rows_of(data: bytearray | memoryview, step: int) -> pa.RecordBatch:
    """The rows of an answer, all of which lie in it; text may be no UTF-8. Raises UnsoundColumns."""
    try:
        rows: pa.RecordBatch = pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch()
        if rows.num_rows > step:
            raise UnsoundColumns(f"the process that decodes it gave {rows.num_rows} rows, of {step}")
        check(rows)
    except (pa.ArrowException, OSError, LookupError, StopIteration, UnicodeDecodeError) as error:
        raise UnsoundColumns(f"its rows are not sound: {error}") from error
    return rows


def _send(running: subprocess.Popen[bytes], *parts: bytes) -> None:
    """Raises BrokenPipeError, EOFError."""
    assert running.stdin is not None
    for part in parts:
        view = memoryview(part)
        while view:
            _wait(running.stdin.fileno(), select.POLLOUT)
            view = view[os.write(running.stdin.fileno(), view[:_PIPE_BYTES]) :]


def _take(running: subprocess.Popen[bytes], size: int) -> memoryview:
    """So many bytes of what the child says. Raises EOFError where it ends, or is silent."""
    assert running.stdout is not None
    # not set to zeros first
    number, view, at = running.stdout.fileno(), np.empty(size, np.uint8).data, 0
    while at < size:
        _wait(number, select.POLLIN)
        count = os.readv(number, [view[at:]])
        if not count:
            raise EOFError
        at += count
    return view


def _wait(number: int, for_what: int) -> None:
    """Raises EOFError where nothing comes."""
    poll, until = select.poll(), time.monotonic() + SILENT_S_MAX
    poll.register(number, for_what)
    while not poll.poll(max(0.0, until - time.monotonic()) * 1000):
        if time.monotonic() >= until:
            raise EOFError


def _words(data: memoryview) -> str:
    return bytes(data).decode("utf-8", "replace")[: child.WORDS_MAX]


def _exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _end(running: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        running.kill()
    for stream in (running.stdin, running.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    running.wait()


def _read(raw: SeekableReader, length: int) -> bytes:
    parts: list[bytes] = []
    while length > 0 and (part := raw.read(length)):
        parts.append(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
