"""A record that kills its process is found and quarantined with the story, and the others come out as ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from headrace.pipeline.graph import Pipeline
from headrace.stages.batch import PART, ROW, Batch
from headrace.stages.custom import with_column
from headrace.stages.errors import StageContractError
from headrace.stages.library import map_records
from headrace.stages.solitary import Limits, run_alone
from headrace.worker.coverage import fates

SOURCE = """
import ctypes, os, time


def harm(record):
    if record["text"] == "segfault":
        ctypes.string_at(0)
    if record["text"] == "exit":
        os._exit(3)
    if record["text"] == "loop":
        while True:
            time.sleep(0.05)
    if record["text"] == "raise":
        raise ValueError("no")
    if record["text"] == "eat":
        held = bytearray(8 << 30)
    if record["text"] == "drop":
        return None
    return {**record, "text": record["text"].upper()}


def always(record):
    os._exit(4)


def unbuilt(record):
    return 7
"""
LIMITS = Limits(deadline_s=2.0, memory_bytes=6 << 30)
BatchOf = Callable[..., Batch]


def alone(batch: Batch, function: str = "harm", limits: Limits = LIMITS) -> Batch:
    stage = map_records(f"harmful_stage:{function}", name="harm")
    pipeline = Pipeline("p", "file:///x", (stage,), modules={"harmful_stage": SOURCE})
    return run_alone(pipeline, ["harm"], batch, limits)


def test_a_part_of_a_record_that_kills_the_process_is_quarantined_and_its_other_parts_are_not(
    batch_of: BatchOf,
) -> None:
    whole = batch_of(["a", "exit", "b", "c"], first=4)
    rows = with_column(whole.rows, ROW, pa.array([4, 4, 4, 5], pa.int64()))
    rows = with_column(rows, PART, pa.array([0, 1, 2, 0], pa.int32()))
    answer = alone(replace(whole, count=2, rows=rows))
    assert [(row[ROW], row[PART], row["text"]) for row in answer.rows.to_pylist()] == [
        (4, 0, "A"),
        (4, 2, "B"),
        (5, 0, "C"),
    ]
    assert [(row["row"], row["part"]) for row in answer.verdicts.to_pylist()] == [(4, 1)]
    assert fates(answer).tolist() == [True, True]


def test_records_that_do_no_harm_come_out_as_ever(batch_of: BatchOf) -> None:
    answer = alone(batch_of(["a", "drop", "raise", "b"], first=7))
    assert [(row[ROW], row["text"]) for row in answer.rows.to_pylist()] == [(7, "A"), (10, "B")]
    assert {row["row"]: (row["verdict"], row["reason"]) for row in answer.verdicts.to_pylist()} == {
        8: ("filtered", "function returned None"),
        9: ("quarantined", "ValueError: no"),
    }
    assert answer.edits == {"harm": 2}


@pytest.mark.parametrize(
    ("text", "story"),
    [
        ("segfault", "killed its process: the process was killed by signal 11 (SIGSEGV)"),
        ("exit", "killed its process: the process ended with exit code 3"),
        ("loop", "killed its process: it did not return within 2 s"),
        ("eat", "MemoryError: "),
    ],
)
def test_what_kills_the_process_is_that_record_s_alone(batch_of: BatchOf, text: str, story: str) -> None:
    answer = alone(batch_of(["a", text, "b", text, "c"], first=4))
    assert [(row[ROW], row["text"]) for row in answer.rows.to_pylist()] == [(4, "A"), (6, "B"), (8, "C")]
    assert [(row["row"], row["stage"], row["reason"]) for row in answer.verdicts.to_pylist()] == [
        (5, "harm", story),
        (7, "harm", story),
    ]
    assert all(b'"text":"' + text.encode() in row["raw"] for row in answer.verdicts.to_pylist())


def test_a_stage_that_kills_every_process_is_no_fault_of_the_records(
    batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.stages.solitary.DEATHS_MAX", 2)
    with pytest.raises(StageContractError, match=r"stages harm do not work alone either, 3 deaths; the last: .*code 4"):
        alone(batch_of(["a"] * 5), "always")


def test_an_answer_that_is_none_ends_the_run_as_it_does_elsewhere(batch_of: BatchOf) -> None:
    with pytest.raises(StageContractError, match="its function returned int"):
        alone(batch_of(["a"]), "unbuilt")


def test_a_batch_without_rows_starts_no_process(batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.stages.solitary.subprocess.Popen", None)
    assert alone(batch_of([])).rows.num_rows == 0
