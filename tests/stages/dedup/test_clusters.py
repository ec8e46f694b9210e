"""Clusters for a held-out split: no near pair stands on both sides, however large a bucket is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace.stages.dedup.clusters import COMPARED_MAX, Clusters, HeldOut
from headrace.stages.dedup.core.scheme import DEFAULTS, RULE, Scheme
from headrace.stages.dedup.judge import is_near, make_room
from headrace.stages.dedup.key_index import KeyIndex
from headrace.stages.dedup.minhash import make_keys, make_sketches
from headrace.stages.dedup.sketches import offsets_of

JUDGED = Scheme(*DEFAULTS[True], RULE)
VOCABULARY = [f"{first}{second}{number}" for first in "bdgklmnprst" for second in "aeiou" for number in range(50)]


class Held:
    """Records with keys and sketches, as `offline.Records` and `offline.Room` have them."""

    def __init__(self, keys: Any, sketches: Any, scheme: Scheme) -> None:
        self.table = pa.table({"id": [f"id-{place}" for place in range(len(keys))]})
        self.keys, self._sketches, self.scheme = np.ascontiguousarray(keys), sketches, scheme

    def arena(self) -> Any:
        data, offsets = offsets_of(self._sketches)
        return data, offsets[:-1], offsets[1:]

    def choose(self, share: float, references: Sequence[int] = ()) -> HeldOut:
        mask = np.zeros(len(self.keys), np.bool_)
        mask[list(references)] = True
        both: Any = self
        return Clusters(both, both, self.scheme).choose(share, mask)

    def near(self, one: int, two: int) -> bool:
        data, begins, ends = self.arena()
        sketches = [(data, begins[place], ends[place]) for place in (one, two)]
        same = bool((self.keys[one, :2] == self.keys[two, :2]).all())
        return same or bool(is_near(*sketches, make_room(1)))


def of_texts(texts: Sequence[str], scheme: Scheme = JUDGED) -> Held:
    return Held(*make_sketches(pa.array(texts, pa.string()), scheme), scheme)


def text_of(chance: random.Random, count: int = 80) -> list[str]:
    return chance.choices(VOCABULARY, k=count)


def corpus(chance: random.Random, count: int) -> list[str]:
    """Texts, copies with edits, headers and cut ends, copies of these, and forms with the same boilerplate."""
    texts: list[list[str]] = []
    form = text_of(chance, 60)
    for _ in range(count):
        kind = chance.randrange(6)
        base = list(chance.choice(texts)) if texts and kind < 4 else text_of(chance)
        match kind:
            case 0:
                base[chance.randrange(len(base))] = chance.choice(VOCABULARY)
            case 1:
                base = [*text_of(chance, 20), *base]
            case 2:
                base = base[: max(8, len(base) * 9 // 10)]
            case 4:
                base = [*form, *text_of(chance, 30)]
            case _:
                pass
        texts.append(base)
    return [" ".join(words) for words in texts]


@given(st.integers(0, 10_000), st.integers(2, 60), st.sampled_from([0.05, 0.2, 0.5]))
@settings(max_examples=30, deadline=None)
def test_no_near_pair_that_shares_a_key_crosses_the_border(seed: int, count: int, share: float) -> None:
    chance = random.Random(seed)
    held = of_texts(corpus(chance, count))
    references = [place for place in range(count) if chance.random() < 0.1]
    found = held.choose(share, references)
    assert found.leaks == 0
    assert not (found.held & found.dropped).any()
    assert not (found.held | found.dropped)[references].any()
    assert found.held.sum() <= round(share * (count - len(references)))
    pairs = 0
    for one in np.flatnonzero(found.held).tolist():
        for two in np.flatnonzero(~found.held & ~found.dropped).tolist():
            if ((held.keys[one] == held.keys[two]) & (held.keys[one] != 0)).any():
                pairs += 1
                assert not held.near(one, two)
    assert found.compared == pairs
    # Where no bucket is large, whole clusters are known before any is chosen.
    assert count > COMPARED_MAX + 1 or not found.dropped.any()


@given(st.integers(0, 10_000), st.integers(2, 40))
@settings(max_examples=30, deadline=None)
def test_the_choice_depends_on_the_records_alone(seed: int, count: int) -> None:
    chance = random.Random(seed)
    texts = list(dict.fromkeys(corpus(chance, count)))
    order = list(range(len(texts)))
    chance.shuffle(order)
    one, two = of_texts(texts).choose(0.3), of_texts([texts[place] for place in order]).choose(0.3)
    assert one.held[order].tolist() == two.held.tolist()
    assert one.dropped[order].tolist() == two.dropped.tolist()
    assert (one.clusters, one.refused, one.compared) == (two.clusters, two.refused, two.compared)


@given(st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_what_the_judge_of_a_run_calls_a_duplicate_is_near(seed: int) -> None:
    held = of_texts(corpus(random.Random(seed), 40))
    answers = KeyIndex(JUDGED).decide(bytes(16), np.arange(40), held.keys, held._sketches)
    pairs = [(place, match.name.row) for place, match in enumerate(answers) if match is not None]
    assert all(held.near(one, two) and held.near(two, one) for one, two in pairs)


def test_a_text_that_a_longer_one_contains_is_near_either_way() -> None:
    chance = random.Random(4)
    text, other = text_of(chance, 60), text_of(chance, 120)
    held = of_texts([" ".join(text), " ".join([*text, *other]), " ".join(other)])
    assert (held.near(0, 1), held.near(1, 0), held.near(0, 2)) == (True, True, False)


def in_one_bucket(texts: Sequence[str], salt: int) -> Held:
    """Texts that have one band in common and nothing else, in the order of their keys."""
    held = of_texts(texts)
    held.keys[:, 2:] = 0
    held.keys[:, 0], held.keys[:, 1], held.keys[:, 5] = np.arange(len(texts)), 1 + 2 * salt, 7
    return held


def test_in_a_small_bucket_all_are_compared_before_the_choice() -> None:
    for seed in range(8):
        chance = random.Random(seed)
        texts = [" ".join(text_of(chance)) for _ in range(COMPARED_MAX)]
        texts[-1] = f"{texts[0]} {VOCABULARY[3]}"
        found = in_one_bucket(texts, seed).choose(0.5)
        assert found.held[0] == found.held[-1]
        assert not found.dropped.any()


def test_a_near_pair_that_a_large_bucket_hides_leaves_training() -> None:
    """With so many others in their bucket both are not compared before the choice."""
    sides: set[tuple[bool, bool]] = set()
    for seed in range(8):
        chance = random.Random(seed)
        texts = [" ".join(text_of(chance)) for _ in range(3 * COMPARED_MAX)]
        texts[-1] = f"{texts[0]} {VOCABULARY[3]}"
        found = in_one_bucket(texts, seed).choose(0.3)
        one, two = bool(found.held[0]), bool(found.held[-1])
        sides.add((one, two))
        assert found.dropped.tolist() == [
            place in (0, 47) and one != two and not found.held[place] for place in range(48)
        ]
        assert found.leaks == 0
    assert {(True, False), (False, True)} <= sides


def test_records_near_to_a_reference_are_never_held_out_nor_dropped() -> None:
    chance = random.Random(1)
    texts = [" ".join(text_of(chance)) for _ in range(3 * COMPARED_MAX)]
    texts[-1] = f"{texts[0]} {VOCABULARY[3]}"
    held = in_one_bucket(texts, 0)
    for share in (0.1, 0.3, 0.5):
        for reference, other in ((0, -1), (-1, 0)):
            found = held.choose(share, [reference])
            assert not found.held[[reference, other]].any()
            assert not found.dropped.any()


def test_what_a_reference_bars_may_be_near_to_another_held_out() -> None:
    """The second text is near to the reference and to the third, which is far from the reference; a bucket hides it."""
    for seed in range(6):
        chance = random.Random(seed)
        texts = [" ".join(text_of(chance)) for _ in range(3 * COMPARED_MAX)]
        header, more = text_of(chance, 60), text_of(chance, 15)
        texts[20], texts[-1] = f"{' '.join(header)} {texts[0]}", " ".join([*more, *header])
        held = in_one_bucket(texts, seed)
        assert (held.near(0, 20), held.near(20, 47), held.near(0, 47)) == (True, True, False)
        found = held.choose(0.5, [0])
        assert found.leaks == 0
        assert not found.held[20]
        assert found.dropped[20] == found.held[47]


def test_clusters_larger_than_what_is_left_are_refused() -> None:
    chance = random.Random(2)
    base = text_of(chance)
    copies = [" ".join([*base, word]) for word in VOCABULARY[:30]]
    found = of_texts([*copies, *(" ".join(text_of(chance)) for _ in range(30))]).choose(0.1)
    assert found.held.sum() == found.clusters == 6
    assert not found.held[:30].any()
    assert of_texts(copies).choose(0.5).clusters == 0


def test_without_a_judge_a_shared_band_is_near_enough() -> None:
    chance = random.Random(3)
    forms = [" ".join([*VOCABULARY[:200], *text_of(chance, 6)]) for _ in range(40)]
    texts = [*forms, *(" ".join(text_of(chance)) for _ in range(20))]
    scheme = Scheme(*DEFAULTS[False])
    column = pa.array(texts, pa.string())
    # Sketches that say that no two are near: nobody asks.
    others = pa.array([" ".join(text_of(chance)) for _ in texts], pa.string())
    held = Held(make_keys(column, scheme), make_sketches(others, JUDGED)[1], scheme)
    found = held.choose(0.2)
    keys = held.keys
    for one in np.flatnonzero(found.held).tolist():
        for two in np.flatnonzero(~found.held).tolist():
            assert not ((keys[one] == keys[two]) & (keys[one] != 0)).any()
    assert found.dropped.sum() == 0
    assert found.held.sum() == 12


def test_by_url_records_without_one_are_clusters_of_their_own() -> None:
    scheme = Scheme(bands=0, url=1)
    keys = np.zeros((40, 2), np.uint64)
    keys[:20] = 5
    held = Held(keys, pa.array([b""] * 40, pa.binary()), scheme)
    found = held.choose(0.25)
    assert found.held.sum() == found.clusters == 10
    assert not found.held[:20].any()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_of_few_records_none_is_held_out(count: int) -> None:
    found = of_texts([f"text {number}" for number in range(count)]).choose(0.1)
    assert (found.records, found.clusters, found.compared) == (count, 0, 0)
