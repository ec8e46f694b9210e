"""What a suite may be, what is refused of it before a run begins, and what of it is the pipeline's identity."""

from __future__ import annotations

import gzip
import json
import pathlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline
from headrace.stages.decontamination import suites
from headrace.stages.decontamination.suites import Item, describe_suites, read_suites
from headrace.stages.library.filters import decontaminate

Write = Callable[..., pathlib.Path]
QA = {"question": "How many mills stand on the river?", "answer": "Seven"}


def items(given: Any) -> tuple[Item, ...]:
    (suite,) = read_suites("d", describe_suites("d", given))
    return suite.items


SHAPES: list[tuple[dict[str, Any], Item]] = [
    (QA, Item(QA["question"], answer="Seven")),
    ({"problem": "p", "solution": "s", "level": 3}, Item("p", answer="s")),
    ({"prompt": "def mill():", "completion": "return 7"}, Item("def mill():", answer="return 7")),
    ({"text": "t", "source": "x"}, Item("t")),
    ({"passage": "p", "question": "q", "answer": True}, Item("q", answer="yes", passage="p")),
    ({"context": "c", "question": "q", "answers": {"text": ["a", "b"]}}, Item("q", passage="c")),
    ({"question": "q", "choices": ["x", "y"], "answer": 1}, Item("q", ("x", "y"), "y")),
    ({"question": "q", "choices": ["x", "y"], "answer": "B"}, Item("q", ("x", "y"), "y")),
    ({"question": "q", "choices": ["x", "y"], "answer": "(a)"}, Item("q", ("x", "y"), "x")),
    ({"question": "q", "options": ["x", "y"], "answer": "y"}, Item("q", ("x", "y"), "y")),
    ({"question": "q", "choices": [3, 4], "answer": "1"}, Item("q", ("3", "4"), "4")),
    (
        {"question": "q", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "1"},
        Item("q", ("x", "y"), "x"),
    ),
    ({"question": "q", "answer": None}, Item("q")),
    ({"question": "q", "answer": 1}, Item("q", answer="1")),
    ({"question": "q", "answer": 0}, Item("q", answer="0")),
]


@pytest.mark.parametrize(
    ("record", "item"), SHAPES, ids=lambda value: "/".join(value) if isinstance(value, dict) else ""
)
def test_a_shape_is_told_by_the_names_of_its_fields(write_jsonl: Write, record: dict[str, Any], item: Item) -> None:
    assert items(str(write_jsonl(record, record))) == (item, item)


def test_fields_may_be_named_and_lie_within_others(write_jsonl: Write) -> None:
    path = write_jsonl({"query": "q", "question": "not this", "gold": {"texts": ["a", "b"]}})
    given = {"input": str(path), "name": "a b", "question": "query", "answer": "gold.texts"}
    assert items(given) == (Item("q", answer="a"),)


def test_the_same_items_are_the_same_suite_in_any_file(tmp_path: pathlib.Path) -> None:
    records = [QA, {"question": "What is ground there?", "answer": "Barley"}]
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "s.jsonl").write_bytes(lines)
    (tmp_path / "s.jsonl.gz").write_bytes(gzip.compress(lines))
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "s.parquet")
    given = [
        str(tmp_path / "a" / "s.jsonl"),
        str(tmp_path / "a"),
        (tmp_path / "s.parquet").as_uri(),
        str(tmp_path / "s.jsonl.gz"),
    ]
    tables = [{"input": one, "name": "s"} for one in given]
    versions = {Pipeline.chain("p", "d", decontaminate(table)).version() for table in tables}
    assert len(versions) == 1
    (tmp_path / "a" / "s.jsonl").write_bytes(lines.replace(b"Barley", b"barley"))
    assert Pipeline.chain("p", "d", decontaminate(tables[0])).version() not in versions


def test_a_threshold_and_a_tag_are_of_the_version_too(write_jsonl: Write) -> None:
    path = str(write_jsonl(QA))
    stages = decontaminate(path), decontaminate(path, threshold=0.9), decontaminate(path, tag=True)
    assert len({Pipeline.chain("p", "d", stage).version() for stage in stages}) == 3


BAD: list[tuple[Any, str]] = [
    ([], "suites is []; give paths or URIs"),
    ([7], "suite 7 is no path and no table"),
    ({"name": "x"}, "has no input: name its file"),
    ({"input": "in.jsonl", "pasage": "p"}, "suite has pasage='p'; it takes input, name, question"),
    ({"input": "in.jsonl", "answer": "a"}, "names fields, and none for question"),
    ({"input": "in.jsonl", "name": "a/b"}, "is called 'a/b'"),
    (["in.jsonl", "other/in.jsonl"], "two suites are called 'in'"),
    ("none.jsonl", "no file matches"),
    ("in.txt", "in.txt' is neither JSON Lines nor Parquet by its name"),
    (["in.jsonl"] * 300, "300 suites; the limit is 256"),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_list_of_suites_is_refused_in_one_line(
    write_jsonl: Write, monkeypatch: pytest.MonkeyPatch, given: Any, message: str
) -> None:
    monkeypatch.chdir(write_jsonl(QA, name="in.jsonl").parent)
    pathlib.Path("in.txt").write_text("a")
    with pytest.raises(PipelineError) as caught:
        decontaminate(given)
    assert message in str(caught.value)
    assert str(caught.value).startswith('stage "decontaminate": ')
    assert "\n" not in str(caught.value)


BAD_ITEMS: list[tuple[list[Any], str]] = [
    ([], "has no item"),
    ([b"\n\n"], "has no item"),
    ([{"title": "x"}], 'suite "in": item 0 has none of the fields question, problem, prompt, text with a text'),
    ([QA, {"answer": "a"}], 'suite "in" item 1: no text: the record has no field "question"'),
    ([QA, {"question": "q"}], 'suite "in" item 1 has no field "answer"'),
    ([QA, {"question": 7, "answer": "a"}], 'item 1: text is not a string: field "question" holds a number'),
    ([QA, {"question": " \n", "answer": "a"}], "item 1: its question is empty"),
    ([QA, b'{"question": "\xff", "answer": "a"}\n'], "item 1: invalid UTF-8"),
    ([QA, b"{\n"], "item 1: malformed JSON"),
    ([QA, b"[]\n"], "item 1: not a JSON object"),
    ([QA, {"question": "q" * suites.ITEM_BYTES_MAX, "answer": "a"}], "item 1: line too long"),
    ([QA, {"question": "q", "answer": {"a": 1}}], "item 1: its answer is dict, and no text"),
    ([{"question": "q", "choices": "xy", "answer": 1}], 'item 0: field "choices" is no list of at most 256 choices'),
    ([{"question": "q", "choices": [], "answer": 1}], 'item 0: field "choices" is no list'),
    ([{"question": "q", "choices": [["x"]], "answer": 0}], 'item 0: field "choices" holds a choice that is no text'),
    ([{"question": "q", "choices": ["x", "y"], "answer": 2}], "item 0: its answer '2' is none of its 2 choices"),
    ([{"question": "q", "choices": ["x", "y"], "answer": -1}], "item 0: its answer '-1' is none of its 2 choices"),
    ([{"question": "q", "choices": ["x", "y"], "answer": "²"}], "item 0: its answer '²' is none of its 2 choices"),
    ([{"question": "q", "choices": ["x", "y"], "answer": "9" * 5000}], "9' is none of its 2 choices"),
    ([{"question": "q", "passage": 3}], 'item 0: field "passage" is no string'),
]


@pytest.mark.parametrize(("records", "message"), BAD_ITEMS, ids=[message for _, message in BAD_ITEMS])
def test_a_bad_item_is_named_in_one_line(write_jsonl: Write, records: list[Any], message: str) -> None:
    with pytest.raises(PipelineError) as caught:
        decontaminate(str(write_jsonl(*records, name="in.jsonl")))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("limit", "value"), [("ITEMS_MAX", 1), ("SUITES_BYTES_MAX", 60)])
def test_more_items_than_the_limit_are_refused(
    write_jsonl: Write, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    path = str(write_jsonl(QA, QA))
    decontaminate(path)
    monkeypatch.setattr(suites, limit, value)
    with pytest.raises(PipelineError, match=r"suites hold more than .* leave some out"):
        decontaminate(path)


def test_a_parquet_file_without_the_field_or_with_bad_bytes_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "s.parquet"
    pq.write_table(pa.table({"title": ["x"]}), path)
    with pytest.raises(PipelineError, match='suite "s": item 0 has none of the fields'):
        decontaminate(str(path))
    pq.write_table(pa.table({"question": pa.array([b"ok", b"\xff"], pa.binary())}), path)
    with pytest.raises(PipelineError, match='suite "s" item 1: invalid UTF-8'):
        decontaminate(str(path))
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(PipelineError, match='suite "s"'):
        decontaminate(str(path))


def test_a_suite_that_changed_since_it_was_declared_is_refused(write_jsonl: Write) -> None:
    tables = describe_suites("d", str(write_jsonl(QA)))
    write_jsonl({**QA, "answer": "Eight"})
    with pytest.raises(PipelineError, match=r'suite "input" .* is not what it was when it was declared'):
        read_suites("d", tables)
