from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Stage, StageKind
from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.build import build_stage, process_safely
from headrace.stages.runtime.contract import Transform
from headrace.stages.runtime.errors import StageContractError

MakeBatch = Callable[..., Batch]
TEXT = """
from shipped_words import bad

def shout(record):
    if record["text"] == bad:
        raise ValueError("cannot shout " + bad)
    return None if record["text"] == "drop" else {**record, "text": record["text"].upper()}

def lean(rows):
    import pyarrow.compute as pc
    return rows.filter(pc.not_equal(rows.column("text"), "drop"))

def twice(rows):
    import pyarrow as pa
    return pa.Table.from_batches([rows, rows])

def stranger(rows):
    import pyarrow as pa
    return rows.set_column(0, "__row", pa.array(range(100, 100 + rows.num_rows), pa.int64()))

def backwards(rows):
    return rows.sort_by([("__row", "descending")])

def no_dict(record):
    return [record["text"]]

def its_text(record):
    return record["text"]
"""
MODULES = {"shipped_stage": TEXT, "shipped_words": 'bad = "bad"\n'}


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def custom(function: str, kind: str = "Records") -> object:
    target = f"headrace.stages.functions.functions:Map{kind}"
    stage = Stage("mine", StageKind.TRANSFORM, target, {"function": f"shipped_stage:{function}"})
    return build_stage(stage, MODULES)


class Picky(Transform):
    """Raises on a batch that holds a text of "bad"; filters "drop"."""

    def __init__(self) -> None:
        self.calls = 0

    def process(self, batch: Batch) -> Batch:
        self.calls += 1
        texts = batch.rows.column("text").to_pylist()
        if "bad" in texts:
            raise ValueError("a bad\n text")
        return batch.keep(np.array([text != "drop" for text in texts], bool), "picky", ["dropped"] * len(texts))


def test_a_record_that_raises_is_quarantined_alone(batch_of: MakeBatch) -> None:
    texts = [*"abcdefg", "bad", "drop", "h", "bad"]
    picky = Picky()
    answer = process_safely(picky, batch_of(texts, first=5), "picky")
    assert answer.rows.column("text").to_pylist() == [*"abcdefgh"]
    lost = {row["row"]: row for row in answer.verdicts.to_pylist()}
    assert {row: lost[row]["verdict"] for row in lost} == {12: "quarantined", 13: "filtered", 15: "quarantined"}
    assert lost[12]["reason"] == "ValueError: a bad text"
    assert orjson.loads(lost[12]["raw"]) == {"id": "r12", "text": "bad", "metadata": '{"n":1}'}
    assert picky.calls < 2 * len(texts)


def test_where_each_record_raises_each_is_quarantined(batch_of: MakeBatch) -> None:
    answer = process_safely(Picky(), batch_of(["bad"] * 9), "picky")
    assert (answer.rows.num_rows, answer.verdicts.num_rows) == (0, 9)


@pytest.mark.parametrize("function", ["lost", "twice", "stranger"])
def test_an_answer_that_does_not_balance_names_the_stage(batch_of: MakeBatch, function: str) -> None:
    def spoil(batch: Batch) -> Batch:
        if function == "lost":
            return batch.with_rows(batch.rows.slice(1))
        if function == "twice":
            return batch.with_rows(pa.Table.from_batches([batch.rows, batch.rows]).combine_chunks().to_batches()[0])
        return batch.with_rows(batch.rows.set_column(0, "__row", pc.add(batch.rows.column(0), 7)))

    class Spoiler(Transform):
        def process(self, batch: Batch) -> Batch:
            return spoil(batch)

    with pytest.raises(StageContractError, match='stage "spoiler"'):
        process_safely(Spoiler(), batch_of(["a", "b"]), "spoiler")


def test_a_stages_counts_are_single_where_a_record_raises(batch_of: MakeBatch) -> None:
    class Counting(Transform):
        def process(self, batch: Batch) -> Batch:
            counted = batch.counted("lengths", "long", batch.rows.num_rows).counted("lengths", "short", 0)
            if "bad" in batch.rows.column("text").to_pylist():
                raise ValueError("it is bad")
            return counted

    before = batch_of(["a", "b", "bad", "c", "d"]).counted("lengths", "long", 10).counted("urls", "new", 1)
    answer = process_safely(Counting(), before, "lengths")
    assert answer.counters == {"lengths/long": 14, "urls/new": 1}


def test_a_users_function_travels_as_text_and_may_import_another(batch_of: MakeBatch) -> None:
    answer = process_safely(custom("shout"), batch_of(["a", "drop", "bad", "B"]), "mine")  # type: ignore[arg-type]
    assert answer.rows.column("text").to_pylist() == ["A", "B"]
    assert [(row["row"], row["verdict"], row["reason"]) for row in answer.verdicts.to_pylist()] == [
        (1, "filtered", "function returned None"),
        (2, "quarantined", "ValueError: cannot shout bad"),
    ]
    assert answer.edits == {"mine": 1}
    assert answer.rows.column("__lineage").to_pylist() == ['{"edited_by":["mine"]}', None]
    assert answer.rows.column("metadata").to_pylist() == ['{"n":1}', '{"n":1}']


def test_a_traceback_shows_the_lines_of_a_shipped_module() -> None:
    stage = custom("shout")
    with pytest.raises(ValueError, match="cannot shout") as caught:
        stage.function({"text": "bad"})  # type: ignore[attr-defined]
    assert 'raise ValueError("cannot shout " + bad)' in "".join(traceback.format_exception(caught.value))


def test_another_text_of_a_module_replaces_the_first(batch_of: MakeBatch) -> None:
    custom("shout")
    stage = Stage(
        "mine",
        StageKind.TRANSFORM,
        "headrace.stages.functions.functions:MapRecords",
        {"function": "shipped_stage:shout"},
    )
    changed = build_stage(stage, {"shipped_stage": "def shout(record):\n    return record\n"})
    assert changed.process(batch_of(["a"])).edits == {}


def test_rows_that_a_batch_function_leaves_out_are_filtered(batch_of: MakeBatch) -> None:
    answer = process_safely(custom("lean", "Batches"), batch_of(["a", "drop", "b"]), "mine")  # type: ignore[arg-type]
    assert answer.rows.column("text").to_pylist() == ["a", "b"]
    assert answer.verdicts.column("reason").to_pylist() == ["function left it out"]


def test_rows_come_back_in_the_order_of_their_records(batch_of: MakeBatch) -> None:
    answer = process_safely(custom("backwards", "Batches"), batch_of(["a", "b", "c"]), "mine")  # type: ignore[arg-type]
    assert answer.rows.column("__row").to_pylist() == [0, 1, 2]


@pytest.mark.parametrize("function", ["twice", "stranger"])
def test_repeated_and_unknown_rows_are_a_fault_of_the_function(batch_of: MakeBatch, function: str) -> None:
    with pytest.raises(StageContractError, match='stage "mine" returned record'):
        process_safely(custom(function, "Batches"), batch_of(["a", "b"]), "mine")  # type: ignore[arg-type]


def test_a_function_that_returns_no_record_ends_the_run(batch_of: MakeBatch) -> None:
    with pytest.raises(StageContractError, match="return a dict, a reason or None"):
        process_safely(custom("no_dict"), batch_of(["a"]), "mine")  # type: ignore[arg-type]


def test_a_string_filters_a_record_and_is_the_reason(batch_of: MakeBatch) -> None:
    answer = process_safely(custom("its_text"), batch_of(["too short", "no verbs"]), "mine")  # type: ignore[arg-type]
    assert answer.rows.num_rows == 0
    assert [(row["verdict"], row["stage"], row["reason"]) for row in answer.verdicts.to_pylist()] == [
        ("filtered", "mine", "too short"),
        ("filtered", "mine", "no verbs"),
    ]


@pytest.mark.parametrize("text", ["", "x" * 101, "two\nlines"])
def test_what_is_no_line_is_no_reason(batch_of: MakeBatch, text: str) -> None:
    with pytest.raises(StageContractError, match=f"a string of {len(text)} characters"):
        process_safely(custom("its_text"), batch_of([text]), "mine")  # type: ignore[arg-type]


def test_reasons_that_differ_from_record_to_record_end_the_run(batch_of: MakeBatch) -> None:
    stage = custom("its_text")
    process_safely(stage, batch_of([f"reason {n}" for n in range(100)]), "mine")  # type: ignore[arg-type]
    process_safely(stage, batch_of(["reason 7"]), "mine")  # type: ignore[arg-type]
    with pytest.raises(StageContractError, match="more than 100 different reasons, the last 'one more'"):
        process_safely(stage, batch_of(["one more"]), "mine")  # type: ignore[arg-type]


def test_a_function_behind_the_tokenizer_is_told_so(batch_of: MakeBatch) -> None:
    batch = batch_of(["a"])
    blind = batch.with_rows(batch.rows.drop_columns(["text"]))
    with pytest.raises(StageContractError, match="put it before tokenize"):
        process_safely(custom("shout"), blind, "mine")  # type: ignore[arg-type]


def test_a_batch_without_rows_passes(batch_of: MakeBatch) -> None:
    empty = replace(batch_of([]), count=0)
    assert process_safely(custom("shout"), empty, "mine").rows.num_rows == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "target", ["no_such_module:x", "headrace.stages.functions.functions:Nothing", "shipped_stage:lean"]
)
def test_a_target_that_cannot_be_built_names_the_stage(target: str) -> None:
    with pytest.raises(PipelineError, match='stage "mine"'):
        build_stage(Stage("mine", StageKind.TRANSFORM, target, {"unknown": 1}), MODULES)
