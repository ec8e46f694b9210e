"""Which commands a worker obeys: those of no lower term than it has heard of, each log for itself."""

import pytest

from headrace.worker.core.supervisor import LOGS_MAX, Fencing


def heard() -> Fencing:
    fencing = Fencing()
    assert fencing.admits(3, "a", 5)
    return fencing


@pytest.mark.parametrize(("term", "log_term"), [(2, 5), (3, 4), (2, 6), (4, 4)])
def test_a_lower_term_of_either_kind_is_not_obeyed(term: int, log_term: int) -> None:
    assert not heard().admits(term, "a", log_term)


@pytest.mark.parametrize(("term", "log_term"), [(3, 5), (3, 6), (4, 5), (4, 9)])
def test_the_same_terms_and_higher_ones_are_obeyed(term: int, log_term: int) -> None:
    assert heard().admits(term, "a", log_term)


def test_what_is_not_obeyed_raises_no_term() -> None:
    fencing = heard()
    assert not fencing.admits(2, "a", 9)
    assert not fencing.admits(9, "a", 4)
    assert fencing.admits(3, "a", 5)


def test_each_log_has_terms_of_its_own() -> None:
    fencing = heard()
    assert fencing.admits(3, "b", 1)
    assert not fencing.admits(3, "a", 4)


def test_the_log_that_was_longest_without_a_command_is_forgotten_first() -> None:
    fencing = heard()
    assert fencing.admits(3, "b", 5)
    assert fencing.admits(3, "a", 5)
    for number in range(LOGS_MAX - 1):
        assert fencing.admits(3, f"log {number}", 1)
    assert fencing.admits(3, "b", 1), "forgotten"
    assert not fencing.admits(3, "log 5", 0)
    fencing = heard()
    for number in range(LOGS_MAX - 1):
        assert fencing.admits(3, f"log {number}", 1)
    assert not fencing.admits(3, "a", 4), "not one too early"
