"""Parts of an object that are read beside one another, each from front to back, with the next block of each under way.

A row group of Parquet has a part for each column, and a reader takes some of each in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

MIB = 1 << 20
#: Bytes of all parts that are in memory at once: a block, and the one behind it, of each.
AHEAD_BYTES = 64 * MIB
#: Bytes of a block at least; where there are too many parts for that, the smallest are left out.
AHEAD_BLOCK_BYTES_MIN = MIB

#: Has so many bytes fetched from a byte on.
Fetch = Callable[[int, int], Future[bytes]]


class FetchedSpan:
    """One part, bytes `[start, end)`."""

    def __init__(self, start: int, end: int, block_bytes: int, fetch: Fetch) -> None:
        self.start, self.end = start, end
        self._block_bytes, self._fetch = block_bytes, fetch
        self._block, self._block_at = b"", start
        self._next: tuple[int, Future[bytes]] | None = None
        self._go_on(start)

    def holds(self, at: int, size: int) -> bool:
        """Whether these bytes are all of this part."""
        return self.start <= at and at + size <= self.end

    def read(self, at: int, size: int) -> bytes:
        """Bytes that it holds, fewer only where the object ends before. Raises what fetching raises."""
        parts: list[bytes] = []
        while size > 0:
            if not self._block_at <= at < self._block_at + len(self._block):
                self._turn_to(at)
            if not self._block:
                break  # behind the object's end: the footer has promised too much
            begin = at - self._block_at
            parts.append(self._block[begin : begin + size])
            at, size = at + len(parts[-1]), size - len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _turn_to(self, at: int) -> None:
        self._block = b""  # gone before the next one is there
        if self._next is None or self._next[0] != at:
            self._go_on(at)
        assert self._next is not None
        self._block_at, coming = self._next
        self._block = coming.result()
        self._next = None
        self._go_on(self._block_at + len(self._block))

    def _go_on(self, at: int) -> None:
        if at < self.end:
            self._next = at, self._fetch(at, min(self._block_bytes, self.end - at))


def spans_of(parts: Sequence[tuple[int, int]], block_bytes_max: int, fetch: Fetch) -> list[FetchedSpan]:
    """The parts (first byte, bytes) with the first block of each under way, the largest where they are too many."""
    most = AHEAD_BYTES // (2 * AHEAD_BLOCK_BYTES_MIN)
    chosen = sorted(sorted(parts, key=lambda part: -part[1])[:most])
    block_bytes = min(block_bytes_max, AHEAD_BYTES // (2 * max(1, len(chosen))))
    return [FetchedSpan(start, start + size, block_bytes, fetch) for start, size in chosen]
