"""Records on their way through a command as an Arrow IPC stream: a batch goes in, a batch comes out.

The stream is that of https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format. It goes on as long as
the process: one schema, then batches. The columns are those of a line of JSON, `metadata` being JSON text. The answer
to a batch is one batch, of as many of its rows as are kept, in their order; it may be of no rows at all. A batch too
many is seen by its rows, or by its coming before the next is given; one that is late and empty would pass for the
next answer, which would then itself be one too many.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from headrace.stages.commands.arrow_stream import END_OF_STREAM, MESSAGE_BYTES_MAX
from headrace.stages.commands.lines import Exchange
from headrace.stages.commands.process import CommandFailedError
from headrace.stages.functions import FIELDS
from headrace.stages.runtime import PART, ROW, StageContractError

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
        if ROW not in batch.schema.names or batch.schema.field(ROW).type != pa.int64():
            raise StageContractError(
                f'stage "{self._stage}": its command gave a batch without the column {ROW} of int64; '
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
