"""The local file that a shard's arrays are mapped from, and what the kernel is told of how it will be read.

A fault on a mapping is taken for the beginning of a scan, and the kernel reads as much around it as the disk's
read-ahead says (`/sys/class/block/*/queue/read_ahead_kb`, on some systems 8 MiB), for a row of 8 KiB that stands alone.
So a mapping whose rows are read in no order is told so (`madvise(2)`, RANDOM: a fault reads its own page), and what is
read next is said beforehand (`posix_fadvise(2)`, WILLNEED, which does not wait for the disk).
"""

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.loader.cache import Coalescing, joined
from headrace.loader.order import I64


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
