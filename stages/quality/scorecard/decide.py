"""Limits that are set after the fact: what stages would filter by the scores that they wrote with `tag=True`.

No text is read: the scores stand in the documents table of each shard.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headrace.pipeline import Stage
from headrace.stages.runtime import build_stage, make_schema
from headrace.stages.text import scores_of
from headrace.store.datasets import Dataset
from headrace.store.shards import read_table

DECISIONS = make_schema(id=pa.string(), fragment=pa.string(), row=pa.int64(), stage=pa.string(), reason=pa.string())


def decide_dataset(uri: str, stages: Sequence[Stage]) -> pa.Table:
    """A row of DECISIONS for each document of the dataset that a stage, with the limits that it has here, filters."""
    dataset = Dataset.open(uri)
    found: list[pa.Table] = []
    for shard in dataset.shards:
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
