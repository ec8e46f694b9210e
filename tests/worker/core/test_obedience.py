"""Which commands a worker obeys: those of no lower term than it has heard of, each log for itself."""

import pytest

from headrace.worker.core.fencing import LOGS_MAX, Obedience


def heard() -> Obedience:
    obedience = Obedience()
    assert obedience.obeys(3, "a", 5)
    return obedience


@pytest.mark.parametrize(("term", "log_term"), [(2, 5), (3, 4), (2, 6), (4, 4)])
def test_a_lower_term_of_either_kind_is_not_obeyed(term: int, log_term: int) -> None:
    assert not heard().obeys(term, "a", log_term)


@pytest.mark.parametrize(("term", "log_term"), [(3, 5), (3, 6), (4, 5), (4, 9)])
def test_the_same_terms_and_higher_ones_are_obeyed(term: int, log_term: int) -> None:
    assert heard().obeys(term, "a", log_term)


def test_what_is_not_obeyed_raises_no_term() -> None:
    obedience = heard()
    assert not obedience.obeys(2, "a", 9)
    assert not obedience.obeys(9, "a", 4)
    assert obedience.obeys(3, "a", 5)


def test_each_log_has_terms_of_its_own() -> None:
    obedience = heard()
    assert obedience.obeys(3, "b", 1)
    assert not obedience.obeys(3, "a", 4)


def test_the_log_that_was_longest_without_a_command_is_forgotten_first() -> None:
    obedience = heard()
    assert obedience.obeys(3, "b", 5)
    assert obedience.obeys(3, "a", 5)
    for number in range(LOGS_MAX - 1):
        assert obedience.obeys(3, f"log {number}", 1)
    assert obedience.obeys(3, "b", 1), "forgotten"
    assert not obedience.obeys(3, "log 5", 0)
    obedience = heard()
    for number in range(LOGS_MAX - 1):
        assert obedience.obeys(3, f"log {number}", 1)
    assert not obedience.obeys(3, "a", 4), "not one too early"
