"""Limits that are set after the fact: what stages would filter by the scores that they wrote with `tag=True`.

No text is read: the scores stand in the documents table of each shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.pipeline.graph import Stage
from headrace.stages.batch import make_schema
from headrace.stages.build import build_stage
from headrace.store.dataset import Dataset

DECISIONS = make_schema(id=pa.string(), fragment=pa.string(), row=pa.int64(), stage=pa.string(), reason=pa.string())


def decide_dataset(uri: str, stages: Sequence[Stage]) -> pa.Table:
    """A row of DECISIONS for each document of the dataset that a stage, with the limits that it has here, filters."""
    dataset = Dataset.open(uri)
    found: list[pa.Table] = []
    for shard in dataset.shards:
        documents = shard.object("documents")
        if documents is not None:
            content: Any = pa.py_buffer(dataset.store.get(documents.key))
            found.append(decide(pq.read_table(pa.BufferReader(content)), stages))
    return pa.concat_tables(found) if found else DECISIONS.empty_table()


def decide(documents: pa.Table, stages: Sequence[Stage]) -> pa.Table:
    """The same for one table with the columns `id`, `fragment`, `row` and `metadata`; the first stage decides."""
    packed: list[Any] = documents.column("metadata").to_pylist()
    metadata = [orjson.loads(entry) if entry else {} for entry in packed]
    stage_of: list[str | None] = [None] * len(packed)
    reason_of: list[str | None] = [None] * len(packed)
    for stage in stages:
        judge = build_stage(stage, {})
        known = [place for place, entry in enumerate(metadata) if stage.name in entry and stage_of[place] is None]
        if not known:
            continue
        scores = _columns(metadata[place][stage.name] for place in known)
        for reason, mask in judge.rules(scores):
            for place, broken in zip(known, mask.tolist(), strict=True):
                if broken and stage_of[place] is None:
                    stage_of[place], reason_of[place] = stage.name, reason
    columns = [documents.column(name).cast(DECISIONS.field(name).type) for name in ("id", "fragment", "row")]
    table = pa.table([*columns, pa.array(stage_of, pa.string()), pa.array(reason_of, pa.string())], schema=DECISIONS)
    return table.filter(pa.array([stage is not None for stage in stage_of]))


def _columns(entries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    rows = list(entries)
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}
