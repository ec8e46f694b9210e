"""More tasks without a rate: where tasks wait while cores idle, and not otherwise."""

from dataclasses import replace

import pytest

from headrace.controller.core.scaling.autoscaler import (
    LOOK_AT_TRIAL_S,
    LOOK_S,
    TRIAL_S,
    Answered,
    Autoscaler,
    Measured,
    Note,
    Rescale,
    ScalingMode,
    ScalingState,
)
from headrace.controller.core.scaling.readings import Edge, Reading, ScalingLimits, StageCounters, TaskGroup
from headrace.controller.core.scaling.trial import trial

MIB = 1 << 20


def reading(
    at: float, busy_s: float, cpu_s: float = 0.0, counts: tuple[int, int] = (2, 2), stored: float = 0.0
) -> Reading:
    """Two chains on two cores: one reads, the other loads since second 0 and has let no record through."""
    return Reading(
        at=at,
        sources=("read",),
        stages=(
            StageCounters("read", 32, 0.1, 0.1, stored_bytes=32 * 1000 + stored),
            StageCounters("load", 0, busy_s, cpu_s),
        ),
        groups=(TaskGroup(("read",), counts[0], fixed=True), TaskGroup(("load",), counts[1])),
        edges=(Edge("read", "load"),),
        limits=ScalingLimits(2.0, 8 << 30),
        cores=2.0,
        input_bytes=100 * MIB,
        fragments_open=40,
    )


def wanted(before: Reading, after: Reading, pays_s: float = 24.0) -> dict[str, int] | None:
    found = trial(before, after, (), pays_s)
    return None if found is None else dict(found[1])


def test_tasks_that_wait_while_cores_idle_become_as_many_as_fit() -> None:
    assert wanted(reading(1.0, 0.0), reading(3.0, 4.0)) == {"load": 30}


def test_two_readings_of_one_moment_say_nothing() -> None:
    assert wanted(reading(3.0, 0.0), reading(3.0, 4.0)) is None


@pytest.mark.parametrize(
    ("busy_s", "cpu_s", "stored"),
    [(3.0, 0.0, 0.0), (4.0, 1.2, 0.0), (4.0, 0.0, 90 * MIB)],
    ids=["some have nothing to do", "cores work", "nearly all is read"],
)
def test_nothing_is_tried_where_it_is_not_clear(busy_s: float, cpu_s: float, stored: float) -> None:
    assert wanted(reading(1.0, 0.0), reading(3.0, busy_s, cpu_s, stored=stored)) is None


def test_memory_bounds_what_is_tried() -> None:
    after = reading(3.0, 4.0)
    small = replace(after, limits=replace(after.limits, memory_bytes=7 * 192 * MIB))
    assert wanted(reading(1.0, 0.0), small) == {"load": 5}


def test_cores_that_waiting_tasks_use_bound_what_is_tried() -> None:
    assert wanted(reading(1.0, 0.0), reading(3.0, 4.0, 0.8)) == {"load": 8}


def test_readers_are_no_more_than_fragments_that_are_open() -> None:
    before, after = (
        replace(one, groups=(TaskGroup(("read", "load"), 2),), fragments_open=9)
        for one in (reading(1.0, 0.0), reading(3.0, 4.0))
    )
    assert wanted(before, after) == {"read": 9}


def test_half_is_left_for_groups_to_which_nothing_has_come() -> None:
    before, after = (
        replace(
            one,
            stages=(*one.stages, StageCounters("late")),
            groups=(*one.groups, TaskGroup(("late",), 2)),
            edges=(*one.edges, Edge("load", "late")),
        )
        for one in (reading(1.0, 0.0), reading(3.0, 4.0))
    )
    assert wanted(before, after) == {"load": 15, "late": 2}


def test_a_run_without_a_rate_is_scaled_and_measured_afterwards() -> None:
    machine = Autoscaler(ScalingMode.ON)
    assert machine.handle(Measured(reading(1.0, 0.0)), 1.0) == []
    note, change = machine.handle(Measured(reading(1.0 + TRIAL_S, 2 * TRIAL_S)), 1.0 + TRIAL_S)
    assert isinstance(note, Note)
    assert change == Rescale({"load": 30})
    assert note.decision.words() == "try load 2 -> 30: tasks wait while cores idle; no rate yet"
    machine.handle(Answered(accepted=True), 3.0)
    more = (2, 30)
    assert machine.handle(Measured(reading(6.0, 9.0, counts=more)), 6.0) == []
    (closed,) = machine.handle(Measured(reading(7.0, 40.0, counts=more)), 7.0)
    assert isinstance(closed, Note)
    assert closed.decision.outcome == "done"
    assert machine.state is ScalingState.MEASURING
    assert machine.band(7.0) == Autoscaler(ScalingMode.ON).band(7.0), "what has no promise widens no band"
    assert machine.handle(Measured(reading(9.0, 100.0, counts=more)), 9.0) == [], "there is no room for more"


def test_readings_are_frequent_while_a_trial_may_come() -> None:
    machine = Autoscaler(ScalingMode.ON)
    assert machine.look_s == LOOK_AT_TRIAL_S
    for second in range(1, 5):
        machine.handle(Measured(reading(float(second), 0.0)), float(second))
    assert machine.look_s == LOOK_S
