"""Mixtures: what each source gives, in which proportion, and what a change of weights does."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from headrace.loader.order.mixture import KEPT_MAX, PERIOD_MAX, TABLE_MAX, Mixture, Schedule, Shuffle, period_counts
from headrace.loader.order.order import Order, OrderMode, SampleLayout
from headrace.loader.order.plan import Reweighted

SHUFFLE = Shuffle(3, OrderMode.WINDOWED, 4, 8)
weights_lists = st.lists(st.integers(1, 60).map(lambda n: n / 10), min_size=1, max_size=8)


def layout(*sequences: int) -> SampleLayout:
    return SampleLayout(np.array(sequences))


def test_decimal_weights_have_the_period_of_their_common_denominator():
    assert period_counts([0.7, 0.2, 0.1]).tolist() == [7, 2, 1]
    assert period_counts([3, 1]).tolist() == [3, 1]


def test_weights_that_are_numbers_of_samples_are_met_exactly():
    assert period_counts([900_000_001, 20_011, 3]).tolist() == [900_000_001, 20_011, 3]


def test_weights_without_small_periods_are_met_nearly_exactly():
    counts = period_counts([np.pi, np.e, 1e-12])
    assert counts.sum() == PERIOD_MAX
    assert counts[2] == 1
    assert abs(counts[0] / PERIOD_MAX - np.pi / (np.pi + np.e)) < 2 / PERIOD_MAX


@pytest.mark.parametrize("weights", [[], [0, 0], [1, -1], [float("nan")], [float("inf"), 1]])
def test_weights_that_make_no_sense_are_refused(weights: list[float]):
    with pytest.raises(ValueError, match="weights"):
        period_counts(weights)


@given(weights=weights_lists)
@settings(deadline=None)
def test_each_prefix_holds_each_source_to_a_few_samples_of_its_share(weights: list[float]):
    schedule = Schedule(weights)
    owner, _ = schedule.at(np.arange(schedule.period))
    reached = np.cumsum(np.eye(len(weights))[owner], axis=0)
    ideal = np.arange(1, schedule.period + 1)[:, None] * (np.array(weights) / sum(weights))
    # half a position for each halving of the list of sources
    assert np.abs(reached - ideal).max() <= 0.5 * np.ceil(np.log2(len(weights))) + 1e-6


long_weights = st.lists(st.floats(0, 1e6), min_size=1, max_size=40).filter(any)


@given(weights=long_weights, data=st.data())
@settings(deadline=None)
def test_a_long_period_counts_on_sample_by_sample(weights: list[float], data: st.DataObject):
    schedule = Schedule(weights)
    first = data.draw(st.integers(0, schedule.period - 1))
    places = np.arange(first, min(first + 500, schedule.period))
    owner, nth = schedule.at(places)
    before = schedule.count(first)
    off = np.abs(before - first * (schedule.counts / schedule.period))
    assert off.max() <= 0.5 * np.ceil(np.log2(len(weights))) + 1e-6
    for place, source, number in zip(places.tolist(), owner.tolist(), nth.tolist(), strict=True):
        assert number == before[source]
        before[source] += 1
        assert schedule.place(source, number) == place
    assert schedule.count(int(places[-1]) + 1).tolist() == before.tolist()
    assert schedule.count(schedule.period).tolist() == schedule.counts.tolist()


def test_sources_in_proportion_are_each_read_once_a_pass():
    samples = [100_000, 301, 2]
    mixed = Mixture([layout(one) for one in samples], SHUFFLE, [float(one) for one in samples], sum(samples))
    assert sum(samples) > TABLE_MAX
    source, index = mixed.sources(np.arange(sum(samples)))
    assert np.bincount(source).tolist() == samples
    assert [index[source == number].max() for number in range(3)] == [one - 1 for one in samples]


def test_the_sources_of_given_weights_never_change():
    assert Schedule([0.7, 0.2, 0.1]).at(np.arange(10))[0].tolist() == [0, 1, 0, 0, 0, 2, 0, 0, 1, 0]
    assert Schedule([1.0] * 8).at(np.arange(8))[0].tolist() == [0, 4, 2, 6, 1, 5, 3, 7]


def mixture(*changes: Reweighted) -> Mixture:
    return Mixture([layout(30, 11), layout(7), layout(50)], SHUFFLE, [0.5, 0.3, 0.2], 98, list(changes))


CHANGES = (Reweighted(57, (0.1, 0.0, 0.9)), Reweighted(57, (0.0, 0.5, 0.5)), Reweighted(140, (1.0, 1.0, 1.0)))


@pytest.mark.parametrize("changes", [(), CHANGES])
def test_each_source_gives_its_samples_pass_after_pass_in_its_own_order(changes: tuple[Reweighted, ...]):
    mixed = mixture(*changes)
    source, index = mixed.sources(np.arange(400))
    shard, row = mixed.locate(np.arange(400))
    assert (mixed.source_of(shard) == source).all()
    for number in range(3):
        mine = source == number
        assert index[mine].tolist() == list(range(mine.sum()))
        samples = mixed.layouts[number].samples
        expected = [
            tuple(
                int(value[0]) for value in mixed.order(number, n // samples).locate(np.array([n % samples], np.uint64))
            )
            for n in range(mine.sum())
        ]
        local = shard[mine] - int(mixed.shard_starts[number])
        assert list(zip(local.tolist(), row[mine].tolist(), strict=True)) == expected


@pytest.mark.parametrize("changes", [(), CHANGES])
def test_the_positions_of_a_row_are_all_where_it_is_read(changes: tuple[Reweighted, ...]):
    mixed = mixture(*changes)
    shard, row = mixed.locate(np.arange(400))
    places: dict[tuple[int, int], list[int]] = {}
    for position, pair in enumerate(zip(shard.tolist(), row.tolist(), strict=True)):
        places.setdefault(pair, []).append(position)
    for pair, positions in places.items():
        assert mixed.positions_of(*pair, 400) == positions


def test_what_was_given_is_the_count_of_each_source_before_a_position():
    mixed = mixture(*CHANGES)
    source, _ = mixed.sources(np.arange(400))
    for position in (0, 1, 56, 57, 58, 140, 399):
        assert mixed.given(position).tolist() == np.bincount(source[:position], minlength=3).tolist()


def test_one_source_alone_is_the_order_of_its_dataset():
    alone = Mixture([layout(30, 11)], SHUFFLE, [5.0], 41)
    shard, row = alone.locate(np.arange(41, 82))
    order = Order(layout(30, 11), 3, 1, OrderMode.WINDOWED, 4, 8)
    expected = order.locate(np.arange(41, dtype=np.uint64))
    assert np.array_equal(shard, expected[0])
    assert np.array_equal(row, expected[1])


@given(
    ahead=st.lists(st.sets(st.integers(0, 20)).map(sorted), max_size=KEPT_MAX + 2),
    asked=st.lists(
        st.lists(st.integers(0, 400), max_size=9) | st.integers(0, 350).map(lambda at: [*range(at, at + 9)])
    ),
    is_alone=st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_positions_located_ahead_are_given_as_computed(ahead: list[list[int]], asked: list[list[int]], is_alone: bool):
    mixed, plain = (Mixture([layout(30, 11)], SHUFFLE, [5.0], 41) if is_alone else mixture(*CHANGES) for _ in range(2))
    for blocks in ahead:
        # blocks of positions, between which some lie
        positions = np.array([block * 15 + at for block in blocks for at in range(15)], dtype=np.int64)
        for found, expected in zip(mixed.locate_ahead(positions), plain.locate(positions), strict=True):
            assert np.array_equal(found, expected)
    for positions in (np.array(part, dtype=np.int64) for part in asked):
        for found, expected in zip(mixed.locate(positions), plain.locate(positions), strict=True):
            assert np.array_equal(found, expected)


def test_positions_located_ahead_are_computed_once_and_few_kept():
    mixed = mixture()
    for first in range(0, 400, 40):
        shards, _ = mixed.locate_ahead(np.arange(first, first + 40))
    shards[:] = -7
    assert mixed.locate(np.array([365, 361]))[0].tolist() == [-7, -7]
    assert (mixed.locate(np.arange(350, 390))[0] >= 0).all()
    assert len(mixed._kept) == KEPT_MAX
    mixed.locate_ahead(np.array([*range(7, 40), *range(43, 60)]))[0][:] = -9
    assert (mixed.locate(np.arange(45, 60))[0] == -9).all()
    assert (mixed.locate(np.arange(39, 44))[0] >= 0).all()
