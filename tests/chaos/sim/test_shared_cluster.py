"""Pipelines in queues on one simulated cluster: invariants 25 to 29 and 31 to 33, and the mutants that break them."""

from collections import Counter
from contextlib import ExitStack
from unittest.mock import patch

import pytest

from headrace.chaos.sim.queues.mutants import MUTANTS
from headrace.chaos.sim.queues.simulator import simulate_queues
from headrace.chaos.sim.queues.standing import Claimed, LoggedQueues, View
from headrace.store.ledger import QueueSet

#: Seeds within which each mutant must be found.
MUTANT_SEEDS = 12
#: The first seed that finds a mutant, where that is beyond these.
FOUND_AT = {
    "hold-forgotten": 16,
    "never-preempts": 33,
    "users-forgotten": 46,
    "least-for-weight-forgotten": 78,
    "fair-share-forgotten": 88,
    "owner-of-who-waits-forgotten": 18,
}
#: The invariants by which each mutant is caught.
CAUGHT_BY = {
    "quota-forgotten": {25},
    "cores-given-twice": {25},
    "sealed-at-once": {25},
    "hold-not-in-the-log": {1, 25},
    "hold-forgotten": {18, 31},
    "waiting-forgotten": {1},
    "rules-forgotten": {1},
    "never-goes-on": {18, 31},
    "stopped-instead-of-held": {26},
    "gang-in-parts": {27},
    # Who comes last takes from who comes first, again and again.
    "last-comes-first": {18, 28, 29},
    "queue-answered-early": {3},
    "over-before-durable": {25},
    "priority-inverted": {18, 28},
    # By a wrong order somebody is begun too early, or who comes first waits behind who lacks more.
    "least-for-weight-forgotten": {28, 31},
    "users-forgotten": {28, 31},
    "fair-share-forgotten": {31},
    "never-preempts": {31},
    "others-cores-given": {25},
    "stopped-by-anybody": {33},
    "owner-of-who-waits-forgotten": {33},
    "leaving-forgotten": {1},
    "takes-from-anybody": {32},
    "place-told-wrong": {29},
}


@pytest.mark.parametrize("seeds", [range(12, 16), pytest.param(range(162), marks=pytest.mark.slow)])
def test_every_invariant_of_queues_holds(seeds: range) -> None:
    outcomes = [simulate_queues(seed) for seed in seeds]
    assert [f"seed {item.seed}: {item.violation}" for item in outcomes if item.violation] == []
    assert sum(item.held for item in outcomes) >= len(seeds) / 8, "runs give way"
    assert sum(item.gone_on for item in outcomes) >= len(seeds) / 12, "and go on"
    assert max(item.terms for item in outcomes) >= 3, "leaders die"
    faults = Counter(fault for item in outcomes for fault in item.faults)
    assert len(faults) == 18, f"each kind of fault happens somewhere: {faults}"


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_defect_of_queues_is_found(name: str) -> None:
    with ExitStack() as stack:
        for target, attribute, replacement in MUTANTS[name]:
            stack.enter_context(patch.object(target, attribute, replacement))
        seeds = dict.fromkeys([FOUND_AT.get(name, 0), *range(MUTANT_SEEDS)])
        found = next((item for item in map(simulate_queues, seeds) if item.violation), None)
    assert found is not None
    assert found.number in CAUGHT_BY[name], found.violation


@pytest.mark.parametrize(("wanted", "may"), [(6, True), (3, False)])
def test_who_waits_for_a_quota_holds_up_its_queue_alone(wanted: int, may: bool) -> None:
    queues = {"batch": QueueSet("batch", 1, 6, 0, "bob"), "research": QueueSet("research", 1, 0, 0, "ann")}
    claims = [
        Claimed("runs", "batch", 3, 0, "ann", 1, begun=True),
        Claimed("goes on", "research", 3, 0, "ann", 2, begun=True),
        Claimed("waits for the quota", "batch", wanted, 0, "ann", 3),
        Claimed("behind it", "batch", 2, 0, "ann", 4),
        Claimed("last", "research", 1, 0, "ann", 5),
    ]
    view = View(LoggedQueues(queues, {item.name: item for item in claims}), 7, 0)
    assert view.allows("last", lambda _: True) is may
    assert not view.allows("behind it", lambda _: True)


def test_the_same_seed_gives_the_same_cluster() -> None:
    assert simulate_queues(7) == simulate_queues(7)
