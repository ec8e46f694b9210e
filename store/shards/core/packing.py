"""Best-fit-decreasing packing of token documents into sequences of one length. Pure.

A document longer than a sequence is cut into pieces that fill whole sequences and a remainder. With an
overlap each piece but the first begins with the last tokens of the piece before it, as context. The
remainders, longest first, each go into the sequence with the least room that still suffices, or open
a new one (Johnson 1973: at most 11/9 of the optimum). For training see Ding et al. 2024, "Fewer
Truncations Improve Language Modeling".
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: Pieces are stored as int32.
INDEX_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Where each piece of each document lies; the arrays have one int32 a piece, by (document, offset)."""

    #: Tokens a sequence.
    seq_len: int
    #: Sequences in all.
    sequences: int
    #: Tokens of padding in all of them.
    padding: int
    #: The sequence that holds the piece.
    piece_sequence: npt.NDArray[np.int32]
    #: Where in that sequence it starts, in tokens.
    piece_start: npt.NDArray[np.int32]
    #: Its tokens, at least 1.
    piece_length: npt.NDArray[np.int32]
    #: The document it is of: its place in the lengths.
    piece_document: npt.NDArray[np.int32]
    #: Where in that document it starts, in tokens.
    piece_offset: npt.NDArray[np.int32]
    #: How many of its first tokens the piece before it in the same document ends with.
    piece_repeated: npt.NDArray[np.int32]


def pack(lengths: npt.ArrayLike, seq_len: int, overlap: int = 0) -> Packing:
    """Pack documents of `lengths` tokens `[documents]` into sequences of `seq_len` tokens.

    Of a document that is cut, each piece but the first begins with the last `overlap` tokens of the piece before it.

    Sequences hold first the whole pieces, in order, then the remainders. A document of no tokens gets no
    piece. The same input gives the same packing everywhere. Raises ValueError where int32 does not suffice.
    """
    sizes = np.asarray(lengths, dtype=np.int64).reshape(-1)
    if not 0 < seq_len <= INDEX_MAX:
        raise ValueError(f"seq_len {seq_len} is outside 1..{INDEX_MAX}")
    if sizes.size and (sizes.min() < 0 or sizes.max() > INDEX_MAX):
        raise ValueError(f"document lengths {sizes.min()}..{sizes.max()} are outside 0..{INDEX_MAX} tokens")
    if not 0 <= overlap < seq_len:
        raise ValueError(f"overlap {overlap} is outside 0..{seq_len - 1}, less than the sequence")
    stride = seq_len - overlap
    counts = np.where(sizes > 0, 1 + -(-np.maximum(sizes - seq_len, 0) // stride), 0)
    last = sizes - np.maximum(counts - 1, 0) * stride
    remainder = np.where(last < seq_len, last, 0)
    whole_count = int((counts - (remainder > 0)).sum())
    sequence, start, opened = _best_fit_decreasing(remainder, seq_len)
    sequences = whole_count + opened
    pieces = int(counts.sum())
    if max(sequences, pieces, sizes.size) > INDEX_MAX:
        raise ValueError(f"{pieces} pieces in {sequences} sequences exceed {INDEX_MAX}; make smaller shards")

    document = np.repeat(np.arange(sizes.size), counts)
    offset = (np.arange(pieces) - np.repeat(np.cumsum(counts) - counts, counts)) * stride
    length = np.minimum(sizes[document] - offset, seq_len)
    is_whole = length == seq_len
    piece_sequence = np.where(is_whole, np.cumsum(is_whole) - 1, whole_count + sequence[document])
    piece_start = np.where(is_whole, 0, start[document])
    return Packing(
        seq_len=seq_len,
        sequences=sequences,
        padding=sequences * seq_len - int(length.sum()),
        piece_sequence=piece_sequence.astype(np.int32),
        piece_start=piece_start.astype(np.int32),
        piece_length=length.astype(np.int32),
        piece_document=document.astype(np.int32),
        piece_offset=offset.astype(np.int32),
        piece_repeated=np.where(offset > 0, overlap, 0).astype(np.int32),
    )


def _best_fit_decreasing(
    lengths: npt.NDArray[np.int64], seq_len: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """Place each length above 0; return the sequence and start of each `[documents]`, and the sequences opened."""
    order = np.argsort(-lengths, kind="stable")
    order = order[: int(np.count_nonzero(lengths))]
    sequence_of: list[int] = []
    start_of: list[int] = []
    # rooms is sorted and holds each amount of free room once; open_with_room[room] are the sequences that have it.
    # A sorted list beats a bit set or a heap here: its search and insertion are one C call each.
    rooms: list[int] = []
    open_with_room: defaultdict[int, list[int]] = defaultdict(list)
    opened = 0
    for length in lengths[order].tolist():
        at = bisect_left(rooms, length)
        if at < len(rooms):
            room = rooms[at]
            having = open_with_room[room]
            sequence = having.pop()
            if not having:
                del rooms[at]
        else:
            room = seq_len
            sequence = opened
            opened += 1
        sequence_of.append(sequence)
        start_of.append(seq_len - room)
        left = room - length
        if left:
            having = open_with_room[left]
            if not having:
                rooms.insert(bisect_left(rooms, left), left)
            having.append(sequence)
    sequences, starts = np.zeros_like(lengths), np.zeros_like(lengths)
    sequences[order] = sequence_of
    starts[order] = start_of
    return sequences, starts, opened
