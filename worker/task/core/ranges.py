"""Ranges of records as columns: of a million verdicts that wait, none has an object of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from headrace.store.ledger import UNBOUNDED, UNKNOWN, Range

Ordinals = npt.NDArray[np.int64]
#: `[ranges, 4]`: first, end, offset and length of each, ascending and disjoint.
Columns = npt.NDArray[np.int64]

_NONE: Columns = np.zeros((0, 4), np.int64)


class Ranges(Collection[Range]):
    """Disjoint ranges of several fragments, by fragment."""

    __slots__ = ("_of",)

    def __init__(self, of: Mapping[bytes, Columns | list[Range]]) -> None:
        #: As they came, until the columns of a fragment are asked for: of small files each has one range.
        self._of = {fragment: held for fragment, held in of.items() if len(held)}

    @staticmethod
    def of(items: Iterable[Range]) -> Ranges:
        """These ranges, which do not overlap."""
        if isinstance(items, Ranges):
            return items
        found: dict[bytes, list[Range]] = {}
        for item in items:
            found.setdefault(item.fragment, []).append(item)
        return Ranges(found)

    @staticmethod
    def of_records(records: Mapping[bytes, Ordinals]) -> Ranges:
        """A range for each of these records."""
        return Ranges({name: columns_of(np.sort(rows), np.sort(rows) + 1) for name, rows in records.items()})

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def __iter__(self) -> Iterator[Range]:
        for fragment, held in self._of.items():
            if isinstance(held, list):
                yield from held
            else:
                for first, end, offset, length in held.tolist():
                    yield Range(fragment, first, end - first, offset, length)

    def __contains__(self, item: object) -> bool:
        return item in list(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Ranges, tuple, list)) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Ranges({list(self)})"

    @property
    def records(self) -> int:
        """How many records they have."""
        return sum(
            sum(item.count for item in held) if isinstance(held, list) else int((held[:, 1] - held[:, 0]).sum())
            for held in self._of.values()
        )

    @property
    def fragments(self) -> Collection[bytes]:
        """The fragments that they are of."""
        return self._of.keys()

    def of_fragment(self, fragment: bytes) -> Ranges:
        """Those of one fragment."""
        return Ranges({fragment: self._of.get(fragment, _NONE)})

    def columns(self, fragment: bytes) -> Columns:
        """Those of one fragment."""
        held = self._of.get(fragment, _NONE)
        if isinstance(held, list):
            rows = sorted((item.first, item.end, item.offset, item.length) for item in held)
            held = self._of[fragment] = np.array(rows, np.int64).reshape(-1, 4)
        return held

    def within(self, item: Range) -> Columns:
        """Those that `item` meets."""
        held = self._of.get(item.fragment)
        if held is None:
            return _NONE
        held = self.columns(item.fragment)
        low = int(np.searchsorted(held[:, 1], item.first, side="right"))
        return held[low : max(low, int(np.searchsorted(held[:, 0], item.end)))]

    def plus(self, other: Ranges) -> Ranges:
        """These and others, none of which overlaps one of these."""
        both = dict(self._of)
        for fragment in other.fragments:
            mine, theirs = self.columns(fragment), other.columns(fragment)
            joined = np.concatenate([mine, theirs]) if len(mine) else theirs
            both[fragment] = joined[np.argsort(joined[:, 0], kind="stable")]
        return Ranges(both)

    def minus(self, other: Ranges) -> Ranges:
        """What is left of these without others, which may overlap. A range that is cut loses the bytes at its edges."""
        left = dict(self._of)
        for fragment in other.fragments:
            if fragment in left:
                left[fragment] = _without(self.columns(fragment), other.columns(fragment))
        return Ranges(left)

    def disjoint(self) -> Ranges:
        """These ranges. ValueError where two of them have the same record."""
        for fragment, held in self._of.items():
            rows = self.columns(fragment) if len(held) > 1 else _NONE
            twice = rows[1:, 0] < rows[:-1, 1]
            if twice.any():
                raise ValueError(f"record {rows[1:][twice][0, 0]} of fragment {fragment.hex()} is held twice")
        return self

    def parted(self, count: int) -> tuple[Ranges, Ranges]:
        """The first so many of the ranges, and the others."""
        first: dict[bytes, Columns] = {}
        rest: dict[bytes, Columns] = {}
        for fragment in self.fragments:
            held = self.columns(fragment)
            first[fragment], rest[fragment] = held[:count], held[count:]
            count -= min(count, len(held))
        return Ranges(first), Ranges(rest)


def columns_of(firsts: Ordinals, ends: Ordinals) -> Columns:
    """Ranges whose bytes nobody knows."""
    unknown = np.full(len(firsts), UNKNOWN, np.int64)
    return np.stack([firsts, ends, unknown, unknown], axis=1)


def _without(ranges: Columns, holes: Columns) -> Columns:
    """What the holes leave: each range met with each gap between two holes that it reaches into."""
    begins = np.concatenate([[-1], np.maximum.accumulate(holes[:, 1])])
    stops = np.concatenate([holes[:, 0], [UNBOUNDED]])
    low = np.searchsorted(stops, ranges[:, 0], side="right")
    counts = np.maximum(0, np.searchsorted(begins, ranges[:, 1]) - low)
    owners = np.repeat(np.arange(len(ranges)), counts)
    gaps = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts - low, counts)
    firsts = np.maximum(ranges[owners, 0], begins[gaps])
    ends = np.minimum(ranges[owners, 1], stops[gaps])
    left = columns_of(firsts, ends)
    whole = (firsts == ranges[owners, 0]) & (ends == ranges[owners, 1])
    left[whole, 2:] = ranges[owners[whole], 2:]
    kept: Columns = left[firsts < ends]
    return kept


def runs(rows: Ordinals) -> tuple[Ordinals, Ordinals]:
    """The first of each run of neighbours among ascending ordinals, and the ordinal behind its last."""
    edges = np.flatnonzero(np.diff(rows) != 1) + 1
    starts = np.concatenate([[0], edges])[: len(rows)]
    stops = np.concatenate([edges, [len(rows)]])[: len(starts)]
    return rows[starts], rows[stops - 1] + 1
