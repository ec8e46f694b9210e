"""Sorted runs of slots on local disk, and how they are merged.

A run holds the slots of a full table in the order of their hashes. Its fences, in memory, say where each range of some
700 slots begins. The slots are mapped, and their pages are the kernel's to keep or to drop. Eight runs of a level are
merged into one of the next, a chunk at a time between batches: each slot is written about three times, and there are
some eleven runs. A chunk is read from all runs of a merge and sorted, which is faster than comparing their heads.

The files have no name: they go with the process.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.stages.dedup.index.memory import numbers_at
from headrace.stages.dedup.index.records import COUNT, FAILED, is_released, read_words
from headrace.stages.dedup.index.slots import HASH_BITS, SECTION_BITS, SECTIONS, SLOT_BITS, USED, collect
from headrace.stages.text.machine import compiled, entry, pointer
from headrace.store.files import Scratch

#: Runs of a level that become one of the next.
FAN_IN = 8
#: Slots between fences are more than half of this on average.
FENCE_SLOTS_MAX = 1024
#: Slots that a merge sorts at once: they stay in a processor's cache.
CHUNK_SLOTS = 1 << 17

_THIRTY_TWO = np.uint64(32)
_LOW, _ONE = np.uint64(0xFFFFFFFF), np.uint64(1)

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

#: Columns of a table of runs: where its slots are mapped, where its fences lie, and the bits of a hash below them.
ADDRESS, FENCES, SHIFT = range(3)
COLUMNS = 3


@dataclass(frozen=True, slots=True, eq=False)
class SortedRun:
    """Slots in the order of their hashes. `fences` `[2^bits + 1]` are the slots before each range of hashes."""

    file: Scratch
    mapped: mmap.mmap | None
    at: int
    fences: Numbers
    bits: int
    level: int

    @property
    def slots(self) -> int:
        """How many slots."""
        return int(self.fences[-1])

    def row(self) -> tuple[int, int, int]:
        """What the loops know of it."""
        address = np.frombuffer(self.mapped, np.uint8).ctypes.data + self.at if self.mapped is not None else 0
        return address, self.fences.ctypes.data, HASH_BITS - self.bits

    def read_range(self, prefix: int, bits: int, room: Words) -> int:
        """Put the slots whose hashes begin with the `bits` bits of `prefix` into `room`; how many. Raises OSError."""
        shift = self.bits - bits
        begin, end = int(self.fences[prefix << shift]), int(self.fences[(prefix + 1) << shift])
        read_words(self.file.fileno(), self.at + 8 * begin, room[: end - begin])
        return end - begin

    def count_range(self, prefix: int, bits: int) -> int:
        """How many slots `read_range` would put."""
        shift = self.bits - bits
        return int(self.fences[(prefix + 1) << shift] - self.fences[prefix << shift])


class RunWriter:
    """Writes a run of at most `slots_max` slots, behind what the file holds already."""

    def __init__(self, file: Scratch, slots_max: int, level: int) -> None:
        self._file, self._level, self._at = file, level, file.size
        self._bits = max(SECTION_BITS, (2 * slots_max // FENCE_SLOTS_MAX).bit_length() - 1)
        self._fences = np.zeros((1 << self._bits) + 1, np.int64)

    def append(self, section: int, slots: Words) -> None:
        """Slots of a section, in order and behind those before. Raises OSError."""
        count_slots(self._fences, section, HASH_BITS - self._bits, slots)
        self._file.append(slots.data)

    def finish(self) -> SortedRun:
        """The run that was written."""
        np.cumsum(self._fences, out=self._fences)
        return map_run(self._file, self._at, self._fences, self._level)


def map_run(file: Scratch, at: int, fences: Numbers, level: int) -> SortedRun:
    """The run whose slots begin at a place of a file. Raises OSError."""
    mapped = None
    if file.size > at:
        mapped = mmap.mmap(file.fileno(), file.size, mmap.MAP_SHARED, mmap.PROT_READ)
        mapped.madvise(mmap.MADV_RANDOM)
    return SortedRun(file, mapped, at, fences, (len(fences) - 1).bit_length() - 1, level)


def seal(table: Numbers, folder: str | None) -> SortedRun:
    """Write the slots of a table as a run. Raises OSError."""
    used = table[:, USED]
    writer, room = RunWriter(Scratch.on_disk(folder), int(used.sum()), 0), np.empty(int(used.max()), np.uint64)
    for section in range(SECTIONS):
        writer.append(section, room[: collect(table, section, room)])
    return writer.finish()


def merge(runs: Sequence[SortedRun], writer: RunWriter, records: Numbers) -> Iterator[int]:
    """Write what runs hold as one, less the released; after each chunk the slots that were read. Raises OSError."""
    total = sum(run.slots for run in runs)
    bits = max(SECTION_BITS, min((total // CHUNK_SLOTS).bit_length(), *(run.bits for run in runs)))
    room = np.empty(0, np.uint64)
    for prefix in range(1 << bits):
        count = sum(run.count_range(prefix, bits) for run in runs)
        if count > len(room):
            room = np.empty(count + count // 4, np.uint64)
        put = 0
        for run in runs:
            put += run.read_range(prefix, bits, room[put:])
        chunk = room[: drop_released(records, room, count)]
        chunk.sort()
        writer.append(prefix >> (bits - SECTION_BITS), chunk)
        yield count


class Levels:
    """The runs of an index, and the merges that are under way."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self.runs: list[SortedRun] = []
        #: `[runs, COLUMNS]`, for the loops
        self.table = np.zeros((0, COLUMNS), np.int64)
        self._merges: dict[int, tuple[list[SortedRun], RunWriter, Iterator[int]]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the fences."""
        return sum(run.fences.nbytes for run in self.runs)

    def add(self, run: SortedRun) -> None:
        """Take in a run."""
        self._set([*self.runs, run])

    def advance(self, slots: int, records: Numbers) -> None:
        """Merge about so many slots of each level that has enough runs. Raises OSError."""
        for level in {run.level for run in self.runs}:
            left = slots
            while left > 0 and (merging := self._merge_of(level, records)) is not None:
                runs, writer, chunks = merging
                count = next(chunks, None)
                if count is None:
                    merged, self._merges = writer.finish(), {at: m for at, m in self._merges.items() if at != level}
                    self._set([*(run for run in self.runs if run not in runs), merged])
                    break
                left -= count

    def _merge_of(self, level: int, records: Numbers) -> tuple[list[SortedRun], RunWriter, Iterator[int]] | None:
        if level not in self._merges:
            runs = [run for run in self.runs if run.level == level][:FAN_IN]
            if len(runs) < FAN_IN:
                return None
            writer = RunWriter(Scratch.on_disk(self._folder), sum(run.slots for run in runs), level + 1)
            self._merges[level] = runs, writer, merge(runs, writer, records)
        return self._merges[level]

    def _set(self, runs: list[SortedRun]) -> None:
        self.runs = sorted(runs, key=lambda run: -run.level)
        self.table = np.array([run.row() for run in self.runs], np.int64).reshape(-1, COLUMNS)


@entry("(i64[], i64, i64, u64[])")
def count_slots(counts: Any, section: int, shift: int, slots: Any) -> None:
    """Count slots of a section by the range of their hashes, one place on."""
    high = np.uint64(section) << np.uint64(SLOT_BITS)
    for at in range(len(slots)):
        counts[np.int64((high | (slots[at] >> _THIRTY_TWO)) >> np.uint64(shift)) + 1] += 1


@entry("(i64[], u64[], i64) -> i64")
def drop_released(row: Any, slots: Any, count: int) -> int:
    """Move the slots of records that were not released to the front; how many."""
    put, state = 0, pointer(row, 0)
    for at in range(count):
        number = np.int64(slots[at] & _LOW) - 1
        if number < 0 or number >= state[COUNT]:
            state[FAILED] = 1
        elif not is_released(state, number):
            slots[put] = slots[at]
            put += 1
    return put


@compiled
def place_in(row: Any, hashed: Any) -> Any:
    """Of a run, `row`: the slots between which a hash would be, and where it would be if hashes were spread evenly."""
    fences, place = numbers_at(row[FENCES]), np.int64(hashed >> np.uint64(row[SHIFT]))
    begin, end = fences[place], fences[place + 1]
    below = hashed & ((_ONE << np.uint64(row[SHIFT])) - _ONE)
    return begin, end, begin + np.int64((below * np.uint64(end - begin)) >> np.uint64(row[SHIFT]))
