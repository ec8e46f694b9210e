"""Batches of a run with a base: what it had lost leaves at the source, the rest passes what it passed there."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.pipeline import Base, Pipeline, Stage
from headrace.stages.runtime import (
    ROW,
    VERDICTS,
    Batch,
    Transform,
    build_stage,
    join_verdicts,
    no_verdicts,
    ordinals_of,
    process_safely,
)
from headrace.stages.shipping import can_wait
from headrace.store.history import BaseVerdicts, EarlierVerdicts, open_earlier
from headrace.worker.task.batch.coverage import ranges_of

#: What the source counts: records that the base has closed, and that were not judged again by unchanged stages.
TAKEN_OVER = "taken over"


_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Passed:
    """A batch, and the stages that its records have passed but those that are `open`, ordinals of the batch."""

    batch: Batch
    stages: frozenset[str]
    open: npt.NDArray[np.int64]

    def through(self, batch: Batch, judge: Transform, name: str) -> Batch:
        """The batch behind one of these stages: only what is open is judged."""
        rows = ordinals_of(batch.rows.column(ROW))
        here = np.isin(rows, self.open)
        if not here.any():
            return batch
        part = replace(batch, rows=batch.rows.filter(pa.array(here)), verdicts=no_verdicts())
        answer = process_safely(judge, part, name)
        kept = ~here | np.isin(rows, ordinals_of(answer.rows.column(ROW)))
        return replace(
            batch,
            rows=batch.rows.filter(pa.array(kept)),
            verdicts=join_verdicts(batch.verdicts, answer.verdicts),
            counters=answer.counters,
        )


class Deferred(Transform):
    """A stage that judges, made when it is given the first records."""

    merges = True
    judges = True

    def __init__(self, stage: Stage, modules: Mapping[str, str]) -> None:
        self._stage, self._modules = stage, modules
        self._built: Any = None

    def process(self, batch: Batch) -> Batch:
        """See `Transform`."""
        if self._built is None:
            self._built = build_stage(self._stage, self._modules)
        answer: Batch = self._built.process(batch)
        return answer


def build_or_defer(pipeline: Pipeline, stage: Stage) -> Any:
    """The stage; or, where its base says of most records that they have passed it, what makes it for the others."""
    waits = pipeline.base is not None and stage.name in pipeline.base.passed
    if waits and can_wait(stage.target, stage.parameters):
        return Deferred(stage, pipeline.modules)
    return build_stage(stage, pipeline.modules)


class Takeover:
    """What a base says of the batches of one source."""

    def __init__(self, base: Base, source: str, judges: frozenset[str]) -> None:
        self._base, self._source, self._judges = base, source, judges
        self._earlier: EarlierVerdicts | None = None
        self._is_open = False

    @staticmethod
    def of(pipeline: Pipeline, source: str, transforms: Sequence[tuple[str, Transform]]) -> Takeover | None:
        """That of a task with these transforms; None without a base or a source."""
        if pipeline.base is None or not source:
            return None
        whole = itertools.takewhile(lambda item: not item[1].splits, transforms)
        judges = {name for name, stage in whole if stage.judges and not pipeline.stage(name).parameters.get("tag")}
        return Takeover(pipeline.base, source, frozenset(judges))

    def over(self, batch: Batch) -> Passed:
        """The batch less what the base's unchanged stages had lost, and what the rest has passed."""
        nothing = Passed(batch, frozenset(), _NONE)
        if not self._is_open:
            self._earlier, self._is_open = open_earlier(self._base), True
        if self._earlier is None:
            return nothing
        found: list[tuple[int, BaseVerdicts]] = []
        at = batch.first
        for item in ranges_of(batch):
            earlier = self._earlier.over(item.fragment, item.first, item.count)
            if earlier is None:
                return nothing
            found.append((at - item.first, earlier))
            at += item.count
        passed = frozenset.intersection(*(earlier.passed for _, earlier in found))
        lost = np.concatenate([earlier.rows + shift for shift, earlier in found])
        again = np.concatenate([earlier.open + shift for shift, earlier in found])
        batch = batch.counted(self._source, TAKEN_OVER, batch.count - len(again) if passed else 0)
        if not len(lost):
            return Passed(batch, passed & self._judges, again)
        verdicts = pa.Table.from_batches([earlier.verdicts for _, earlier in found]).combine_chunks().to_batches()[0]
        rows = ordinals_of(batch.rows.column(ROW))
        # What its source gives a verdict now has no row.
        there = np.isin(lost, rows)
        return Passed(
            _without(batch, np.isin(rows, lost), verdicts.filter(pa.array(there))), passed & self._judges, again
        )


def _without(batch: Batch, gone: npt.NDArray[np.bool_], verdicts: pa.RecordBatch) -> Batch:
    lost = batch.rows.select([ROW, "id"]).filter(pa.array(gone))
    columns = {"row": lost.column(ROW), "id": lost.column("id")} | dict(
        zip(verdicts.schema.names, verdicts.columns, strict=True)
    )
    taken = pa.RecordBatch.from_arrays(
        [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(lost.num_rows, field.type)
            for field in VERDICTS
        ],
        schema=VERDICTS,
    )
    return replace(batch, rows=batch.rows.filter(pa.array(~gone)), verdicts=join_verdicts(batch.verdicts, taken))
