"""When a task gives back what is free. That it does is in tests/worker/processes/test_forkserver_start.py."""

import pytest

from headrace.stages.runtime import malloc
from headrace.stages.runtime.malloc import GIVE_BACK_S, LARGE_BATCH_BYTES, LARGE_BATCH_S, GivingBack


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times at which memory was given back."""
    times: list[float] = []
    monkeypatch.setattr(malloc, "give_back", lambda: times.append(0.0))
    return times


def test_what_is_free_is_given_back_once_in_a_while(given: list[float]) -> None:
    giving = GivingBack()
    for step in range(31):
        giving.tick(step * GIVE_BACK_S / 10)
        giving.meets(LARGE_BATCH_BYTES - 1, step * GIVE_BACK_S / 10)
    assert len(given) == 4


def test_around_a_large_batch_memory_is_given_back(given: list[float]) -> None:
    giving = GivingBack()
    giving.tick(5.0)
    giving.meets(LARGE_BATCH_BYTES, 5.0 + GIVE_BACK_S / 2)
    assert len(given) == 2
    giving.tick(5.0 + GIVE_BACK_S / 2 + LARGE_BATCH_S / 2)
    assert len(given) == 2
    giving.tick(5.0 + GIVE_BACK_S / 2 + LARGE_BATCH_S * 1.5)
    assert len(given) == 3
    giving.tick(5.0 + GIVE_BACK_S)
    assert len(given) == 3


def test_where_all_batches_are_large_giving_back_has_a_limit(given: list[float]) -> None:
    giving = GivingBack()
    for step in range(1001):
        giving.meets(LARGE_BATCH_BYTES, step / 1000)
        giving.tick(step / 1000)
    assert len(given) <= 1 / LARGE_BATCH_S + 1
