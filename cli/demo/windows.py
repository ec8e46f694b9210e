"""What the quickstart's models learn from: a dataset's rows, cut to windows and to its most frequent tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.loader import Loader
from headrace.loader.batch import IGNORED_LABEL, Batch

#: known tokens and `unknown`, which is the last
VOCABULARY: Final = 4096
UNKNOWN: Final = VOCABULARY - 1
#: sequences are cut to windows of this many tokens, and a step takes one window of each row of a batch: many
#: documents in a step make the loss steady, and short windows make attention cheap
WINDOW_TOKENS: Final = 128
#: rows over which the vocabulary is counted
COUNTED_ROWS: Final = 512


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """One step's input: int64 arrays [windows, tokens]; -100 in `labels` is not counted."""

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    #: the number of the segment that each token lies in: attention does not cross from one to another
    segments: NDArray[np.int64]
    positions: NDArray[np.int64]

    def only(self, chosen: NDArray[np.bool_]) -> Windows:
        """The windows [k] where `chosen` [windows] is true, as arrays of their own."""
        return Windows(self.tokens[chosen], self.labels[chosen], self.segments[chosen], self.positions[chosen])


def window_tokens(seq_len: int) -> int:
    """The tokens of a window."""
    return min(WINDOW_TOKENS, seq_len)


def frequent_tokens(loader: Loader) -> NDArray[np.int64]:
    """The most frequent tokens [up to UNKNOWN] of the order's first rows, sorted by token."""
    layout = loader.dataset.layout
    shards, rows = loader.order.locate(np.arange(min(COUNTED_ROWS, layout.samples), dtype=np.uint64))
    parts = [loader.dataset.rows(number, rows[shards == number]).reshape(-1) for number in np.unique(shards).tolist()]
    tokens, counts = np.unique(np.concatenate(parts).astype(np.int64), return_counts=True)
    # ties break by token, so that the choice is the same everywhere
    return np.sort(tokens[np.lexsort((tokens, -counts))[:UNKNOWN]])


def windows_of(loader: Loader, known: NDArray[np.int64]) -> Iterator[Windows]:
    """One step's windows after another, pass after pass; windows without a label to learn are left out."""
    while True:
        found = 0
        for batch in loader:
            for windows in cut(batch, known):
                useful = (windows.labels != IGNORED_LABEL).any(axis=1)
                if useful.any():
                    found += 1
                    yield windows.only(useful)
        if not found:
            raise ValueError(f"{loader.dataset!r} has no piece of two known tokens to learn from")


def cut(batch: Batch, known: NDArray[np.int64]) -> Iterator[Windows]:
    """The windows of a batch, one step after another, with `known` tokens by their number and others as UNKNOWN."""
    rows, seq_len = batch["tokens"].shape
    width = window_tokens(seq_len)
    numbers = np.arange(batch["documents"].shape[0])
    segments = np.repeat(numbers, np.diff(batch["cu_seqlens"])).reshape(rows, seq_len)
    tokens = _reduced(batch["tokens"], known)
    labels = _reduced(batch["labels"], known)
    labels[(batch["labels"] == IGNORED_LABEL) | (labels == UNKNOWN)] = IGNORED_LABEL
    for start in range(0, seq_len - width + 1, width):
        part = slice(start, start + width)
        positions = batch["position_ids"][:, part].astype(np.int64)
        yield Windows(tokens[:, part], labels[:, part], segments[:, part], positions)


def _reduced(tokens: NDArray[np.int32], known: NDArray[np.int64]) -> NDArray[np.int64]:
    at = np.minimum(np.searchsorted(known, tokens), known.size - 1)
    return np.where(known[at] == tokens, at, UNKNOWN)
