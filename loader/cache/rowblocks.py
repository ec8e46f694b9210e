"""Rows of a shard and the blocks that they lie in, and a local shard whose blocks are checked as they are read."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.loader.cache.coalescing import Coalescing, joined
from headrace.loader.order import I64
from headrace.store import ChecksumMismatch
from headrace.store.shards import BlockTable


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """Where rows lie: row 0 begins at byte `offset` of the file, and each takes `row_bytes`."""

    table: BlockTable
    offset: int
    row_bytes: int

    def bounds(self, rows: I64) -> tuple[I64, I64]:
        """The blocks (first [k], end [k]) of rows [k]."""
        begin = self.offset - self.table.body + rows * self.row_bytes
        return begin // self.table.block_bytes, -(-(begin + self.row_bytes) // self.table.block_bytes)

    def runs(self, rows: I64, gap_bytes: int = 0) -> list[tuple[int, int]]:
        """The blocks (first, end) of rows [k], as runs that lie further apart than `gap_bytes`."""
        return joined(*self.bounds(np.sort(rows)), gap_bytes // self.table.block_bytes)


def wrong_block(uri: str, key: str, block: int) -> ChecksumMismatch:
    """The error of a block that is not what the shard's header says."""
    return ChecksumMismatch(key, uri, f"xxh3-64 of block {block} in its header", "another")


class Checking:
    """The rows of a local shard that are given once their blocks were checked; of the file `data`, at `uri` and `key`.

    In the place of `headrace.loader.cache.spans.Arriving`, of which nothing has to arrive. `checked` is told of bytes
    that were, and whether they were the last.
    """

    __slots__ = ("_checked", "_data", "_key", "_open", "_rows", "_uri")

    def __init__(
        self, rows: RowBlocks, data: memoryview, uri: str, key: str, checked: Callable[[int, bool], None]
    ) -> None:
        self._rows = rows
        self._data = data
        self._uri = uri
        self._key = key
        self._checked = checked
        #: uint8 [blocks]: 1 where the block was not checked yet
        self._open: NDArray[np.uint8] = np.ones(rows.table.count, dtype=np.uint8)

    @property
    def is_whole(self) -> bool:
        """Whether every block was checked."""
        return not self._open.any()

    def want(self, rows: I64, stopped: Callable[[], bool], coalescing: Coalescing) -> None:
        """Everything is there."""

    def wait(self, rows: I64, stopped: Callable[[], bool] = lambda: False) -> None:  # noqa: ARG002
        """Check what was not of the blocks of these rows [k]; nobody has to stop it. Raises ChecksumMismatch."""
        for first, end in self._rows.runs(np.asarray(rows, dtype=np.int64)):
            self.check(first, end)

    def check(self, first: int, end: int) -> None:
        """Check what was not of these blocks; two threads may both do it. Raises ChecksumMismatch."""
        table = self._rows.table
        for block in (np.flatnonzero(self._open[first:end]) + first).tolist():
            offset, length = table.span(block, block + 1)
            if not table.is_right(block, self._data[offset : offset + length]):
                raise wrong_block(self._uri, self._key, block)
            self._open[block] = 0
            self._checked(length, self.is_whole)
