"""Intervals of record ordinals, against a plain set of numbers."""

import itertools

import pytest
from hypothesis import given, strategies as st

from headrace.store.ledger.core.intervals import UNBOUNDED, UNKNOWN, Gap, IntervalSet, OverlapError, still_open

#: The bytes of one record: offsets follow from ordinals, so that a wrong one is seen.
RECORD_BYTES = 10
ORDINALS = 30

pieces = st.lists(
    st.tuples(st.integers(0, ORDINALS - 1), st.integers(1, 8), st.booleans()).map(
        lambda item: (item[0], min(ORDINALS, item[0] + item[1]), item[2])
    ),
    max_size=25,
)


def offsets(first: int, end: int, known: bool) -> tuple[int, int]:
    return (first * RECORD_BYTES, end * RECORD_BYTES) if known else (UNKNOWN, UNKNOWN)


def ordinals(intervals: IntervalSet) -> set[int]:
    return {ordinal for first, end in intervals for ordinal in range(first, end)}


def check(intervals: IntervalSet, expected: set[int]) -> None:
    """The set holds exactly these, in runs that are sorted, apart and merged, and each gap names its own byte."""
    runs = list(intervals)
    assert ordinals(intervals) == expected
    assert intervals.size == len(expected)
    assert all(first < end for first, end in runs)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(runs))
    assert all(gap.offset in (UNKNOWN, gap.first * RECORD_BYTES) for gap in intervals.gaps())


@given(pieces)
def test_what_is_added_is_held_and_what_overlaps_is_refused_whole(added: list[tuple[int, int, bool]]) -> None:
    intervals, expected = IntervalSet(), set[int]()
    for first, end, known in added:
        new = set(range(first, end))
        if new & expected:
            with pytest.raises(OverlapError) as error:
                intervals.add(first, end, *offsets(first, end, known))
            assert {ordinal for low, high in error.value.held for ordinal in range(low, high)} == new & expected
        else:
            intervals.add(first, end, *offsets(first, end, known))
            expected |= new
        check(intervals, expected)


@given(pieces)
def test_cover_is_the_union(added: list[tuple[int, int, bool]]) -> None:
    intervals, expected = IntervalSet(), set[int]()
    for first, end, known in added:
        intervals.cover(first, end, *offsets(first, end, known))
        expected |= set(range(first, end))
        check(intervals, expected)


@given(pieces, st.integers(0, ORDINALS), st.integers(0, ORDINALS))
def test_overlap_is_the_common_part(added: list[tuple[int, int, bool]], first: int, end: int) -> None:
    intervals = IntervalSet()
    for low, high, _ in added:
        intervals.cover(low, high)
    common = {ordinal for low, high in intervals.overlap(first, end) for ordinal in range(low, high)}
    assert common == ordinals(intervals) & set(range(first, end))


@given(pieces, st.one_of(st.integers(0, ORDINALS + 5), st.just(UNBOUNDED)))
def test_gaps_and_runs_part_the_fragment(added: list[tuple[int, int, bool]], end: int) -> None:
    intervals = IntervalSet()
    for low, high, known in added:
        intervals.cover(low, high, *offsets(low, high, known))
    gaps = intervals.gaps(end)
    upto = min(end, ORDINALS + 5)
    missing = {ordinal for gap in gaps for ordinal in range(gap.first, min(gap.end, upto))}
    assert missing == set(range(upto)) - ordinals(intervals)
    assert all(gap.first < gap.end <= end for gap in gaps)
    assert gaps == sorted(gaps, key=lambda gap: gap.first)


@given(pieces, st.integers(0, ORDINALS))
def test_a_set_tiles_a_fragment_exactly_when_whole(added: list[tuple[int, int, bool]], end: int) -> None:
    intervals = IntervalSet()
    for low, high, _ in added:
        intervals.cover(low, high)
    assert intervals.tiles(end) == (ordinals(intervals) == set(range(end)))


def test_a_gap_begins_at_the_byte_where_the_run_before_it_ends() -> None:
    intervals = IntervalSet()
    intervals.add(2, 5, 20, 50)
    intervals.add(8, 9)
    assert intervals.gaps() == [Gap(0, 2, 0), Gap(5, 8, 50), Gap(9, UNBOUNDED, UNKNOWN)]
    assert intervals.gaps(8) == [Gap(0, 2, 0), Gap(5, 8, 50)]


def test_neighbours_merge_and_keep_the_bytes_of_their_outer_edges() -> None:
    intervals = IntervalSet()
    intervals.add(0, 2, 0, 20)
    intervals.add(4, 6, 40, 60)
    intervals.add(2, 4)
    assert list(intervals) == [(0, 6)]
    assert len(intervals) == 1
    assert intervals.gaps() == [Gap(6, UNBOUNDED, 60)]


def test_a_copy_is_independent_and_equal_until_then() -> None:
    intervals = IntervalSet()
    intervals.add(0, 3)
    twin = intervals.copy()
    assert twin == intervals
    twin.add(5, 6)
    assert list(intervals) == [(0, 3)]
    assert twin != intervals
    assert intervals != [(0, 3)]
    assert repr(twin) == "IntervalSet([(0, 3), (5, 6)])"


@pytest.mark.parametrize(("first", "end"), [(3, 3), (4, 3), (-1, 2)])
def test_what_is_no_interval_is_refused(first: int, end: int) -> None:
    with pytest.raises(ValueError, match="not an interval of records"):
        IntervalSet().add(first, end)


@given(pieces, st.lists(pieces, min_size=1, max_size=3))
def test_gaps_still_open_are_what_some_set_lacks(
    wanted: list[tuple[int, int, bool]], held: list[list[tuple[int, int, bool]]]
) -> None:
    asked = IntervalSet()
    for first, end, _ in wanted:
        asked.cover(first, end)
    gaps = [Gap(first, end, first * RECORD_BYTES) for first, end in asked]
    sets = []
    for given_pieces in held:
        sets.append(IntervalSet())
        for first, end, known in given_pieces:
            sets[-1].cover(first, end, *offsets(first, end, known))
    left = still_open(gaps, sets)
    everywhere = set.intersection(*({row for first, end in one for row in range(first, end)} for one in sets))
    expected = {row for first, end in asked for row in range(first, end)} - everywhere
    assert [row for gap in left for row in range(gap.first, gap.end)] == sorted(expected)
    assert all(gap.offset in (UNKNOWN, gap.first * RECORD_BYTES) for gap in left)


def test_an_open_end_stays_open() -> None:
    closed = IntervalSet()
    closed.add(3, 5, 30, 50)
    assert still_open([Gap(2, UNBOUNDED, 20)], [closed]) == (Gap(2, 3, 20), Gap(5, UNBOUNDED, 50))


def test_the_bytes_of_a_run_count_from_the_fragments_first() -> None:
    intervals = IntervalSet()
    intervals.add(0, 3, *offsets(0, 3, known=True))
    intervals.add(5, 6, *offsets(5, 6, known=True))
    intervals.add(8, 9)
    assert intervals.bytes == 40


@pytest.mark.parametrize(
    "columns",
    [([0], [3], [], [30]), ([0], [3], [0], []), ([0, 2], [3, 5], [0, 20], [30, 50]), ([3], [3], [0], [0])],
    ids=["no offset", "no stop", "overlapping", "empty"],
)
def test_columns_of_a_snapshot_that_are_no_runs_are_refused(columns: tuple[list[int], ...]) -> None:
    with pytest.raises(ValueError, match="not sorted and disjoint"):
        IntervalSet.of_columns(*columns)
