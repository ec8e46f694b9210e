"""What Python and a notebook show of a pipeline and of its stages: a line, however long their parameters are."""

from __future__ import annotations

from headrace.pipeline import Pipeline, Stage, StageKind

READ = Stage("read", StageKind.SOURCE, "m:Read", {"input": ["/corpus/*.jsonl"], "text_key": "text"})
JUDGE = Stage("judge", StageKind.TRANSFORM, "m:Judge", {"ranges": list(range(1000))})
WRITE = Stage("write", StageKind.SINK, "m:Write")


def test_a_stage_shows_its_kind_and_parameters() -> None:
    assert repr(READ) == "<Stage 'read', a source: input=['/corpus/*.jsonl'], text_key='text'>"
    assert repr(WRITE) == "<Stage 'write', a sink>"


def test_long_parameters_are_cut() -> None:
    shown = repr(JUDGE)
    assert shown.startswith("<Stage 'judge', a transform: ranges=[0, 1, 2, ")
    assert shown.endswith("...>")
    assert len(shown) < 200


def test_a_pipeline_shows_its_stages_in_order() -> None:
    chain = Pipeline.chain("mine", "data/mine", READ, JUDGE, WRITE)
    assert repr(chain) == "<Pipeline 'mine' to data/mine: read, judge, write>"
    assert repr(Pipeline("empty", "data", ())) == "<Pipeline 'empty' to data: no stages>"


def test_a_graph_shows_what_follows_another_than_the_one_before() -> None:
    other = Stage("other", StageKind.SOURCE, "m:Read")
    graph = Pipeline("two", "data", (READ, other, JUDGE.fed_by("read", "other"), WRITE.fed_by("judge")))
    assert repr(graph) == "<Pipeline 'two' to data: read, other (a source), judge (after read and other), write>"
