"""What documents of spikes have more often than others."""

import numpy as np
import pytest

from headrace.loader.blame import ORDER, REPEATED, WORDS, ProfiledRead, rank_causes, traits
from headrace.loader.blame.core.causes import surprise


def found(spike: int, *properties: tuple[str, str]) -> ProfiledRead:
    return ProfiledRead(spike, frozenset(properties))


GOOD, BAD, ROUND = ("source", "good"), ("source", "bad"), ("round", "version 2")


def test_a_source_that_is_in_the_spikes_alone_comes_first() -> None:
    others = [found(-1, GOOD, ROUND) for _ in range(100)]
    odd = [found(at % 3, BAD if at % 2 else GOOD, ROUND) for at in range(30)]
    first = rank_causes([*others, *odd])[0]
    assert (first.kind, first.value, first.hits, first.spikes) == (*BAD, 15, 3)
    assert first.times == pytest.approx(100.0)


def test_what_each_document_has_is_no_cause() -> None:
    assert rank_causes([found(at % 4 - 1, GOOD, ROUND) for at in range(200)]) == []


def test_a_cause_of_one_spike_of_many_counts_less() -> None:
    others = [found(-1, GOOD) for _ in range(200)]
    one = [found(0, ("source", "one")) for _ in range(20)]
    every = [found(at, ("source", "every")) for at in range(20)]
    assert [cause.value for cause in rank_causes([*others, *one, *every])] == ["every", "one"]


def test_of_equal_causes_the_one_to_act_on_comes_first() -> None:
    others = [found(-1, GOOD, ("folder", "a")) for _ in range(100)]
    odd = [found(0, BAD, ("folder", "b"), ("property", "odd")) for _ in range(20)]
    assert [cause.kind for cause in rank_causes([*others, *odd])] == ["source", "folder", "property"]


def test_without_others_nothing_can_be_said() -> None:
    assert rank_causes([found(0, BAD)]) == []
    assert rank_causes([found(-1, BAD)]) == []


@pytest.mark.parametrize(("counts", "least"), [((10, 10, 0, 90), 60), ((1, 10, 9, 90), 0), ((0, 10, 5, 90), 0)])
def test_chance_is_no_surprise(counts: tuple[int, int, int, int], least: float) -> None:
    assert (surprise(*counts) > least) is (least > 0)


def prose(seed: int, low: int = 0, size: int = 200) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Tokens that follow each other by a rule with a little chance."""
    random = np.random.default_rng(seed)
    tokens = [low + int(random.integers(50))]
    for _ in range(size - 1):
        step = int(random.integers(3))
        tokens.append(low + (tokens[-1] - low + 7 * (1 + step)) % 50)
    return np.array(tokens)


def test_tokens_in_another_order_are_seen() -> None:
    usual = [prose(seed) for seed in range(40)]
    shuffled = np.random.default_rng(9).permutation(prose(100))
    assert [ORDER in one for one in traits(usual, [shuffled, prose(101)])][-2:] == [True, False]


def test_tokens_of_another_language_are_seen() -> None:
    usual = [prose(seed) for seed in range(40)]
    assert traits(usual, [prose(100, low=500), prose(101)])[-2:] == [frozenset({WORDS}), frozenset()]


def test_a_passage_in_several_documents_is_seen() -> None:
    random = np.random.default_rng(3)
    usual = [random.integers(0, 50_000, 100) for _ in range(20)]
    twice = random.integers(0, 50_000, 100)
    said = traits(usual, [twice, np.append(twice[:90], 7)])
    assert [REPEATED in one for one in said] == [*[False] * 20, True, True]


def test_short_and_empty_documents_have_no_traits() -> None:
    assert set(traits([np.zeros(0)] * 3, [np.array([1, 2])])) == {frozenset()}
