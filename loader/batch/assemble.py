"""Batches from rows of the dataset: tokens, and everything that follows from where their pieces lie.

A numpy call costs as much as a thousand tokens, so what is small (where segments lie) is computed for many batches at
once (`headrace.loader.batch.assemble`), and what is wide (a value a token) for as many as fit a processor's cache.
Wide fields are made by copying and filling runs, never by an index a token; runs go through memoryviews, whose slices
cost half of numpy's.

Where the segments of some rows lie: the pieces of their documents, and the padding between.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from headrace.loader.batch.buffers import Buffers, Wide
from headrace.loader.batch.fields import NOTHING, Batch, Bounds, Placed, small_fields
from headrace.loader.dataset import DOCUMENT, LENGTH, REPEATED, START, PieceTable, Sources
from headrace.loader.order import I64, distinct

#: with fewer rows a shard than this, pieces are looked up row by row
ROWS_A_SHARD_MIN: Final = 12


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


def find_segments(dataset: Sources, shards: I64, rows: I64, total: int, *, tight: bool = False) -> Segments:
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


def _row_by_row(dataset: Sources, shards: I64, rows: I64) -> tuple[I64, PieceTable]:
    """(pieces a row, their table) in order."""
    tables: list[PieceTable] = [np.zeros((0, 4), dtype=np.int32)]
    for number, row in zip(shards.tolist(), rows.tolist(), strict=True):
        tables.append(dataset.shard(number).row_pieces(row))
    return np.fromiter(map(len, tables[1:]), np.int64, rows.size), np.concatenate(tables)


def _shard_by_shard(dataset: Sources, numbers: I64, shards: I64, rows: I64) -> tuple[I64, PieceTable]:
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


#: what PyTorch's cross entropy ignores by default
IGNORED_LABEL: Final = -100
#: rows of at least this many tokens are copied one by one where they lie in several shards
ROW_TOKENS_MIN: Final = 512
#: with more tokens a run than this, a field is made by a copy a run, else by one pass over its tokens
RUN_TOKENS_MIN: Final = 128


def cut(wide: Wide, small: list[dict[str, Any]]) -> list[Batch]:
    """As many batches as there are of `small`, as views of one memory."""
    size = len(wide.tokens) // len(small)
    batches: list[Batch] = []
    for at, batch in enumerate(small):
        rows = slice(at * size, (at + 1) * size)
        views = batch.copy()
        for name, array in wide.given:
            views[name] = array[rows]
        batches.append(cast("Batch", views))
    return batches


class Assembly:
    """The batches that `placed` names, of which the small fields are known and the wide ones not yet made.

    `shards` and `rows` [k] are those of the samples; rows from k on are padding. Where space is `tight`, one shard at a
    time is open and mapped: what is mapped takes its bytes of a disk, also when a cache has evicted it.
    """

    def __init__(
        self, dataset: Sources, placed: Placed, shards: I64, rows: I64, buffers: Buffers, *, tight: bool = False
    ) -> None:
        self._dataset = dataset
        self._is_tight = tight
        self._shards, self._rows = shards, rows
        self._places = list(zip(shards.tolist(), rows.tolist(), strict=True))
        self._batch_size = placed.positions.size // placed.batches
        self._buffers = buffers
        # also where no field needs them: what was retracted becomes padding
        self._segments = segments = find_segments(dataset, shards, rows, placed.positions.size, tight=tight)
        bounds = self._bounds(segments, placed.batches)
        self._edges = bounds.edges
        self._small = small_fields(buffers.fields, placed, bounds)
        self._runs = Runs(segments, dataset.seq_len)
        self._counting = np.arange(dataset.seq_len, dtype=np.int32)

    @property
    def is_ready(self) -> bool:
        """It may have to open a shard, and numpy would have two threads wait for each other."""
        return False

    def _bounds(self, segments: Segments, count: int) -> Bounds:
        tokens = self._batch_size * self._dataset.seq_len
        edges = np.searchsorted(segments.bounds, np.arange(count + 1) * tokens)
        longest = np.maximum.reduceat(segments.lengths, edges[:-1])
        # each batch's bounds begin with the last of the batch before it
        batch = np.repeat(np.arange(count), np.diff(edges) + 1)
        cu_seqlens = (segments.bounds[np.arange(batch.size) - batch] - batch * tokens).astype(np.int32)
        return Bounds(edges.tolist(), cu_seqlens, longest.tolist(), segments.documents)

    def batches(self, first: int, count: int) -> list[Batch]:
        """Batches `first` to `first + count`, as views of one memory. Raises the store's errors."""
        size, fields = self._batch_size, self._buffers.fields
        wide = self._buffers.take(size * count, self._dataset.seq_len)
        self._copy_rows(first * size, (first + count) * size, wide)
        place = self._edges[first], self._edges[first + count], first * size * self._dataset.seq_len
        self._fill_padding(*place, wide)
        if fields.has_labels:
            self._fill_labels(*place, wide)
        if fields.has_positions:
            self._fill_positions(*place, wide)
        batches = cut(wide, self._small[first : first + count])
        self._buffers.keep(wide)
        return batches

    def _copy_rows(self, first: int, end: int, wide: Wide) -> None:
        """Copy rows `first` to `end` into the tokens, and padding behind them."""
        dataset, seq_len = self._dataset, self._dataset.seq_len
        places = self._places[first:end]
        if len(places) < end - first:
            wide.tokens[len(places) :] = dataset.pad_id
        if seq_len < ROW_TOKENS_MIN or self._is_tight:
            self._gather_rows(first, end, wide)
            return
        line = wide.token_line
        begin = 0
        sources: dict[int, memoryview | NDArray[Any]] = {}
        for number, row in places:
            source = sources.get(number)
            if source is None:
                source = sources[number] = self._ready(number, self._rows[first:end][self._shards[first:end] == number])
            if isinstance(source, np.ndarray):
                wide.tokens[begin // seq_len] = source[row]
            else:
                line[begin : begin + seq_len] = source[row * seq_len : (row + 1) * seq_len]
            begin += seq_len

    def _ready(self, number: int, rows: I64) -> memoryview | NDArray[Any]:
        """The tokens of a shard, flat where a copy need not widen them, once these rows [k] of it are there."""
        shard = self._dataset.shard(number)
        shard.wait(rows, self._dataset.stopped)
        return shard.view if shard.line is None else shard.line

    def _gather_rows(self, first: int, end: int, wide: Wide) -> None:
        """Like the loop over rows, with one gather a shard: for rows so short that a slice costs more than its copy."""
        shards, rows = self._shards[first:end], self._rows[first:end]
        for number in distinct(shards).tolist():
            chosen = np.flatnonzero(shards == number)
            shard = self._dataset.shard(number)
            shard.wait(rows[chosen], self._dataset.stopped)
            wide.tokens[chosen] = shard.view[rows[chosen]]
            # a cache with space for one shard could not open the next
            del shard

    def _fill_padding(self, first: int, end: int, origin: int, wide: Wide) -> None:
        """Pad tokens where segments `first` to `end` hold no document: what was retracted lies in the shard still."""
        flat = wide.tokens.reshape(-1)
        padding = self._runs.padding(first, end)
        if len(padding) * RUN_TOKENS_MIN > flat.size:
            flat[self._is_padding(first, end)] = self._dataset.pad_id
            return
        for begin, length in padding:
            flat[begin - origin : begin - origin + length] = self._dataset.pad_id

    def _is_padding(self, first: int, end: int) -> NDArray[np.bool_]:
        """For each token of segments `first` to `end`, whether it is of no document."""
        segments = self._segments
        return np.repeat(segments.documents[first:end, 0] == NOTHING, segments.lengths[first:end])

    def _fill_labels(self, first: int, end: int, origin: int, wide: Wide) -> None:
        """Labels and loss mask of segments `first` to `end`, which begin at token `origin`."""
        self._fill_own_labels(first, end, origin, wide)
        for begin, length in self._runs.repeated(first, end):
            wide.flat_labels[begin - origin : begin - origin + length] = IGNORED_LABEL
            wide.flat_mask[begin - origin : begin - origin + length] = False

    def _fill_own_labels(self, first: int, end: int, origin: int, wide: Wide) -> None:
        """The same as if no piece repeated tokens of another."""
        runs = self._runs
        wide.label_line[:-1] = wide.token_line[1:]
        wide.mask.fill(True)
        last = runs.last[first:end] - origin
        wide.flat_labels[last] = IGNORED_LABEL
        wide.flat_mask[last] = False
        padding = runs.padding(first, end)
        if len(padding) * RUN_TOKENS_MIN > wide.flat_mask.size:
            wide.flat_labels[self._is_padding(first, end)] = IGNORED_LABEL
            np.not_equal(wide.labels, IGNORED_LABEL, out=wide.mask)
            return
        for begin, length in padding:
            wide.flat_labels[begin - origin : begin - origin + length] = IGNORED_LABEL
            wide.flat_mask[begin - origin : begin - origin + length] = False

    def _fill_positions(self, first: int, end: int, origin: int, wide: Wide) -> None:
        wide.position_ids[...] = self._counting
        # segments at the start of a row are right already
        inner = self._runs.inner(first, end)
        if len(inner) * RUN_TOKENS_MIN > wide.position_ids.size:
            in_row = (self._segments.bounds[first:end] % self._dataset.seq_len).astype(np.int32)
            wide.position_ids.reshape(-1)[...] -= np.repeat(in_row, self._segments.lengths[first:end])
            return
        line, source = wide.position_line, self._counting.data
        for begin, length in inner:
            line[begin - origin : begin - origin + length] = source[:length]
