"""A transform outside of a run: it is built from its declaration, and told texts instead of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa

from headrace.pipeline import PipelineError, Stage
from headrace.stages.runtime import ROW, SOURCE_ROWS, Batch, build_stage, no_verdicts, process_safely


class AppliedStage:
    """A transform outside of a run."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self._transform = stage, build_stage(stage, {})
        if self._transform.splits:
            raise PipelineError(f'stage "{stage.name}" makes several records of one, which fits no filter of others')

    def fates(
        self, ids: Sequence[str], texts: Sequence[str], metadata: Sequence[Mapping[str, Any]]
    ) -> list[tuple[str | None, Any, str, str]]:
        """Of each record its text (None: not kept), its changed metadata or None, the verdict and the reason."""
        packed = [orjson.dumps(fields, default=str).decode() if fields else None for fields in metadata]
        columns: list[Any] = [range(len(ids)), ids, texts, packed]
        rows = pa.record_batch(columns, schema=SOURCE_ROWS)
        batch = Batch(bytes(16), "", 0, len(ids), -1, -1, rows, no_verdicts())
        answer = process_safely(self._transform, batch, self.stage.name)
        found: list[tuple[str | None, Any, str, str]] = [(None, None, "", "")] * len(ids)
        kept = {name: answer.rows.column(name).to_pylist() for name in (ROW, "text", "metadata")}
        for row, text, told in zip(*kept.values(), strict=True):
            found[row] = text, None if told == packed[row] else orjson.loads(told or "{}"), "kept", ""
        for one in answer.verdicts.select(["row", "verdict", "reason"]).to_pylist():
            found[one["row"]] = None, None, one["verdict"], one["reason"]
        return found


@lru_cache(maxsize=64)
def _built(told: bytes) -> AppliedStage:
    return AppliedStage(Stage.from_dict(orjson.loads(told)))


def applied(stage: Stage) -> AppliedStage:
    """The transform of a stage, built once in a process."""
    return _built(orjson.dumps(stage.to_dict()))
