"""Records on their way through a command: as lines of JSON, as an Arrow IPC stream, and what both have in common.

The Arrow stream is that of https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format. It goes on as
long as the process: one schema, then batches. The columns are those of a line of JSON, `metadata` being JSON text.
The answer to a batch is one batch, of as many of its rows as are kept, in their order; it may be of no rows at all. A
batch too many is seen by its rows, or by its coming before the next is given; one that is late and empty would pass
for the next answer, which would then itself be one too many.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from headrace.stages.commands.arrow_stream import END_OF_STREAM, MESSAGE_BYTES_MAX, ArrowStream
from headrace.stages.commands.process import CommandFailedError
from headrace.stages.functions import FIELDS
from headrace.stages.runtime import PART, ROW, StageContractError

#: Bytes of one line of output.
LINE_BYTES_MAX = 256 << 20


class Exchange(ABC):
    """Some records on their way through a command, and what came back of them.

    Its methods raise CommandFailedError for what is no answer, and StageContractError for a broken rule.
    """

    #: What the command is told before its input is closed.
    last_words = b""

    def __init__(self, stage: str, rows: pa.RecordBatch) -> None:
        self._stage = stage
        #: The process's, which is set before anything is given or taken.
        self.stream = ArrowStream()
        columns = [name for name in (ROW, PART, "id") if name in rows.schema.names]
        self._named: list[dict[str, Any]] = rows.select(columns).to_pylist()
        self._places = {_key(record): index for index, record in enumerate(self._named)}
        self.count = rows.num_rows
        self.answers: dict[int, dict[str, Any]] = {}
        #: The place of the last record that came back.
        self.answered = -1
        #: Whether all that can come has come.
        self.fenced = False
        #: Whether records are missing while the command complained of something.
        self.doubtful = False

    @property
    def wants_fence(self) -> bool:
        """Whether a fence must be sent for the end of these records to be seen."""
        return False

    @abstractmethod
    def given(self) -> bytes:
        """What the command gets for these records."""

    @abstractmethod
    def take(self, data: bytes) -> None:
        """Take output."""

    def fence(self, sample: dict[str, Any], number: int) -> bytes:
        """What tells the end of these records, made of one that is given back."""
        raise NotImplementedError

    def sample(self) -> dict[str, Any] | None:
        """A record that came back, as it was given."""
        return None

    def ended(self) -> None:
        """The command has ended well, with nothing more to say."""
        self.fenced = True

    def missing(self, first: int) -> list[int]:
        """The places of the records that did not come back, counted from `first`."""
        return [first + index for index in range(self.count) if index not in self.answers]

    def _answer(self, answer: dict[str, Any]) -> None:
        if type(answer.get(PART)) not in (int, type(None)):
            raise StageContractError(
                f'stage "{self._stage}": its command gave {PART} as {type(answer[PART]).__name__} in record '
                f"{answer[ROW]}; each record keeps this field as it was"
            )
        place = self._places.get(_key(answer))
        if place is None or place <= self.answered:
            what = "which it was not given" if place is None else "twice, or later than one that follows it"
            raise StageContractError(f'stage "{self._stage}": its command gave back record {answer[ROW]}, {what}')
        self._check(answer, self._named[place])
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


class LineExchange(Exchange):
    """Records as lines of JSON."""

    def __init__(self, stage: str, rows: pa.RecordBatch) -> None:
        super().__init__(stage, rows)
        columns = [name for name in (ROW, PART, *FIELDS) if name in rows.schema.names]
        self._records: list[dict[str, Any]] = rows.select(columns).to_pylist()
        for record in self._records:
            record["metadata"] = orjson.loads(record["metadata"]) if record["metadata"] else {}
        self._rest = b""
        self._fence_number: int | None = None

    @property
    def wants_fence(self) -> bool:
        """Whether none was sent yet."""
        return self._fence_number is None

    def given(self) -> bytes:
        """A line a record."""
        return b"".join(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in self._records)

    def fence(self, sample: dict[str, Any], number: int) -> bytes:
        """The line that tells the end of these records, made of one that is given back."""
        self._fence_number = number
        return orjson.dumps({**sample, ROW: number}, option=orjson.OPT_APPEND_NEWLINE)

    def sample(self) -> dict[str, Any] | None:
        """A record that came back, as it was given."""
        return self._records[self.answered] if self.answered >= 0 else None

    def take(self, data: bytes) -> None:
        """Take output."""
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
        if answer[ROW] == self._fence_number:
            self.fenced = True
            return
        self._answer(answer)


def _key(record: dict[str, Any]) -> tuple[int, int]:
    return record[ROW], record.get(PART) or 0


#: The kinds of columns of text. What nested ones, and those of a dictionary, unpack to is not bound by their bytes.
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
#: int32 words of a view of text, the first of which is its length.
_VIEW_WORDS = 4


class ArrowExchange(Exchange):
    """Records as a batch of Arrow."""

    last_words = END_OF_STREAM

    def __init__(self, stage: str, rows: pa.RecordBatch) -> None:
        super().__init__(stage, rows)
        self._rows = rows.select([name for name in (ROW, PART, *FIELDS) if name in rows.schema.names])
        #: Nothing may come before the batch is given.
        self.fenced = True

    def given(self) -> bytes:
        """One batch, behind the schema if it is the first."""
        self.fenced = False
        return self.stream.encode(self._rows.replace_schema_metadata(None))

    def take(self, data: bytes) -> None:
        """Take output."""
        for batch in self.stream.take(data):
            if self.fenced:
                raise StageContractError(
                    f'stage "{self._stage}": its command gave more batches than it got; '
                    "it answers each with one, which may be empty"
                )
            self._take(batch)
            self.fenced = True

    def ended(self) -> None:
        """Raise CommandFailedError if it ended without an answer."""
        if not self.fenced:
            raise CommandFailedError("command ended without an answer to its last batch")

    def _take(self, batch: pa.RecordBatch) -> None:
        at = batch.schema.get_field_index(ROW)  # -1, too, where there are two
        if at < 0 or batch.schema.field(at).type != pa.int64():
            raise StageContractError(
                f'stage "{self._stage}": its command gave a batch without one column {ROW} of int64; '
                "each batch keeps this column as it was"
            )
        if batch.num_rows > self.count:
            raise StageContractError(
                f'stage "{self._stage}": its command gave {batch.num_rows} rows for the {self.count} that it got'
            )
        for name in batch.schema.names:
            self._check_kind(name, batch)
        for answer in batch.to_pylist():
            if answer[ROW] is None:
                raise StageContractError(f'stage "{self._stage}": its command gave a row with {ROW} null')
            answer["metadata"] = _metadata(answer.get("metadata"))
            self._answer(answer)

    def _check_kind(self, name: str, batch: pa.RecordBatch) -> None:
        """Raise StageContractError unless a column is one, and of a kind whose values take a bounded room."""
        if batch.schema.get_all_field_indices(name)[1:]:
            raise StageContractError(f'stage "{self._stage}": its command gave two columns {name!r}')
        column: Any = batch.column(name)
        kind: Any = column.type
        if kind == pa.string_view() and _viewed_bytes(column) > MESSAGE_BYTES_MAX:
            raise StageContractError(
                f'stage "{self._stage}": its command gave {_viewed_bytes(column)} bytes in the column {name!r}, by '
                f"views of the same text; the limit is {MESSAGE_BYTES_MAX}"
            )
        if not (pa.types.is_integer(kind) if name in (ROW, PART) else kind in _TEXTS) and not pa.types.is_null(kind):
            raise StageContractError(
                f'stage "{self._stage}": its command gave the column {name!r} as {str(kind)[:80]}: {ROW} and {PART} '
                "are integers, all others text; put fields of your own into metadata"
            )


def _viewed_bytes(column: Any) -> int:
    """Bytes of the texts of a column of views, many of which may be of the same bytes."""
    if not len(column):
        return 0
    count = _VIEW_WORDS * (column.offset + len(column))
    views: Any = np.frombuffer(column.buffers()[1], np.int32, count)[_VIEW_WORDS * column.offset :: _VIEW_WORDS]
    return int(views.astype(np.int64).sum())


def _metadata(text: Any) -> Any:
    if text is None:
        return {}
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise CommandFailedError(f"command gave metadata that is no JSON text: {error}") from error
