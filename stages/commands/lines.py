"""Records on their way through a command as lines of JSON, and what any way through a command has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import orjson
import pyarrow as pa

from headrace.stages.commands.arrow_stream import ArrowStream
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
