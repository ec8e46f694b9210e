"""Filters on texts at hand, without a pipeline: texts in, verdicts with reasons out.

from headrace.stages.library.stages import fineweb_quality, gopher_repetition
from headrace.stages.quality.scorecard.judgement import judge, score

judge(["One text.", "Another."], [gopher_repetition(), fineweb_quality()])
score(["One text."], gopher_repetition())
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.pipeline import Stage
from headrace.stages.runtime import SOURCE_ROWS, Batch, build_stage, no_verdicts, process_safely
from headrace.stages.text import scores_of


@dataclass(frozen=True, slots=True)
class Judgement:
    """What becomes of a text: the text as the stages leave it, or which stage does not keep it and why."""

    kept: bool
    text: str
    stage: str = ""
    #: "filtered", "quarantined"
    verdict: str = ""
    reason: str = ""


def judge(texts: Sequence[str], stages: Sequence[Stage]) -> list[Judgement]:
    """A judgement for each text, which goes through the stages in their order until one does not keep it.

    Stages are those of `headrace.stages.library.stages`, or any that keep or drop records by themselves. A text that is
    not kept is returned as it was given. Raises ValueError for what is no Unicode text (a lone surrogate).
    """
    batch = _batch_of(texts)
    for stage in stages:
        batch = process_safely(build_stage(stage, {}), batch, stage.name)
    found: list[Judgement | None] = [None] * len(texts)
    for row in batch.rows.select(["__row", "text"]).to_pylist():
        found[row["__row"]] = Judgement(True, row["text"])
    for row in batch.verdicts.to_pylist():
        number = int(row["row"])
        found[number] = Judgement(False, texts[number], row["stage"], row["verdict"], row["reason"] or "")
    return [judgement for judgement in found if judgement is not None]


def score(texts: Sequence[str], stage: Stage) -> list[dict[str, Any]]:
    """For each text what the rules of a stage are held against, by name; only of stages that take `tag`."""
    tagging = replace(stage, parameters={**stage.parameters, "tag": True})
    rows = process_safely(build_stage(tagging, {}), _batch_of(texts), stage.name).rows
    scores, _ = scores_of(pa.Table.from_batches([rows]), stage.name)
    return [
        dict(zip(scores, values, strict=True)) for values in zip(*(s.tolist() for s in scores.values()), strict=True)
    ]


def _batch_of(texts: Sequence[str]) -> Batch:
    count = len(texts)
    for number, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"text {number} of {count} is no Unicode text: {error.reason} at {error.start}") from error
    columns = [
        pa.array(range(count), pa.int64()),
        pa.array([str(number) for number in range(count)], pa.string()),
        pa.array(texts, pa.string()),
        pa.nulls(count, pa.string()),
    ]
    rows = pa.record_batch(columns, schema=SOURCE_ROWS)
    size = sum(len(text.encode()) for text in texts)
    return Batch(bytes(16), "texts", 0, count, 0, size, rows, no_verdicts())
