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

from headrace.loader.order import I64
from headrace.loader.segments import I32, NOTHING, Segments, Shards, find_segments

#: what PyTorch's cross entropy ignores by default
IGNORED_LABEL: Final = -100
#: rows of at least this many tokens are copied one by one where they lie in several shards
ROW_TOKENS_MIN: Final = 512
#: with more tokens a run than this, a field is made by a copy a run, else by one pass over its tokens
RUN_TOKENS_MIN: Final = 128
#: sets of buffers kept; the batches ahead of the reader and those that it holds take one each
BUFFERS_MAX: Final = 16
#: an array that only the pool knows has so many references where they are counted
_OWN_REFERENCES: Final = 3
_HAS_GIL: Final = getattr(sys, "_is_gil_enabled", lambda: True)()

#: whoever knows of mixtures and steps fills these fields in
_NO_SOURCES: Final = np.zeros(0, dtype=np.int32)
_NO_STATE: Final = np.zeros(0, dtype=np.int64)


class Batch(TypedDict):
    """One rank's batch of B sequences of L tokens, in numpy.

    A *segment* is a run of tokens of one sequence: a piece of a document, or a run of padding between or after
    pieces. Segments tile the flattened batch: the first begins at 0, the last ends at B * L, none crosses a sequence.
    A document that was cut has several pieces, and each is a segment of its own that knows nothing of the others.
    """

    #: int32 [B, L]
    tokens: I32
    #: int32 [B, L]: the next token of the same piece; -100 at a piece's last token and in padding
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


class Buffers:
    """The memory of the wide fields, used again once no view of it is left. For one thread."""

    def __init__(self) -> None:
        self._sets: list[tuple[NDArray[Any], ...]] = []

    def take(self, rows: int, seq_len: int) -> tuple[I32, I32, NDArray[np.bool_], I32]:
        """Arrays [rows, seq_len] for tokens, labels, loss mask and position ids; what they hold is undefined."""
        for at, arrays in enumerate(self._sets):
            if arrays[0].shape == (rows, seq_len) and self._unused(at):
                return arrays  # type: ignore[return-value]
        made = tuple(np.empty((rows, seq_len), dtype=kind) for kind in (np.int32, np.int32, np.bool_, np.int32))
        if _HAS_GIL:
            # the oldest set goes: sizes differ only while the first batches grow
            self._sets = [*self._sets[-(BUFFERS_MAX - 1) :], made]
        return made  # type: ignore[return-value]

    def _unused(self, at: int) -> bool:
        # known to the set and to these two: a view, and whatever was made from one, adds to it
        return all(sys.getrefcount(array) <= _OWN_REFERENCES for array in self._sets[at])


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
        self._batch_size = batch_size
        self._buffers = buffers
        self._segments = find_segments(dataset, shards, rows, batch_size * count)
        self._positions = np.full(batch_size * count, NOTHING, dtype=np.int64)
        self._positions[: positions.size] = positions
        tokens = batch_size * dataset.seq_len
        self._edges = np.searchsorted(self._segments.bounds, np.arange(count + 1) * tokens).tolist()
        self._longest = np.maximum.reduceat(self._segments.lengths, self._edges[:-1]).tolist()

    def batches(self, first: int, count: int) -> list[Batch]:
        """Batches `first` to `first + count`, as views of one memory. Raises the store's errors."""
        size, seq_len = self._batch_size, self._dataset.seq_len
        tokens, labels, mask, position_ids = self._buffers.take(size * count, seq_len)
        here = slice(first * size, (first + count) * size)
        self._copy_rows(self._shards[here], self._rows[here], tokens)
        part = self._segments.part(self._edges[first], self._edges[first + count], first * size * seq_len)
        _fill_labels(tokens, part, labels, mask)
        _fill_position_ids(part, position_ids)
        return [
            Batch(
                tokens=tokens[at * size : (at + 1) * size],
                labels=labels[at * size : (at + 1) * size],
                loss_mask=mask[at * size : (at + 1) * size],
                position_ids=position_ids[at * size : (at + 1) * size],
                **self._small(first + at),
            )
            for at in range(count)
        ]

    def _small(self, number: int) -> Any:
        """The fields of a batch that have no value a token."""
        size, segments = self._batch_size, self._segments
        begin, end = self._edges[number], self._edges[number + 1]
        bounds = segments.bounds[begin : end + 1] - number * size * self._dataset.seq_len
        return {
            "cu_seqlens": bounds.astype(np.int32),
            "max_seqlen": self._longest[number],
            "documents": segments.documents[begin:end],
            "positions": self._positions[number * size : (number + 1) * size],
            "sources": _NO_SOURCES,
            "state": _NO_STATE,
        }

    def _copy_rows(self, shards: I64, rows: I64, tokens: I32) -> None:
        """Copy rows into `tokens`, and padding behind them."""
        dataset, seq_len = self._dataset, self._dataset.seq_len
        tokens[rows.size :] = dataset.pad_id
        if rows.size and (shards[0] == shards).all():
            view = dataset.shard(int(shards[0])).view
            if view.dtype == np.int32:
                # any mode but "raise" writes straight into `out`; the order yields no row outside of the shard
                view.take(rows, axis=0, out=tokens[: rows.size], mode="clip")
            else:
                tokens[: rows.size] = view.take(rows, axis=0)
        elif seq_len < ROW_TOKENS_MIN:
            for number in np.unique(shards).tolist():
                chosen = np.flatnonzero(shards == number)
                tokens[chosen] = dataset.shard(number).view[rows[chosen]]
        else:
            line = memoryview(tokens.reshape(-1))
            begin = 0
            for number, row in zip(shards.tolist(), rows.tolist(), strict=True):
                shard = dataset.shard(number)
                if shard.line is None:
                    tokens[begin // seq_len] = shard.view[row]
                else:
                    line[begin : begin + seq_len] = shard.line[row * seq_len : (row + 1) * seq_len]
                begin += seq_len


def _fill_labels(tokens: I32, segments: Segments, labels: I32, mask: NDArray[np.bool_]) -> None:
    flat, known = labels.reshape(-1), mask.reshape(-1)
    flat[:-1] = tokens.reshape(-1)[1:]
    known.fill(True)
    last = segments.bounds[1:] - 1
    flat[last] = IGNORED_LABEL
    known[last] = False
    padding = np.flatnonzero(segments.documents[:, 0] == NOTHING)
    if padding.size * RUN_TOKENS_MIN > tokens.size:
        ignored = np.zeros(segments.lengths.size, dtype=np.bool_)
        ignored[padding] = True
        flat[np.repeat(ignored, segments.lengths)] = IGNORED_LABEL
        np.not_equal(flat, IGNORED_LABEL, out=known)
        return
    for begin, end in zip(segments.bounds[padding].tolist(), segments.bounds[padding + 1].tolist(), strict=True):
        flat[begin:end] = IGNORED_LABEL
        known[begin:end] = False


def _fill_position_ids(segments: Segments, position_ids: I32) -> None:
    seq_len = position_ids.shape[1]
    counting = np.arange(seq_len, dtype=np.int32)
    position_ids[...] = counting
    flat = position_ids.reshape(-1)
    in_row = segments.bounds[:-1] % seq_len
    # segments at the start of a row are right already
    inner = np.flatnonzero(in_row)
    if inner.size * RUN_TOKENS_MIN > flat.size:
        flat -= np.repeat(in_row.astype(np.int32), segments.lengths)
        return
    line, source = memoryview(flat), memoryview(counting)
    for begin, length in zip(segments.bounds[inner].tolist(), segments.lengths[inner].tolist(), strict=True):
        line[begin : begin + length] = source[:length]
