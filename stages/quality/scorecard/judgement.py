"""Filters on texts at hand, without a pipeline: texts in, verdicts with reasons out.

from headrace.stages.library import fineweb_quality, gopher_repetition
from headrace.stages.quality.scorecard.judgement import judge, score

judge(["One text.", "Another."], [gopher_repetition(), fineweb_quality()])
score(["One text."], gopher_repetition())
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.pipeline import Stage
from headrace.stages.runtime import SOURCE_ROWS, Batch, build_stage, make_schema, no_verdicts, process_safely
from headrace.stages.text import scores_of
from headrace.store.datasets import Dataset, as_shown
from headrace.store.shards import read_table


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

    Stages are those of `headrace.stages.library`, or any that keep or drop records by themselves. A text that is
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


DECISIONS = make_schema(id=pa.string(), fragment=pa.string(), row=pa.int64(), stage=pa.string(), reason=pa.string())


def decide_dataset(uri: str, stages: Sequence[Stage]) -> pa.Table:
    """A row of DECISIONS for each document of the dataset that a stage, with the limits that it has here, filters."""
    dataset = as_shown(Dataset.open(uri))
    found: list[pa.Table] = []
    for shard in dataset.of_main_sink(dataset.shards):
        documents = shard.object("documents")
        if documents is not None:
            found.append(decide(read_table(dataset.store, documents.key), stages))
    return pa.concat_tables(found) if found else DECISIONS.empty_table()


def decide(documents: pa.Table, stages: Sequence[Stage]) -> pa.Table:
    """The same for one documents table; the first stage decides."""
    names: list[str] = []
    reasons: list[str] = []
    # Of each row, 0 or the place in the two lists above, from 1.
    outcome = np.zeros(documents.num_rows, np.int64)
    for stage in stages:
        scores, known = scores_of(documents, stage.name)
        if not known.any():
            continue
        for reason, mask in build_stage(stage, {}).rules(scores):
            names.append(stage.name)
            reasons.append(reason)
            lost = np.flatnonzero(known)[mask]
            outcome[lost[outcome[lost] == 0]] = len(names)
    gone = np.flatnonzero(outcome)
    rows = documents.select(["id", "fragment", "row"]).take(pa.array(gone, pa.int64()))
    places = pa.array(outcome[gone] - 1, pa.int64())
    said = [pa.array(words, pa.string()).take(places) for words in (names, reasons)]
    return pa.table(
        [*(column.cast(DECISIONS.field(i).type) for i, column in enumerate(rows.columns)), *said], schema=DECISIONS
    )
