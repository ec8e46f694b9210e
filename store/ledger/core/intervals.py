"""Disjoint intervals of record ordinals, with the bytes that they cover: what of a fragment is closed.

The set is kept as sorted, merged runs, so a fragment closed from end to end costs one run, however many batches
it was read in. Each run knows the byte offsets at its two edges where the reader could tell them, so that a gap
behind it can be read by seeking.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import ge

#: The end of an interval that reaches as far as the fragment does.
UNBOUNDED = 1 << 62
#: A byte offset that the reader could not tell.
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Gap:
    """Ordinals from `first` up to `end` (exclusive; UNBOUNDED: to the fragment's end).

    `offset` is the byte of the uncompressed fragment at which record `first` begins, or UNKNOWN.
    """

    first: int
    end: int
    offset: int = UNKNOWN


class OverlapError(ValueError):
    """An interval meets ordinals that the set holds already."""

    def __init__(self, first: int, end: int, held: list[tuple[int, int]]) -> None:
        super().__init__(f"records {first}..{end - 1} overlap {held[:4]}")
        self.held = held


class IntervalSet:
    """A set of ordinals as merged runs `[first, end)`."""

    __slots__ = ("_ends", "_firsts", "_offsets", "_stops")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self._offsets: list[int] = []
        self._stops: list[int] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._firsts, self._ends, strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalSet) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"IntervalSet({list(self)})"

    def runs(self) -> Iterator[tuple[int, int, int, int]]:
        """The runs as `(first, end, offset, stop)`: ordinals, and the bytes at their edges or UNKNOWN."""
        return iter(zip(self._firsts, self._ends, self._offsets, self._stops, strict=True))

    @property
    def size(self) -> int:
        """How many ordinals the set holds."""
        return sum(self._ends) - sum(self._firsts)

    @property
    def bytes(self) -> int:
        """How many bytes the runs cover, where both edges are known."""
        edges = zip(self._offsets, self._stops, strict=True)
        return sum(stop - offset for offset, stop in edges if offset >= 0 and stop >= 0)

    def columns(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """The runs' firsts, ends, and the bytes at their edges, for a snapshot; not to be changed."""
        return self._firsts, self._ends, self._offsets, self._stops

    @staticmethod
    def of_columns(firsts: list[int], ends: list[int], offsets: list[int], stops: list[int]) -> IntervalSet:
        """The set of these columns, which it takes over. ValueError if they are no sorted, disjoint runs."""
        edges = [edge for pair in zip(firsts, ends, strict=True) for edge in pair]
        if len(firsts) != len(offsets) or len(firsts) != len(stops) or any(map(ge, edges, edges[1:])):
            raise ValueError(f"{len(firsts)} runs are not sorted and disjoint")
        made = IntervalSet()
        made._firsts, made._ends, made._offsets, made._stops = firsts, ends, offsets, stops
        return made

    def copy(self) -> IntervalSet:
        """An independent set with the same runs."""
        twin = IntervalSet()
        twin._firsts, twin._ends = self._firsts.copy(), self._ends.copy()
        twin._offsets, twin._stops = self._offsets.copy(), self._stops.copy()
        return twin

    def overlap(self, first: int, end: int) -> list[tuple[int, int]]:
        """The parts of `[first, end)` that the set holds already."""
        low = bisect_right(self._ends, first)
        if low == len(self._firsts) or self._firsts[low] >= end:
            return []
        high = bisect_left(self._firsts, end)
        return [(max(first, self._firsts[i]), min(end, self._ends[i])) for i in range(low, high)]

    def add(self, first: int, end: int, offset: int = UNKNOWN, stop: int = UNKNOWN) -> None:
        """Add `[first, end)`, whose bytes are `[offset, stop)`; OverlapError if any of it is held already."""
        if not 0 <= first < end:
            raise ValueError(f"not an interval of records: {first}..{end}")
        # Where nothing is held, the runs that end at `first` or before are all that begin before it.
        at = bisect_right(self._ends, first)
        if at < len(self._firsts) and self._firsts[at] < end:
            raise OverlapError(first, end, self.overlap(first, end))
        self._insert(at, first, end, offset, stop)

    def cover(self, first: int, end: int, offset: int = UNKNOWN, stop: int = UNKNOWN) -> None:
        """Add what of `[first, end)` is not held yet; the union, never an error."""
        position, start = first, offset
        for held_first, held_end in self.overlap(first, end):
            if held_first > position:
                self.add(position, held_first, start, UNKNOWN)
            position, start = held_end, UNKNOWN
        if position < end:
            self.add(position, end, start, stop)

    def gaps(self, end: int = UNBOUNDED) -> list[Gap]:
        """What of `[0, end)` the set does not hold, in order."""
        found: list[Gap] = []
        position, offset = 0, 0
        for i, first in enumerate(self._firsts):
            if first >= end:
                break
            if first > position:
                found.append(Gap(position, first, offset))
            position, offset = self._ends[i], self._stops[i]
        if position < end:
            found.append(Gap(position, end, offset))
        return found

    def tiles(self, end: int) -> bool:
        """Whether the set is exactly `[0, end)`."""
        if end == 0:
            return not self._firsts
        return self._firsts == [0] and self._ends == [end]

    def _insert(self, at: int, first: int, end: int, offset: int, stop: int) -> None:
        joins_left = at > 0 and self._ends[at - 1] == first
        joins_right = at < len(self._firsts) and self._firsts[at] == end
        if joins_left and joins_right:
            self._ends[at - 1], self._stops[at - 1] = self._ends[at], self._stops[at]
            for column in (self._firsts, self._ends, self._offsets, self._stops):
                del column[at]
        elif joins_left:
            self._ends[at - 1], self._stops[at - 1] = end, stop
        elif joins_right:
            self._firsts[at], self._offsets[at] = first, offset
        else:
            self._firsts.insert(at, first)
            self._ends.insert(at, end)
            self._offsets.insert(at, offset)
            self._stops.insert(at, stop)


def still_open(gaps: Sequence[Gap], closed: Sequence[IntervalSet]) -> tuple[Gap, ...]:
    """What of these gaps one of the sets at least does not hold, in order."""
    common: list[tuple[int, int]] = []
    for gap in gaps:
        common += _held_by_all(gap, closed)
    if not common:
        return tuple(gaps)
    stops = {end: stop for held in closed for _, end, _, stop in held.runs()}
    left: list[Gap] = []
    for gap in gaps:
        first, offset = gap.first, gap.offset
        for low, high in common:
            if gap.first <= low and high <= gap.end:
                left += [Gap(first, low, offset)] if first < low else []
                first, offset = high, stops.get(high, UNKNOWN)
        left += [Gap(first, gap.end, offset)] if first < gap.end else []
    return tuple(left)


def _held_by_all(gap: Gap, closed: Sequence[IntervalSet]) -> list[tuple[int, int]]:
    parts = [(gap.first, gap.end)]
    for held in closed:
        parts = [part for first, end in parts for part in held.overlap(first, end)]
    return parts
