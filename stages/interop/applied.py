"""A transform outside of a run: told texts instead of batches, or mapped over Arrow tables as Ray Data does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa

from headrace.pipeline import PipelineError, Stage
from headrace.stages.runtime import ROW, SOURCE_ROWS, Batch, InputError, build_stage, no_verdicts, process_safely


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


class StageFunction:
    """See `to_ray`. It travels to Ray's workers as the stage's declaration."""

    def __init__(self, stage: Stage, text_key: str, id_key: str, *, verdicts: bool) -> None:
        self.stage, self.text_key, self.id_key, self.verdicts = stage, text_key, id_key, verdicts
        self.__name__ = f"headrace_{stage.name}"

    def __call__(self, table: pa.Table) -> pa.Table:
        """The rows that are kept, or all with what became of them. Raises InputError for a table without text."""
        names = table.column_names
        if self.text_key not in names:
            known = ", ".join(names[:20])
            raise InputError(f'the rows have no column "{self.text_key}"; they have: {known}; name it with text_key=')
        texts: Any = table.column(self.text_key).cast(pa.string()).to_pylist()
        missing = [index for index, text in enumerate(texts) if text is None]
        ids = table.column(self.id_key).to_pylist() if self.id_key in names else range(len(texts))
        others = table.select([name for name in names if name not in (self.text_key, self.id_key)])
        metadata = others.to_pylist() if others.num_columns else [{}] * len(texts)
        fates = applied(self.stage).fates([str(one) for one in ids], [text or "" for text in texts], metadata)
        for index in missing:
            fates[index] = None, None, "quarantined", f'text is not a string: column "{self.text_key}" is null'
        place = names.index(self.text_key)
        if self.verdicts:
            back = [texts[index] if fate[0] is None else fate[0] for index, fate in enumerate(fates)]
            table = table.set_column(place, self.text_key, pa.array(back, pa.string()))
            table = table.append_column("verdict", pa.array([fate[2] for fate in fates], pa.string()))
            return table.append_column("reason", pa.array([fate[3] or None for fate in fates], pa.string()))
        kept = [index for index, fate in enumerate(fates) if fate[0] is not None]
        back = [fates[index][0] for index in kept]
        rows = table.take(pa.array(kept, pa.int64()))
        return rows.set_column(place, self.text_key, pa.array(back, pa.string()))
