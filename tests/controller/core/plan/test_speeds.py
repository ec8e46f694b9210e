"""What was measured of hosts, in placement: quicker workers carry more, and a lie no more than its bound."""

import pytest

from headrace.controller.core.plan.locality import WorkerFacts
from headrace.controller.core.plan.placement import CORE_FACTS, SPEED_MAX, SPEED_MIN, STORE_FACTS, weights
from headrace.controller.core.plan.planner import plan
from headrace.pipeline.graph import Pipeline
from tests.kits.controller.core import LOG, make_pipeline


def worker(name: str, cores: int = 4, core: float = 0.0, store: float = 0.0) -> WorkerFacts:
    told = {CORE_FACTS[1]: core, STORE_FACTS[0]: store}
    measured = tuple((fact, value) for fact, value in told.items() if value)
    return WorkerFacts(name, cores, name, (), (f"{name}:1",), measured=measured)


def spread(workers: list[WorkerFacts], replicas: int) -> dict[str, int]:
    """Replicas of the stage between source and sink, by worker."""
    made = make_pipeline()
    counts = {"read": len(workers), "keep": replicas, "write": len(workers)}
    stages = tuple(stage.placed(replicas=counts[stage.name]) for stage in made.stages)
    found: dict[str, int] = {}
    for task in plan(Pipeline("run", LOG, stages), workers).tasks:
        if "keep" in task.stages:
            found[task.worker] = found.get(task.worker, 0) + 1
    return found


@pytest.mark.parametrize(
    ("workers", "replicas", "expected"),
    [
        ([worker("a"), worker("b", 16)], 8, {"a": 4, "b": 4}),
        ([worker("a", 4, 30e6), worker("b", 4)], 8, {"a": 4, "b": 4}),
        ([worker("a", 4, 30e6), worker("b", 4, 10e6)], 8, {"a": 6, "b": 2}),
        ([worker("a", 2, 10e6), worker("b", 6, 10e6)], 8, {"a": 2, "b": 6}),
        ([worker("a", 4, 1e18), worker("b", 4, 10e6)], 10, {"a": 8, "b": 2}),
        ([worker("a", 4, 1e-9), worker("b", 4, 10e6), worker("c", 4, 10e6)], 9, {"a": 1, "b": 4, "c": 4}),
    ],
    ids=[
        "nothing was measured",
        "one has told nothing",
        "three times as quick",
        "three times the cores",
        "a lie counts four times",
        "who belittles himself gets little",
    ],
)
def test_asked_replicas_are_spread_by_cores_and_their_speed(
    workers: list[WorkerFacts], replicas: int, expected: dict[str, int]
) -> None:
    assert spread(workers, replicas) == expected


def test_the_quicker_worker_gets_what_needs_one() -> None:
    workers = [worker("a", 4, 10e6), worker("b", 4, 20e6)]
    made = make_pipeline()
    alone = Pipeline("run", LOG, tuple(stage.placed(replicas=1) for stage in made.stages))
    assert {task.worker for task in plan(alone, workers).tasks} == {"b"}


def test_what_moves_bytes_is_bound_by_the_slower_of_core_and_store() -> None:
    workers = [worker("a", 4, 30e6, 100e6), worker("b", 4, 10e6, 100e6)]
    assert weights(workers, moves=False) == pytest.approx((0.75, 0.25))
    assert weights(workers, moves=True) == pytest.approx((2 / 3, 1 / 3))


def test_asked_tasks_that_only_compute_are_spread_by_cores_alone() -> None:
    workers = [worker("a", 4, 30e6, 10e6), worker("b", 4, 10e6, 10e6)]
    assert spread(workers, 8) == {"a": 6, "b": 2}


@pytest.mark.parametrize("lie", [1e-18, 1.0, 1e18])
def test_a_lie_is_worth_no_more_than_its_bound(lie: float) -> None:
    honest = [worker(name, 4, 10e6, 100e6) for name in "abc"]
    parts = weights([*honest, worker("x", 4, lie, lie)], moves=True)
    assert SPEED_MIN <= parts[3] / parts[0] <= SPEED_MAX
    assert sum(parts) == pytest.approx(1.0)
