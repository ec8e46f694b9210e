"""Where the segments of some rows lie: the pieces of their documents, and the padding between."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.loader.batch.fields import NOTHING
from headrace.loader.dataset import DOCUMENT, LENGTH, REPEATED, START, PieceTable, Shard
from headrace.loader.order import I64, distinct

#: with fewer rows a shard than this, pieces are looked up row by row
ROWS_A_SHARD_MIN: Final = 12


class Shards(Protocol):
    """Where rows come from: a dataset, or several behind one numbering of shards."""

    @property
    def seq_len(self) -> int:
        """Tokens a sequence."""
        ...

    @property
    def pad_id(self) -> int:
        """The token of padding."""
        ...

    def shard(self, number: int) -> Shard:
        """The shard of that number, open."""
        ...

    def stopped(self) -> bool:
        """Whether nobody waits for rows any more."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Runs of tokens that tile some rows laid end to end; none crosses a row."""

    #: [segments + 1] where they begin, and where the last ends
    bounds: I64
    #: [segments]
    lengths: I64
    #: [segments, 2] (shard, row of its documents table), or (-1, -1) for padding
    documents: I64
    #: [segments] how many of their first tokens repeat the end of the document's piece before
    repeated: I64


class Runs:
    """Of some segments, those that need a touch of their own when fields are filled."""

    __slots__ = ("_inner", "_inner_at", "_padding", "_padding_at", "_repeated", "_repeated_at", "last")

    def __init__(self, segments: Segments, seq_len: int) -> None:
        #: the last token of each segment
        self.last = segments.bounds[1:] - 1
        self._padding_at, self._padding = _listed(segments, segments.documents[:, 0] == NOTHING)
        self._inner_at, self._inner = _listed(segments, segments.bounds[:-1] % seq_len != 0)

        # the first label of a new token stands at the last repeated one
        again = np.flatnonzero(segments.repeated > 1)
        self._repeated_at: list[int] = again.tolist()
        labels = segments.repeated[again] - 1
        self._repeated = list(zip(segments.bounds[again].tolist(), labels.tolist(), strict=True))

    def repeated(self, first: int, end: int) -> list[tuple[int, int]]:
        """(start, length) of the labels among segments `first` to `end` that are given in another piece too."""
        return self._repeated[bisect_left(self._repeated_at, first) : bisect_left(self._repeated_at, end)]

    def padding(self, first: int, end: int) -> list[tuple[int, int]]:
        """(start, length) of the padding among segments `first` to `end`."""
        return self._padding[bisect_left(self._padding_at, first) : bisect_left(self._padding_at, end)]

    def inner(self, first: int, end: int) -> list[tuple[int, int]]:
        """(start, length) of those among segments `first` to `end` that do not begin a row."""
        return self._inner[bisect_left(self._inner_at, first) : bisect_left(self._inner_at, end)]


def _listed(segments: Segments, chosen: NDArray[np.bool_]) -> tuple[list[int], list[tuple[int, int]]]:
    at = np.flatnonzero(chosen)
    return at.tolist(), list(zip(segments.bounds[at].tolist(), segments.lengths[at].tolist(), strict=True))


def find_segments(dataset: Shards, shards: I64, rows: I64, total: int, *, tight: bool = False) -> Segments:
    """The segments of `total` rows, of which the first lie at (`shards` [k], `rows` [k]) and the others are padding.

    `tight` opens each shard once, where one that was opened may have to go for the next.
    """
    numbers = distinct(shards)
    if not tight and numbers.size * ROWS_A_SHARD_MIN >= rows.size:
        counts, table = _row_by_row(dataset, shards, rows)
    else:
        counts, table = _shard_by_shard(dataset, numbers, shards, rows)
    line = np.repeat(np.arange(rows.size, dtype=np.int64), counts)
    starts = line * dataset.seq_len + table[:, START]
    owners = np.empty((line.size, 2), dtype=np.int64)
    owners[:, 0] = shards[line]
    owners[:, 1] = table[:, DOCUMENT]
    repeated = table[:, REPEATED].astype(np.int64)
    return _tile(starts, starts + table[:, LENGTH], owners, repeated, total, dataset.seq_len)


def _row_by_row(dataset: Shards, shards: I64, rows: I64) -> tuple[I64, PieceTable]:
    """(pieces a row, their table) in order."""
    tables: list[PieceTable] = [np.zeros((0, 4), dtype=np.int32)]
    for number, row in zip(shards.tolist(), rows.tolist(), strict=True):
        tables.append(dataset.shard(number).row_pieces(row))
    return np.fromiter(map(len, tables[1:]), np.int64, rows.size), np.concatenate(tables)


def _shard_by_shard(dataset: Shards, numbers: I64, shards: I64, rows: I64) -> tuple[I64, PieceTable]:
    """Like `_row_by_row`, with one look-up a shard."""
    if numbers.size == 1:
        return dataset.shard(int(numbers[0])).piece_table(rows)
    order = np.argsort(shards, kind="stable")
    ends = np.searchsorted(shards[order], numbers, side="right").tolist()
    counts = np.empty(rows.size, dtype=np.int64)
    tables: list[PieceTable] = []
    begin = 0
    for number, end in zip(numbers.tolist(), ends, strict=True):
        chosen = order[begin:end]
        counts[chosen], table = dataset.shard(number).piece_table(rows[chosen])
        tables.append(table)
        begin = end
    sorting = np.argsort(np.repeat(order, counts[order]), kind="stable")
    return counts, np.concatenate(tables).take(sorting, axis=0)


def _tile(starts: I64, ends: I64, owners: I64, repeated: I64, rows: int, seq_len: int) -> Segments:
    """Disjoint pieces in order, and padding where none lies.

    Pieces cross no edge, so between neighbouring bounds lies exactly one piece or one run of padding.
    """
    total = rows * seq_len
    if starts.size and starts[0] == 0 and ends[-1] == total and bool((starts[1:] == ends[:-1]).all()):
        return Segments(np.append(starts, total), ends - starts, owners, repeated)
    every = np.concatenate((starts, ends, np.arange(rows + 1, dtype=np.int64) * seq_len))
    every.sort()
    bounds = every[np.append(True, every[1:] != every[:-1])]
    documents = np.full((bounds.size - 1, 2), NOTHING, dtype=np.int64)
    places = np.searchsorted(bounds, starts)
    documents[places] = owners
    again = np.zeros(bounds.size - 1, dtype=np.int64)
    again[places] = repeated
    return Segments(bounds, bounds[1:] - bounds[:-1], documents, again)
