"""Delays and the breaker, by tables."""

import pytest

from headrace.store.s3.retry import Breaker, BreakerState, RetryPolicy

CLOSED, OPEN, PROBING = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.PROBING


@pytest.mark.parametrize(
    ("failures", "chance", "delay_s"),
    [(1, 0.0, 0.0), (1, 0.5, 0.5), (1, 1.0, 1.0), (2, 1.0, 2.0), (3, 0.5, 2.0), (4, 1.0, 8.0), (5, 1.0, 10.0),
     (10_000, 1.0, 10.0), (10_000, 0.25, 2.5)],
)  # fmt: skip
def test_a_delays_ceiling_doubles_to_its_limit_and_chance_picks(failures: int, chance: float, delay_s: float) -> None:
    assert RetryPolicy(delay_first_s=1, delay_s_max=10).delay_s(failures, chance) == delay_s


def test_a_store_that_never_answered_is_given_up_sooner() -> None:
    patience = RetryPolicy(retry_s_max=120, first_contact_s=10)
    assert (patience.budget_s(False), patience.budget_s(True)) == (10, 120)
    assert RetryPolicy(retry_s_max=5, first_contact_s=10).budget_s(False) == 5


#: Steps of (time in seconds, deed, expected wait or None, expected state); the breaker opens at 3 failures, for 2 s.
STORIES = {
    "fewer failures than it takes leave it closed": [(0, "fail", None, CLOSED), (0, "fail", None, CLOSED)],
    "failures in a row open it": [(0, "fail", None, CLOSED), (1, "fail", None, CLOSED), (2, "fail", None, OPEN)],
    "a success in between starts the count anew": [
        *((0, "fail", None, CLOSED), (0, "fail", None, CLOSED), (0, "succeed", None, CLOSED)),
        *((0, "fail", None, CLOSED), (0, "fail", None, CLOSED)),
    ],
    "closed, nobody waits": [(5, "wait", 0.0, CLOSED), (5, "wait", 0.0, CLOSED)],
    "open, all wait for what is left": [
        *((0, "fail", None, CLOSED), (0, "fail", None, CLOSED), (10, "fail", None, OPEN)),
        *((10, "wait", 2.0, OPEN), (11.5, "wait", 0.5, OPEN)),
    ],
    "after that one looks and the others wait": [
        *((0, "fail", None, CLOSED), (0, "fail", None, CLOSED), (0, "fail", None, OPEN)),
        *((2, "wait", 0.0, PROBING), (2, "wait", 2.0, PROBING), (3, "wait", 1.0, PROBING)),
    ],
    "a look that succeeds closes it": [
        *((0, "fail", None, CLOSED), (0, "fail", None, CLOSED), (0, "fail", None, OPEN)),
        *((2, "wait", 0.0, PROBING), (3, "succeed", None, CLOSED), (3, "wait", 0.0, CLOSED)),
    ],
    "a look that fails opens it again at once": [
        *((0, "fail", None, CLOSED), (0, "fail", None, CLOSED), (0, "fail", None, OPEN)),
        *((2, "wait", 0.0, PROBING), (3, "fail", None, OPEN), (3, "wait", 2.0, OPEN)),
    ],
    "a prober that never reports is replaced": [
        *((0, "fail", None, CLOSED), (0, "fail", None, CLOSED), (0, "fail", None, OPEN)),
        *((2, "wait", 0.0, PROBING), (4, "wait", 0.0, PROBING)),
    ],
}


@pytest.mark.parametrize("story", STORIES)
def test_the_breaker_follows_its_table(story: str) -> None:
    breaker = Breaker(failures_to_open=3, open_s=2)
    for number, (now, deed, wait_s, state) in enumerate(STORIES[story]):
        if deed == "fail":
            breaker.failed(now)
        elif deed == "succeed":
            breaker.succeeded()
        else:
            assert breaker.wait_s(now) == wait_s, number
        assert breaker.state is state, number
