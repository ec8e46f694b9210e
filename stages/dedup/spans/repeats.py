"""The stage that removes the spans which an index names, and says in the lineage where they stood."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.pipeline import PipelineError
from headrace.stages.dedup.spans.spans import SpanIndex, Spans, compile_spans, find_spans, owner_of
from headrace.stages.runtime import Batch, Transform, text_of
from headrace.stages.text import drop, text_bytes, with_texts
from headrace.store import FormatError


class RepeatRemover(Transform):
    """Removes repeated spans; a text of which nothing but white space is left is filtered."""

    merges = True

    def __init__(self, name: str, index: str, checksum: str) -> None:
        self.name = name
        compile_spans()
        try:
            self.index = SpanIndex(index)
        except (OSError, FormatError) as error:
            raise PipelineError(f'stage "{name}": {error}') from error
        facts = self.index.facts
        if facts.checksum != checksum:
            raise PipelineError(f'stage "{name}": {index} is another index than the pipeline was declared with')
        self.reason = f"only repeated {facts.unit}s"
        self._removed = f"{facts.unit}s removed"

    def process(self, batch: Batch) -> Batch:
        """The batch without repeated spans. The lineage has their bytes, as the stage saw the text, begin and end."""
        column: Any = text_of(batch, self.name)
        spans = find_spans(column, self.index.facts.unit, self.index.facts.words_min)
        found = np.flatnonzero(self.index.holds(spans.hashes))
        if self.index.facts.keeps_one:
            found = found[self._not_kept(batch, spans, found)]
        if not len(found):
            return batch
        data, offsets = text_bytes(column)
        texts, ranges = column.to_pylist(), dict[int, list[int]]()
        for text, begin, end in zip(
            *(part[found].tolist() for part in (spans.texts, spans.begins, spans.ends)), strict=True
        ):
            mine, first = ranges.setdefault(text, []), int(offsets[text])
            # Passages overlap.
            if mine and mine[-1] >= begin - first:
                mine[-1] = end - first
            else:
                mine += [begin - first, end - first]
        left = np.ones(len(texts), np.bool_)
        for text, mine in ranges.items():
            whole = data[offsets[text] : offsets[text + 1]].tobytes()
            bounds = [0, *mine, len(whole)]
            texts[text] = b"".join(whole[bounds[at] : bounds[at + 1]] for at in range(0, len(bounds), 2)).decode()
            left[text] = bool(texts[text].strip())
        batch = batch.counted(self.name, self._removed, len(found))
        batch = with_texts(batch, self.name, pa.array(texts, column.type), left, removed=ranges)
        return drop(batch, self.name, [(self.reason, ~left)])

    def _not_kept(self, batch: Batch, spans: Spans, found: Any) -> Any:
        """Of the spans that the index names, those of records that do not keep them."""
        ids, texts = batch.rows.column("id"), spans.texts[found]
        mine = {text: owner_of(ids[text].as_py()) for text in np.unique(texts).tolist()}
        own = np.array([mine[text] for text in texts.tolist()], np.uint64)
        return own != self.index.owners(spans.hashes[found])
