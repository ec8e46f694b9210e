"""Which stages of two pipelines do the same: by code that they reach, parameters, place and versions."""

from dataclasses import replace
from typing import Any

import pytest

from headrace.pipeline.base import Base
from headrace.pipeline.code import fingerprint_of
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.pipeline.unchanged import first_change, unchanged_stages

MODULE = """
import re

LIMIT = 10
WORDS = re.compile("a")


def early(record):
    return helper(record) > LIMIT


def helper(record):
    return len(record["text"])


def late(record):
    return WORDS.search(record["text"])


def build():
    return [early, late]
"""
CALLS = {"function": "mine:early"}


def pipeline(module: str = MODULE, *, floor: int = 3, lock: str = "1", more: tuple[Stage, ...] = ()) -> Pipeline:
    stages = (
        Stage("read", StageKind.SOURCE, "headrace.a:Read", {"input": "x", "batch": floor}, volatile=("batch",)),
        Stage("short", StageKind.TRANSFORM, "headrace.a:Short", {"floor": floor}),
        Stage("early", StageKind.TRANSFORM, "headrace.f:Filter", CALLS, identity={"function_code": module}),
        Stage("late", StageKind.TRANSFORM, "headrace.f:Filter", {"function": "mine:late"}),
        *more,
        Stage("write", StageKind.SINK, "headrace.a:Write"),
    )
    made = Pipeline.chain("p", "file:///out", *stages)
    return replace(made, modules={"mine": module}, environment={"numpy": lock})


def taken(before: Pipeline, now: Pipeline) -> tuple[str, ...]:
    return unchanged_stages(before, now)[0]["read"]


def test_a_path_ends_before_the_first_stage_that_is_another() -> None:
    assert taken(pipeline(), pipeline()) == ("short", "early", "late")
    assert unchanged_stages(pipeline(), pipeline())[1] == {"read": 'stage "write" is the sink'}
    assert first_change(pipeline(), pipeline()) == ""
    other = pipeline(MODULE.replace('compile("a")', 'compile("b")'))
    assert taken(pipeline(), other) == ("short",), "a name of the top level may be read by any function"
    late = pipeline(MODULE.replace("return WORDS", "return not WORDS"))
    assert taken(pipeline(), late) == ("short", "early")
    assert first_change(pipeline(), late) == "late"
    assert taken(pipeline(), pipeline(floor=4)) == ()
    assert "floor: 3 -> 4" in unchanged_stages(pipeline(), pipeline(floor=4))[1]["read"]
    assert taken(pipeline(), pipeline(lock="2")) == ()
    extra = (Stage("new", StageKind.TRANSFORM, "headrace.a:New"),)
    assert taken(pipeline(), pipeline(more=extra)) == ("short", "early", "late")
    assert first_change(pipeline(), pipeline(more=extra)) == "new"
    stateful = (Stage("dedup", StageKind.STATEFUL, "headrace.d:Dedup"),)
    assert "has to see all" in unchanged_stages(pipeline(more=stateful), pipeline(more=stateful))[1]["read"]
    assert taken(replace(pipeline(), stages=pipeline().stages[1:]), pipeline()) == (), "a source that is new"


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("return WORDS", "return not WORDS", True),
        ("return [early, late]", "return []", True),
        ("return len", "return 2 * len", False),
        ("LIMIT = 10", "LIMIT = 11", False),
        ("    return helper(record) > LIMIT", "    return helper(record) < LIMIT", False),
        ("def late", "@early\ndef late", False),
        ("def late(record)", "def late(record, other=early({}))", False),
        ("import re\n", "import re\nimport os\n", False),
        ("return [early, late]", "return globals()", False),
        ("def build():", "def early():", False),
    ],
)
def test_of_a_module_counts_what_a_function_may_reach(before: str, after: str, same: bool) -> None:
    other = MODULE.replace(before, after)
    assert other != MODULE
    assert (fingerprint_of(other, "early") == fingerprint_of(MODULE, "early")) is same


def test_a_text_that_is_no_module_counts_whole() -> None:
    assert fingerprint_of("def early(:", "early") != fingerprint_of("def early(;", "early")
    assert fingerprint_of(MODULE, "nothing") != fingerprint_of(MODULE.replace("> LIMIT", "< LIMIT"), "nothing")


BASE: dict[str, Any] = Base("file:///old", 3, 17, "late", {"v": {"read": ("short",)}}).to_dict()


def test_a_base_is_read_as_it_is_written() -> None:
    assert Base.from_dict(BASE).recipes == {"v": {"read": ("short",)}}
    made = replace(pipeline(), base=Base.from_dict(BASE))
    assert Pipeline.from_dict(made.to_dict()) == made
    assert made.version() == pipeline().version(), "it spares work, and makes nothing else"


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {"version": "3"},
        {"version": True},
        {"entry": -1},
        {"dataset": 7},
        {"changed": None},
        {"again": 1},
        {"recipes": []},
        {"recipes": {"v": ["read"]}},
        {"recipes": {"v": {"read": "short"}}},
        {"recipes": {"v": {"read": [1]}}},
        {"recipes": {"v": {"read": ["s"] * 257}}},
        {"recipes": {str(number): {} for number in range(1001)}},
        {"recipes": {1: {}}},
    ],
)
def test_what_is_no_base_is_refused(wrong: object) -> None:
    given = {**BASE, **wrong} if isinstance(wrong, dict) else wrong
    with pytest.raises(PipelineError, match="not a base"):
        Base.from_dict(given)
    with pytest.raises(PipelineError, match="not a base"):
        Base.from_dict({name: value for name, value in BASE.items() if name != "again"})
