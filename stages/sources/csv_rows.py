"""The source of CSV and TSV: a record a row, whose fields the first row names."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.stages.runtime import RAW_BYTES_MAX, Batch, BatchDraft, Columns, InputError, WrongFormat
from headrace.stages.sources.base import FileSource
from headrace.stages.sources.jsonl import JsonlSource
from headrace.stages.sources.lines import BOM, LineBlock, scan_lines
from headrace.stages.sources.objects import CSV, HEAD_BYTES, InputObject, InputStream, data_format, to_path
from headrace.store.ledger import Fragment

#: Bytes of the first row, and the names in it.
HEADER_BYTES_MAX = 1 << 20
COLUMNS_MAX = 4096
#: Files whose header is remembered.
OPEN_MAX = 64


class CsvSource(JsonlSource):
    """Reads CSV (`,`) and TSV (tab) with a header, quoted as RFC 4180 has it; a quoted field may hold newlines.

    A row that has other fields than the header, is no UTF-8, or opens a quote that nothing closes is quarantined alone.
    A file is one fragment: whether a newline ends a row is known only from the front.
    """

    FORMAT = CSV
    READER = "csv/1"
    ROW = b""
    UNIT = None
    BLANK = b"\r"

    def __init__(self, name: str, input: Sequence[str], **options: Any) -> None:  # noqa: A002 (as of FileSource)
        super().__init__(name, input, **options)
        #: Of the fragments that are open.
        self._names: dict[bytes, Sequence[str]] = {}
        self._row: tuple[Sequence[str], str] = (), ","

    def fragments(self, found: InputObject) -> Iterator[Fragment]:
        """The whole of a file."""
        yield from FileSource.fragments(self, found)

    def _blocks(self, file: InputStream, fragment: Fragment, at: int) -> Iterator[LineBlock]:
        start = self._read_header(file, fragment)
        step, limit = self.options.batch_bytes, self.options.max_record_bytes
        lines = scan_lines(file, max(at, start), 1 << 62, block_bytes=step, line_bytes_max=limit)
        return CsvRows(self._delimiter(fragment), limit).of(lines)

    def _delimiter(self, fragment: Fragment) -> bytes:
        return b"\t" if ".tsv" in to_path(fragment.uri).rpartition("/")[2] else b","

    def _read_header(self, file: InputStream, fragment: Fragment) -> int:
        """Note the names of the columns; the byte behind their row. Raises InputError."""
        name, delimiter = to_path(fragment.uri), self._delimiter(fragment)
        file.seek(0)
        head = file.read(HEAD_BYTES)
        if what := data_format(head.removeprefix(BOM)):
            raise WrongFormat(name, what, CSV.name)
        begin = len(BOM) if head.startswith(BOM) else 0
        if not head[begin:]:
            self._names[fragment.id] = ()
            return begin
        lines = scan_lines(file, begin, 1 << 62, block_bytes=64 << 10, line_bytes_max=HEADER_BYTES_MAX)
        rows = CsvRows(delimiter, HEADER_BYTES_MAX).of(lines)
        block = next((found for found in rows if found.lines), None)
        if block is None or block.overlong_bytes:
            raise InputError(f"{name!r}: its header, the first row, has more than {HEADER_BYTES_MAX >> 20} MiB")
        at, row = block.offset, b""
        for row in block.lines:
            at += len(row) + 1
            if row.strip(b"\r"):
                break
        try:
            names = fields_of(row, delimiter.decode())
        except ValueError as error:
            raise InputError(f"{name!r}: its header, the first row, cannot be read: {error}") from error
        self._check_names(name, names)
        while len(self._names) >= OPEN_MAX:
            self._names.pop(next(iter(self._names)))
        self._names[fragment.id] = names
        return min(at, block.stop)

    def _check_names(self, name: str, names: Sequence[str]) -> None:
        known = ", ".join(repr(column[:80]) for column in names[:20])
        if len(names) > COLUMNS_MAX:
            raise InputError(f"{name!r}: its header names {len(names):,} columns, the limit is {COLUMNS_MAX}")
        if twice := next((column for column in names if names.count(column) > 1), None):
            raise InputError(f"{name!r} has {names.count(twice)} columns {twice!r}; rename or drop all but one of them")
        if self.options.text_key not in names:
            raise InputError(
                f'{name!r} has no column "{self.options.text_key}"; its first row names: {known}; name it '
                "with text_key="
            )

    def _batch(self, fragment: Fragment, first: int, run: Any, part: slice, at: int) -> BatchDraft | Batch:
        self._row = self._names[fragment.id], self._delimiter(fragment).decode()
        return super()._batch(fragment, first, run, part, at)

    def _parse(self, columns: Columns, first: int, lines: list[bytes], ends: Sequence[int]) -> None:
        names, delimiter = self._row
        text_key, id_key, limit = self.options.text_key, self.options.id_key, self.options.max_record_bytes
        for ordinal, line in enumerate(lines, first):
            if len(line) > limit:
                self._reject_overlong(columns, ordinal, line, len(line), ends[ordinal - first] - len(line) - 1)
                continue
            try:
                fields = fields_of(line, delimiter)
            except ValueError as error:
                columns.reject(ordinal, None, str(error), line)
                continue
            if len(fields) != len(names):
                why = f"malformed row: it has {len(fields)} fields, where the first row names {len(names)}"
                columns.reject(ordinal, None, why, line)
                continue
            record: dict[str, Any] = dict(zip(names, fields, strict=True))
            text = record.pop(text_key)
            identity = record.pop(id_key) if record.get(id_key) else None
            columns.keep(ordinal, identity, text.encode(), record)


class CsvRows:
    """Lines as rows: a newline within quotes ends none. Rows above `limit` bytes come as overlong lines do."""

    def __init__(self, delimiter: bytes, limit: int) -> None:
        self._delimiter, self._limit = delimiter, limit
        #: The lines of a row that is not over, and the byte at which it begins.
        self._open: list[bytes] = []
        self._size = self._at = 0

    def of(self, blocks: Iterator[LineBlock]) -> Iterator[LineBlock]:
        """The rows, in blocks that lie end to end."""
        stop = 0
        for block in blocks:
            if not self._open:
                self._at = block.offset
            stop = block.stop
            if block.overlong_bytes or (self._open and not block.lines):
                size = block.overlong_bytes or stop - block.offset - 1
                yield self._overlong([*self._open, *block.lines], self._size + size, stop)
                continue
            yield from self._rows(block.lines, stop)
            block.lines.clear()
        if self._open:
            rows = self._closed() or [b"\n".join(self._open)]
            self._open, self._size = [], 0
            yield self._block(rows, stop)

    def _closed(self) -> list[bytes]:
        """The lines of an open row, each a row of its own; none where a quote may close another behind the first."""
        return self._open if not any(b'"' in line for line in self._open[1:]) else []

    def _rows(self, lines: list[bytes], stop: int) -> Iterator[LineBlock]:
        rows: list[bytes] = []
        for line in lines:
            if len(line) > self._limit:
                # as if it had come alone: how much of it came at once is chance
                if rows:
                    yield self._block(rows, stop)
                    rows = []
                if self._open or not line.isspace():
                    # a blank line that comes alone brings none of its bytes
                    shown = [] if line.isspace() else [line]
                    yield self._overlong([*self._open, *shown], self._size + len(line), stop)
                else:
                    self._at = min(stop, self._at + len(line) + 1)
                continue
            is_open = bool(self._open)
            if is_open or b'"' in line:
                is_open = is_quoted(line, self._delimiter, is_open=is_open)
            self._open.append(line)
            self._size += len(line) + 1
            if not is_open:
                rows.append(self._open[0] if len(self._open) == 1 else b"\n".join(self._open))
                self._open, self._size = [], 0
            elif self._size > self._limit:
                # a quote that nothing closes: its line is no row, and what follows is
                rows += self._closed()
                if rows:
                    yield self._block(rows, stop)
                    rows = []
                if self._closed():
                    self._open, self._size = [], 0
                else:
                    yield self._overlong(self._open, self._size - 1, stop)
        if rows:
            yield self._block(rows, stop)

    def _block(self, rows: list[bytes], stop: int) -> LineBlock:
        begin = self._at
        self._at = min(stop, begin + sum(map(len, rows)) + len(rows))
        return LineBlock(begin, self._at, rows)

    def _overlong(self, lines: Sequence[bytes], size: int, stop: int) -> LineBlock:
        begin, head = self._at, b""
        for line in lines:
            head += line[: RAW_BYTES_MAX - len(head)] + b"\n"
            if len(head) >= RAW_BYTES_MAX:
                break
        self._open, self._size = [], 0
        self._at = min(stop, begin + size + 1)
        return LineBlock(begin, self._at, [head[:RAW_BYTES_MAX]], size)


def is_quoted(line: bytes, delimiter: bytes, *, is_open: bool) -> bool:
    """Whether a quoted field is open behind a line; `is_open`: one was before it."""
    at = 0
    if not is_open:
        if not line.startswith(b'"'):
            at = line.find(delimiter + b'"') + 1
            if not at:
                return False
        at += 1
    while True:
        at = line.find(b'"', at)
        if at < 0:
            return True
        if line[at + 1 : at + 2] == b'"':
            at += 2
            continue
        at = line.find(delimiter + b'"', at + 1) + 2
        if at < 2:
            return False


def fields_of(row: bytes, delimiter: str) -> list[str]:
    """The fields of a row. Raises ValueError with what is wrong."""
    try:
        text = row.removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"invalid UTF-8: byte 0x{row[error.start]:02x} at byte {error.start} of the row") from None
    if '"' not in text:
        fields = text.split(delimiter)
    elif is_quoted(row, delimiter.encode(), is_open=False):
        raise ValueError("malformed row: a quote is opened, and never closed")
    else:
        csv.field_size_limit(1 << 30)  # a row has a limit of its own
        try:
            found = list(csv.reader([text], delimiter=delimiter))
        except csv.Error as error:
            raise ValueError(f"malformed row: {error}") from None
        if len(found) != 1:
            raise ValueError("malformed row: a line end without a newline within it")
        fields = found[0]
    return fields
