"""A pipeline over the first records of its source, in this process: what `headrace run --limit` shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.pipeline import Pipeline, Stage, StageKind, chain_order
from headrace.stages.runtime import (
    ROW,
    Batch,
    FragmentEnd,
    Source,
    build_stage,
    parts_of,
    process_safely,
    rank,
    reason_class,
    row_keys,
    verdict_keys,
)
from headrace.stages.sinks import count_fates, fates_of_lost
from headrace.store.ledger import UNBOUNDED, Gap

#: Samples that are shown of each reason, of what is kept, and characters of each.
SAMPLES_MAX = 3
SAMPLE_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class Sample:
    """A record and the beginning of its text, or of its bytes where it has no text."""

    id: str
    text: str


@dataclass(slots=True)
class RemovedRecords:
    """Records that one stage removed for one reason: how many, and some of them.

    `count` is of records: one that was split counts once, by the fate that speaks for it, and not at all where a part
    of it is kept. `parts` are those of split records that were removed, whatever became of the rest of their records.
    """

    stage: str
    verdict: str
    reason: str
    count: int = 0
    parts: int = 0
    #: The reason of one of them with its particulars, such as what an error said; empty where none has any.
    example: str = ""
    samples: list[Sample] = field(default_factory=list[Sample])


@dataclass(slots=True)
class Preview:
    """What became of the first records: each has one verdict, and `kept` and the counts of `removed` are all of them.

    `removed` is keyed `stage/reason`, `edited` by stage, `counters` by `stage/name`.
    """

    records_read: int = 0
    bytes_read: int = 0
    kept: int = 0
    filtered: int = 0
    quarantined: int = 0
    duplicate: int = 0
    tokens: int = 0
    tokenizer_engine: str = ""
    removed: dict[str, RemovedRecords] = field(default_factory=dict[str, RemovedRecords])
    edited: dict[str, int] = field(default_factory=dict[str, int])
    counters: dict[str, int] = field(default_factory=dict[str, int])
    samples: list[Sample] = field(default_factory=list[Sample])


def preview(pipeline: Pipeline, limit: int) -> Preview:
    """Run the first `limit` records through the stages before the first sink; nothing is written.

    Raises PipelineError, InputError, StageContractError.
    """
    stages = _path(pipeline)
    source: Source = build_stage(stages[0], pipeline.modules)
    transforms = [(stage.name, build_stage(stage, pipeline.modules)) for stage in stages[1:]]
    for stage, (_, transform) in zip(stages[1:], transforms, strict=True):
        if stage.kind is StageKind.STATEFUL:
            transform.begin(None, 0, ())
    result = Preview()
    for _, transform in transforms:
        result.tokenizer_engine = transform.facts().get("tokenizer_engine", result.tokenizer_engine)
    for batch in _first(source, limit):
        result.records_read += batch.count
        _note_removed(result, batch, None)
        texts = _texts(batch)
        for name, transform in transforms:
            before = batch
            batch = process_safely(transform, before, name)
            _note_removed(result, batch, before)
            if parts_of(batch.rows) is not None and "text" in batch.rows.schema.names:
                texts = _texts(batch)
        _note_kept(result, batch, texts)
    result.bytes_read = source.bytes_read
    return result


def _path(pipeline: Pipeline) -> list[Stage]:
    """The first source and the transforms between it and the first sink that it reaches."""
    ahead = {pipeline.of_kind(StageKind.SINK)[0].name}
    found: list[Stage] = []
    for stage in reversed(chain_order(pipeline.stages)):
        if stage.name in ahead:
            ahead.update(stage.after[:1])
            if stage.kind is not StageKind.SINK:
                found.append(stage)
    return found[::-1]


def _first(source: Source, limit: int) -> Iterator[Batch]:
    """Batches of the first `limit` records, fragment by fragment."""
    left = limit
    for fragment in source.list():
        if fragment is None:
            # More may come: what is there is what a preview shows.
            return
        if left <= 0:
            return
        for item in source.read(fragment, [Gap(0, UNBOUNDED, 0)]):
            if isinstance(item, FragmentEnd) or left <= 0:
                break
            yield _head(item, left)
            left -= item.count


def _head(batch: Batch, count: int) -> Batch:
    if batch.count <= count:
        return batch
    end = batch.first + count
    return replace(batch, count=count, rows=_below(batch.rows, ROW, end), verdicts=_below(batch.verdicts, "row", end))


def _below(table: pa.RecordBatch, column: str, end: int) -> pa.RecordBatch:
    return table.filter(pa.array(np.asarray(table.column(column)) < end))


def _note_removed(result: Preview, batch: Batch, before: Batch | None) -> None:
    """Note the verdicts of `batch` that `before` did not have, but for the records that they amount to."""
    known = set(verdict_keys(before.verdicts).tolist()) if before is not None else set()
    keys = verdict_keys(batch.verdicts).tolist()
    for key, row in zip(keys, batch.verdicts.to_pylist(), strict=True):
        if key in known:
            continue
        entry = _removed(result, row["stage"], row["verdict"], row["reason"])
        entry.parts += row["part"] is not None
        if not entry.example and row["reason"] not in (None, entry.reason):
            entry.example = row["reason"]
        if row["raw"] is not None or len(entry.samples) < SAMPLES_MAX:
            raw = (row["raw"] or b"")[: 4 * SAMPLE_CHARACTERS_MAX].decode("utf-8", "replace")
            entry.samples.append(Sample(row["id"], raw[:SAMPLE_CHARACTERS_MAX]))
            entry.samples = sorted(entry.samples, key=lambda sample: rank(sample.id))[:SAMPLES_MAX]


def _removed(result: Preview, stage: str, verdict: str, reason: str | None) -> RemovedRecords:
    words = reason_class(reason)
    return result.removed.setdefault(f"{stage}/{words}", RemovedRecords(stage, verdict, words))


def _texts(batch: Batch) -> dict[int, str]:
    texts: list[Any] = batch.rows.column("text").to_pylist()
    return dict(zip(row_keys(batch.rows).tolist(), texts, strict=True))


def _note_kept(result: Preview, batch: Batch, texts: dict[int, str]) -> None:
    counts = count_fates([batch], tokens=0, sequences=0, padding=0)
    result.kept += counts.kept
    result.filtered += counts.filtered
    result.quarantined += counts.quarantined
    result.duplicate += counts.duplicate
    for fate in fates_of_lost(batch):
        _removed(result, *fate).count += 1
    for total, new in ((result.edited, counts.edited), (result.counters, counts.counters)):
        total.update({key: total.get(key, 0) + count for key, count in new.items()})
    if "tokens" in batch.rows.schema.names:
        lists: Any = batch.rows.column("tokens")
        result.tokens += int(lists.offsets[len(lists)].as_py()) - int(lists.offsets[0].as_py())
    wanted = max(0, SAMPLES_MAX - len(result.samples))
    head = batch.rows.slice(0, wanted)
    names: list[Any] = head.column("id").to_pylist()
    for key, name in zip(row_keys(head).tolist(), names, strict=True):
        result.samples.append(Sample(name, texts.get(key, "")[:SAMPLE_CHARACTERS_MAX]))
