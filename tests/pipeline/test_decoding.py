"""A pipeline comes as JSON from whoever may apply one: what it holds is what it says, and can be written everywhere."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.pipeline.plain import DEPTH_MAX, PIPELINE_CHARACTERS_MAX, parse_pipeline
from headrace.pipeline.validation import REPLICAS_MAX, validate

PIPELINE = Pipeline.chain(
    "run",
    "file:///data",
    Stage("read", StageKind.SOURCE, "m:read", {"input": ["a"]}),
    Stage("write", StageKind.SINK, "m:write", {"seq_len": 8}, replicas=2),
)
PLAIN = PIPELINE.to_dict()


def read(plain: Any) -> Pipeline:
    found = Pipeline.from_dict(parse_pipeline(json.dumps(plain)))
    validate(found)
    return found


def with_stage(**facts: Any) -> dict[str, Any]:
    first, last = PLAIN["stages"]
    return {**PLAIN, "stages": [first, {**last, **facts}]}


def test_what_was_written_is_read() -> None:
    assert read(PLAIN) == PIPELINE


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", "[" * 100_000, '"' + "9" * 10_000, "9" * 10_000])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(PipelineError, match="the pipeline is no"):
        parse_pipeline(text)


def test_more_than_a_pipeline_holds_is_not_parsed() -> None:
    text = json.dumps(PLAIN)
    assert parse_pipeline(text + " " * (PIPELINE_CHARACTERS_MAX - len(text))) == PLAIN
    with pytest.raises(PipelineError, match="the limit is 8,388,608"):
        parse_pipeline(text + " " * (PIPELINE_CHARACTERS_MAX - len(text) + 1))


@pytest.mark.parametrize(
    "plain",
    [
        *({**PLAIN, "name": value} for value in (7, None, ["run"])),
        *({**PLAIN, "dataset": value} for value in (7, None, {}, "\ud800")),
        *({**PLAIN, "stages": value} for value in (7, None, "ab", {"read": 1}, [7], ["read"], [[]])),
        *({**PLAIN, "modules": value} for value in (7, [["a", "b"]], {"a": 7}, {"a": "\ud800"})),
        *({**PLAIN, "environment": value} for value in (7, ["ab"], {"a": None})),
        *(with_stage(kind=value) for value in (7, [], "none")),
        *(with_stage(replicas=value) for value in (0, -1, "2", 1.5, True, [], REPLICAS_MAX + 1)),
        *(with_stage(cores=value) for value in (-1, "1", True, float("nan"), float("inf"), 10**400)),
        *(with_stage(memory_bytes=value) for value in (-1, "1", 1.5, float("inf"), 1 << 70)),
        *(with_stage(parameters=value) for value in (7, ["ab"], [["a", 1]], {"a": 1 << 64}, {"a": "\udfff"})),
        *(with_stage(volatile=value) for value in (7, "ab", [7], [["a"]])),
        *(with_stage(after=value) for value in (7, "read", [7], [["read"]], [{}])),
        *(with_stage(on=value) for value in (1, None)),
    ],
)
def test_a_pipeline_of_other_kinds_is_refused_in_words(plain: Any) -> None:
    with pytest.raises(PipelineError):
        read(plain)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_parameters_are_nested_as_deeply_as_every_writer_can_bear() -> None:
    deepest = with_stage(parameters={"a": nested(DEPTH_MAX - 2)})
    assert msgpack.packb(read(deepest).to_dict())
    with pytest.raises(PipelineError, match="deep"):
        read(with_stage(parameters={"a": nested(DEPTH_MAX + 1)}))
    with pytest.raises(PipelineError, match="deep"):
        read(with_stage(parameters={"a": nested(600)}))
