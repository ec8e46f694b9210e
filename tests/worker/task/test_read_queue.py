"""What a source was given and has not sent."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from headrace.store.ledger.core.fragments import Fragment
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap
from headrace.worker.task.core.source import ReadQueue

A, B = (Fragment.named("read", uri, "1", start=0, end=-1, reader="lines", size=1) for uri in "ab")


def test_fragments_are_read_in_the_order_given() -> None:
    reading = ReadQueue()
    assert reading.next() is None
    reading.give(A, [Gap(0, UNBOUNDED, 0)])
    reading.give(B, [Gap(3, 5, 30)])
    assert reading.next() == (A, (Gap(0, UNBOUNDED, 0),))
    assert reading.behind() == (B, (Gap(3, 5, 30),))
    reading.ended(A.id)
    assert reading.next() == (B, (Gap(3, 5, 30),))
    assert reading.behind() is None
    reading.ended(B.id)
    assert reading.next() is None


def test_what_was_sent_is_not_pending_and_the_next_byte_known() -> None:
    reading = ReadQueue()
    reading.give(A, [Gap(0, 4, 0), Gap(8, UNBOUNDED, -1)])
    reading.sent(A.id, 0, 3, 30)
    assert reading.pending() == [(A.id, (Gap(3, 4, 30), Gap(8, UNBOUNDED, -1)))]
    reading.sent(A.id, 3, 4)
    reading.sent(A.id, 8, 9, 90)
    assert reading.pending() == [(A.id, (Gap(9, UNBOUNDED, 90),))]


def test_gaps_that_are_asked_for_later_are_added_behind() -> None:
    reading = ReadQueue()
    reading.give(A, [Gap(0, 2)])
    reading.give(A, [Gap(5, 6)])
    assert reading.pending() == [(A.id, (Gap(0, 2), Gap(5, 6)))]


def test_to_read_a_fragment_and_to_compare_it_are_two_orders() -> None:
    reading, there = ReadQueue(), replace(A, version="2")
    reading.give(A, [Gap(0, 2)])
    reading.give(there, ())
    assert (reading.next(), reading.compares) == ((A, (Gap(0, 2),)), False)
    reading.sent(A.id, 0, 2)
    reading.ended(A.id)
    assert (reading.next(), reading.compares) == ((there, ()), True)
    reading.give(A, [Gap(0, 2)])
    reading.ended(A.id, "2")
    assert reading.pending() == [(A.id, (Gap(0, 2),))], "an order to read does not end with the comparing"


@pytest.mark.parametrize(("first", "end"), [(1, 2), (0, 5), (2, 3)])
def test_a_reader_that_leaves_the_order_is_an_error(first: int, end: int) -> None:
    reading = ReadQueue()
    reading.give(A, [Gap(0, 4)])
    with pytest.raises(ValueError, match=f"a: read {first}..{end}, asked for 0..4"):
        reading.sent(A.id, first, end)


def test_a_reader_that_goes_on_after_its_gaps_is_an_error() -> None:
    reading = ReadQueue()
    reading.give(A, [Gap(0, 4)])
    reading.sent(A.id, 0, 4)
    assert reading.pending() == []
    with pytest.raises(ValueError, match="asked for nothing"):
        reading.sent(A.id, 4, 5)


def test_halting_lets_go_of_everything() -> None:
    reading = ReadQueue()
    reading.give(A, [Gap(0, 4)])
    reading.halt()
    assert reading.pending() == []
    assert reading.next() is None


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=6), st.data())
def test_pending_is_what_was_given_less_what_was_sent(shape: list[tuple[int, int]], data: st.DataObject) -> None:
    gaps, position = [], 0
    for skipped, count in shape:
        gaps.append(Gap(position + skipped, position + skipped + count))
        position += skipped + count
    reading = ReadQueue()
    reading.give(A, gaps)
    open_ = {ordinal for gap in gaps for ordinal in range(gap.first, gap.end)}
    while open_ and data.draw(st.booleans()):
        following = reading.next()
        assert following is not None
        gap = following[1][0]
        end = data.draw(st.integers(gap.first + 1, gap.end))
        reading.sent(A.id, gap.first, end)
        open_ -= set(range(gap.first, end))
        pending = {ordinal for _, rest in reading.pending() for gap in rest for ordinal in range(gap.first, gap.end)}
        assert pending == open_
