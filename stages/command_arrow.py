"""Records on their way through a command as an Arrow IPC stream: a batch goes in, a batch comes out.

The stream is that of https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format. It goes on as long as
the process: one schema, then batches. The columns are those of a line of JSON, `metadata` being JSON text. The answer
to a batch is one batch, of as many of its rows as are kept, in their order; it may be of no rows at all. A batch too
many is seen by its rows, or by its coming before the next is given; one that is late and empty would pass for the
next answer, which would then itself be one too many.
"""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa

from headrace.stages.arrow_stream import END_OF_STREAM
from headrace.stages.batch import PART, ROW
from headrace.stages.command_lines import Exchange
from headrace.stages.command_process import CommandFailedError
from headrace.stages.custom import FIELDS
from headrace.stages.errors import StageContractError


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
        if ROW not in batch.schema.names or batch.schema.field(ROW).type != pa.int64():
            raise StageContractError(
                f'stage "{self._stage}": its command gave a batch without the column {ROW} of int64; '
                "each batch keeps this column as it was"
            )
        for answer in batch.to_pylist():
            if answer[ROW] is None:
                raise StageContractError(f'stage "{self._stage}": its command gave a row with {ROW} null')
            answer["metadata"] = _metadata(answer.get("metadata"))
            self._answer(answer)


def _metadata(text: Any) -> Any:
    if text is None:
        return {}
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise CommandFailedError(f"command gave metadata that is no JSON text: {error}") from error
