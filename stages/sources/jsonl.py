"""The source of JSON Lines files: a record a line, {"id": ..., "text": ..., anything else as metadata}."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import orjson

from headrace.stages.runtime import (
    Batch,
    BatchDraft,
    Columns,
    DamagedInput,
    FragmentChanged,
    FragmentEnd,
    WrongFormat,
    giving_back,
)
from headrace.stages.sources.base import FileSource, columns_of, step_of
from headrace.stages.sources.lines import BOM, LineBlock, first_line_from, scan_lines
from headrace.stages.sources.objects import (
    HEAD_BYTES,
    JSONL,
    InputObject,
    InputStream,
    codec_of,
    data_format,
    to_path,
)
from headrace.store.ledger import UNBOUNDED, Fragment, Gap

#: Bytes of a reader's first batch; each one behind it has twice as many, up to a whole one. So a task that has just
#: begun shows and sends at once what it does.
FIRST_BYTES = 128 << 10
#: In the place of a text where the record has none.
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class _Run:
    """Records that lie end to end: their lines and, for each, the byte of the file behind it."""

    lines: list[bytes]
    ends: list[int]
    overlong_bytes: int
    offset: int
    #: What the file was found to be, where the one record stands for all that cannot be read.
    damage: str = ""

    def take(self, part: slice) -> list[bytes]:
        """Lines that the run has no longer: a large one would otherwise be in memory while its text is worked on."""
        taken = self.lines[part]
        self.lines[part] = [b""] * len(taken)
        return taken


class JsonlSource(FileSource):
    """Reads JSON Lines; blank lines are no records, and what is not a record of text is quarantined alone.

    `fragment_bytes` cuts large files into ranges; a range owns the lines that begin in it. A batch holds at most
    `batch_records` records and about `batch_bytes` bytes. A line above `max_record_bytes` is quarantined. A compressed
    file is cut where it has many units; offsets are those of the uncompressed stream, which for zstd may take
    `window_bytes_max` of memory. The fields of an object `metadata_key` are the record's own.
    """

    FORMAT = JSONL
    READER = "jsonl/1"
    ROW = b"\n"
    UNIT: ClassVar[bytes | None] = b""
    #: Of what lines consist that are no records; None: of white space.
    BLANK: ClassVar[bytes | None] = None
    merges = True
    _first_bytes: int = FIRST_BYTES

    def fragments(self, found: InputObject) -> Iterator[Fragment]:
        """The ranges of one file."""
        if codec_of(found.uri):
            yield from super().fragments(found)
            return
        size, step = found.size, step_of(found.size, self.options.fragment_bytes)
        yield from found.fragments(self.name, self.READER, range(1) if size <= step else range(0, size, step))

    def drafts(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[BatchDraft | Batch | FragmentEnd]:
        """The records of the gaps. A batch's bytes reach from the end of the record before it to its last newline."""
        with self.stream(fragment, InputStream) as file:
            begin = self._first_byte(file, fragment)
            ordinal, at = 0, begin
            for gap in gaps:
                if gap.offset >= 0 and gap.first:
                    ordinal, at = gap.first, fragment.start + gap.offset
                    self.pass_to(file, at)
                elif ordinal > gap.first:
                    ordinal, at = 0, begin
                ordinal, at = yield from self._read_gap(file, fragment, gap, ordinal, at)
            to_its_end = bool(gaps) and gaps[-1].end == UNBOUNDED
            checksum = file.checksum() if to_its_end else b""
            file.check()
            self.bytes_skipped += file.skipped
        if to_its_end:
            yield FragmentEnd(ordinal, checksum)

    def _first_byte(self, file: InputStream, fragment: Fragment) -> int:
        if file.is_within_a_line:
            return first_line_from(file, fragment.start + 1, sys.maxsize, self.batch_bytes)
        if not fragment.start or file.compressed:
            return fragment.start
        return first_line_from(file, fragment.start, _end(fragment), self.batch_bytes)

    def _read_gap(
        self, file: InputStream, fragment: Fragment, gap: Gap, ordinal: int, at: int
    ) -> Generator[BatchDraft | Batch, None, tuple[int, int]]:
        """Read on from record `ordinal` at byte `at`; returns both as they stand behind the gap."""
        for run in self._runs(file, fragment, at):
            low = min(max(gap.first - ordinal, 0), len(run.lines))
            high = min(gap.end - ordinal, len(run.lines))
            if low:
                self.bytes_skipped += run.ends[low - 1] - at
                at = run.ends[low - 1]
            begin = low
            while begin < high:
                end = self._end_of_batch(run, begin, high, at)
                batch = self._batch(fragment, ordinal + begin, run, slice(begin, end), at)
                self.stored_read += file.stored_since() if file.compressed else max(0, batch.length)
                yield batch
                del batch
                begin, at = end, run.ends[end - 1]
            ordinal += high
            if ordinal >= gap.end:
                return ordinal, at
        if ordinal < gap.first or gap.end != UNBOUNDED:
            raise FragmentChanged(
                f"{fragment.uri} ends after record {ordinal}, but records {gap.first}.. were to be read again: "
                "the file is not what it was when it was listed"
            )
        return ordinal, at

    def _end_of_batch(self, run: _Run, begin: int, high: int, at: int) -> int:
        """Behind the last record of the batch that begins at byte `at`."""
        end = min(begin + self.batch_records, high)
        if self._first_bytes < self.batch_bytes:
            end = min(end, max(begin + 1, bisect_right(run.ends, at + self._first_bytes, begin, end)))
            self._first_bytes *= 2
        return end

    def _runs(self, file: InputStream, fragment: Fragment, at: int) -> Iterator[_Run]:
        try:
            for block in self._blocks(file, fragment, at):
                file.check()
                run = _records(block, self.BLANK)
                at = block.stop
                del block
                if run.lines:
                    yield run
                del run
        except DamagedInput as error:
            if not self._salvages:
                raise
            yield _Run([b""], [at], 0, at, damage=error.why)

    def _blocks(self, file: InputStream, fragment: Fragment, at: int) -> Iterator[LineBlock]:
        start, end = at, _end(fragment)
        if at == 0:
            file.seek(0)
            head = file.read(HEAD_BYTES)
            if what := data_format(head.removeprefix(BOM)):
                raise WrongFormat(to_path(fragment.uri), what)
            if head.startswith(BOM):
                # The first line belongs to the first range, be that shorter than the mark.
                start, end = len(BOM), max(end, len(BOM) + 1)
        return scan_lines(file, start, end, block_bytes=self.batch_bytes, line_bytes_max=self.options.max_record_bytes)

    def _batch(self, fragment: Fragment, first: int, run: _Run, part: slice, at: int) -> BatchDraft | Batch:
        if run.damage:
            return self.lost(fragment, first, run.damage)
        columns = columns_of(fragment)
        ends = run.ends[part]
        giving_back.meets(ends[-1] - at, time.monotonic())
        if run.overlong_bytes:
            self._reject_overlong(columns, first, run.take(part)[0], run.overlong_bytes, run.offset)
        else:
            self._parse(columns, first, run.take(part), ends)
        self.bytes_read += ends[-1] - at
        return BatchDraft(columns, fragment, self.name, first, len(ends), at - fragment.start, ends[-1] - at)

    def _parse(self, columns: Columns, first: int, lines: list[bytes], ends: Sequence[int]) -> None:
        loads, options = orjson.loads, self.options
        limit, text_key, id_key = options.max_record_bytes, options.text_key, options.id_key
        nested, named = nested_path(text_key), nested_path(id_key)
        lines.reverse()
        for ordinal in range(first, first + len(lines)):
            line = lines.pop()
            if len(line) > limit:
                self._reject_overlong(columns, ordinal, line, len(line), ends[ordinal - first] - len(line) - 1)
                continue
            try:
                record = loads(line)
            except orjson.JSONDecodeError as error:
                record = reread(line, error.msg)
                if record is None:
                    columns.reject(ordinal, None, _why_not_json(line, error), line)
                    continue
            if type(record) is not dict:
                columns.reject(ordinal, None, f"not a JSON object: the line holds {_kind(record)}", line)
                continue
            identity = record.get(id_key)
            if identity is None and named:
                identity = within(record, named)
            if type(identity) is float:
                # Of an integer above 64 bits orjson makes a float.
                identity = digits_of(line, id_key)
            known = (type(identity) is str and identity != "") or type(identity) is int
            text = record.pop(text_key, _ABSENT)
            if text is _ABSENT and nested:
                text = within(record, nested, _ABSENT)
                take_out(record, nested)
            if type(text) is not str:
                columns.reject(ordinal, identity if known else None, self._why_no_text(text), line)
                continue
            if known and record.pop(id_key, None) is None:
                take_out(record, named)
            # Gone before there is UTF-8 besides: of a large record each is some MiB.
            del line
            columns.keep(ordinal, identity if known else None, text.encode(), _lifted(record, options.metadata_key))

    def _why_no_text(self, text: Any) -> str:
        if text is _ABSENT:
            return f'no text: the record has no field "{self.options.text_key}"'
        return f'text is not a string: field "{self.options.text_key}" holds {_kind(text)}'

    def _reject_overlong(self, columns: Columns, ordinal: int, head: bytes, size: int, offset: int) -> None:
        reason = (
            f"line too long: {size} bytes at byte {offset} of the file, the limit is {self.options.max_record_bytes}"
        )
        columns.reject(ordinal, None, reason, head, size)


def nested_path(key: str) -> Sequence[str]:
    """The names on the way to the field that "field.inner" names; none where it can only be one field's."""
    return key.split(".") if "." in key else ()


def within(record: Any, path: Sequence[str], absent: Any = None) -> Any:
    """The field at the end of a path through objects."""
    for name in path:
        if type(record) is not dict or name not in record:
            return absent
        record = record[name]
    return record if path else absent


def take_out(record: Any, path: Sequence[str]) -> None:
    """Remove the field at the end of a path, and each object that has nothing else."""
    if path and type(record) is dict and path[0] in record:
        if len(path) > 1:
            take_out(record[path[0]], path[1:])
        if len(path) == 1 or record[path[0]] == {}:
            del record[path[0]]


def _lifted(record: dict[str, Any], key: str) -> dict[str, Any]:
    """The fields, with those of the object under `key` in its place; as they are where two would have one name."""
    inner = record.get(key)
    if type(inner) is not dict or not key:
        return record
    if len(record) == 1:
        return inner
    others = {name: value for name, value in record.items() if name != key}
    return record if inner.keys() & others.keys() else others | inner


def _end(fragment: Fragment) -> int:
    return sys.maxsize if fragment.end < 0 or codec_of(fragment.uri) else fragment.end


def _records(block: LineBlock, blank: bytes | None) -> _Run:
    """The lines of a block that are records; the block has them no longer."""
    if block.overlong_bytes:
        return _Run(block.lines, [block.stop], block.overlong_bytes, block.offset)
    lines: list[bytes] = []
    ends: list[int] = []
    stop = block.offset
    for line in block.lines:
        stop += len(line) + 1
        if line and not (line.isspace() if blank is None else not line.strip(blank)):
            lines.append(line)
            ends.append(stop)
    if ends and ends[-1] > block.stop:
        ends[-1] = block.stop
    block.lines.clear()
    return _Run(lines, ends, 0, block.offset)


def _why_not_json(line: bytes, error: orjson.JSONDecodeError) -> str:
    try:
        line.decode()
    except UnicodeDecodeError as broken:
        return f"invalid UTF-8: byte 0x{line[broken.start]:02x} at byte {broken.start} of the line"
    return f"malformed JSON: {error.msg} at character {error.pos} of the line"


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


_WORDS = re.compile(rb"NaN|Infinity")
#: What orjson says of a number that no double holds.
_TOO_LARGE = "number is infinity"
#: Characters of an integer that 64 bits may hold.
_DIGITS_MAX = 20


def reread(line: bytes, why: str) -> Any:
    """The value of a line that orjson refused for the reason `why`; None where it is no JSON for anybody.

    NaN and infinities become null, as in Parquet, and a number that no double holds becomes its text.
    """
    plain = line.removeprefix(BOM)
    try:
        return orjson.loads(plain)
    except orjson.JSONDecodeError as error:
        if not _WORDS.search(plain) and _TOO_LARGE not in f"{why} {error.msg}":
            return None
    try:
        found = json.loads(plain.decode(), parse_constant=lambda _: None, parse_float=_float, parse_int=_int)
        orjson.dumps(found)  # what this reader takes besides, such as lone surrogates, is no text
    except (ValueError, TypeError, RecursionError):
        return None
    return found


def digits_of(line: bytes, key: str) -> str | None:
    """The digits of an integer in a line that orjson read, of any length; None where it is none."""
    try:
        record = json.loads(line, parse_int=str, parse_float=float)
        found = record[key] if key in record else within(record, nested_path(key))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def _float(text: str) -> float | str:
    value = float(text)
    return text if math.isinf(value) else value


def _int(text: str) -> int | float | str:
    value = int(text) if len(text) <= _DIGITS_MAX else None
    return value if value is not None and -(1 << 63) <= value < 1 << 64 else _float(text)
