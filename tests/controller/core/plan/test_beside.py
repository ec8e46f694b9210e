"""Two plans of a pipeline that live side by side for a while: what stays, and what gets another name."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, strategies as st

from headrace.controller.core.plan.locality import WorkerFacts
from headrace.controller.core.plan.planner import beside, move, plan
from headrace.controller.core.plan.plans import Plan
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from tests.kits.controller.core import LOG, make_pipeline

TWO = [WorkerFacts(name, 2, name, addresses=("10.0.0.1:1",)) for name in ("w1", "w2")]
DEDUP = Pipeline.chain(
    "run",
    LOG,
    Stage("read", StageKind.SOURCE, "m:read"),
    Stage("dedup", StageKind.STATEFUL, "m:dedup", replicas=1),
    Stage("write", StageKind.SINK, "m:write"),
)


def names(made: Plan) -> set[str]:
    return {task.name for task in made.tasks}


@given(st.integers(1, 6), st.integers(1, 6), st.booleans(), st.booleans(), st.sampled_from([make_pipeline(), DEDUP]))
def test_no_task_that_stays_is_linked_with_one_that_does_not(
    before: int, behind: int, fuse: bool, moved: bool, pipeline: Pipeline
) -> None:
    current = plan(pipeline, TWO, fuse=fuse, replicas=before)
    places = {"write": "w2"} if moved else {}
    wanted = plan(pipeline, TWO, fuse=fuse, replicas=behind, places=places, current=current)
    # A decider that takes no links of other workers has to be started anew for these.
    assume(pipeline is not DEDUP or current.listens("run/dedup.0") or not wanted.listens("run/dedup.0"))
    made, stay = beside(current, wanted, pipeline, TWO, {}, stay=True)
    assert names(current) & names(made) == stay
    assert len(names(made)) == len(made.tasks) == len(wanted.tasks)
    for link in (*current.links, *made.links):
        assert "run/dedup.0" in (link.sender, link.receiver) or (link.sender in stay) == (link.receiver in stay)
    assert sorted((task.stages, task.worker) for task in made.tasks) == sorted(
        (task.stages, task.worker) for task in wanted.tasks
    )
    if pipeline is DEDUP:
        assert "run/dedup.0" in stay
    if fuse and not moved and pipeline is not DEDUP:
        assert len(stay) == min(before, behind) or len(current.tasks) != before


def test_by_another_graph_only_who_is_asked_stays() -> None:
    current = plan(DEDUP, TWO)
    made, stay = beside(current, plan(DEDUP, TWO, current=current), DEDUP, TWO, {}, stay=False)
    assert stay == {"run/dedup.0"}
    assert names(made) & names(current) == stay


def test_beside_a_decider_elsewhere_all_tasks_are_others() -> None:
    current = plan(DEDUP, TWO)
    left = current.task("run/dedup.0").worker
    made, stay = beside(current, move(current, left, TWO), DEDUP, TWO, {}, stay=True)
    assert stay == frozenset()
    assert not names(made) & names(current)
    back, stay = beside(made, plan(DEDUP, TWO), DEDUP, TWO, {}, stay=True)
    assert (stay, names(back)) == (frozenset(), names(current)), "their names are free again"


def test_beside_another_index_all_tasks_are_others() -> None:
    current = plan(DEDUP, TWO)
    made, stay = beside(current, plan(DEDUP, TWO, current=current), DEDUP, TWO, {}, stay=False, anew=True)
    assert (stay, names(made) & names(current)) == (frozenset(), set())


@pytest.mark.parametrize(("before", "behind"), [(4, 2), (2, 4), (3, 2), (1, 3)])
def test_partitions_of_another_number_have_free_names_and_their_roles(before: int, behind: int) -> None:
    current, pipeline = plan(partitioned(before), TWO), partitioned(behind)
    made, _ = beside(current, plan(pipeline, TWO), pipeline, TWO, {}, stay=False, anew=True)
    assert not names(made) & names(current)
    index = [task for task in made.tasks if task.stages == ("dedup",)]
    assert sorted(task.replica % behind for task in index) == [*range(behind)]
    assert {task.name for task in index} == {f"run/dedup.{task.replica}" for task in index}


def partitioned(count: int) -> Pipeline:
    """The graph with so many tasks of its index."""
    stages = [replace(stage, after=(), replicas=count) if stage.name == "dedup" else stage for stage in DEDUP.stages]
    return Pipeline.chain("run", LOG, *(replace(stage, after=()) for stage in stages))


def test_partitions_beside_others_keep_their_roles() -> None:
    pipeline = partitioned(3)
    current = plan(pipeline, TWO)
    made, _ = beside(current, plan(pipeline, TWO, places={"dedup": "w1"}), pipeline, TWO, {}, stay=True)
    assert [task.name for task in made.tasks if task.stages == ("dedup",)] == [f"run/dedup.{n}" for n in (3, 4, 5)]
    again = plan(pipeline, TWO, places={"dedup": "w1"}, current=made)
    assert names(again) == names(made), "whoever is there keeps its name"


def test_there_is_room_for_what_leaves_and_what_comes() -> None:
    stages = [replace(stage, after=(), memory_bytes=60) for stage in make_pipeline().stages]
    pipeline, worker = Pipeline.chain("run", LOG, *stages), WorkerFacts("w1", 2, memory_bytes=540)
    current = plan(pipeline, [worker], replicas=2)
    made = plan(pipeline, [worker], fuse=False, replicas=2, current=current)
    with pytest.raises(PipelineError, match="w1 has not the memory"):
        beside(current, made, pipeline, [worker], {}, stay=True)
    roomy = [replace(worker, memory_bytes=720)]
    assert beside(current, made, pipeline, roomy, {}, stay=True)[1] == frozenset()
