"""Placement: cores, memory, racks and nearness as tables; what does not fit is refused with the numbers."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from headrace.controller.core.plan.locality import QUIC, RING, WorkerFacts
from headrace.controller.core.plan.placement import Need, Stock
from headrace.controller.core.plan.planner import move, plan
from headrace.controller.core.plan.plans import LINKS_A_TASK_MAX, Plan
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline, Stage
from tests.kits.controller.core import LOG, make_pipeline

GIB = 1 << 30


def worker(name: str, cores: int = 8, gib: int = 16, *labels: str) -> WorkerFacts:
    return WorkerFacts(name, cores, name, labels, (f"{name}:1",), gib * GIB)


def pipeline(**needs: Stage | dict[str, object]) -> Pipeline:
    made = make_pipeline()
    return Pipeline("run", LOG, tuple(stage.placed(**needs.get(stage.name, {})) for stage in made.stages))  # type: ignore[arg-type]


def spread(made: Plan) -> dict[str, int]:
    counts: dict[str, int] = {}
    for task in made.tasks:
        counts[task.worker] = counts.get(task.worker, 0) + 1
    return counts


@pytest.mark.parametrize(
    ("needs", "workers", "expected"),
    [
        ({}, [worker("a", 2), worker("b", 3)], {"a": 2, "b": 3}),
        ({"keep": {"cores": 4}}, [worker("a", 8), worker("b", 11)], {"a": 2, "b": 2}),
        ({"keep": {"cores": 4}}, [worker("a", 8), worker("b", 3)], {"a": 2}),
        ({"keep": {"memory_bytes": 6 * GIB}}, [worker("a", 8, 16), worker("b", 1, 64)], {"a": 2, "b": 1}),
        ({"keep": {"memory_bytes": 6 * GIB}}, [worker("a", 3, 0)], {"a": 3}),
        ({"keep": {"cores": 0.5}}, [worker("a", 2)], {"a": 4}),
        ({"read": {"replicas": 5, "cores": 2}}, [worker("a", 4), worker("b", 8)], {"a": 2, "b": 3}),
        ({"read": {"replicas": 3, "memory_bytes": 6 * GIB}}, [worker("a", 8, 6), worker("b", 8, 64)], {"a": 1, "b": 2}),
        ({"read": {"on": "disk=ssd"}}, [worker("a"), worker("b", 2, 16, "disk=ssd")], {"b": 2}),
    ],
    ids=[
        "a replica a core",
        "declared cores",
        "a worker too small is left out",
        "memory bounds",
        "unknown memory does not",
        "half a core",
        "what does not fit on one goes to the other",
        "a worker that is full with one gets no second",
        "a label",
    ],
)
def test_replicas_follow_what_a_replica_takes(
    needs: dict[str, object], workers: list[WorkerFacts], expected: dict[str, int]
) -> None:
    declared = pipeline(**needs)  # type: ignore[arg-type]
    declared = replace(
        declared, stages=tuple(replace(s, replicas=declared.stages[0].replicas) for s in declared.stages)
    )
    assert spread(plan(declared, workers)) == expected


def test_what_is_reserved_leaves_less_memory_for_what_comes_next() -> None:
    stock = Stock([worker("a", 8, 16)])
    stock.take("a", Need(memory_bytes=6 * GIB), 2)
    assert stock.holds("a", Need(memory_bytes=6 * GIB)) == 0
    assert stock.says("a") == "a: 8 cores and 4 GiB left"


def test_a_replica_that_no_worker_can_hold_is_refused_with_the_numbers() -> None:
    with pytest.raises(PipelineError, match=r"takes 16 cores and 0 B; no worker has that: a: 8 cores and 16 GiB left"):
        plan(pipeline(keep={"cores": 16}), [worker("a"), worker("b")])


def test_too_many_replicas_are_refused_with_how_many_fit() -> None:
    wanted = pipeline(read={"cores": 4, "replicas": 9}, keep={"replicas": 9}, write={"replicas": 9})
    with pytest.raises(PipelineError, match="9 replicas of 4 cores and 0 B each were asked for and 4 fit"):
        plan(wanted, [worker("a"), worker("b")])


def test_a_source_goes_near_its_input_and_readers_to_its_rack() -> None:
    workers = [
        worker("a", 1, 1, "rack=r1", "zone=z1", "gpu"),
        worker("b", 1, 1, "rack=r2", "zone=z2"),
        worker("c", 1, 1, "rack=r2", "zone=z2", "gpu"),
    ]
    wanted = pipeline(read={"near": "zone=z2", "replicas": 1}, keep={"on": "gpu", "replicas": 1}, write={"replicas": 1})
    made = plan(wanted, workers)
    assert [(task.stages[0], task.worker) for task in made.tasks] == [("read", "b"), ("keep", "c")]
    assert "1 of 1 near zone=z2" in made.reasons["read"]
    assert "placed on gpu" in made.reasons["keep+write"]


def test_a_plan_says_why_each_chain_stands_where_it_does() -> None:
    made = plan(pipeline(keep={"cores": 4}), [worker("a"), worker("b")])
    reason = "4 replicas on 2 workers; one for each core; fused, since the quickest link is none; each takes 4 cores"
    assert made.reasons["read+keep+write"].startswith(reason)


def test_tasks_of_a_lost_rack_find_room_and_the_others_stay() -> None:
    rack = {name: f"rack={name[0]}" for name in ("r1", "r2", "s1", "s2", "t1")}
    workers = [worker(name, 4, 16, label) for name, label in rack.items()]
    before = plan(pipeline(keep={"cores": 2, "replicas": 6}, read={"replicas": 6}, write={"replicas": 6}), workers)
    after = move(before, ("r1", "r2"), workers)
    assert not {task.worker for task in after.tasks} & {"r1", "r2"}
    stayed = [(old, new) for old, new in zip(before.tasks, after.tasks, strict=True) if old.worker[0] != "r"]
    assert all(old == new for old, new in stayed)
    assert max(spread(after).values()) * 2 <= 4, "nobody is promised more cores than it has"


def test_what_fits_nowhere_else_waits_for_its_worker() -> None:
    workers = [worker("a", 4), worker("b", 4)]
    before = plan(pipeline(keep={"cores": 4}), workers)
    assert spread(move(before, "a", workers)) == {"a": 1, "b": 1}


@given(st.integers(1, 200), st.integers(1, 200))
def test_tasks_across_workers_all_feed_and_links_grow_below_the_square(senders: int, receivers: int) -> None:
    workers = [worker("a", 512, 16, "in"), worker("b", 512, 16, "out")]
    wanted = pipeline(
        read={"on": "in", "replicas": senders}, keep={"replicas": senders}, write={"on": "out", "replicas": receivers}
    )
    made = plan(wanted, workers)
    assert {link.sender for link in made.links} | {link.receiver for link in made.links} == {t.name for t in made.tasks}
    assert len({link.name for link in made.links}) == len(made.links)
    assert len(made.links) <= max(LINKS_A_TASK_MAX * LINKS_A_TASK_MAX, LINKS_A_TASK_MAX * senders, receivers + senders)


@pytest.mark.parametrize("moves", ["in", "out"])
def test_a_link_is_joined_anew_whichever_of_its_ends_has_moved(moves: str) -> None:
    ends = {"in": worker("a", 8, 16, "in"), "out": worker("b", 8, 16, "out")}
    ends = {label: replace(end, door=True) for label, end in ends.items()}
    wanted = pipeline(read={"on": "in", "replicas": 1}, keep={"replicas": 1}, write={"on": "out", "replicas": 1})
    before = plan(wanted, list(ends.values()))
    assert {link.transport for link in before.links} == {QUIC}
    stays = next(end for label, end in ends.items() if label != moves)
    beside = replace(worker("c", 8, 16, moves), host=stays.host, door=True)
    after = move(before, ends[moves].name, [stays, beside])
    assert {link.transport for link in after.links} == {RING}
