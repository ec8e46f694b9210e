"""Stages that make several records of one: the parts balance by the record that they come from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.stages import library
from headrace.stages.library import map_batches, map_records
from headrace.stages.runtime.batch import PART, QUARANTINED, ROW, Batch, join_verdicts, make_verdicts
from headrace.stages.runtime.build import build_stage, process_safely
from headrace.stages.runtime.contract import Transform
from headrace.stages.runtime.errors import StageContractError
from headrace.stages.shipping.preview_run import preview
from headrace.stages.sinks.sidecars import count_fates
from headrace.stages.sources.objects.preflight_check import preflight
from headrace.store.shards.core.parts import broken_rows, keys_of
from headrace.worker.task.batch.coverage import ConservationError, fates

MakeBatch = Callable[..., Batch]
TEXT = """
def words(record):
    if record["text"] == "bad":
        raise ValueError("a bad text")
    return [{"text": word, "metadata": {"of": record["id"]}} for word in record["text"].split()]

def one(record):
    return record

def twice(rows):
    import pyarrow as pa
    return pa.Table.from_batches([rows, rows])

def short(record):
    return record if len(record["text"]) < 3 else None
"""
MODULES = {"split_stage": TEXT}
BOOM = """
def short_or_boom(record):
    if record["text"] == "boom":
        raise ValueError("a bad part")
    return short(record)
"""


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    sys.modules.pop("split_stage", None)


def stage(function: str, **options: Any) -> Any:
    declared = (map_batches if function == "twice" else map_records)(f"split_stage:{function}", **options)
    return build_stage(declared, MODULES)


def rows_of(batch: Batch) -> list[tuple[int, int, str, str]]:
    return [(row[ROW], row[PART], row["id"], row["text"]) for row in batch.rows.to_pylist()]


def test_each_part_has_its_number_and_a_name_made_of_it(batch_of: MakeBatch) -> None:
    before = batch_of(["a b c", "", "bad", "d"], first=5)
    ids = before.rows.column("id").to_pylist()
    answer = process_safely(stage("words", splits=True), before, "words")
    assert rows_of(answer) == [
        (5, 0, f"{ids[0]}/0", "a"),
        (5, 1, f"{ids[0]}/1", "b"),
        (5, 2, f"{ids[0]}/2", "c"),
        (8, 0, f"{ids[3]}/0", "d"),
    ]
    assert answer.rows.column("metadata").to_pylist()[0] == f'{{"of":"{ids[0]}"}}'
    lost = [(row["row"], row["part"], row["verdict"], row["reason"]) for row in answer.verdicts.to_pylist()]
    assert sorted(lost) == [
        (6, None, "filtered", "function returned no parts"),
        (7, None, "quarantined", "ValueError: a bad text"),
    ]
    assert fates(answer).tolist() == [True, False, False, True]
    assert answer.edits == {"words": 1}


def test_a_batch_function_may_give_a_row_back_any_number_of_times(batch_of: MakeBatch) -> None:
    answer = process_safely(stage("twice", splits=True), batch_of(["a", "b"]), "twice")
    assert [row[:2] + row[3:] for row in rows_of(answer)] == [(0, 0, "a"), (0, 1, "a"), (1, 0, "b"), (1, 1, "b")]
    with pytest.raises(StageContractError, match=r'stage "twice" returned record 0 twice: .* splits=True'):
        process_safely(stage("twice"), batch_of(["a", "b"]), "twice")


def test_a_function_that_splits_returns_a_list(batch_of: MakeBatch) -> None:
    with pytest.raises(StageContractError, match=r"returned dict for record .* returns a list of records"):
        process_safely(stage("one", splits=True), batch_of(["a"]), "one")


def test_a_record_is_kept_where_one_of_its_parts_is(batch_of: MakeBatch) -> None:
    batch = process_safely(stage("words", splits=True), batch_of(["a long b", "longer longest", "c"]), "words")
    answer = process_safely(stage("short"), batch, "short")
    assert [row[:2] for row in rows_of(answer)] == [(0, 0), (0, 2), (2, 0)]
    assert fates(answer).tolist() == [True, False, True]
    counts = count_fates([answer], tokens=0, sequences=0, padding=0)
    assert (counts.kept, counts.filtered, counts.records) == (2, 1, 3)
    assert counts.filtered_by == {"short/function returned None": 1}
    assert sorted((row["row"], row["part"]) for row in answer.verdicts.to_pylist()) == [(0, 1), (1, 0), (1, 1)]


def test_the_gravest_verdict_of_parts_speaks_for_a_lost_record(batch_of: MakeBatch) -> None:
    batch = process_safely(stage("words", splits=True), batch_of(["longer longest"]), "words")
    answer = process_safely(stage("short"), batch, "short")
    second = answer.verdicts.slice(1, 1)
    bad = make_verdicts(
        rows=second.column("row"), ids=second.column("id"), parts=second.column("part"), stage="x",
        verdict=QUARANTINED, reasons=["why"], raw=[b""],
    )  # fmt: skip
    mixed = replace(answer, verdicts=join_verdicts(answer.verdicts.slice(0, 1), bad))
    counts = count_fates([mixed], tokens=0, sequences=0, padding=0)
    assert (counts.filtered, counts.quarantined, counts.quarantined_by) == (0, 1, {"x/why": 1})


def test_a_part_that_is_lost_or_repeated_is_found(batch_of: MakeBatch) -> None:
    batch = process_safely(stage("words", splits=True), batch_of(["a b c"]), "words")

    class Loses(Transform):
        def process(self, batch: Batch) -> Batch:
            return replace(batch, rows=batch.rows.slice(1))

    with pytest.raises(StageContractError, match="lost a record without a verdict: record 0"):
        process_safely(Loses(), batch, "loses")
    for places in ([0, 2], [0, 0, 1, 2]):
        with pytest.raises(ConservationError, match=r"record 0 has \d fates, not one"):
            fates(replace(batch, rows=batch.rows.take(pa.array(places))))


def test_rows_that_are_not_whole_are_broken() -> None:
    rows = np.array([1, 1, 2, 3, 3, 4, 4, 5, 6, 6], np.int64)
    parts = pa.array([0, 1, None, None, None, None, 0, 1, 1, 0], pa.int32())
    assert broken_rows(keys_of(rows, parts)).tolist() == [3, 4, 5]
    assert broken_rows(keys_of(rows[:0], None)).tolist() == []


def test_a_record_is_split_once_on_its_way() -> None:
    first = Stage(
        "first", StageKind.TRANSFORM, "headrace.stages.functions.split:SplitRecords", {"function": "split_stage:words"}
    )
    second = replace(first, name="second", after=("first",))
    with pytest.raises(PipelineError, match='"second" splits records that stage "first" has split: do both in one'):
        preflight(Pipeline("p", "d", (first, second), modules=MODULES))


def test_a_preview_counts_a_record_that_was_split_once(write_jsonl: Callable[..., Path]) -> None:
    # Kept in part, lost whole in four parts, lost whole by the graver of two reasons, kept whole, and lost unsplit.
    texts = ["aa bbb cc dddd", "xxx yyyy zzz wwww", "qqqq boom", "ab", "bad"]
    path = write_jsonl(*({"id": text, "text": text} for text in texts))
    write = library.write_documents()
    stages = (
        library.read_jsonl(str(path)),
        map_records("split_stage:words", splits=True),
        map_records("split_stage:short_or_boom", name="short"),
        write,
    )
    pipeline = replace(Pipeline.chain("x", "d", *stages), modules={**MODULES, "split_stage": TEXT + BOOM})
    found = preview(pipeline, len(texts))
    assert (found.records_read, found.kept, found.filtered, found.quarantined) == (5, 2, 1, 2)
    counts = {key: (item.count, item.parts) for key, item in found.removed.items()}
    assert counts == {
        "words/ValueError": (1, 0),
        "short/function returned None": (1, 7),
        "short/ValueError": (1, 1),
    }
    assert found.kept + sum(item.count for item in found.removed.values()) == found.records_read
