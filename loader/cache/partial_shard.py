"""A shard in the cache of which some blocks are there: read in the order of need, by any number of processes.

A window of the default order reads some rows of very many shards, so a shard is fetched block by block, and a row is
given as soon as its own blocks are there. The file has its full size on the disk from the beginning;
behind the shard's bytes, on the next page, it has a *map* with a byte a block. The rules:

- the header is checked by its own digest before the file is made, and a block by the header's before it is written; a
  byte of the map is set after the write. So a set byte is believed, by whichever process, and a process that is killed
  leaves blocks that are there or not, and nothing between;
- who fetches blocks holds a lock on their bytes of the map (an open file description's, which the kernel lets go of
  with the process), and others leave these to it. That only saves work: two who fetch one block write the same bytes;
- what is whole is renamed to the name that whole shards have, and keeps its map, which nobody reads any more. A file
  from before the machine's last boot is not used, since a crash may have kept the map and lost the blocks.
"""

import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headrace.loader.cache.cached_files import write_at
from headrace.store import Buffer, ObjectInfo, ObjectStore
from headrace.store.shards import BlockTable

PARTIAL: Final = ".partial"
#: struct flock of 64-bit Linux: type, whence, start, length, pid
_FLOCK: Final = "hhxxxxqqixxxx"
_CLAIM: Final = getattr(fcntl, "F_OFD_SETLK", 37)


class Opened:
    """An open file, as much of a store as `read_shard` asks: it may be renamed or unlinked meanwhile."""

    __slots__ = ("descriptor", "uri")

    def __init__(self, descriptor: int, uri: str) -> None:
        self.descriptor = descriptor
        self.uri = uri

    def __del__(self) -> None:
        os.close(self.descriptor)

    def head(self, key: str) -> ObjectInfo:
        """The file's size."""
        return ObjectInfo(key, os.fstat(self.descriptor).st_size, "")

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of the file."""
        return os.pread(self.descriptor, self.head(key).size - offset if length is None else length, offset)

    def open_local(self, key: str) -> Path:
        """A path that leads to this file whatever its name is now."""
        del key
        return Path(f"/proc/self/fd/{self.descriptor}")


def map_offset(table: BlockTable) -> int:
    """Where the map begins in the file, in bytes."""
    return -(-table.size // mmap.PAGESIZE) * mmap.PAGESIZE


def file_bytes(table: BlockTable) -> int:
    """The size of the file with its map."""
    return map_offset(table) + table.count


class PartialShard:
    """The file and its map. `opened` is under a shared lock, which keeps it from being evicted."""

    def __init__(self, opened: Opened, table: BlockTable, remote: ObjectStore, key: str) -> None:
        self.opened = opened
        self.table = table
        self.remote = remote
        #: in the remote store
        self.key = key
        self.size = table.size
        # a shard without rows and pieces has no blocks, and nothing cannot be mapped
        self._map = mmap.mmap(opened.descriptor, table.count, offset=map_offset(table)) if table.count else bytearray()
        #: uint8 [blocks]: 1 where the block is there
        self.present: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8) if table.count else np.zeros(0, np.uint8)
        self.lock = threading.Lock()
        #: uint8 [blocks]: 1 where a thread of this process is at it
        self.flying: NDArray[np.uint8] = np.zeros(table.count, np.uint8)
        #: blocks that some thread waits for; who writes the last of them wakes it
        self.awaited: set[int] = set()
        #: what spans failed with that a thread waits for, by their first block and their end
        self._errors: dict[tuple[int, int], Exception] = {}
        self.whole = False
        #: uint8 [blocks]: 1 where a block stood in the file when it was found, and was not checked since; None for none
        self.unchecked: NDArray[np.uint8] | None = None
        #: told when there are no such blocks any more
        self.checked: Callable[[], None] = lambda: None

    def write(self, first: int, data: Buffer) -> None:
        """Put checked blocks into the file, from block `first` on."""
        view = memoryview(data)
        end = first + -(-view.nbytes // self.table.block_bytes)
        self.put([view], self.table.span(first, end)[0], first, end)

    def put(self, parts: Sequence[memoryview], offset: int, first: int, end: int) -> None:
        """Write checked bytes at `offset`, and then mark the blocks `first` to `end`, of which none is missing."""
        write_at(self.opened.descriptor, parts, offset)
        self._map[first:end] = b"\1" * (end - first)

    @property
    def is_whole(self) -> bool:
        """Whether every block is there and was checked."""
        if not self.whole:
            self.whole = self.unchecked is None and bool(self.present.all())
        return self.whole

    def is_right(self, block: int) -> bool:
        """Whether the file has what the block must be; what it has not is marked as not there."""
        offset, length = self.table.span(block, block + 1)
        found = self.table.is_right(block, os.pread(self.opened.descriptor, length, offset))
        if not found:
            self._map[block : block + 1] = b"\0"
        return found

    def has_all(self, first: int, end: int) -> bool:
        """Whether the blocks `first` to `end` are there."""
        return bool(self.present[first:end].all())

    def fail(self, first: int, end: int, error: Exception) -> None:
        """Leave the error of a span of the blocks `first` to `end` for whoever waits for one of them."""
        with self.lock:
            self._errors[first, end] = error

    def has_failed(self, blocks: Sequence[int]) -> bool:
        """Whether there is an error of a span that was to bring one of these blocks."""
        with self.lock:
            return self._failed(blocks) is not None

    def take_error(self, blocks: Sequence[int]) -> Exception | None:
        """An error of a span that was to bring one of these blocks; each is told once."""
        with self.lock:
            span = self._failed(blocks)
            return None if span is None else self._errors.pop(span)

    def _failed(self, blocks: Sequence[int]) -> tuple[int, int] | None:
        return next((span for span in self._errors if any(span[0] <= at < span[1] for at in blocks)), None)

    def claim(self, first: int, end: int) -> bool:
        """Take these blocks, or answer that another process has some of them."""
        return self._lock_bytes(fcntl.F_WRLCK, first, end)

    def let_go(self, first: int, end: int) -> None:
        """Undo a claim."""
        self._lock_bytes(fcntl.F_UNLCK, first, end)

    def _lock_bytes(self, kind: int, first: int, end: int) -> bool:
        lock = struct.pack(_FLOCK, kind, os.SEEK_SET, map_offset(self.table) + first, end - first, 0)
        try:
            fcntl.fcntl(self.opened.descriptor, _CLAIM, lock)
        except (BlockingIOError, PermissionError):
            return False
        return True


def runs(wanted: NDArray[Any]) -> list[tuple[int, int]]:
    """Where `wanted` [n] is not 0, as (first, end)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], wanted != 0, [0]))))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
