"""Rows of a shard and the blocks that they lie in: how many are asked for at once, and how they are checked.

A request costs time of its own: on a host as fast as its network the processor's, with a store far away the wait for
the first byte. Bytes that lie between two wanted ranges are therefore asked for with them where that costs less than
a second request. Whether it costs more in the end depends on who reads these bytes otherwise: nobody but this host,
so that they are fetched now or later in the pass; this host, but not before the cache has given them up; other hosts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.loader.order import I64
from headrace.store import ChecksumMismatch
from headrace.store.shards import BlockTable


@dataclass(frozen=True, slots=True)
class Coalescing:
    """What one request takes along."""

    #: bytes between two wanted ranges, at most
    gap_bytes: int
    #: of the cost of a shard by one request, when what is wanted of it costs so much all of it is asked for
    whole_share: float
    #: bytes whose transfer costs what a request does beside its bytes
    request_bytes: int = 0

    def takes_whole(self, requests: int, wanted_bytes: int, size: int) -> bool:
        """Whether a shard of `size` bytes is asked for, where so many requests would bring `wanted_bytes` of it."""
        return wanted_bytes + requests * self.request_bytes >= self.whole_share * (size + self.request_bytes)

    def takes_whole_for(self, rows: I64, row_bytes: int, sequences: int) -> bool:
        """The same for rows [k], sorted, of a shard of `sequences` rows that is not open: its head is a request too."""
        steps = np.diff(rows)
        is_joined = (steps - 1) * row_bytes <= self.gap_bytes
        covered = int(np.where(is_joined, steps, 1).sum()) + min(rows.size, 1)
        requests = 1 + min(rows.size, 1) + int(np.count_nonzero(~is_joined))
        return self.takes_whole(requests, covered * row_bytes, sequences * row_bytes)


def joined(first: I64, end: I64, gap: int) -> list[tuple[int, int]]:
    """Ranges first[k] to end[k], sorted by where they begin, as runs: those at most `gap` apart are one."""
    if not first.size:
        return []
    end = np.maximum.accumulate(end)
    cuts = np.flatnonzero(first[1:] - end[:-1] > gap)
    starts, stops = first[np.append(0, cuts + 1)], end[np.append(cuts, end.size - 1)]
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


#: of what a request would buy here, each of the other hosts has the store read as much
AMONG_HOSTS: Final = Coalescing(256 << 10, 0.9)
#: for bytes that may have been evicted before they are read: it is only their time on the way that is saved
CROWDED: Final = Coalescing(2 << 20, 0.25)
#: for bytes that are read later in the pass, from a cache that keeps them until then. A request was measured to cost
#: two cores with a store on them as much processor time as 4 MiB; to a store 30 ms away, which gives a connection
#: 100 MB/s, it costs 3 MB of what the connection might have brought. So the first batch waits for at most four times
#: what it would by parts, and later ones for nothing
ROOMY: Final = Coalescing(4 << 20, 0.25, 4 << 20)
#: on a local disk, where what a run costs beside its bytes is one read; a block of the default order, of which a window
#: reads every row, is one run
ON_DISK: Final = Coalescing(128 << 10, 1.0)


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
