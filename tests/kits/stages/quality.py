from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.stages.runtime.batch import SOURCE_ROWS, Batch, no_verdicts


def make_batch(texts: Sequence[str], metadata: Sequence[str | None] | None = None) -> Batch:
    count = len(texts)
    columns = [
        pa.array(range(count), pa.int64()),
        pa.array([f"r{index}" for index in range(count)], pa.string()),
        pa.array(texts, pa.string()),
        pa.array(metadata or [None] * count, pa.string()),
    ]
    rows = pa.record_batch(columns, schema=SOURCE_ROWS)
    return Batch(b"\1" * 16, "file:///in.jsonl", 0, count, 0, 10 * count, rows, no_verdicts())
