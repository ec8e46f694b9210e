"""Batches from rows of the dataset: tokens, and everything that follows from where their pieces lie.

A numpy call costs as much as a thousand tokens, so what is small (where segments lie) is computed for many batches at
once (`headrace.loader.segments`), and what is wide (a value a token) for as many as fit a processor's cache. Wide
fields are made by copying and filling runs, never by an index a token; runs go through memoryviews, whose slices cost
half of numpy's. The memory of a field is used again when nobody holds a view of it any more: fresh pages cost more
than the whole assembly.
"""

import sys
from typing import Any, Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from headrace.loader.order import I64, distinct
from headrace.loader.segments import I32, NOTHING, Runs, Shards, find_segments

#: what PyTorch's cross entropy ignores by default
IGNORED_LABEL: Final = -100
#: rows of at least this many tokens are copied one by one where they lie in several shards
ROW_TOKENS_MIN: Final = 512
#: with more tokens a run than this, a field is made by a copy a run, else by one pass over its tokens
RUN_TOKENS_MIN: Final = 128
#: sets of buffers kept; the batches ahead of the reader and those that it holds take one each
BUFFERS_MAX: Final = 16
_HAS_GIL: Final = getattr(sys, "_is_gil_enabled", lambda: True)()

#: whoever knows of mixtures and steps fills these fields in
NO_SOURCES: Final = np.zeros(0, dtype=np.int32)
NO_STATE: Final = np.zeros(0, dtype=np.int64)


class Batch(TypedDict):
    """One rank's batch of B sequences of L tokens, in numpy.

    A *segment* is a run of tokens of one sequence: a piece of a document, or a run of padding between or after
    pieces. Segments tile the flattened batch: the first begins at 0, the last ends at B * L, none crosses a sequence.
    A document that was cut has several pieces, and each is a segment of its own that knows nothing of the others.
    """

    #: int32 [B, L]
    tokens: I32
    #: int32 [B, L]: the next token of the same piece; -100 at a piece's last token, in padding, and where the next
    #: token is one that the piece repeats (a dataset packed with an overlap): each token is a label once
    labels: I32
    #: bool [B, L]: where `labels` is not -100
    loss_mask: NDArray[np.bool_]
    #: int32 [B, L]: from 0 in each segment, also where a cut document goes on in a later piece
    position_ids: I32
    #: int32 [segments + 1]: where segments begin in the flattened batch, and B * L; as variable-length attention takes
    cu_seqlens: I32
    #: the longest segment, in tokens
    max_seqlen: int
    #: int64 [segments, 2]: (shard, row of its documents table), or (-1, -1) for padding
    documents: I64
    #: int64 [B]: positions in the pass's order, -1 for the rows that pad the last batch
    positions: I64
    #: int32 [B]: which of the loader's datasets a row comes from, -1 for rows of padding
    sources: I32
    #: int64 [3]: pass, position in it and step, as a state that is saved once this batch was received has them
    state: I64


class Wide:
    """The memory of the fields with a value a token, for `rows` sequences."""

    __slots__ = ("_arrays", "flat_labels", "flat_mask", "label_line", "labels", "mask", "position_ids", "position_line",
                 "token_line", "tokens")  # fmt: skip

    def __init__(self, rows: int, seq_len: int) -> None:
        self.tokens: I32 = np.empty((rows, seq_len), dtype=np.int32)
        self.labels: I32 = np.empty((rows, seq_len), dtype=np.int32)
        self.mask: NDArray[np.bool_] = np.empty((rows, seq_len), dtype=np.bool_)
        self.position_ids: I32 = np.empty((rows, seq_len), dtype=np.int32)
        self.flat_labels: I32 = self.labels.reshape(-1)
        self.flat_mask: NDArray[np.bool_] = self.mask.reshape(-1)
        self.token_line = self.tokens.reshape(-1).data
        self.label_line = self.flat_labels.data
        self.position_line = self.position_ids.reshape(-1).data
        self._arrays = (self.tokens, self.labels, self.mask, self.position_ids)

    def references(self) -> int:
        """References to the arrays, those of views and of what was made from views among them."""
        tokens, labels, mask, position_ids = self._arrays
        count = sys.getrefcount
        return count(tokens) + count(labels) + count(mask) + count(position_ids)


class Buffers:
    """The memory of the wide fields, used again once no view of it is left. For one thread."""

    def __init__(self) -> None:
        self._sets: list[tuple[tuple[int, int], int, Wide]] = []

    def take(self, rows: int, seq_len: int) -> Wide:
        """Memory for [rows, seq_len]; what it holds is undefined."""
        shape = (rows, seq_len)
        # the newest first: it is the likeliest to be in the processor's cache
        for at in range(len(self._sets) - 1, -1, -1):
            known, references, wide = self._sets[at]
            if known == shape and wide.references() <= references:
                self._sets.append(self._sets.pop(at))
                return wide
        made = Wide(rows, seq_len)
        if _HAS_GIL:
            # the oldest set goes: sizes differ only while the first batches grow
            self._sets = [*self._sets[-(BUFFERS_MAX - 1) :], (shape, made.references(), made)]
        return made


def assemble(dataset: Shards, positions: I64, shards: I64, rows: I64, batch_size: int) -> Batch:
    """The batch of the samples at `positions` [k], which lie at (`shards` [k], `rows` [k]); k <= batch_size.

    Rows k to batch_size are padding. Raises the store's errors.
    """
    return Assembly(dataset, positions, shards, rows, batch_size, 1, Buffers()).batches(0, 1)[0]


class Assembly:
    """`count` batches of `batch_size` rows, of which the small fields are known and the wide ones not yet made.

    `positions`, `shards` and `rows` [k] are those of the samples; rows from k on are padding.
    """

    def __init__(
        self, dataset: Shards, positions: I64, shards: I64, rows: I64, batch_size: int, count: int, buffers: Buffers
    ) -> None:
        self._dataset = dataset
        self._shards, self._rows = shards, rows
        self._places = list(zip(shards.tolist(), rows.tolist(), strict=True))
        self._batch_size = batch_size
        self._buffers = buffers
        self._segments = segments = find_segments(dataset, shards, rows, batch_size * count)
        self._positions = np.full(batch_size * count, NOTHING, dtype=np.int64)
        self._positions[: positions.size] = positions
        tokens = batch_size * dataset.seq_len
        edges = np.searchsorted(segments.bounds, np.arange(count + 1) * tokens)
        self._edges: list[int] = edges.tolist()
        self._longest: list[int] = np.maximum.reduceat(segments.lengths, edges[:-1]).tolist()
        # each batch's bounds begin with the last of the batch before it
        batch = np.repeat(np.arange(count), np.diff(edges) + 1)
        self._cu_seqlens = (segments.bounds[np.arange(batch.size) - batch] - batch * tokens).astype(np.int32)
        self._runs = Runs(segments, dataset.seq_len)
        self._counting = np.arange(dataset.seq_len, dtype=np.int32)

    def batches(self, first: int, count: int) -> list[Batch]:
        """Batches `first` to `first + count`, as views of one memory. Raises the store's errors."""
        size = self._batch_size
        wide = self._buffers.take(size * count, self._dataset.seq_len)
        self._copy_rows(first * size, (first + count) * size, wide)
        self._fill_labels(self._edges[first], self._edges[first + count], first * size * self._dataset.seq_len, wide)
        self._fill_positions(self._edges[first], self._edges[first + count], first * size * self._dataset.seq_len, wide)
        batches: list[Batch] = []
        for at in range(count):
            rows = slice(at * size, (at + 1) * size)
            begin, end = self._edges[first + at], self._edges[first + at + 1]
            batches.append(
                Batch(
                    tokens=wide.tokens[rows],
                    labels=wide.labels[rows],
                    loss_mask=wide.mask[rows],
                    position_ids=wide.position_ids[rows],
                    cu_seqlens=self._cu_seqlens[begin + first + at : end + first + at + 1],
                    max_seqlen=self._longest[first + at],
                    documents=self._segments.documents[begin:end],
                    positions=self._positions[(first + at) * size : (first + at + 1) * size],
                    sources=NO_SOURCES,
                    state=NO_STATE,
                )
            )
        return batches

    def _copy_rows(self, first: int, end: int, wide: Wide) -> None:
        """Copy rows `first` to `end` into the tokens, and padding behind them."""
        dataset, seq_len = self._dataset, self._dataset.seq_len
        places = self._places[first:end]
        if len(places) < end - first:
            wide.tokens[len(places) :] = dataset.pad_id
        if seq_len < ROW_TOKENS_MIN:
            self._gather_rows(first, end, wide)
            return
        line = wide.token_line
        begin = 0
        # views and not shards: a small cache may evict what these lie in, and they stay good
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
        shard.wait(rows)
        return shard.view if shard.line is None else shard.line

    def _gather_rows(self, first: int, end: int, wide: Wide) -> None:
        """Like the loop over rows, with one gather a shard: for rows so short that a slice costs more than its copy."""
        shards, rows = self._shards[first:end], self._rows[first:end]
        for number in distinct(shards).tolist():
            chosen = np.flatnonzero(shards == number)
            shard = self._dataset.shard(number)
            shard.wait(rows[chosen])
            wide.tokens[chosen] = shard.view[rows[chosen]]
            # a cache with room for one shard could not open the next
            del shard

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
            segments = self._segments
            ignored = segments.documents[first:end, 0] == NOTHING
            ignored = np.repeat(ignored, segments.lengths[first:end])
            wide.flat_labels[ignored] = IGNORED_LABEL
            # what was retracted lies in the shard still
            wide.tokens.reshape(-1)[ignored] = self._dataset.pad_id
            np.not_equal(wide.labels, IGNORED_LABEL, out=wide.mask)
            return
        for begin, length in padding:
            wide.flat_labels[begin - origin : begin - origin + length] = IGNORED_LABEL
            wide.flat_mask[begin - origin : begin - origin + length] = False
            wide.tokens.reshape(-1)[begin - origin : begin - origin + length] = self._dataset.pad_id

    def _fill_positions(self, first: int, end: int, origin: int, wide: Wide) -> None:
        wide.position_ids[...] = self._counting
        # segments at the start of a row are right already
        inner = self._runs.inner(first, end)
        if len(inner) * RUN_TOKENS_MIN > wide.flat_mask.size:
            in_row = (self._segments.bounds[first:end] % self._dataset.seq_len).astype(np.int32)
            wide.position_ids.reshape(-1)[...] -= np.repeat(in_row, self._segments.lengths[first:end])
            return
        line, source = wide.position_line, self._counting.data
        for begin, length in inner:
            line[begin - origin : begin - origin + length] = source[:length]
