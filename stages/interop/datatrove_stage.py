"""A filter or formatter of datatrove as a transform."""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa

from headrace.pipeline import PipelineError
from headrace.stages.functions import pack_metadata, settle
from headrace.stages.runtime import Batch, StageContractError, Transform, load_target, text_of
from headrace.stages.text import with_column

#: A reason is a name that is counted: it is cut there.
REASON_CHARACTERS_MAX = 100


class DatatroveBlock(Transform):
    """Calls `filter_batch` of a filter, or `format` of a formatter."""

    def __init__(self, name: str, block: str, arguments: dict[str, Any]) -> None:
        self.name = name
        kind = load_target(block, name)
        try:
            self._block = kind(**arguments)
        except (TypeError, ValueError) as error:
            raise PipelineError(f'stage "{name}": {block} does not take its arguments: {error}') from error
        self._default = kind.__name__
        self._judges = isinstance(self._block, load_target("datatrove.pipeline.filters.base_filter:BaseFilter", name))
        formatter = load_target("datatrove.pipeline.formatters.base:BaseFormatter", name)
        if not (self._judges or isinstance(self._block, formatter)):
            raise PipelineError(f'stage "{name}": {block} is no filter and no formatter of datatrove')
        self._document = load_target("datatrove.data:Document", name)

    def process(self, batch: Batch) -> Batch:
        """The batch less what the block drops, with the block's reasons."""
        text_of(batch, self.name)
        columns = (batch.rows.column(field).to_pylist() for field in ("id", "text", "metadata"))
        packed = batch.rows.column("metadata").to_pylist()
        documents = [
            self._document(text=text, id=identity, metadata=orjson.loads(told) if told else {})
            for identity, text, told in zip(*columns, strict=True)
        ]
        reasons = self._reasons(documents)
        kept = [index for index in range(len(documents)) if index not in reasons]
        rows = batch.rows.take(pa.array(kept, pa.int64()))
        rows = with_column(rows, "text", pa.array([documents[index].text for index in kept], pa.string()))
        told = [pack_metadata(documents[index].metadata, packed[index]) for index in kept]
        rows = with_column(rows, "metadata", pa.array(told, pa.string()))
        return settle(batch, rows, self.name, reasons)

    def _reasons(self, documents: list[Any]) -> dict[int, str]:
        """Why each document is dropped that is, by its place."""
        if not self._judges:
            for document in documents:
                document.text = self._block.format(document.text)
            return {}
        answers = self._block.filter_batch(documents) if documents else []
        if len(answers) != len(documents):
            raise StageContractError(
                f'stage "{self.name}": the block gave {len(answers)} answers for {len(documents)} documents'
            )
        reasons: dict[int, str] = {}
        for index, answer in enumerate(answers):
            keep, why = answer if isinstance(answer, tuple) else (answer, None)
            if not keep:
                reasons[index] = str(why or self._default)[:REASON_CHARACTERS_MAX]
        return reasons
