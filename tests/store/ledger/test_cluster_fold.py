"""What the cluster's log says of runs that are cleared, and of those that waited in a queue."""

from headrace.store.ledger.core.cluster_changes import RunBegun, RunEnded, RunQueued, RunsCleared, RunUnqueued
from headrace.store.ledger.core.cluster_fold import ClusterState
from headrace.store.ledger.core.entries import Entry, Led


def folded(*changes: object) -> ClusterState:
    state = ClusterState()
    state.apply(0, Entry(1, (Led(1, {"host": "a", "pid": 1, "id": "a.1"}),)))
    for number, change in enumerate(changes, start=1):
        state.apply(number, Entry(1, (change,)))  # type: ignore[arg-type]
    return state


def test_a_cleared_run_is_gone_unless_it_was_begun_again() -> None:
    ended = (RunBegun("one", {}, {}), RunEnded("one", "completed", ""), RunBegun("other", {}, {}))
    assert set(folded(*ended, RunsCleared(("one", "other"))).runs) == {"other"}, "another goes on"
    again = folded(*ended, RunBegun("one", {}, {}), RunsCleared(("one",)))
    assert set(again.runs) == {"one", "other"}


def test_a_run_that_waited_and_is_given_up_is_told_of() -> None:
    state = folded(RunQueued("one", {}, {}), RunUnqueued("one", "cancelled", "nobody wants it"))
    assert state.queued == {}
    assert [(name, run.outcome, run.reason) for name, run in state.runs.items()] == [
        ("one", "cancelled", "nobody wants it")
    ]
    assert folded(RunUnqueued("one", "cancelled", "never there")).runs == {}


def test_one_given_up_takes_no_place_of_one_that_goes_on() -> None:
    state = folded(RunBegun("one", {}, {}), RunQueued("one", {}, {}), RunUnqueued("one", "cancelled", "twice"))
    assert [(name, run.outcome) for name, run in state.runs.items()] == [("one", "")]
