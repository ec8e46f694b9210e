"""One batch from rows of the dataset: tokens, and everything that follows from where its pieces lie."""

from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from headrace.loader.dataset import TokenDataset
from headrace.loader.order import I64

#: what PyTorch's cross entropy ignores by default
IGNORED_LABEL: Final = -100
#: stands in `documents` for padding and in `positions` for rows past the end of the pass
NOTHING: Final = -1


class Batch(TypedDict):
    """One rank's batch of B sequences of L tokens, in numpy.

    A *segment* is a run of tokens of one sequence: a piece of a document, or a run of padding between or after
    pieces. Segments tile the flattened batch: the first begins at 0, the last ends at B * L, none crosses a sequence.
    A document that was cut has several pieces, and each is a segment of its own that knows nothing of the others.
    """

    #: int32 [B, L]
    tokens: NDArray[np.int32]
    #: int32 [B, L]: the next token of the same piece; -100 at a piece's last token and in padding
    labels: NDArray[np.int32]
    #: bool [B, L]: where `labels` is not -100
    loss_mask: NDArray[np.bool_]
    #: int32 [B, L]: from 0 in each segment, also where a cut document goes on in a later piece
    position_ids: NDArray[np.int32]
    #: int32 [segments + 1]: where segments begin in the flattened batch, and B * L; as variable-length attention takes
    cu_seqlens: NDArray[np.int32]
    #: the longest segment, in tokens
    max_seqlen: int
    #: int64 [segments, 2]: (shard, row of its documents table), or (-1, -1) for padding
    documents: I64
    #: int64 [B]: positions in the pass's order, -1 for the rows that pad the last batch
    positions: I64


def assemble(dataset: TokenDataset, positions: I64, shards: I64, rows: I64, batch_size: int) -> Batch:
    """The batch of the samples at `positions` [k], which lie at (`shards` [k], `rows` [k]); k <= batch_size.

    Rows k to batch_size are padding. Raises the store's errors.
    """
    seq_len = dataset.seq_len
    tokens = np.empty((batch_size, seq_len), dtype=np.int32)
    tokens[positions.size :] = dataset.manifest.pad_id
    starts: list[I64] = []
    lengths: list[I64] = []
    owners: list[I64] = []
    for number in np.unique(shards).tolist():
        chosen = np.flatnonzero(shards == number)
        shard = dataset.shard(number)
        tokens[chosen] = shard.tokens[rows[chosen]]
        pieces = shard.pieces(rows[chosen])
        starts.append(chosen[pieces.row] * seq_len + pieces.start)
        lengths.append(pieces.length)
        owners.append(np.column_stack((np.full(pieces.document.size, number, dtype=np.int64), pieces.document)))
    nothing = np.zeros(0, dtype=np.int64)
    bounds, documents = _segments(
        np.concatenate([*starts, nothing]),
        np.concatenate([*lengths, nothing]),
        np.concatenate([*owners, nothing.reshape(0, 2)]),
        np.arange(batch_size + 1, dtype=np.int64) * seq_len,
    )
    all_positions = np.full(batch_size, NOTHING, dtype=np.int64)
    all_positions[: positions.size] = positions
    return _finish(tokens, bounds, documents, all_positions)


def _segments(starts: I64, lengths: I64, owners: I64, edges: I64) -> tuple[I64, I64]:
    """(bounds [segments + 1], documents [segments, 2]) from disjoint pieces and the edges of sequences.

    Pieces cross no edge, so between neighbouring bounds lies exactly one piece or one run of padding.
    """
    bounds = np.unique(np.concatenate((starts, starts + lengths, edges)))
    documents = np.full((bounds.size - 1, 2), NOTHING, dtype=np.int64)
    documents[np.searchsorted(bounds, starts)] = owners
    return bounds, documents


def _finish(tokens: NDArray[np.int32], bounds: I64, documents: I64, positions: I64) -> Batch:
    flat = tokens.reshape(-1)
    lengths = np.diff(bounds)
    begins = np.repeat(bounds[:-1].astype(np.int32), lengths)
    position_ids = np.arange(flat.size, dtype=np.int32) - begins
    labels = np.empty_like(flat)
    labels[:-1] = flat[1:]
    labels[bounds[1:] - 1] = IGNORED_LABEL
    padding = documents[:, 0] == NOTHING
    if padding.any():
        labels[np.repeat(padding, lengths)] = IGNORED_LABEL
    return Batch(
        tokens=tokens,
        labels=labels.reshape(tokens.shape),
        loss_mask=(labels != IGNORED_LABEL).reshape(tokens.shape),
        position_ids=position_ids.reshape(tokens.shape),
        cu_seqlens=bounds.astype(np.int32),
        max_seqlen=int(lengths.max()),
        documents=documents,
        positions=positions,
    )
