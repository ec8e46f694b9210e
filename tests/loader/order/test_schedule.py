"""Weights of a mixture as a function of position, as the journal has them."""

import pytest
from hypothesis import example, given, strategies as st

from headrace.loader.order.plan import Reweighted, Skipped
from headrace.loader.order.schedule import (
    RAMP_STEPS,
    SHARES,
    WeightSchedule,
    changes_of,
    replaced,
    shares_of_weights,
    weights_at,
)

STEPS = WeightSchedule(((0, (1.0, 1.0)), (100, (3.0, 1.0)), (300, (0.0, 1.0))))


def test_a_schedule_of_steps_holds_its_weights_from_each_position() -> None:
    assert STEPS.changes(0) == tuple(Reweighted(*point) for point in STEPS.points)
    assert STEPS.changes(100) == tuple(Reweighted(*point) for point in STEPS.points[1:])


def test_a_schedule_that_begins_late_goes_on_where_it_would_be() -> None:
    assert STEPS.changes(250) == (Reweighted(250, (3.0, 1.0)), Reweighted(300, (0.0, 1.0)))
    assert STEPS.changes(999) == (Reweighted(999, (0.0, 1.0)),)
    assert WeightSchedule(((50, (1.0,)),)).changes(10) == (Reweighted(10, (1.0,)),)


def test_a_ramp_goes_from_point_to_point_in_equal_steps() -> None:
    ramp = WeightSchedule(((0, (1.0, 0.0)), (3200, (0.0, 2.0))), ramp=True)
    made = ramp.changes(0)
    assert [event.position for event in made] == [100 * step for step in range(RAMP_STEPS + 1)]
    assert (made[0].weights, made[16].weights, made[-1].weights) == ((1.0, 0.0), (0.5, 0.5), (0.0, 1.0))
    assert ramp.changes(1650)[0] == Reweighted(1650, made[16].weights)
    assert ramp.changes(1650)[1:] == made[17:]


def test_a_short_ramp_has_no_more_steps_than_positions() -> None:
    made = WeightSchedule(((0, (1.0, 0.0)), (2, (0.0, 1.0))), ramp=True).changes(0)
    assert [event.position for event in made] == [0, 1, 2]


@pytest.mark.parametrize(
    "points",
    [
        (),
        ((-1, (1.0,)),),
        ((0.5, (1.0,)),),
        ((5, (1.0,)), (5, (1.0,))),
        ((5, (1.0,)), (4, (1.0,))),
        ((0, (1.0,)), (1, (1.0, 2.0))),
        ((0, ()),),
        ((0, (0.0, 0.0)),),
        ((0, (float("nan"), 1.0)),),
        ((0, (-1.0, 2.0)),),
        tuple((at, (1.0,)) for at in range(1001)),
    ],
)
def test_what_is_no_schedule_is_refused(points: tuple[tuple[int, tuple[float, ...]], ...]) -> None:
    with pytest.raises(ValueError, match=r"schedule|weights"):
        WeightSchedule(points)


@pytest.mark.parametrize("points", [1, 1000])
def test_a_schedule_has_one_point_or_as_many_as_its_limit(points: int) -> None:
    assert len(WeightSchedule(tuple((at, (1.0,)) for at in range(points))).points) == points


@pytest.mark.parametrize("asked", [[1.0], [1.0, -1.0], [0.0, 0.0], WeightSchedule(((0, (1.0,)),))])
def test_weights_that_do_not_fit_the_sources_are_refused(asked: object) -> None:
    with pytest.raises(ValueError, match="weight"):
        changes_of(asked, 0, 2)  # type: ignore[arg-type]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50).filter(lambda weights: sum(weights) > 0))
@example([56.0, 29082.0, 58.0, 29.0])
def test_thousandths_are_near_the_weights_and_forget_none(weights: list[float]) -> None:
    shares = shares_of_weights(weights)
    whole = sum(weights)
    for weight, share in zip(weights, shares, strict=True):
        assert (share > 0) == (weight / max(weights) > 0)
        assert abs(share - weight / whole) <= 1.001 / SHARES
    assert sum(shares) == pytest.approx(1.0, abs=0.051)


def test_what_is_asked_later_replaces_what_was_to_come() -> None:
    skip = Skipped(7, 2)
    events = replaced((skip,), 0, STEPS.changes(0))
    later = replaced(events, 150, changes_of([5.0, 5.0], 150, 2))
    assert later == (skip, Reweighted(0, (1.0, 1.0)), Reweighted(100, (3.0, 1.0)), Reweighted(150, (5.0, 5.0)))


def test_the_weights_that_hold_are_the_last_before_a_position() -> None:
    events = replaced((), 0, STEPS.changes(0))
    found = [weights_at(events, position, (9.0, 9.0)) for position in (0, 99, 100, 299, 300)]
    assert found == [(1.0, 1.0), (1.0, 1.0), (3.0, 1.0), (3.0, 1.0), (0.0, 1.0)]
    assert weights_at((), 5, (9.0, 9.0)) == (9.0, 9.0)
    twice = (Reweighted(5, (1.0,)), Reweighted(5, (2.0,)))
    assert weights_at(twice, 5, (9.0,)) == (2.0,)
