"""Stages from their declarations, and calls into them that survive what a record does to them."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from headrace.pipeline import PipelineError, Stage
from headrace.stages.runtime.batch import (
    QUARANTINED,
    Batch,
    cut_raw,
    join_verdicts,
    no_verdicts,
    row_keys,
    verdict_keys,
)
from headrace.stages.runtime.contract import Transform
from headrace.stages.runtime.errors import InputError, StageContractError
from headrace.stages.runtime.modules import install_modules
from headrace.store.shards import keys_of, rows_of

#: Characters of an exception's message that go into a verdict.
MESSAGE_CHARACTERS_MAX = 300


def build_stage(stage: Stage, modules: Mapping[str, str]) -> Any:
    """The stage's implementation, made from its parameters. Raises PipelineError that names the stage."""
    install_modules(modules)
    implementation = load_target(stage.target, stage.name)
    try:
        return implementation(name=stage.name, **stage.parameters)
    except (PipelineError, InputError):
        raise
    except TypeError as error:
        raise PipelineError(f'stage "{stage.name}": {stage.target} does not take its parameters: {error}') from error


def load_target(target: str, stage: str) -> Any:
    """What the import path `module:name` leads to. Raises PipelineError that names the stage."""
    module_name, _, attribute = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise PipelineError(
            f'stage "{stage}": cannot import {module_name} ({type(error).__name__}: {error}); '
            "install it on every machine that runs the pipeline"
        ) from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise PipelineError(f'stage "{stage}": {module_name} has no {attribute!r}; check the name')
    return found


def process_safely(transform: Transform, batch: Batch, stage_name: str) -> Batch:
    """The batch after the stage; a record that raises is quarantined alone, whatever else the batch holds.

    Raises StageContractError, naming the stage, where the answer does not account for each record exactly once.
    """
    try:
        answer = transform.process(batch)
    except (StageContractError, PipelineError, InputError):
        raise
    except Exception as error:
        if not batch.rows.num_rows:
            raise StageContractError(
                f'stage "{stage_name}" raised {type(error).__name__} on a batch without rows: {error}; '
                "it must give an empty batch back"
            ) from error
        return _without_culprits(transform, batch, stage_name, error)
    _check_answer(answer, batch, stage_name, splits=transform.splits)
    if answer.verdicts.num_rows == batch.verdicts.num_rows:
        return answer
    # Here, since Arrow's functions take longer to import than all else that a task needs.
    from headrace.stages.runtime.samples import with_samples

    return with_samples(answer, batch)


def _without_culprits(transform: Transform, batch: Batch, stage_name: str, error: Exception) -> Batch:
    """Search the halves of the rows for those that raise."""
    count = batch.rows.num_rows
    if count == 1:
        return _quarantined(batch, stage_name, error)
    middle = count // 2
    halves = [batch.rows.slice(0, middle), batch.rows.slice(middle)]
    answers = [
        process_safely(transform, replace(batch, rows=rows, verdicts=no_verdicts(), edits={}, counters={}), stage_name)
        for rows in halves
    ]
    edits, counters = Counter(batch.edits), Counter(batch.counters)
    for answer in answers:
        edits.update(answer.edits)
        counters.update(answer.counters)
    return replace(
        batch,
        rows=join_rows([answer.rows for answer in answers], stage_name),
        verdicts=join_verdicts(batch.verdicts, *(answer.verdicts for answer in answers)),
        edits=dict(edits),
        counters=dict(counters),
    )


def join_rows(parts: list[pa.RecordBatch], stage_name: str) -> pa.RecordBatch:
    """The rows of both; a part may lack a column that the stage makes only where it is needed, such as lineage."""
    filled = [part for part in parts if part.num_rows] or parts[:1]
    if len(filled) == 1:
        return filled[0]
    try:
        tables = [pa.Table.from_batches([part]) for part in filled]
        batches = pa.concat_tables(tables, promote_options="default").combine_chunks().to_batches()
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise StageContractError(
            f'stage "{stage_name}" gives rows of another schema for one part of a batch than for the rest: {error}'
        ) from error
    return batches[0]


def _quarantined(batch: Batch, stage_name: str, error: Exception) -> Batch:
    message = " ".join(str(error).split())[:MESSAGE_CHARACTERS_MAX]
    return quarantine(batch, {0: f"{type(error).__name__}: {message}"}, stage_name)


def quarantine(batch: Batch, reasons: Mapping[int, str], stage_name: str) -> Batch:
    """The batch without the rows at these places, each quarantined for its reason, with the record as a stage saw it.

    Columns that are hidden are left out of that.
    """
    cut: list[tuple[str, bytes]] = []
    places = sorted(reasons)
    for place in places:
        record = batch.rows.slice(place, 1).to_pylist()[0]
        seen = {key: value for key, value in record.items() if not key.startswith("__")}
        raw = orjson.dumps(seen, default=repr, option=orjson.OPT_NON_STR_KEYS)
        cut.append(cut_raw(reasons[place], raw, len(raw)))
    kept = [raw for _, raw in cut]
    return batch.lose(places, stage_name, QUARANTINED, [reason for reason, _ in cut], raw=kept)


def _check_answer(answer: Batch, batch: Batch, stage_name: str, *, splits: bool) -> None:
    """Raise StageContractError unless rows and verdicts of the answer are exactly the records of the batch.

    A stage that splits may give any number of parts for a record, each once.
    """
    if answer is batch or (answer.rows is batch.rows and answer.verdicts is batch.verdicts):
        return
    given = np.sort(np.concatenate([row_keys(batch.rows), verdict_keys(batch.verdicts)]))
    kept = row_keys(answer.rows)
    if splits:
        if len(np.unique(kept)) < len(kept):
            raise StageContractError(f'stage "{stage_name}" gave a part of a record of {batch.uri} back twice')
        kept = keys_of(np.unique(rows_of(kept)), None)
    back = np.sort(np.concatenate([kept, verdict_keys(answer.verdicts)]))
    if np.array_equal(given, back):
        return
    repeated = back[:-1][back[1:] == back[:-1]]
    for what, found in (
        ("gave a record back twice", repeated),
        ("gave back a record that it was not given", np.setdiff1d(back, given)),
        ("lost a record without a verdict", np.setdiff1d(given, back)),
    ):
        if len(found):
            raise StageContractError(
                f'stage "{stage_name}" {what}: record {rows_of(found)[0]} of {batch.uri} ({len(found)} such); '
                "a stage returns each record once, kept or with a verdict"
            )
