"""A command that is spoken to in Arrow IPC: a batch for a batch, and what it fails on is quarantined alone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace.stages.commands import exchange
from headrace.stages.commands.arrow_stream import END_OF_STREAM, ArrowStream
from headrace.stages.commands.command import Command
from headrace.stages.commands.exchange import ArrowExchange, LineExchange
from headrace.stages.commands.process import CommandFailedError
from headrace.stages.library import command
from headrace.stages.runtime.batch import ROW, Batch
from headrace.stages.runtime.build import build_stage
from headrace.stages.runtime.errors import StageContractError
from tests.kits.stages.command import HANGS_S, patience_ends_with_the_hanging, run, wait_for_answers

MakeBatch = Callable[..., Batch]
MakeStage = Callable[..., Command]
#: Answers each batch with what `edit` makes of it.
PROGRAM = """
import os, signal, sys, time
import pyarrow as pa, pyarrow.compute as pc
sys.stdout = sys.stdout.buffer
def edit(batch):
    {edit}
with pa.ipc.open_stream(sys.stdin.buffer) as stream:
    writer = pa.ipc.new_stream(sys.stdout, stream.schema)
    for batch in stream:
        writer.write_batch(edit(batch))
        sys.stdout.flush()
    writer.close()
"""
UPPER = "return batch.set_column(batch.schema.get_field_index('text'), 'text', pc.utf8_upper(batch['text']))"
ODD = f"""
    texts = batch["text"].to_pylist()
    if "exit" in texts:
        print("cannot exit", file=sys.stderr)
        sys.exit(3)
    if "abort" in texts:
        os.kill(os.getpid(), signal.SIGABRT)
    if "hang" in texts:
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(1000)
    if "nonsense" in texts:
        sys.stdout.write(b"no Arrow at all")
        sys.stdout.flush()
    batch = batch.filter(pc.not_equal(batch["text"], "drop"))
    {UPPER}
"""


@pytest.fixture
def stage() -> Iterator[MakeStage]:
    made: list[Command] = []

    def make(edit: str, *arguments: str, **options: Any) -> Command:
        line = [sys.executable, "-c", PROGRAM.format(edit=edit.strip()), *arguments]
        made.append(build_stage(command(line, arrow=True, name="edit", **options), {}))
        return made[-1]

    yield make
    for item in made:
        item.close()


def test_one_process_edits_and_filters_batch_after_batch(
    stage: MakeStage, batch_of: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_answers(monkeypatch)
    built = stage(ODD)
    pids = set()
    for first in range(0, 12, 3):
        assert run(built, batch_of(["a", "drop", "c"], first)) == (
            ["A", "C"],
            {f"r{first + 1}": "filtered: command gave no line"},
        )
        assert built._process is not None
        pids.add(built._process.pid)
    assert run(built, batch_of(["drop"], 12)) == ([], {"r12": "filtered: command gave no line"})
    assert len(pids) == 1


def test_a_large_batch_goes_in_while_its_answer_comes_out(stage: MakeStage, batch_of: MakeBatch) -> None:
    texts = [f"{index} " + "X" * 4000 for index in range(2000)]
    assert run(stage(UPPER), batch_of(texts)) == (texts, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("exit", "command ended with exit code 3: cannot exit"),
        ("abort", "command was killed by signal 6"),
        ("nonsense", "command gave what is no Arrow stream: it begins with b'no Arrow'"),
    ],
)
def test_a_record_that_it_fails_on_is_quarantined_alone(
    stage: MakeStage, batch_of: MakeBatch, text: str, words: str
) -> None:
    texts = [f"t{index}" for index in range(6)]
    texts[4], texts[2] = text, "drop"
    built = stage(ODD)
    kept, lost = run(built, batch_of(texts))
    assert kept == ["T0", "T1", "T3", "T5"]
    assert lost.pop("r2") == "filtered: command gave no line"
    assert list(lost) == ["r4"]
    assert lost["r4"].startswith(f"quarantined: {words}")
    assert run(built, batch_of(["again"], 20)) == (["AGAIN"], {})


def test_a_record_at_which_it_hangs_is_quarantined_alone(
    stage: MakeStage, batch_of: MakeBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience_ends_with_the_hanging(tmp_path / "hangs", monkeypatch)
    built = stage(ODD, str(tmp_path / "hangs"), seconds=HANGS_S)
    kept, lost = run(built, batch_of(["t0", "hang"]))
    assert (kept, list(lost)) == (["T0"], ["r1"])
    assert lost["r1"].startswith(f"quarantined: command did not answer within {HANGS_S} s")
    assert run(built, batch_of(["again"], 20)) == (["AGAIN"], {})


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("return batch.take([1, 0])", "gave back record 0, twice, or later than one that follows it"),
        ("return batch.set_column(1, 'id', pa.array(['x'] * batch.num_rows))", "another id for record 'r0'"),
        (
            "writer.write_batch(batch); return batch",
            "gave (more batches than it got|back record 0, which)",
        ),
        ("return batch.set_column(0, '__row', pa.array([7] * batch.num_rows))", "gave back record 7, which"),
    ],
)
def test_a_command_that_breaks_the_rules_ends_the_run_and_is_named(
    stage: MakeStage, batch_of: MakeBatch, edit: str, words: str
) -> None:
    built = stage(edit)

    def run_two() -> None:
        # A batch too many may come late: then it is no answer to the next.
        run(built, batch_of(["a", "b"]))
        run(built, batch_of(["c", "d"], 2))

    with pytest.raises(StageContractError, match=words) as caught:
        run_two()
    assert 'stage "edit"' in str(caught.value)


def test_a_command_that_ends_without_an_answer_fails(stage: MakeStage, batch_of: MakeBatch) -> None:
    kept, lost = run(stage("sys.exit(0)"), batch_of(["a"]))
    assert kept == []
    assert lost == {"r0": "quarantined: command ended without an answer to its last batch"}


@given(st.lists(st.integers(1, 400), max_size=30))
def test_a_stream_is_read_however_it_is_cut(sizes: list[int]) -> None:
    stream, reader = ArrowStream(), ArrowStream()
    batches = [pa.record_batch({"__row": [index], "text": ["x" * index]}) for index in range(3)]
    data = b"".join(map(stream.encode, batches)) + END_OF_STREAM
    found, at = [], 0
    for size in [*sizes, len(data)]:
        found += reader.take(data[at : at + size])
        at += size
    assert found == batches


@given(st.binary(max_size=200))
def test_bytes_that_are_no_stream_are_refused_or_waited_for(data: bytes) -> None:
    schema = pa.schema([("__row", pa.int64())]).serialize().to_pybytes()
    for start in (b"", b"\xff\xff\xff\xff", schema[: len(schema) // 2], schema):
        with contextlib.suppress(CommandFailedError):
            assert all(isinstance(item, pa.RecordBatch) for item in ArrowStream().take(start + data))


VIEWS = pa.array(["x" * 40, "y"], pa.string_view())
ROWS = pa.record_batch(
    {ROW: pa.array([3, 5]), "id": ["a", "b"], "text": ["one", "two"], "metadata": pa.array([None, None], pa.string())}
)


def answered(**columns: Any) -> dict[int, dict[str, Any]]:
    """What is made of an answer with these columns."""
    exchange = ArrowExchange("numpy", ROWS)
    exchange.stream = ArrowStream()
    exchange.given()
    exchange.take(ArrowStream().encode(pa.record_batch({ROW: pa.array([3, 5]), **columns})))
    return exchange.answers


@pytest.mark.parametrize("text", [VIEWS, VIEWS.cast(pa.string()), VIEWS.cast(pa.large_string())])
def test_text_of_every_kind_is_an_answer(text: Any) -> None:
    assert [answer["text"] for answer in answered(text=text).values()] == ["x" * 40, "y"]


@pytest.mark.parametrize("name", ["text", "metadata", "id", "__part", "mine"])
@pytest.mark.parametrize(
    "column",
    [
        pa.FixedSizeListArray.from_arrays(pa.nulls(1 << 24), 1 << 23),
        pa.array([["a"], None]),
        pa.array([{"a": 1}, None]),
        pa.array([1 << 60, 2], pa.timestamp("s")),
        pa.array([1.5, 2]),
    ],
    ids=["millions of nulls", "lists", "structs", "times", "fractions"],
)
def test_a_column_of_an_impossible_kind_is_refused_packed(name: str, column: Any) -> None:
    with pytest.raises(StageContractError, match=f"{name}.* as "):
        answered(**{name: column})


def test_rows_that_may_share_values_are_refused_at_reading() -> None:
    with pytest.raises(CommandFailedError, match=r"list_view.* write it plainly"):
        answered(mine=pa.ListViewArray.from_arrays([0, 0], [2, 2], pa.array([1, 2])))


def test_views_of_one_text_are_counted_as_often_as_they_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MESSAGE_BYTES_MAX", 199)
    many = pa.array(["x" * 100, "x" * 100], pa.string_view())
    with pytest.raises(StageContractError, match="by views of the same text"):
        answered(text=many)


def test_more_rows_than_were_given_are_refused_at_once() -> None:
    exchange = ArrowExchange("numpy", ROWS.slice(0, 1))
    exchange.stream = ArrowStream()
    exchange.given()
    with pytest.raises(StageContractError, match="2 rows for the 1 that it got"):
        exchange.take(ArrowStream().encode(ROWS))


@pytest.mark.parametrize(("name", "told"), [("text", "two columns 'text'"), (ROW, f"without one column {ROW}")])
def test_two_columns_of_one_name_are_refused(name: str, told: str) -> None:
    exchange = ArrowExchange("numpy", ROWS)
    exchange.stream = ArrowStream()
    exchange.given()
    twice = pa.record_batch([pa.array([3, 5]), ROWS[name], ROWS[name]], names=[ROW, name, name])
    with pytest.raises(StageContractError, match=told):
        exchange.take(ArrowStream().encode(twice))


@pytest.mark.parametrize("part", ["[]", "{}", '"0"', "0.5", "[[]]"])
def test_a_line_whose_part_is_no_number_is_no_answer(part: str) -> None:
    exchange = LineExchange("jq", ROWS)
    with pytest.raises(StageContractError, match="keeps this field as it was"):
        exchange.take(f'{{"__row": 3, "__part": {part}, "text": "a"}}\n'.encode())
