"""Neighbouring ranges are proposed as one: what they cover, and the bits of their records, stay what they were."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import given, strategies as st

from headrace.stages.runtime.batch import ROW, Batch, no_verdicts
from headrace.store.ledger.core.fragments import Range
from headrace.worker.task.batch.coverage import join, part

A, B = b"a" * 16, b"b" * 16
Mask = npt.NDArray[np.bool_]
#: A piece: whether it leaves a gap before it, the fates of its records, and whether the bytes at its edges are known.
pieces = st.lists(
    st.tuples(st.booleans(), st.lists(st.booleans(), min_size=1, max_size=5), st.booleans()), min_size=1, max_size=8
)


def mask(*kept: bool) -> Mask:
    return np.array(kept, dtype=np.bool_)


def bits(data: bytes, count: int) -> list[bool]:
    return [bool(data[at // 8] >> at % 8 & 1) for at in range(count)]


def covered_by(fragment: bytes, given_pieces: list[tuple[bool, list[bool], bool]]) -> list[tuple[Range, Mask]]:
    """Ranges of ten bytes a record."""
    covered: list[tuple[Range, Mask]] = []
    first = 0
    for gap, kept, known in given_pieces:
        first += gap
        offset, length = (first * 10, len(kept) * 10) if known else (-1, -1)
        covered.append((Range(fragment, first, len(kept), offset, length), mask(*kept)))
        first += len(kept)
    return covered


def ranges_and_bits(covered: Iterable[tuple[Range, Mask, Mask | None]]) -> list[tuple[Range, bytes, bytes]]:
    return [(Range(*place), kept, other) for *place, kept, other in join(covered)]


@given(pieces, pieces, st.randoms(use_true_random=False))
def test_each_record_keeps_its_fate_and_no_two_joined_ranges_touch(
    of_a: list[tuple[bool, list[bool], bool]], of_b: list[tuple[bool, list[bool], bool]], chance: random.Random
) -> None:
    covered = covered_by(A, of_a) + covered_by(B, of_b)
    expected = {
        (item.fragment, item.first + at): bool(kept) for item, fates in covered for at, kept in enumerate(fates)
    }
    chance.shuffle(covered)
    found: dict[tuple[bytes, int], bool] = {}
    joined = ranges_and_bits((item, kept, None) for item, kept in covered)
    for item, kept, other in joined:
        yes, no = bits(kept, item.count), bits(other, item.count)
        assert [not fate for fate in yes] == no
        found |= {(item.fragment, item.first + at): fate for at, fate in enumerate(yes)}
        assert (item.offset, item.length) in {(item.first * 10, item.count * 10), (-1, -1)}
    assert found == expected
    assert sum(item.count for item, _, _ in joined) == len(expected)
    ends = {(item.fragment, item.end) for item, _, _ in joined}
    assert not ends & {(item.fragment, item.first) for item, _, _ in joined}


def test_ranges_of_two_fragments_are_not_neighbours() -> None:
    joined = ranges_and_bits([(Range(A, 0, 2), mask(True, False), None), (Range(B, 2, 1), mask(True), None)])
    assert [(item.fragment, item.first, item.count) for item, _, _ in joined] == [(A, 0, 2), (B, 2, 1)]


def test_bytes_are_known_where_both_neighbours_know_theirs() -> None:
    known, unknown = (Range(A, 0, 2, 0, 20), mask(True, True), None), (Range(A, 2, 1), mask(True), None)
    ((item, _, _),) = ranges_and_bits([known, unknown])
    assert (item.first, item.count, item.offset, item.length) == (0, 3, -1, -1)
    ((item, _, _),) = ranges_and_bits([known, (Range(A, 2, 1, 20, 10), mask(False), None)])
    assert (item.first, item.count, item.offset, item.length) == (0, 3, 0, 30)


def test_what_was_counted_of_a_batch_is_not_recounted_in_parts() -> None:
    rows = pa.RecordBatch.from_pydict({ROW: pa.array(range(4), pa.int64())})
    batch = Batch(A, "u", 0, 4, 0, 40, rows, no_verdicts(), {"upper": 3}).counted("urls", "without a URL", 2)
    whole, half = part(batch, Range(A, 0, 4)), part(batch, Range(A, 2, 2, 20, 20))
    assert (whole.edits, whole.counters) == ({"upper": 3}, {"urls/without a URL": 2})
    assert (half.edits, half.counters, half.rows.num_rows) == ({}, {}, 2)
