"""What a batch holds, and which of it a loader makes."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from headrace.loader.order import I64

I32 = NDArray[np.int32]

#: stands in `documents` for padding and in `positions` for rows past the end of the pass
NOTHING: Final = -1

#: what a user may do without
FIELDS: Final = ("labels", "loss_mask", "position_ids", "cu_seqlens", "max_seqlen", "documents")


class Batch(TypedDict):
    """One rank's batch of B sequences of L tokens, in numpy.

    A *segment* is a run of tokens of one sequence: a piece of a document, or a run of padding between or after
    pieces. Segments tile the flattened batch: the first begins at 0, the last ends at B * L, none crosses a sequence.
    A document that was cut has several pieces, and each is a segment of its own that knows nothing of the others.
    A loader that was asked for some of `FIELDS` gives those, and `tokens`, `positions`, `sources` and `state` always.
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


@dataclass(frozen=True, slots=True)
class Fields:
    """Which of `FIELDS` are made."""

    names: frozenset[str]

    @property
    def has_labels(self) -> bool:
        """Whether memory of labels and loss mask is filled: one pass makes both."""
        return "labels" in self.names or "loss_mask" in self.names

    @property
    def has_positions(self) -> bool:
        """Whether position ids are filled."""
        return "position_ids" in self.names

    @property
    def token_bytes(self) -> int:
        """Bytes a token of the wide fields that are filled: 4 of tokens, 5 of labels and mask, 4 of positions."""
        return 4 + 5 * self.has_labels + 4 * self.has_positions

    @property
    def need_segments(self) -> bool:
        """Whether anything follows from where segments lie."""
        return bool(self.names)


ALL_FIELDS: Final = Fields(frozenset(FIELDS))


def chosen_fields(names: Collection[str] | None) -> Fields:
    """The fields of these names, `tokens` among them or not; all for None. Raises ValueError for others."""
    if names is None:
        return ALL_FIELDS
    unknown = sorted(set(names) - {"tokens", *FIELDS}) if not isinstance(names, str) else [names]
    if unknown:
        raise ValueError(f"fields are some of tokens, {', '.join(FIELDS)}; got {', '.join(map(repr, unknown))}")
    return Fields(frozenset(names) - {"tokens"})


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Where the rows of some batches stand, from which their fields `positions`, `sources` and `state` are cut."""

    #: [batches * B]
    positions: I64
    #: [batches * B]
    sources: I32
    #: [batches, 3]
    states: I64

    @property
    def batches(self) -> int:
        """How many."""
        return len(self.states)


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Where the segments of some batches lie."""

    #: [batches + 1] the first segment of each batch, and the end of the last
    edges: list[int]
    #: the bounds of each batch end to end: those of batch b begin at `edges[b] + b`
    cu_seqlens: I32
    #: [batches] the longest segment
    longest: list[int]
    #: [segments, 2]
    documents: I64


def small_fields(fields: Fields, placed: Placed, bounds: Bounds | None) -> list[dict[str, Any]]:
    """Of each batch the fields that have no value a token, as views; `bounds` are needed where segments are.

    They are cut for many batches at once: between two batches the processor's cache is full of tokens, and the same
    statements take three times as long.
    """
    size = placed.positions.size // max(placed.batches, 1)
    rows = [slice(at, at + size) for at in range(0, placed.positions.size, size)]
    positions, sources = placed.positions, placed.sources
    found: list[dict[str, Any]] = [
        {"positions": positions[part], "sources": sources[part], "state": state}
        for part, state in zip(rows, placed.states, strict=True)
    ]
    if bounds is None:
        return found
    edges, names = bounds.edges, fields.names
    for number, batch in enumerate(found):
        begin, end = edges[number], edges[number + 1]
        if "cu_seqlens" in names:
            batch["cu_seqlens"] = bounds.cu_seqlens[begin + number : end + number + 1]
        if "max_seqlen" in names:
            batch["max_seqlen"] = bounds.longest[number]
        if "documents" in names:
            batch["documents"] = bounds.documents[begin:end]
    return found
