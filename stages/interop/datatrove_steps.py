"""A stage as a filter of datatrove. Imports datatrove, so that nothing else imports this without need."""

from __future__ import annotations

from typing import Any

from datatrove.pipeline.filters.base_filter import BaseFilter  # pyright: ignore[reportMissingImports]

from headrace.pipeline import Stage
from headrace.stages.interop.applied import applied


class StageFilter(BaseFilter):
    """Keeps the documents that the stage keeps. It travels to other processes as the stage's declaration."""

    def __init__(self, stage: Stage, exclusion_writer: Any, batch_size: int) -> None:
        self.name = f"Headrace {stage.name}"
        super().__init__(exclusion_writer, batch_size)
        self.stage = stage

    def filter(self, doc: Any) -> bool | tuple[bool, str]:
        """See BaseFilter."""
        return self.filter_batch([doc])[0]

    def filter_batch(self, batch: list[Any]) -> list[bool | tuple[bool, str]]:
        """See BaseFilter."""
        answers: list[bool | tuple[bool, str]] = []
        ids, texts = [str(doc.id) for doc in batch], [doc.text for doc in batch]
        fates = applied(self.stage).fates(ids, texts, [doc.metadata for doc in batch])
        for doc, (text, changed, _, reason) in zip(batch, fates, strict=True):
            if text is not None:
                doc.text = text
                doc.metadata = doc.metadata if changed is None else changed
            answers.append(True if text is not None else (False, reason))
        return answers
