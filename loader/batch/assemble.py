"""Batches from rows of the dataset: tokens, and everything that follows from where their pieces lie.

A numpy call costs as much as a thousand tokens, so what is small (where segments lie) is computed for many batches at
once (`headrace.loader.batch.segments`), and what is wide (a value a token) for as many as fit a processor's cache.
Wide fields are made by copying and filling runs, never by an index a token; runs go through memoryviews, whose slices
cost half of numpy's.
"""

from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from headrace.loader.batch.buffers import Buffers, Wide
from headrace.loader.batch.fields import ALL_FIELDS, NOTHING, Batch, Bounds, Fields, Placed, small_fields
from headrace.loader.batch.segments import Runs, Segments, Shards, find_segments
from headrace.loader.order import I64, distinct

#: what PyTorch's cross entropy ignores by default
IGNORED_LABEL: Final = -100
#: rows of at least this many tokens are copied one by one where they lie in several shards
ROW_TOKENS_MIN: Final = 512
#: with more tokens a run than this, a field is made by a copy a run, else by one pass over its tokens
RUN_TOKENS_MIN: Final = 128


def assemble(
    dataset: Shards, positions: I64, shards: I64, rows: I64, batch_size: int, fields: Fields = ALL_FIELDS
) -> Batch:
    """The batch of the samples at `positions` [k], which lie at (`shards` [k], `rows` [k]); k <= batch_size.

    Rows k to batch_size are padding. Raises the store's errors.
    """
    padded = np.full(batch_size, NOTHING, dtype=np.int64)
    padded[: positions.size] = positions
    placed = Placed(padded, np.zeros(batch_size, np.int32), np.zeros((1, 3), np.int64))
    return Assembly(dataset, placed, shards, rows, Buffers(fields)).batches(0, 1)[0]


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
        self, dataset: Shards, placed: Placed, shards: I64, rows: I64, buffers: Buffers, *, tight: bool = False
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
