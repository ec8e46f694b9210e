"""One open token shard: rows of tokens, mapped into memory, and which pieces lie in a row.

The local file that a shard's arrays are mapped from, and what the kernel is told of how it will be read. A fault on a
mapping is taken for the beginning of a scan, and the kernel reads as much around it as the disk's read-ahead says
(`/sys/class/block/*/queue/read_ahead_kb`, on some systems 8 MiB), for a row of 8 KiB that stands alone. So a mapping
whose rows are read in no order is told so (`madvise(2)`, RANDOM: a fault reads its own page), and what is read next
is said beforehand (`posix_fadvise(2)`, WILLNEED, which does not wait for the disk).
"""

import mmap
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headrace.loader.cache import Arriving, Checking, Coalescing, joined
from headrace.loader.order import I64
from headrace.store import FormatError


def mapping_of(array: NDArray[Any]) -> mmap.mmap | None:
    """The mapping that an array is a view of; None where it lies in memory."""
    base: Any = array
    while base is not None and not isinstance(base, mmap.mmap):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return base


class MappedRows:
    """Where rows `tokens` [sequences, seq_len] lie in the file at `path`, all of which `mapping` shows."""

    __slots__ = ("_begin", "_end", "_is_scattered", "_mapping", "_path", "_row_bytes")

    def __init__(self, path: Path, mapping: mmap.mmap, tokens: NDArray[Any]) -> None:
        self._path = path
        self._mapping = mapping
        self._row_bytes = tokens.strides[0]
        self._begin = tokens.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
        self._end = self._begin + tokens.nbytes
        self._is_scattered = False

    def scatter(self) -> None:
        """Say that rows are read in no order, and that all beside them is read now."""
        if not self._is_scattered:
            self._is_scattered = True
            self._mapping.madvise(mmap.MADV_RANDOM)
            with suppress(OSError):  # who reads it meets the same
                self._advise([(0, self._begin), (self._end, len(self._mapping))])

    def read_ahead(self, rows: I64, coalescing: Coalescing) -> None:
        """Have rows [k], sorted, read from the disk where the page cache lacks them, and between them what is in
        `coalescing`. Raises OSError.
        """
        self.scatter()
        begin = self._begin + rows * self._row_bytes
        self._advise(joined(begin, begin + self._row_bytes, coalescing.gap_bytes))

    def _advise(self, spans: Sequence[tuple[int, int]]) -> None:
        """Have the kernel read these (begin, end), in bytes of the file."""
        handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for begin, end in spans:
                # a length of 0 would be the rest of the file
                if begin < end:
                    os.posix_fadvise(handle, begin, end - begin, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(handle)


def mapped_rows(path: Path | None, tokens: NDArray[Any]) -> MappedRows | None:
    """Of tokens that `path` holds; None where they are not mapped."""
    mapping = mapping_of(tokens)
    return None if path is None or mapping is None or not tokens.size else MappedRows(path, mapping, tokens)


#: so many lookups scan the piece arrays; the index, which sorts them, pays from then on
SCANS_MAX: Final = 2

#: columns of `PieceTable`
START: Final = 0
LENGTH: Final = 1
DOCUMENT: Final = 2
REPEATED: Final = 3

#: int32 [pieces, 4]: start and length in tokens, a row of the shard's documents table, and how many of the piece's
#: first tokens repeat the end of the document's piece before
PieceTable = NDArray[np.int32]

#: from the five piece arrays [pieces] and seq_len, fills in row pointers [sequences + 1] and the table, and says
#: whether that could be done, which it cannot for pieces that lie where they must not
Indexer = Callable[[Sequence[NDArray[Any]], int, I64, PieceTable], bool]


class Shard:
    """One token shard: `tokens` [sequences, seq_len] uint16 or uint32, mapped read-only, and its pieces by row.

    Pieces stand in the file in document order, and a batch asks for those of a row. The first lookups scan for them;
    then they are sorted once by (sequence, start) and found by row pointers (compressed sparse rows), which costs
    16 bytes a piece and 8 a sequence. So a resume, which reads a few rows of many shards, sorts none.
    """

    __slots__ = (
        "_arrays",
        "_index",
        "_indexing",
        "_retracted",
        "_scans",
        "arriving",
        "held",
        "key",
        "line",
        "mapped",
        "tokens",
        "view",
    )

    def __init__(
        self,
        key: str,
        arrays: Mapping[str, NDArray[Any]],
        sequences: int,
        seq_len: int,
        retracted: frozenset[int] = frozenset(),
    ) -> None:
        tokens = arrays.get("tokens")
        if tokens is None or tokens.shape != (sequences, seq_len) or tokens.dtype.kind != "u":
            found = "none" if tokens is None else f"{tokens.dtype} {list(tokens.shape)}"
            raise FormatError(f"{key}: the manifest promises tokens [{sequences}, {seq_len}], the shard has {found}")
        self.key = key
        self.tokens: NDArray[Any] = tokens
        #: the same bytes as int32 where that is a view, else `tokens`
        self.view: NDArray[Any] = tokens.view(np.int32) if tokens.dtype == np.uint32 else tokens
        #: the same, flat and for cheap slices; None where a copy must widen
        self.line = self.view.reshape(-1).data if self.view.dtype == np.int32 and tokens.size else None
        #: whatever must live as long as the mapping, such as the lock on a cached file
        self.held: object = None
        #: what has the rows fetched or checked, where that is done block by block
        self.arriving: Arriving | Checking | None = None
        #: the local file behind the tokens, where they are mapped from one
        self.mapped: MappedRows | None = None
        self._arrays = self._checked_arrays(arrays)
        #: rows of the documents table whose pieces are not listed: where they lie is padding
        self._retracted = np.array(sorted(retracted), dtype=np.int32)
        self._index: tuple[memoryview, I64, PieceTable] | None = None
        self._indexing = threading.Lock()
        self._scans = 0

    def want(self, rows: I64, stopped: Callable[[], bool], coalescing: Coalescing) -> None:
        """Have the tokens of `rows` [k] fetched where they are not there, with what `coalescing` adds, unless
        `stopped` before that.
        """
        if self.arriving is not None and not self.arriving.is_whole:
            self.arriving.want(rows, stopped, coalescing)

    def wait(self, rows: I64, stopped: Callable[[], bool] = lambda: False) -> None:
        """Return when the tokens of `rows` [k] may be read.

        Raises the store's errors, LoaderError, and LoaderClosed once `stopped`.
        """
        arriving = self.arriving  # another thread may find that all is there
        if arriving is not None:
            if arriving.is_whole:
                self.arriving = None
            else:
                arriving.wait(rows, stopped)

    def piece_table(self, rows: I64) -> tuple[I64, PieceTable]:
        """(pieces a row [k], their table) of `rows` [k], ordered by (row, start); a row may be named more than once."""
        if self._index is None:
            if self._scans < SCANS_MAX and rows.size * 8 < self.tokens.shape[0]:
                self._scans += 1
                return self._scan(rows)
            self._stand_index()
        assert self._index is not None
        _, pointers, table = self._index
        first = pointers[rows]
        counts = pointers[rows + 1] - first
        before = np.cumsum(counts) - counts
        chosen = np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(first - before, counts)
        return counts, table.take(chosen, axis=0)

    def row_pieces(self, row: int) -> PieceTable:
        """The table of one row's pieces; a view, in well under a microsecond once the index stands."""
        if self._index is None:
            return self.piece_table(np.array([row], dtype=np.int64))[1]
        pointers, _, table = self._index
        return table[pointers[row] : pointers[row + 1]]

    @property
    def hides(self) -> bool:
        """Whether tokens of retracted documents lie in it, which are to be padding."""
        return bool(self._retracted.size)

    def addresses(self, indexer: Indexer | None = None) -> tuple[int, int]:
        """Where row pointers (int64) and piece table (int32 [pieces, 4]) lie in memory while this lives.

        `indexer` builds them, if given, where they do not stand yet.
        """
        if self._index is None:
            self._stand_index(indexer)
        assert self._index is not None
        _, pointers, table = self._index
        return pointers.ctypes.data, table.ctypes.data

    def _stand_index(self, indexer: Indexer | None = None) -> None:
        """Build the index once. Threads share a shard, and `addresses` are of the index that stays."""
        with self._indexing:
            if self._index is None:
                self._index = self._build_index(indexer)

    def document_pieces(self, document: int) -> list[tuple[int, int, int]]:
        """(sequence, start, length) of each piece of a row of the documents table, in array order.

        Those of a retracted document too: they say where it lay, and when it was read before.
        """
        sequence, start, length, owner, _ = self._arrays
        chosen = np.flatnonzero(owner == document)
        return list(zip(*(array[chosen].tolist() for array in (sequence, start, length)), strict=True))

    def _checked_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        names = ("piece_sequence", "piece_start", "piece_length", "piece_document")
        missing = [name for name in names if name not in arrays]
        if missing:
            raise FormatError(f"{self.key}: the shard lacks {', '.join(missing)}; it is no token shard of Headrace")
        sequence, start, length, document = (arrays[name] for name in names)
        if not sequence.shape == start.shape == length.shape == document.shape or sequence.ndim != 1:
            raise FormatError(f"{self.key}: its four piece arrays differ in shape; the shard is malformed")
        repeated = arrays.get("piece_repeated", np.zeros(sequence.shape, np.int32))
        if repeated.shape != sequence.shape:
            raise FormatError(f"{self.key}: piece_repeated is {repeated.shape} for {sequence.shape} pieces")
        return sequence, start, length, document, repeated

    def _scan(self, rows: I64) -> tuple[I64, PieceTable]:
        wanted = np.zeros(self.tokens.shape[0] + 1, dtype=np.bool_)
        wanted[rows] = True
        sequence = self._arrays[0]
        # whatever lies outside of the shard is left to the index, which names it
        shown = wanted[np.clip(sequence, -1, self.tokens.shape[0])]
        if self._retracted.size:
            shown &= ~np.isin(self._arrays[3], self._retracted)
        chosen = np.flatnonzero(shown)
        sequence, table = self._sorted(tuple(array[chosen] for array in self._arrays))
        first = np.searchsorted(sequence, rows)
        counts = np.searchsorted(sequence, rows, side="right") - first
        before = np.cumsum(counts) - counts
        order = np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(first - before, counts)
        self._forget_pages()
        return counts, table.take(order, axis=0)

    def _forget_pages(self) -> None:
        """Unmap what the scan has read: a hundred open shards must not count as a hundred scans' memory."""
        mapping = mapping_of(self.tokens)
        if mapping is not None:
            mapping.madvise(mmap.MADV_DONTNEED)

    def _build_index(self, indexer: Indexer | None) -> tuple[memoryview, I64, PieceTable]:
        arrays = self._arrays
        if self._retracted.size:
            shown = ~np.isin(arrays[3], self._retracted)
            arrays = tuple(array[shown] for array in arrays)
        if indexer is not None:
            pointers = np.empty(self.tokens.shape[0] + 1, dtype=np.int64)
            table = np.empty((arrays[0].size, 4), dtype=np.int32)
            if indexer(arrays, self.tokens.shape[1], pointers, table):
                return pointers.data, pointers, table
        sequence, table = self._sorted(arrays)
        pointers = np.searchsorted(sequence, np.arange(self.tokens.shape[0] + 1)).astype(np.int64)
        return pointers.data, pointers, table

    def _sorted(self, arrays: tuple[NDArray[Any], ...]) -> tuple[NDArray[Any], PieceTable]:
        # by (sequence, start), in one number: a sixth of what sorting by two takes
        sorting = np.argsort((arrays[0].astype(np.int64) << 32) + arrays[1])
        sequence, start, length, document, repeated = (array[sorting] for array in arrays)
        self._check_pieces(sequence, start, length, document, repeated)
        table = np.column_stack((start, length, document, repeated))
        return sequence, np.ascontiguousarray(table, dtype=np.int32)

    def _check_pieces(
        self,
        sequence: NDArray[Any],
        start: NDArray[Any],
        length: NDArray[Any],
        document: NDArray[Any],
        repeated: NDArray[Any],
    ) -> None:
        if not sequence.size:
            return
        sequences, seq_len = self.tokens.shape
        end = start.astype(np.int64) + length
        bad = (sequence < 0) | (sequence >= sequences) | (start < 0) | (length < 1) | (end > seq_len) | (document < 0)
        bad |= (repeated < 0) | (repeated > length)
        bad[1:] |= (sequence[1:] == sequence[:-1]) & (start[1:] < end[:-1])
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise FormatError(
                f"{self.key}: {int(bad.sum())} pieces lie outside of their sequence or over another, first the piece "
                f"of document {document[at]} at sequence {sequence[at]}, tokens {start[at]} to {end[at]}; "
                f"the shard has {sequences} sequences of {seq_len}"
            )
