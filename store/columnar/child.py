"""Decodes Parquet that nobody has looked at yet, in a process that may die of it.

It has no file: it asks for bytes by their place, and gives rows. Each order is a letter and three numbers of 8 bytes.
It has one answer, a letter, a size and so many bytes; before it any number of questions for bytes may come. What an
order may take is bound by RLIMIT_AS and RLIMIT_CPU; whoever asked takes the child's death for an answer
(`parquet_gate`).
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import resource
import struct
import sys
from typing import Any, BinaryIO, Final

import pyarrow as pa

from headrace.store.columnar.readers import ARROW_READER, ORC_READER, ArrowReader, OrcReader, ParquetReader, Reader

#: Orders: a footer that follows, and its file's size; the columns to read, whose names follow, of Parquet alone; the
#: rows of a row group, so many at a time, behind some; more.
OPEN, COLUMNS, ROWS, MORE = b"O", b"C", b"G", b"N"
#: Answers: a question for bytes at a place, which is none; what a footer says; rows; no more; a fault; out of memory.
BYTES, HEAD, BATCH, END, FAULT, FULL = b"R", b"H", b"B", b"E", b"F", b"M"
ORDER: Final = struct.Struct("<cqqq")
ANSWER: Final = struct.Struct("<cq")
COUNT: Final = struct.Struct("<q")
PLACE: Final = struct.Struct("<qq")

#: Bytes of memory for any footer, and for each byte of it: what its structures take when they are read.
FOOTER_MEMORY_BYTES: Final = 128 << 20
FOOTER_MEMORY_A_BYTE: Final = 64
#: Bytes of a footer, where only the file's size is known.
HEAD_BYTES_MAX: Final = 8 << 20
#: Bytes of memory for the rows of any row group, for each byte that is stored of it, and for the largest one.
ROWS_MEMORY_BYTES: Final = 512 << 20
ROWS_MEMORY_A_BYTE: Final = 64
ROWS_MEMORY_BYTES_MAX: Final = 2 << 30
#: Bytes of rows in one answer, which its asker holds whole; one row may be larger.
ANSWER_BYTES: Final = 64 << 20
#: Seconds of processor time for one order.
ORDER_CPU_S: Final = 60
#: Bytes of one question.
QUESTION_BYTES: Final = 8 << 20
#: What a library says where there is too much for it, and no MemoryError.
_FULL: Final = ("bad_alloc", "overflow", "capacity")
#: Characters of a fault.
WORDS_MAX: Final = 200


class PositionedFile(io.RawIOBase):
    """A file that is read from a position by its `read`. Its `size` in bytes is asked for where a position needs it."""

    _at = 0

    @property
    def size(self) -> int:
        """Bytes of the file."""
        raise NotImplementedError

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """The position in bytes."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte; the new position."""
        base = 0 if whence == io.SEEK_SET else self._at if whence == io.SEEK_CUR else self.size
        self._at = max(0, base + offset)
        return self._at


class RequestedFile(PositionedFile):
    """A file of the process that started this one, which answers each read."""

    def __init__(self, desk: Desk, size: int) -> None:
        super().__init__()
        self._desk, self._size = desk, size

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._size

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes, fewer only at the end."""
        left = max(0, self._size - self._at)
        left = left if size < 0 else min(size, left)
        parts: list[bytes] = []
        while left > 0 and (part := self._desk.bytes_at(self._at, min(left, QUESTION_BYTES))):
            parts.append(part)
            self._at += len(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Desk:
    """Takes orders, one at a time."""

    def __init__(self, orders: BinaryIO, answers: BinaryIO) -> None:
        self._orders, self._answers = orders, answers
        self._mapped = _mapped_bytes()
        self._size, self._footer = 0, b""
        self._reader: Reader | None = None
        self._head_bytes = self._rows_bytes = 0
        self._batches: Any = iter(())
        #: What was cut off the rows that were answered last; the next rows are its last.
        self._cut: list[pa.RecordBatch] = []
        self._behind = 0
        written: Any = answers
        self._stream: Any = pa.PythonFile(written, "w")

    def serve(self) -> bool:
        """Answer one order; False where there are no more."""
        told = self._orders.read(ORDER.size)
        if len(told) < ORDER.size:
            return False
        what, first, second, third = ORDER.unpack(told)
        rows: Any = None
        try:
            if what == OPEN:
                answer = HEAD, self._open(first, self._orders.read(second), third)
            elif what == COLUMNS:
                self._choose(self._orders.read(first))
                answer = END, b""
            else:
                if what == ROWS:
                    self._begin(first, second, third)
                self._bound(self._rows_bytes)
                rows, size = self._more()
                answer = END, b""
        except MemoryError:
            answer = FULL, b""
        except (pa.ArrowException, OSError, ValueError, IndexError, KeyError) as error:
            words = str(error).partition("\n")[0] or type(error).__name__
            full = any(word in words for word in _FULL)
            answer = FULL if full else FAULT, " ".join(words.split())[:WORDS_MAX].encode("utf-8", "replace")
        if rows is None:
            self._answer(*answer)
        else:
            # what fails behind its beginning ends the process, which is an answer, too
            self._answers.write(ANSWER.pack(BATCH, size))
            _write(rows, self._stream)
            self._answers.flush()
        return True

    def bytes_at(self, at: int, size: int) -> bytes:
        """Bytes of the file, fewer only at its end."""
        self._answer(BYTES, PLACE.pack(at, size))
        (length,) = COUNT.unpack(self._orders.read(COUNT.size))
        return self._orders.read(length)

    # -- orders --

    def _open(self, size: int, footer: bytes, kind: int) -> bytes:
        source: Any = RequestedFile(self, size)
        self._batches, self._cut, self._size = iter(()), [], size
        known = self._reader if footer and footer == self._footer and isinstance(self._reader, ParquetReader) else None
        self._reader, self._footer = None, footer
        # a footer that was not handed over is of the file, and no larger than it
        self._head_bytes = len(footer) or min(size, HEAD_BYTES_MAX)
        self._bound(0)
        if kind == ORC_READER:
            self._reader = OrcReader(source)
        elif kind == ARROW_READER:
            self._reader = ArrowReader(source)
        else:
            self._reader = ParquetReader(source, footer, known)
        return self._reader.head

    def _choose(self, names: bytes) -> None:
        if not isinstance(self._reader, ParquetReader):
            raise ValueError("no file is open whose columns can be chosen")
        self._reader.columns = names.decode().split("\0") if names else []

    def _begin(self, index: int, step: int, behind: int) -> None:
        if self._reader is None:
            raise ValueError("no file is open")
        stored = self._reader.stored_bytes(index)
        wanted = ROWS_MEMORY_BYTES + ROWS_MEMORY_A_BYTE * min(stored, self._size)
        self._rows_bytes = min(wanted, ROWS_MEMORY_BYTES_MAX)
        self._bound(self._rows_bytes)
        self._batches, self._cut = self._reader.rows(index, step), []
        self._behind = behind

    def _more(self) -> tuple[pa.RecordBatch | None, int]:
        """The next rows, None behind the last, and their bytes as an IPC stream of its own."""
        if not self._cut and (rows := self._next()) is not None:
            self._cut.append(_without_dictionaries(rows))
        if not self._cut:
            return None, 0
        rows = self._cut.pop()
        while (size := _written_bytes(rows)) > ANSWER_BYTES and rows.num_rows > 1:
            half = rows.num_rows // 2
            self._cut.append(rows.slice(half))
            rows = rows.slice(0, half)
        return rows, size

    def _next(self) -> pa.RecordBatch | None:
        """What the reader gives next of what lies behind the rows that its asker has; None behind the last."""
        rows: pa.RecordBatch
        for rows in self._batches:
            passed = min(self._behind, rows.num_rows)
            self._behind -= passed
            if not passed or passed < rows.num_rows:
                return rows.slice(passed) if passed else rows
        return None

    # -- bounds --

    def _bound(self, rows_bytes: int) -> None:
        """Bind the memory of what comes now, beside what a footer takes, and its processor time."""
        held = self._mapped + FOOTER_MEMORY_BYTES + FOOTER_MEMORY_A_BYTE * self._head_bytes + rows_bytes
        _limit(resource.RLIMIT_AS, held)
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + ORDER_CPU_S)

    def _answer(self, what: bytes, data: bytes) -> None:
        self._answers.write(ANSWER.pack(what, len(data)))
        self._answers.write(data)
        self._answers.flush()


def _written_bytes(rows: pa.RecordBatch) -> int:
    """What `_write` writes of them."""
    counted: Any = pa.MockOutputStream()
    _write(rows, counted)
    return int(counted.size())


def _write(rows: pa.RecordBatch, sink: Any) -> None:
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)


def _without_dictionaries(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with each value where it belongs: a text that stands once for many rows is each row's."""
    kinds = [_plain(column.type) for column in rows.columns]
    if all(kind is column.type for kind, column in zip(kinds, rows.columns, strict=True)):
        return rows
    columns = [_decoded(column, kind) for kind, column in zip(kinds, rows.columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _decoded(column: Any, kind: Any) -> Any:
    if kind is column.type:
        return column
    if isinstance(column, pa.DictionaryArray):
        # A cast imports all that Arrow computes, for an eighth of the time of a child that reads a sidecar.
        return column.dictionary_decode()
    return column.cast(kind)


def _plain(kind: Any) -> Any:
    """A type with the values of dictionaries in their place; itself where there are none."""
    types: Any = pa.types
    if types.is_dictionary(kind):
        return kind.value_type
    if not types.is_nested(kind):
        return kind
    fields = [kind.field(number) for number in range(kind.num_fields)]
    within = [field.with_type(_plain(field.type)) for field in fields]
    if all(new.type is old.type for new, old in zip(within, fields, strict=True)):
        return kind
    if types.is_struct(kind):
        return pa.struct(within)
    if types.is_map(kind):
        entries = within[0].type
        return pa.map_(entries.field(0), entries.field(1))
    if types.is_fixed_size_list(kind):
        return pa.list_(within[0], kind.list_size)
    return pa.large_list(within[0]) if types.is_large_list(kind) else pa.list_(within[0])


def _limit(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (value if hard < 0 else min(value, hard), hard))


def _mapped_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def main() -> None:
    """Answer on standard output until there are no more orders on standard input."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.freeze()
    gc.enable()
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt, struct.error):
        desk = Desk(sys.stdin.buffer, sys.stdout.buffer)
        while desk.serve():
            pass
    # nothing is left to be done, and Python would take its modules apart for a fifth of the time in which it started
    os._exit(0)
