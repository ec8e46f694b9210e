"""The sketches of kept records, in a scratch file that the loops read as memory.

A record that was just kept has its sketch here. Of one that an earlier run kept it lies beside its shard, and is
fetched with its neighbours when a record is first compared with it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stages.dedup.judge import LEVEL_MAX, SKETCH_BYTES_MAX, make_room
from headrace.store import FormatError
from headrace.store.files import Scratch

#: Bytes that the scratch file begins with; it doubles.
ARENA_BYTES = 1 << 22
#: Records that the columns have places for at first.
PLACES_MIN = 1024
#: In `ends`: the sketch lies beside the shard.
ELSEWHERE = 0
_NO_BYTES = np.frombuffer(bytes(1), np.uint8)

#: Reads a file of sketches: its rows `fragment`, `row`, `sketch`.
Reader = Callable[[], pa.Table]


class _Column:
    """Numbers in a scratch file that is mapped. What is new is 0."""

    def __init__(self, kind: Any, folder: str | None) -> None:
        self._file, self._kind = Scratch.on_disk(folder), np.dtype(kind)
        self.values: npt.NDArray[Any] = np.zeros(0, kind)

    def make_room(self, count: int) -> None:
        """Have at least so many. Raises OSError where the disk is full."""
        if count > len(self.values):
            size = max(count, 2 * len(self.values)) * self._kind.itemsize
            os.posix_fallocate(self._file.fileno(), 0, size)
            self.values = np.frombuffer(mmap.mmap(self._file.fileno(), size), self._kind)


class Sketches:
    """Where each record's sketch is. A place in `begins` and `ends` is the number of a record in the index."""

    def __init__(self, folder: str | None = None) -> None:
        self.room = make_room()
        #: Where each sketch begins in the arena, and where it ends, or ELSEWHERE.
        self.begins, self.ends = (_Column(np.int64, folder) for _ in range(2))
        #: The first record of whose form each was found to be, plus one (0: none); the sketches.
        self.heads, self.arena = _Column(np.uint32, folder), _Column(np.uint8, folder)
        self.used = 0
        self._files: list[tuple[int, int, Reader]] = []
        self.make_room(PLACES_MIN, ARENA_BYTES)

    def make_room(self, records: int, more: int) -> None:
        """Have places for so many records, and room for so many more bytes. Raises OSError where the disk is full."""
        for column in (self.begins, self.ends, self.heads):
            column.make_room(records)
        self.arena.make_room(self.used + more)

    def expect(self, first: int, count: int, reader: Reader) -> None:
        """The sketches of records `first` to `first + count` are in a file that `reader` reads."""
        self.make_room(first + count, 0)
        self._files.append((first, first + count, reader))

    def fetch(self, number: int, name_of: Callable[[int, int], dict[tuple[str, int], int]]) -> None:
        """Read the sketch of a record, and those of the records beside it. Raises StoreError, FormatError.

        `name_of` gives the numbers of the records from one number to another, by fragment in hex and ordinal.
        """
        first, end, reader = next(item for item in self._files if item[0] <= number < item[1])
        table = reader()
        numbers = name_of(first, end)
        columns: list[list[Any]] = [column.to_pylist() for column in table.columns]
        for fragment, row, sketch in zip(*columns, strict=True):
            place = numbers.pop((fragment, row), None)
            if place is not None and self.ends.values[place] == ELSEWHERE:
                self.put(place, sketch)
        if self.ends.values[number] == ELSEWHERE:
            raise FormatError(f"the sketches beside a shard lack that of record {number} of its keys; restore the file")
        # The others are compared with nothing; the judge takes an empty sketch for a text without words.
        self._files.remove((first, end, reader))

    def put(self, number: int, sketch: bytes) -> None:
        """Take the sketch of a record. FormatError where it is none."""
        if not is_sketch(sketch):
            raise FormatError(f"a sketch of {len(sketch)} bytes is none; restore the file beside the shard")
        self.make_room(0, len(sketch))
        begin, self.used = self.used, self.used + len(sketch)
        self.arena.values[begin : self.used] = np.frombuffer(sketch, np.uint8)
        self.begins.values[number], self.ends.values[number] = begin, self.used


def is_sketch(data: bytes) -> bool:
    """Whether these bytes may be a sketch."""
    size = len(data) - 1
    return 0 <= size < SKETCH_BYTES_MAX and data[0] <= LEVEL_MAX and not size % (4 if data[0] else 2)


def are_sketches(column: Any) -> bool:
    """Whether each value of a column may be a sketch."""
    if column.type != pa.binary() or column.null_count:
        return False
    return hold_sketches(*offsets_of(column))


def hold_sketches(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> bool:
    """Whether each value between these offsets may be a sketch."""
    sizes = np.diff(offsets) - 1
    if not len(sizes):
        return True
    if sizes.min() < 0 or sizes.max() >= SKETCH_BYTES_MAX:
        return False
    levels = data[offsets[:-1]]
    return bool((levels <= LEVEL_MAX).all() and not (sizes % np.where(levels > 0, 4, 2)).any())


def offsets_of(column: Any) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The bytes of a binary column, and where each value begins and the last ends."""
    _, bounds, content = column.buffers()
    if not len(column) or bounds is None:
        return _NO_BYTES, np.zeros(len(column) + 1, np.int64)
    kind = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    offsets = np.frombuffer(bounds, kind)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    data = np.frombuffer(content, np.uint8) if content is not None and content.size else _NO_BYTES
    return data, offsets
