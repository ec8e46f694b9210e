"""The plan: fusing, shares, links and what cannot be planned."""

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.controller.core.plan.locality import WorkerFacts
from headrace.controller.core.plan.planner import TASKS_A_WORKER_MAX, groups, move, plan
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from tests.kits.controller.core import LOG, make_pipeline

ONE = [WorkerFacts("w1", 1)]


def stage(name: str, after: tuple[str, ...] = (), replicas: int | None = None) -> Stage:
    kind = StageKind.SOURCE if not after else StageKind.SINK if name.startswith("write") else StageKind.TRANSFORM
    return Stage(name, kind, f"m:{name}", replicas=replicas, after=after)


def graph(*stages: Stage) -> Pipeline:
    return Pipeline("p", LOG, stages)


FORK = graph(stage("read"), stage("a", ("read",)), stage("write", ("a",)), stage("write2", ("a",)))
JOIN = graph(stage("read"), stage("read2"), stage("write", ("read", "read2")))


@pytest.mark.parametrize(
    ("pipeline", "fuse", "chains"),
    [
        (make_pipeline(), True, [("read", "keep", "write")]),
        (make_pipeline(), False, [("read",), ("keep",), ("write",)]),
        (make_pipeline(replicas=2), True, [("read",), ("keep",), ("write",)]),
        (graph(stage("read"), stage("a", ("read",), 2), stage("write", ("a",), 2)), True, [("read",), ("a", "write")]),
        (FORK, True, [("read", "a"), ("write",), ("write2",)]),
        (JOIN, True, [("read",), ("read2",), ("write",)]),
    ],
    ids=["a chain", "unfused", "other replicas", "equal replicas", "a fork", "a join"],
)
def test_stages_are_fused_where_one_follows_one(pipeline: Pipeline, fuse: bool, chains: list[tuple[str, ...]]) -> None:
    assert groups(pipeline, fuse=fuse) == chains


@pytest.mark.parametrize(
    ("cores", "replicas", "placed"),
    [
        ((1,), 0, ["w0"]),
        ((3,), 0, ["w0"] * 3),
        ((1, 2), 0, ["w0", "w1", "w1"]),
        ((1, 2), 3, ["w0", "w0", "w1"]),
        ((4, 4), 1, ["w0"]),
        ((0,), 0, ["w0"]),
    ],
    ids=["one core", "three cores", "two workers", "three asked for", "fewer than workers", "no core is one"],
)
def test_replicas_are_the_cores_or_an_equal_share_of_what_was_asked(
    cores: tuple[int, ...], replicas: int, placed: list[str]
) -> None:
    workers = [WorkerFacts(f"w{index}", count) for index, count in enumerate(cores)]
    assert [task.worker for task in plan(make_pipeline(), workers, replicas=replicas).tasks] == placed


def test_links_join_each_task_to_the_next_group_on_its_worker() -> None:
    made = plan(make_pipeline(), [WorkerFacts("w1", 1), WorkerFacts("w2", 2)], fuse=False)
    assert [link.name for link in made.links] == [
        "run/read.0->keep.0",
        "run/read.1->keep.1",
        "run/read.1->keep.2",
        "run/read.2->keep.1",
        "run/read.2->keep.2",
        "run/keep.0->write.0",
        "run/keep.1->write.1",
        "run/keep.1->write.2",
        "run/keep.2->write.1",
        "run/keep.2->write.2",
    ]
    assert {made.task(link.sender).worker == made.task(link.receiver).worker for link in made.links} == {True}


def test_a_stage_of_one_replica_keeps_the_whole_pipeline_on_one_worker() -> None:
    made = plan(make_pipeline(replicas=1), [WorkerFacts("w1", 2), WorkerFacts("w2", 2)])
    assert [task.name for task in made.tasks] == [
        "run/read.0",
        "run/read.1",
        "run/keep.0",
        "run/write.0",
        "run/write.1",
    ]
    assert {task.worker for task in made.tasks} == {"w1"}


def test_what_a_lost_worker_ran_is_moved_whole() -> None:
    workers = [WorkerFacts("w1", 1), WorkerFacts("w2", 1)]
    made = move(plan(make_pipeline(), workers, fuse=False), "w1", workers[1:])
    assert {task.worker for task in made.tasks} == {"w2"}
    assert len(made.tasks) == 6


def test_no_worker_is_an_error_that_says_what_to_start() -> None:
    with pytest.raises(PipelineError, match="no worker is registered; start one with `headrace worker`"):
        plan(make_pipeline(), [])


def test_too_many_tasks_on_a_worker_are_an_error_with_the_limit() -> None:
    with pytest.raises(PipelineError, match=f"1 worker would run {TASKS_A_WORKER_MAX + 1} tasks, the limit is"):
        plan(make_pipeline(), ONE, replicas=TASKS_A_WORKER_MAX + 1)


@pytest.mark.parametrize("asked", [{"replicas": 2**31 - 1}, {"counts": {"read": 2**31 - 1}}])
def test_billions_of_tasks_are_refused_before_one_is_made(asked: dict[str, Any]) -> None:
    tracemalloc.start()
    with pytest.raises(PipelineError, match="tasks, the limit is"):
        plan(make_pipeline(), ONE, **asked)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 20


@pytest.mark.parametrize("asked", [{"replicas": -1}, {"counts": {"read": -5}}])
def test_fewer_tasks_than_one_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match="give 1 or more"):
        plan(make_pipeline(), ONE, **asked)


def test_an_unknown_task_has_no_plan() -> None:
    with pytest.raises(KeyError, match="run/no"):
        plan(make_pipeline(), ONE).task("run/no")


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 9), st.booleans(), st.randoms())
def test_a_plan_follows_from_its_arguments_and_every_task_is_reached(
    cores: list[int], replicas: int, fuse: bool, chance: object
) -> None:
    workers = [WorkerFacts(f"w{index}", count) for index, count in enumerate(cores)]
    made = plan(make_pipeline(), workers, fuse=fuse, replicas=replicas)
    chance.shuffle(workers)  # type: ignore[attr-defined]
    assert plan(make_pipeline(), workers, fuse=fuse, replicas=replicas) == made
    assert len({task.name for task in made.tasks}) == len(made.tasks)
    fed = {link.receiver for link in made.links} | {task.name for task in made.tasks if task.stages[0] == "read"}
    feeding = {link.sender for link in made.links} | {task.name for task in made.tasks if task.stages[-1] == "write"}
    assert fed == feeding == {task.name for task in made.tasks}


def deduplicated(partitions: int) -> Pipeline:
    decider = Stage("dedup", StageKind.STATEFUL, "m:Dedup", replicas=1 + partitions, after=("read",))
    return graph(stage("read"), decider, stage("write", ("dedup",)))


def test_a_task_asks_one_decider_and_what_asks_another_is_apart() -> None:
    second = Stage("second", StageKind.STATEFUL, "m:Dedup", replicas=1, after=("b",))
    first, (asking_task, more) = deduplicated(0), (stage("a", ("dedup",)), stage("b", ("a",)))
    both = graph(*first.stages[:2], asking_task, more, second, stage("write", ("second",)))
    assert groups(both, fuse=True) == [("read", "a"), ("dedup",), ("b", "write"), ("second",)]
    made = plan(both, ONE)
    pairs = {(link.sender.removeprefix("p/"), link.receiver.removeprefix("p/")) for link in made.links}
    asked = {("read.0", "dedup.0"), ("b.0", "second.0")}
    assert pairs == asked | {(one, other) for other, one in asked} | {("read.0", "b.0")}


FAR = [WorkerFacts(name, 2, name, addresses=("10.0.0.1:1",)) for name in ("w1", "w2")]


def test_a_decider_binds_no_other_task_to_its_worker() -> None:
    made = plan(deduplicated(0), FAR)
    assert [task.worker for task in made.tasks if task.stages == ("read", "write")] == ["w1", "w1", "w2", "w2"]
    assert [task.worker for task in made.tasks if task.stages == ("dedup",)] == ["w1"]


def test_each_task_asks_the_decider_and_the_decider_each_partition() -> None:
    made = plan(deduplicated(3), FAR)
    assert {task.worker for task in made.tasks if task.stages == ("dedup",)} == {"w1", "w2"}
    askers = {f"p/read.{number}" for number in range(4)}
    others = askers | {f"p/dedup.{number}" for number in (1, 2, 3)}
    pairs = {(link.sender, link.receiver) for link in made.links}
    assert pairs == {("p/dedup.0", other) for other in others} | {(other, "p/dedup.0") for other in others}


def test_one_task_decides_where_no_number_is_said() -> None:
    unsaid = tuple(replace(stage, replicas=None) for stage in deduplicated(0).stages)
    made = plan(graph(*unsaid), FAR, replicas=3)
    assert [task.name for task in made.tasks if task.stages == ("dedup",)] == ["p/dedup.0"]


def test_the_decider_and_partitions_keep_their_numbers_when_a_worker_leaves() -> None:
    """Number 0 decides: a number that is free by the leave of its worker is given again."""
    before = plan(deduplicated(2), FAR)
    after = plan(deduplicated(2), FAR[1:], current=before)
    staying = {task.name for task in before.tasks if task.stages == ("dedup",) and task.worker == "w2"}
    assert staying
    assert sorted(task.replica for task in after.tasks if task.stages == ("dedup",)) == [0, 1, 2]
    assert staying <= {task.name for task in after.tasks}
