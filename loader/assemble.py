"""Batches from rows of the dataset: tokens, and everything that follows from where their pieces lie.

Many small batches are assembled at once and cut apart as views, since a numpy call costs as much as a thousand tokens.
Each field is made by copying and filling runs, never by an index a token. The memory of a field is used again when
nobody holds a view of it any more: fresh pages cost more than the whole assembly.
"""

import sys
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from headrace.loader.order import I64
from headrace.loader.shard import DOCUMENT, LENGTH, START, PieceTable, Shard

#: what PyTorch's cross entropy ignores by default
IGNORED_LABEL: Final = -100
#: stands in `documents` for padding and in `positions` for rows past the end of the pass
NOTHING: Final = -1
#: with fewer rows a shard than this, rows are copied one by one
ROWS_A_SHARD_MIN: Final = 6
#: with more runs a row than this, a field is made by one pass over its tokens and not by a copy a run
RUNS_A_ROW_MAX: Final = 4
#: sets of buffers kept; the batches ahead of the reader and those that it holds take one each
BUFFERS_MAX: Final = 16
#: an array that only the pool knows has so many references where they are counted
_OWN_REFERENCES: Final = 3
_HAS_GIL: Final = getattr(sys, "_is_gil_enabled", lambda: True)()

I32 = NDArray[np.int32]

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
    return assemble_batches(dataset, positions, shards, rows, batch_size, 1, Buffers())[0]


def assemble_batches(
    dataset: Shards, positions: I64, shards: I64, rows: I64, batch_size: int, count: int, buffers: Buffers
) -> list[Batch]:
    """`count` batches at once, as views of one memory; the last rows of the last are padding where k falls short."""
    total, seq_len = batch_size * count, dataset.seq_len
    tokens, labels, mask, position_ids = buffers.take(total, seq_len)
    tokens[positions.size :] = dataset.pad_id
    distinct = np.unique(shards).tolist()
    if len(distinct) * ROWS_A_SHARD_MIN >= rows.size:
        starts, table, owners = _row_by_row(dataset, shards, rows, tokens)
    else:
        starts, table, owners = _shard_by_shard(dataset, distinct, shards, rows, tokens)
    bounds, documents = _segments(starts, table[:, LENGTH], owners, table[:, DOCUMENT], total, seq_len)
    lengths = bounds[1:] - bounds[:-1]
    padding = np.flatnonzero(documents[:, 0] == NOTHING)
    _fill_labels(tokens, bounds, lengths, padding, labels, mask)
    _fill_position_ids(bounds, lengths, position_ids)
    all_positions = np.full(total, NOTHING, dtype=np.int64)
    all_positions[: positions.size] = positions
    edges = np.searchsorted(bounds, np.arange(count + 1) * (batch_size * seq_len))
    longest = np.maximum.reduceat(lengths, edges[:-1]).tolist()
    batches: list[Batch] = []
    for number, (first, end) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        part = slice(number * batch_size, (number + 1) * batch_size)
        batches.append(
            Batch(
                tokens=tokens[part],
                labels=labels[part],
                loss_mask=mask[part],
                position_ids=position_ids[part],
                cu_seqlens=(bounds[first : end + 1] - number * (batch_size * seq_len)).astype(np.int32),
                max_seqlen=longest[number],
                documents=documents[first:end],
                positions=all_positions[part],
                sources=_NO_SOURCES,
                state=_NO_STATE,
            )
        )
    return batches


def _row_by_row(dataset: Shards, shards: I64, rows: I64, tokens: I32) -> tuple[I64, PieceTable, I64]:
    """Copy rows into `tokens`; their pieces' (start in the flat batch, table, shard), in order."""
    tables: list[PieceTable] = [np.zeros((0, 3), dtype=np.int32)]
    for at, (number, row) in enumerate(zip(shards.tolist(), rows.tolist(), strict=True)):
        shard = dataset.shard(number)
        tokens[at] = shard.view[row]
        tables.append(shard.row_pieces(row))
    counts = np.fromiter(map(len, tables[1:]), np.int64, rows.size)
    table = np.concatenate(tables)
    line = np.repeat(np.arange(rows.size, dtype=np.int64), counts)
    return line * dataset.seq_len + table[:, START], table, np.repeat(shards, counts)


def _shard_by_shard(
    dataset: Shards, distinct: Sequence[int], shards: I64, rows: I64, tokens: I32
) -> tuple[I64, PieceTable, I64]:
    """Like `_row_by_row`, with one gather a shard."""
    if len(distinct) == 1:
        shard = dataset.shard(distinct[0])
        _gather(shard, rows, tokens[: rows.size])
        counts, table = shard.piece_table(rows)
        line = np.repeat(np.arange(rows.size, dtype=np.int64), counts)
        return line * dataset.seq_len + table[:, START], table, np.full(line.size, distinct[0], dtype=np.int64)
    order = np.argsort(shards, kind="stable")
    gathered = np.empty((rows.size, dataset.seq_len), dtype=np.int32)
    tables: list[PieceTable] = []
    counts = np.empty(rows.size, dtype=np.int64)
    begin = 0
    for number, end in zip(distinct, np.searchsorted(shards[order], distinct, side="right").tolist(), strict=True):
        chosen = order[begin:end]
        shard = dataset.shard(number)
        _gather(shard, rows[chosen], gathered[begin:end])
        counts[begin:end], table = shard.piece_table(rows[chosen])
        tables.append(table)
        begin = end
    back = np.empty_like(order)
    back[order] = np.arange(order.size)
    gathered.take(back, axis=0, out=tokens[: rows.size], mode="clip")
    line = np.repeat(order, counts)
    sorting = np.argsort(line, kind="stable")
    table = np.concatenate(tables).take(sorting, axis=0)
    line = line[sorting]
    return line * dataset.seq_len + table[:, START], table, shards[line]


def _gather(shard: Shard, rows: I64, out: I32) -> None:
    if shard.view.dtype == out.dtype:
        # any mode but "raise" writes straight into `out`; the order yields no row outside of the shard
        shard.view.take(rows, axis=0, out=out, mode="clip")
    else:
        out[...] = shard.view.take(rows, axis=0)


def _segments(
    starts: I64, lengths: I32, owners: I64, documents: I32, rows: int, seq_len: int
) -> tuple[I64, I64]:
    """(bounds [segments + 1], documents [segments, 2]) from disjoint pieces in order, within `rows` sequences.

    Pieces cross no edge, so between neighbouring bounds lies exactly one piece or one run of padding.
    """
    total = rows * seq_len
    ends = starts + lengths
    tiled = starts.size and starts[0] == 0 and ends[-1] == total and bool((starts[1:] == ends[:-1]).all())
    if tiled:
        bounds = np.append(starts, total)
        return bounds, np.column_stack((owners, documents))
    every = np.concatenate((starts, ends, np.arange(rows + 1, dtype=np.int64) * seq_len))
    every.sort()
    bounds = every[np.append(True, every[1:] != every[:-1])]
    table = np.full((bounds.size - 1, 2), NOTHING, dtype=np.int64)
    table[np.searchsorted(bounds, starts)] = np.column_stack((owners, documents))
    return bounds, table


def _fill_labels(
    tokens: I32, bounds: I64, lengths: I64, padding: I64, labels: I32, mask: NDArray[np.bool_]
) -> None:
    flat, known = labels.reshape(-1), mask.reshape(-1)
    flat[:-1] = tokens.reshape(-1)[1:]
    known.fill(True)
    last = bounds[1:] - 1
    flat[last] = IGNORED_LABEL
    known[last] = False
    if padding.size > RUNS_A_ROW_MAX * tokens.shape[0]:
        ignored = np.zeros(lengths.size, dtype=np.bool_)
        ignored[padding] = True
        flat[np.repeat(ignored, lengths)] = IGNORED_LABEL
        np.not_equal(flat, IGNORED_LABEL, out=known)
        return
    for begin, end in zip(bounds[padding].tolist(), bounds[padding + 1].tolist(), strict=True):
        flat[begin:end] = IGNORED_LABEL
        known[begin:end] = False


def _fill_position_ids(bounds: I64, lengths: I64, position_ids: I32) -> None:
    rows, seq_len = position_ids.shape
    counting = np.arange(seq_len, dtype=np.int32)
    flat = position_ids.reshape(-1)
    position_ids[...] = counting
    # segments at the start of a row are right already
    inner = np.flatnonzero(bounds[:-1] % seq_len)
    if inner.size > RUNS_A_ROW_MAX * rows:
        flat -= np.repeat((bounds[:-1] % seq_len).astype(np.int32), lengths)
        return
    for begin, length in zip(bounds[inner].tolist(), lengths[inner].tolist(), strict=True):
        flat[begin : begin + length] = counting[:length]
