"""Tokens from where they lie, document by document, into the sequences that hold them, a window at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.store.files import Scratch
from headrace.store.shards.core.packing import Packing

#: What is read of a scratch file at once where the runs that are wanted lie close together.
READ_AHEAD_BYTES = 1 << 20
#: Runs that lie further apart than this on average are read one by one: to copy as much takes as long as a call.
APART_BYTES = 16 << 10

#: Where a run of tokens goes to, where it begins, and how many they are.
Run = tuple[int, int, int]


class TokenSource(Protocol):
    """Tokens that lie somewhere, one behind the other."""

    def read(self, line: npt.NDArray[Any], runs: Sequence[Run]) -> None:
        """Copy each run into `line` `[tokens]`; they come in the order in which they begin here."""
        ...


class ArrayTokens:
    """Tokens in memory."""

    def __init__(self, tokens: npt.NDArray[Any]) -> None:
        self._tokens = tokens

    def read(self, line: npt.NDArray[Any], runs: Sequence[Run]) -> None:
        """See `TokenSource.read`."""
        tokens = self._tokens
        for to, begin, count in runs:
            line[to : to + count] = tokens[begin : begin + count]


class ScratchTokens:
    """Tokens in a scratch file, of the type that the sequences have. Reading raises OSError."""

    def __init__(self, scratch: Scratch, kind: np.dtype[Any]) -> None:
        self._scratch = scratch
        self._kind = kind

    def read(self, line: npt.NDArray[Any], runs: Sequence[Run]) -> None:
        """See `TokenSource.read`."""
        size = self._kind.itemsize
        span = (runs[-1][1] + runs[-1][2] - runs[0][1]) * size
        if span < APART_BYTES * len(runs):
            self._read_ahead(line, runs)
            return
        view, read_into = line.data.cast("B"), self._scratch.read_into
        for to, begin, count in runs:
            read_into(view[to * size : (to + count) * size], begin * size)

    def _read_ahead(self, line: npt.NDArray[Any], runs: Sequence[Run]) -> None:
        size = self._kind.itemsize
        longest = max(count for _, _, count in runs)
        held = np.empty(max(READ_AHEAD_BYTES // size, longest), self._kind)
        view, last = held.data.cast("B"), self._scratch.size // size
        first = end = 0
        for to, begin, count in runs:
            if begin < first or begin + count > end:
                first, end = begin, min(begin + held.size, last)
                self._scratch.read_into(view[: (end - first) * size], first * size)
            line[to : to + count] = held[begin - first : begin - first + count]


@dataclass(frozen=True, slots=True, eq=False)
class Documents:
    """Where the tokens of documents lie; arrays `[documents]` of int64, in the order of the documents table."""

    lengths: npt.NDArray[np.int64]
    sources: Sequence[TokenSource]
    #: which of `sources`; of a document without tokens it means nothing
    source: npt.NDArray[np.int64]
    #: its first token there
    begin: npt.NDArray[np.int64]


class Scattering:
    """The way of each piece of these documents into windows of `rows` sequences.

    A loop of slices, since an index a token would take four times the memory of the tokens. Pieces of one document
    that lie end to end, as whole sequences do, are one slice.
    """

    def __init__(self, documents: Documents, packing: Packing, rows: int) -> None:
        self._sources = documents.sources
        self._rows, self._sequences = rows, packing.sequences
        document = packing.piece_document
        length = packing.piece_length.astype(np.int64)
        sequence = packing.piece_sequence.astype(np.int64)
        target = (sequence % rows) * packing.seq_len + packing.piece_start
        window = sequence // rows
        begin = documents.begin[document] + packing.piece_offset
        joins = (begin[1:] == begin[:-1] + length[:-1]) & (target[1:] == target[:-1] + length[:-1])
        joins &= (document[1:] == document[:-1]) & (window[1:] == window[:-1])
        first = np.flatnonzero(np.concatenate(([True], ~joins))) if document.size else np.zeros(0, np.int64)
        count = np.add.reduceat(length, first) if document.size else length
        source = documents.source[document][first]
        order = np.lexsort((begin[first], source, window[first]))
        first = first[order]
        self._to, self._begin, self._count, self._source = target[first], begin[first], count[order], source[order]
        self._edges = np.searchsorted(window[first], np.arange(-(-packing.sequences // rows) + 1))

    def windows(self) -> Iterator[tuple[int, int]]:
        """Each window's number and its sequences."""
        for window, at in enumerate(range(0, self._sequences, self._rows)):
            yield window, min(self._rows, self._sequences - at)

    def fill(self, window: int, line: npt.NDArray[Any], pad_id: int) -> None:
        """Write the tokens of a window's sequences into `line` `[sequences * seq_len]`."""
        line.fill(pad_id)
        low, high = int(self._edges[window]), int(self._edges[window + 1])
        cuts = np.flatnonzero(np.diff(self._source[low:high])) + low + 1
        bounds = [low, *cuts.tolist(), high] if high > low else []
        for start, stop in itertools.pairwise(bounds):
            columns = (self._to[start:stop], self._begin[start:stop], self._count[start:stop])
            runs = list(zip(*(column.tolist() for column in columns), strict=True))
            self._sources[int(self._source[start])].read(line, runs)
