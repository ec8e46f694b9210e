"""A stage that is any executable: lines of JSON on its standard input and output, one process a task.

How rows are matched. Each record goes in as a line `{"__row", "id", "text", "metadata"}` and comes out as one, in the
same order; `__row` says which it is. A line that does not come out is a record that the command filters. That the
batch is through is known by a record that the command is known to give back, sent once more behind the batch under a
number of its own. Where no such line comes (nothing was kept yet, or the command holds its output back until it has a
block of it) its input is closed: what is missing at its end is filtered, and the next batch gets a new process.

How a failure is found. A batch at which the command dies, hangs or says what is no answer is given to new processes in
parts, until the record is alone; it is quarantined with the exit code and the end of standard error. A record at which
a command died is tried twice, since anybody may have killed it. Records that are missing from a batch during which the
command wrote to standard error are given to a process each, whose exit code tells what is filtered from what failed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from headrace.pipeline.errors import PipelineError
from headrace.stages.batch import PART, QUARANTINED, ROW, Batch, join_verdicts, make_verdicts, parts_of
from headrace.stages.build import as_json
from headrace.stages.command_process import CommandFailedError, CommandProcess
from headrace.stages.custom import FIELDS, pack_metadata, settle, with_column
from headrace.stages.errors import StageContractError
from headrace.stages.records import cut_raw
from headrace.stages.text import text_of

GAVE_NO_LINE = "command gave no line"
#: Seconds without output after which the input of a command is closed, if the end of the batch is not seen yet; or
#: this many times the longest pause that it has made before.
PATIENCE_S = 1.0
PATIENCE_TIMES = 4.0
#: Batches in a row that end only because the input is closed, before it is closed behind each batch at once.
CLOSES_MAX = 2
#: Bytes of one line of output.
LINE_BYTES_MAX = 256 << 20
#: Records in a row that may fail, each alone, before it is the command's fault and not theirs.
FAILURES_MAX = 100


@dataclass(frozen=True, slots=True)
class _Span:
    """Rows of the batch that are given to the command together; `alone`: to a process that ends with them."""

    first: int
    end: int
    alone: bool = False
    #: Whether a failure is looked for in halves: else behind the last line that came.
    halve: bool = False


class Command:
    """Gives the records of each batch to an executable."""

    def __init__(self, name: str, arguments: list[str], seconds: float, succeeds: list[int]) -> None:
        self.name = name
        self._arguments = arguments
        self._seconds = seconds
        self._succeeds = succeeds
        self._process: CommandProcess | None = None
        #: A record that the command has given back, and the number of the next fence made of it.
        self._sample: dict[str, Any] | None = None
        self._fences = 0
        self._closes = 0
        self._patience_s = PATIENCE_S
        self._failures = 0
        if shutil.which(arguments[0]) is None:
            raise PipelineError(
                f'stage "{name}": there is no executable {arguments[0]!r}; install it on every machine that runs it'
            )
        self._try()

    def process(self, batch: Batch) -> Batch:
        """The batch with what the command gave back."""
        text_of(batch, self.name)
        count = batch.rows.num_rows
        if not count:
            return batch
        records = _records(batch)
        answers: dict[int, dict[str, Any]] = {}
        stories: dict[int, str] = {}
        spans = [_Span(0, count)]
        while spans:
            span = spans.pop()
            exchange = _Exchange(self.name, records[span.first : span.end])
            try:
                self._exchange(exchange, alone=span.alone)
            except CommandFailedError as error:
                self._drop()
                if span.end - span.first > 1:
                    spans += _parts(span, exchange.answered, hung=error.hung)
                elif error.hung or span.halve:
                    stories[span.first] = str(error)
                    self._failed(error)
                else:
                    spans.append(replace(span, alone=True, halve=True))
                continue
            self._failures = 0
            if exchange.doubtful and not (span.alone and exchange.count == 1):
                # Of several records an exit code says nothing: jq gives that of the last.
                spans += [_Span(at, at + 1, alone=True) for at in exchange.missing(span.first)]
            answers |= {span.first + index: answer for index, answer in exchange.answers.items()}
        return self._settle(_quarantine(batch, self.name, stories), answers, stories)

    def close(self) -> None:
        """End the process."""
        self._drop()

    def _settle(self, batch: Batch, answers: dict[int, dict[str, Any]], stories: dict[int, str]) -> Batch:
        """The batch, from which those with a story are gone, with the answers to the others in it."""
        before = [index for index in range(batch.rows.num_rows + len(stories)) if index not in stories]
        places = [place for place, index in enumerate(before) if index in answers]
        old = batch.rows.column("metadata").to_pylist()
        texts = [answers[before[place]]["text"] for place in places]
        metadata = [pack_metadata(answers[before[place]].get("metadata"), old[place]) for place in places]
        rows = batch.rows.take(pa.array(places, pa.int64()))
        rows = with_column(rows, "text", pa.array(texts, pa.string()))
        rows = with_column(rows, "metadata", pa.array(metadata, pa.string()))
        return settle(batch, rows, self.name, GAVE_NO_LINE)

    def _exchange(self, exchange: _Exchange, *, alone: bool) -> None:
        """Give the records to the command and take its lines until all is known. Raises CommandFailedError."""
        if alone:
            self._drop()
        process = self._process = self._process or CommandProcess(self._arguments, self._succeeds)
        closing = alone or self._closes >= CLOSES_MAX
        said = process.errors_bytes
        process.give(exchange.lines)
        if closing:
            process.finish()
        elif self._sample is not None:
            process.give(exchange.fence(self._sample, self._next_fence()))
        moved_at, closed_at = time.monotonic(), 0.0
        while not exchange.fenced and not process.ended:
            moved = process.turn(self._patience_s / 4, exchange.take)
            now = time.monotonic()
            pause = now - moved_at
            if moved:
                moved_at = now
            if not closing and exchange.fence_number is None and (sample := exchange.sample()) is not None:
                self._sample = sample
                process.give(exchange.fence(sample, self._next_fence()))
            if moved and exchange.answers:
                self._learn(pause, now - closed_at if closed_at else None)
                closed_at = 0.0
            if pause >= self._seconds:
                raise CommandFailedError(f"command did not answer within {self._seconds:g} s", hung=True)
            if not closing and process.idle and not moved and pause >= self._patience_s:
                closing, closed_at = True, now
                self._closes += 1
                process.finish()
        if process.ended:
            self._ended(process, closing=closing)
        else:
            self._closes = 0
            process.drain_errors()
        exchange.doubtful = process.errors_bytes > said and len(exchange.answers) < exchange.count

    def _learn(self, pause_s: float, after_close_s: float | None) -> None:
        """It answered after a pause; `after_close_s` since its input was closed for that, if it was."""
        if after_close_s is not None:
            if after_close_s < PATIENCE_S / 2:
                return
            # The end of its input did not bring this answer: it is slow, and holds nothing back.
            self._closes -= 1
        self._patience_s = max(self._patience_s, min(PATIENCE_TIMES * pause_s, self._seconds))

    def _ended(self, process: CommandProcess, *, closing: bool) -> None:
        """Its output is at its end: right only if its input was."""
        process.judge(self._seconds)
        self._drop()
        if not closing or process.refused:
            raise CommandFailedError("command ended by itself, before the end of its input")

    def _next_fence(self) -> int:
        self._fences += 1
        return -self._fences

    def _failed(self, error: CommandFailedError) -> None:
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            raise StageContractError(
                f'stage "{self.name}": {self._arguments[0]} failed on {FAILURES_MAX} records in a row, '
                f"the last time: {error}; try it on one of them by hand"
            )

    def _try(self) -> None:
        """Run the command on no input at all, which finds one that cannot work before the first record."""
        process = None
        try:
            process = CommandProcess(self._arguments, self._succeeds)
            process.finish()
            process.judge(self._seconds)
        except CommandFailedError as error:
            raise PipelineError(f'stage "{self.name}": {self._arguments[0]}, tried without input: {error}') from error
        finally:
            if process is not None:
                process.kill()

    def _drop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None


class _Exchange:
    """Some records on their way through the command, and the lines that came back."""

    def __init__(self, stage: str, records: Sequence[dict[str, Any]]) -> None:
        self._stage = stage
        self._records = records
        self._places = {_key(record): index for index, record in enumerate(records)}
        self._rest = b""
        self.count = len(records)
        self.lines = b"".join(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in records)
        self.answers: dict[int, dict[str, Any]] = {}
        #: The place of the last record that came back.
        self.answered = -1
        self.fence_number: int | None = None
        #: Whether the fence came back: no line of these records can come any more.
        self.fenced = False
        #: Whether lines are missing while the command complained of something.
        self.doubtful = False

    def fence(self, sample: dict[str, Any], number: int) -> bytes:
        """The line that tells the end of these records, made of one that is given back."""
        self.fence_number = number
        return orjson.dumps({**sample, ROW: number}, option=orjson.OPT_APPEND_NEWLINE)

    def sample(self) -> dict[str, Any] | None:
        """A record that came back, as it was given."""
        return self._records[self.answered] if self.answered >= 0 else None

    def missing(self, first: int) -> list[int]:
        """The places of the records that did not come back, counted from `first`."""
        return [first + index for index in range(self.count) if index not in self.answers]

    def take(self, data: bytes) -> None:
        """Take output. Raises CommandFailedError for what is no answer, StageContractError for a broken rule."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            raise CommandFailedError(f"command gave a line of more than {LINE_BYTES_MAX} bytes")
        for line in lines:
            if line.strip():
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            answer = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise CommandFailedError(f"command gave a line that is no JSON: {error}") from error
        if not isinstance(answer, dict) or type(answer.get(ROW)) is not int:
            shown = line[:80].decode("utf-8", "replace")
            raise StageContractError(
                f'stage "{self._stage}": its command gave a line without {ROW}: {shown}; '
                "each line is an object that keeps this field as it was"
            )
        if answer[ROW] == self.fence_number:
            self.fenced = True
            return
        place = self._places.get(_key(answer))
        if place is None or place <= self.answered:
            what = "which it was not given" if place is None else "twice, or later than one that follows it"
            raise StageContractError(f'stage "{self._stage}": its command gave back record {answer[ROW]}, {what}')
        self._check(answer, self._records[place])
        self.answers[place] = answer
        self.answered = place

    def _check(self, answer: dict[str, Any], record: dict[str, Any]) -> None:
        unknown = [key for key in answer if key not in (*FIELDS, ROW, PART)]
        if unknown:
            raise StageContractError(
                f'stage "{self._stage}": its command gave back the field {unknown[0]!r}: put fields of your own '
                "into metadata"
            )
        if answer.get("id", record["id"]) != record["id"]:
            raise StageContractError(
                f'stage "{self._stage}": its command gave another id for record {record["id"]!r}: a record keeps its id'
            )
        if not isinstance(answer.get("text"), str):
            raise CommandFailedError("command gave back no text")
        if not isinstance(answer.get("metadata") or {}, dict):
            raise CommandFailedError("command gave back metadata that is no object")


def _parts(span: _Span, answered: int, *, hung: bool) -> list[_Span]:
    """Where to look for the record at which a command failed; the last is looked at first."""
    if hung and not span.halve:
        # It answers in order, so it hangs at the record behind its last answer, unless it holds answers back.
        next_one = span.first + answered + 1
        found = [_Span(next_one + 1, span.end, span.alone, halve=True), _Span(next_one, next_one + 1, alone=True)]
        found.append(_Span(span.first, next_one, span.alone))
        return [part for part in found if part.first < part.end and part.end <= span.end]
    middle = (span.first + span.end) // 2
    # One row alone has not been tried as such yet.
    halves = [(middle, span.end), (span.first, middle)]
    return [_Span(first, end, span.alone, halve=hung and end - first > 1) for first, end in halves]


def _records(batch: Batch) -> list[dict[str, Any]]:
    """The rows of the batch as the command sees them."""
    columns = [name for name in (ROW, PART, *FIELDS) if name in batch.rows.schema.names]
    records = batch.rows.select(columns).to_pylist()
    for record in records:
        record["metadata"] = orjson.loads(record["metadata"]) if record["metadata"] else {}
    return records


def _key(record: dict[str, Any]) -> tuple[int, int]:
    return record[ROW], record.get(PART) or 0


def _quarantine(batch: Batch, stage: str, stories: dict[int, str]) -> Batch:
    """The batch without the rows that have a story."""
    if not stories:
        return batch
    places = sorted(stories)
    gone = batch.rows.take(pa.array(places, pa.int64()))
    cut: list[tuple[str, bytes]] = []
    for index, place in enumerate(places):
        raw = as_json(gone.slice(index, 1))
        cut.append(cut_raw(stories[place], raw, len(raw)))
    verdicts = make_verdicts(
        rows=gone.column(ROW),
        ids=gone.column("id"),
        stage=stage,
        verdict=QUARANTINED,
        reasons=[reason for reason, _ in cut],
        raw=[kept for _, kept in cut],
        parts=parts_of(gone),
    )
    kept = np.setdiff1d(np.arange(batch.rows.num_rows), places)
    rows = batch.rows.take(pa.array(kept, pa.int64()))
    return replace(batch, rows=rows, verdicts=join_verdicts(batch.verdicts, verdicts))
