"""Which positions a step reads, against a loop that deals them out one by one."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from headrace.loader.order.plan import Cut, Hosted, LastBatch, Offered, ReadAt, Recut, Skipped, Timeline, recut

skips = st.lists(st.builds(Skipped, st.integers(0, 120), st.integers(0, 40)), max_size=4)


def kept(first: int, end: int, skipped: list[Skipped]) -> list[int]:
    return [p for p in range(first, end) if not any(s.first <= p < s.first + s.count for s in skipped)]


@given(first=st.integers(0, 60), length=st.integers(0, 60), skipped=skips)
def test_what_is_offered_is_what_no_skip_covers(first: int, length: int, skipped: list[Skipped]):
    offered = Offered(first, first + length, skipped)
    expected = kept(first, first + length, skipped)
    assert offered.at(np.arange(offered.count)).tolist() == expected
    numbers = {position: offered.number(position) for position in range(first - 2, first + length + 2)}
    assert {p: n for p, n in numbers.items() if n is not None} == {p: n for n, p in enumerate(expected)}
    if expected:
        after = offered.after(np.arange(1, offered.count + 3)).tolist()
        assert after == [p + 1 for p in expected[:-1]] + [first + length] * 3


@given(
    samples=st.integers(5, 40),
    cuts=st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from(LastBatch), st.integers(1, 9)), max_size=4
    ),
    skipped=skips,
)
def test_steps_and_readings_are_what_dealing_out_by_hand_gives(
    samples: int, cuts: list[tuple[int, int, LastBatch, int]], skipped: list[Skipped]
):
    position = step = 0
    events: list[Recut | Skipped] = list(skipped)
    read: dict[int, ReadAt] = {}
    steps: dict[int, list[int]] = {}
    for batch_size, world_size, last, count in [*cuts, (2, 2, LastBatch.DROP, 12)]:
        cut = Cut(batch_size, world_size, last)
        events.append(Recut(position, step, cut))
        empty = 0
        while count and empty < 2:
            pass_ = position // samples
            left = kept(position, (pass_ + 1) * samples, skipped)
            if not cut.steps(len(left)):
                position, empty = (pass_ + 1) * samples, empty + 1
                continue
            empty = 0
            taken = left[: cut.stride]
            for at, p in enumerate(taken):
                read[p] = ReadAt(step, pass_, at // batch_size, at % batch_size)
            steps[step] = taken
            position = taken[-1] + 1 if len(taken) < len(left) else (pass_ + 1) * samples
            step, count = step + 1, count - 1
    timeline = Timeline(samples, events)
    assert {number: timeline.step(number).positions.tolist() for number in steps} == steps
    assert {p: timeline.reading(p) for p in read} == read
    behind = {p: read[min(q for q in read if q >= p)].step for p in range(max(read, default=-1) + 1)}
    assert {p: timeline.step_from(p) for p in behind} == behind


def test_a_step_before_the_journal_or_of_no_samples_does_not_exist():
    timeline = Timeline(10, [Recut(0, 5, Cut(20, 1, LastBatch.DROP))])
    for number in (4, 5):
        with pytest.raises(IndexError, match="step"):
            timeline.step(number)


def test_a_returning_world_size_before_a_step_cuts_nothing():
    there, elsewhere = Cut(2, 1, LastBatch.DROP), Cut(3, 1, LastBatch.DROP)
    timeline = Timeline(10, [Recut(0, 0, there), Recut(0, 0, elsewhere), Recut(0, 0, there)])
    assert timeline.reading(5) == ReadAt(2, 0, 0, 1)


def test_a_cut_that_no_step_was_made_under_is_replaced():
    """A resumed run may be resumed again, on other nodes, before its first step."""
    cuts = [Cut(batch, 1, LastBatch.DROP) for batch in (1, 2, 3)]
    first, second = Recut(0, 0, cuts[0]), Recut(8, 4, cuts[1])
    skip = Skipped(20, 2)
    assert recut((first, skip), second) == (first, skip, second), "steps were made under the first"
    again = Recut(8, 4, cuts[2])
    assert recut((first, second, skip), again) == (first, again, skip)
    assert recut((first, second), Recut(8, 5, cuts[2])) == (first, second, Recut(8, 5, cuts[2]))


def test_far_steps_are_found_at_once_and_none_past_the_end():
    timeline = Timeline(10, [Recut(10, 3, Cut(3, 1, LastBatch.DROP)), Skipped(14, 9)])
    # 4 samples of pass 1 make one step, 7 of pass 2 two, and each pass behind them makes three
    assert [timeline.step(number).positions[0] for number in (3, 4, 5, 6, 9)] == [10, 23, 26, 30, 40]
    far = timeline.step(6 + 3 * 10**15 + 1)
    assert (far.pass_, far.positions.tolist()) == (3 + 10**15, [30 + 10**16 + place for place in (3, 4, 5)])
    with pytest.raises(IndexError, match="positions end at 9223372036854775807"):
        timeline.step(10**20)


def test_passes_that_were_skipped_whole_do_not_end_the_steps():
    timeline = Timeline(4, [Recut(0, 0, Cut(2, 1, LastBatch.DROP)), Skipped(0, 4), Skipped(4, 4), Skipped(8, 4)])
    assert timeline.step(1).positions.tolist() == [14, 15]


@given(
    samples=st.integers(5, 60),
    first=st.integers(0, 59),
    cut=st.builds(Cut, st.integers(1, 3), st.integers(1, 4), st.sampled_from(LastBatch)),
    ranks=st.sets(st.integers(0, 3), min_size=1),
    skipped=skips,
)
def test_a_host_reads_its_ranks_positions_now_and_next(
    samples: int, first: int, cut: Cut, ranks: set[int], skipped: list[Skipped]
):
    first %= samples
    timeline = Timeline(samples, [Recut(first, 0, cut), *skipped])
    hosted = Hosted(samples, cut, ranks, Offered(first, samples, skipped), skipped)
    readings = {p: timeline.reading(p) for p in range(first, 3 * samples)}
    for begin, end in ((first, 3 * samples), (first + 2, samples + 3), (samples, 2 * samples), (first, first)):
        expected = [p for p in range(begin, end) if (one := readings.get(p)) is not None and one.rank in ranks]
        assert hosted.positions(begin, end).tolist() == expected
    assert hosted.is_all == (ranks >= set(range(cut.world_size)))
