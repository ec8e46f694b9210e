"""Stages inserted into a graph, replaced and removed."""

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline, Stage, StageKind


def stage(name: str, *after: str, kind: StageKind = StageKind.TRANSFORM) -> Stage:
    return Stage(name, kind, f"m:{name}", after=after)


READ, NEW = stage("read", kind=StageKind.SOURCE), stage("new")
CHAIN = Pipeline.chain("p", "file:///p", READ, stage("keep"), stage("write", kind=StageKind.SINK))
#: Two sinks behind one stage.
FORK = Pipeline(
    "p",
    "file:///p",
    (
        READ,
        stage("keep", "read"),
        stage("write", "keep", kind=StageKind.SINK),
        stage("archive", "keep", kind=StageKind.SINK),
    ),
)


def edges(pipeline: Pipeline) -> dict[str, tuple[str, ...]]:
    return {item.name: item.after for item in pipeline.stages}


@pytest.mark.parametrize(
    ("graph", "place", "found"),
    [
        (CHAIN, {"after": "read"}, {"read": (), "new": ("read",), "keep": ("new",), "write": ("keep",)}),
        (CHAIN, {"before": "write"}, {"read": (), "keep": ("read",), "new": ("keep",), "write": ("new",)}),
        (FORK, {"after": "keep"}, {**edges(FORK), "new": ("keep",), "write": ("new",), "archive": ("new",)}),
        (FORK, {"before": "archive"}, {**edges(FORK), "new": ("keep",), "archive": ("new",)}),
        (FORK, {"after": "keep", "before": "write"}, {**edges(FORK), "new": ("keep",), "write": ("new",)}),
    ],
)
def test_a_stage_is_inserted(graph: Pipeline, place: dict[str, str], found: dict[str, tuple[str, ...]]) -> None:
    made = graph.with_inserted(NEW, **place)
    assert edges(made) == found
    assert edges(made.with_removed("new")) == edges(graph)


def test_a_stage_is_replaced_under_its_own_name() -> None:
    assert edges(FORK.with_replaced("keep", NEW)) == {
        "read": (),
        "new": ("read",),
        "write": ("new",),
        "archive": ("new",),
    }
    assert edges(FORK.with_replaced("keep", stage("keep"))) == edges(FORK)


def pair(name: str) -> tuple[Stage, Stage]:
    return stage(f"{name}-keys"), stage(name, kind=StageKind.STATEFUL)


def test_a_stage_that_remembers_comes_and_goes_with_its_keys() -> None:
    deduped = FORK.with_inserted(*pair("dedup"), after="keep")
    assert edges(deduped) == {
        "read": (),
        "keep": ("read",),
        "dedup-keys": ("keep",),
        "dedup": ("dedup-keys",),
        "write": ("dedup",),
        "archive": ("dedup",),
    }
    for part in ("dedup", "dedup-keys"):
        assert edges(deduped.with_removed(part)) == edges(FORK)
        assert edges(deduped.with_replaced(part, *pair("dedup"))) == edges(deduped)
        other = edges(deduped.with_replaced(part, *pair("second")))
        assert (other["second-keys"], other["second"], other["write"]) == (("keep",), ("second-keys",), ("second",))
        assert edges(deduped.with_replaced(part, NEW))["write"] == ("new",)
    assert edges(FORK.with_replaced("keep", *pair("dedup")))["write"] == ("dedup",)
    assert edges(deduped.with_removed("keep"))["dedup-keys"] == ("read",)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda: CHAIN.with_inserted(NEW, after="nope"), "has no stage 'nope'; it has read, keep, write"),
        (lambda: CHAIN.with_inserted(stage("keep"), after="read"), "has a stage 'keep'"),
        (lambda: CHAIN.with_inserted(NEW, after="read", before="write"), "'write' does not read from 'read'"),
        (lambda: CHAIN.with_replaced("keep", stage("write")), "has a stage 'write'"),
        (lambda: CHAIN.with_replaced("nope", NEW), "has no stage 'nope'"),
        (lambda: CHAIN.with_removed("read"), "'read' has no stage on both sides"),
        (lambda: CHAIN.with_removed("write"), "'write' has no stage on both sides"),
    ],
)
def test_what_cannot_be_is_refused(edit: object, words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        edit()  # type: ignore[operator]


def test_several_stages_of_one_call_are_given_as_they_come() -> None:
    flat = Pipeline.chain("p", "file:///p", READ, stage("keys"), stage("judge"), stage("write", kind=StageKind.SINK))
    pair = (stage("keys"), stage("judge"))
    assert Pipeline.chain("p", "file:///p", READ, pair, stage("write", kind=StageKind.SINK)) == flat


@pytest.mark.parametrize("part", ["tokenizer.json", None, [READ, "keep"]])
def test_what_is_no_stage_is_named(part: object) -> None:
    with pytest.raises(PipelineError, match=r"'p': ('tokenizer.json'|None|'keep') is no stage; give stages"):
        Pipeline.chain("p", "file:///p", READ, part)  # type: ignore[arg-type]


def test_modules_of_a_stage_that_goes_go_with_it() -> None:
    """Those stay that another stage names, or that such a one may import."""
    mine = Stage("mine", StageKind.TRANSFORM, "headrace.map:Map", {"function": "filters:clean"}, after=("read",))
    made = CHAIN.with_inserted(mine, after="read")
    modules = {"m": "from lib.words import few", "lib.words": "few = 1", "filters": "import tables", "tables": ""}
    both = Pipeline(made.name, made.dataset, made.stages, modules)
    assert set(both.with_removed("mine").modules) == {"m", "lib.words"}
    assert (
        both.with_removed("mine").version()
        == Pipeline("p", "file:///p", CHAIN.stages, dict([*modules.items()][:2])).version()
    )
    assert set(both.with_replaced("mine", NEW).modules) == {"m", "lib.words"}
    assert both.with_removed("keep").modules == modules


def test_the_package_of_a_module_that_is_used_stays() -> None:
    named = Stage("mine", StageKind.TRANSFORM, "lib.words:few", after=("read",))
    made = CHAIN.with_inserted(named, after="read")
    both = Pipeline(made.name, made.dataset, made.stages, {"lib": "", "lib.words": "", "other": ""})
    assert set(both.with_removed("keep").modules) == {"lib", "lib.words"}
