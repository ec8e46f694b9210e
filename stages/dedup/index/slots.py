"""The table of slots in memory: which record holds a key, by 42 bits of the key's hash.

A slot is 64 bits: 32 of the hash and the number of a record plus one; 0 is free. The ten highest bits of the hash
choose one of 1,024 sections, which grow one by one by a quarter and begin at sizes apart, so that at each moment the
mean load is the same, 0.85. Within a section slots stand in the order of their hashes, each at its home (the hash's
share of the section) or as close behind it as the order allows, with no free slot between: an absent key is known by
the first larger one, and a section is read in order without sorting.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.stages.dedup.index.memory import Block, FixedBlock, words_at
from headrace.stages.text.machine import compiled

#: Bits of a key's hash that count, those of them that choose a section, and those in a slot.
HASH_BITS = 42
SECTION_BITS = 10
SECTIONS = 1 << SECTION_BITS
SLOT_BITS = HASH_BITS - SECTION_BITS
#: The share of slots in use at which a section grows, and by how much.
FULL = 0.95
GROWTH = 1.25
#: Homes that the first section begins with: those of the last one fit the page that it takes anyway.
HOMES_MIN = 352
#: Of a fixed table: standard deviations of a section's keys that have room, and slots behind its homes.
SPREAD, BEHIND = 5.0, 512

NOBODY = -1
_THIRTY_TWO, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_NOTHING = np.uint64(0)
_SLOT_BITS = np.uint64(SLOT_BITS)

#: Columns of a table of sections: where it lies, how many homes, how many slots are in use, one past the last of them,
#: and how many slots there are.
ADDRESS, HOMES, USED, END, SIZE = range(5)
COLUMNS = 8


class Slots:
    """The sections of a table."""

    def __init__(self) -> None:
        #: `[SECTIONS, COLUMNS]`, for the loops
        self.table = np.zeros((SECTIONS, COLUMNS), np.int64)
        self._blocks = [Block() for _ in range(SECTIONS)]
        self.table[:, ADDRESS] = [block.address for block in self._blocks]
        self.table[:, SIZE] = [block.nbytes >> 3 for block in self._blocks]
        self.table[:, HOMES] = [int(HOMES_MIN * GROWTH ** (section / SECTIONS)) for section in range(SECTIONS)]

    @property
    def nbytes(self) -> int:
        """Bytes that the table takes."""
        return sum(block.nbytes for block in self._blocks)

    def make_room(self, more: npt.NDArray[np.int64]) -> None:
        """Have room for `more` `[SECTIONS]` keys, wherever in their sections they belong."""
        used, homes, end = self.table[:, USED], self.table[:, HOMES], self.table[:, END]
        size = self.table[:, SIZE]
        for section in np.flatnonzero((used + more > FULL * homes) | (end + more + 1 > size)).tolist():
            self._grow(section, int(more[section]))

    def _grow(self, section: int, more: int) -> None:
        row, block = self.table[section], self._blocks[section]
        homes = int(row[HOMES])
        while row[USED] + more > FULL * homes:
            homes = int(homes * GROWTH) + 1
        wanted = max(homes, int(end_with(self.table, section, homes))) + more + 1
        block.grow(8 * wanted)
        row[ADDRESS], row[SIZE] = block.address, block.nbytes >> 3
        spread(self.table, section, homes)


class FixedSlots:
    """Sections of one size in one block, for so many keys: what is gathered for a run."""

    def __init__(self, keys: int) -> None:
        share = keys / SECTIONS
        self.keys, homes = keys, int((share + SPREAD * share**0.5) / FULL) + 2
        size = homes + BEHIND
        self._block = FixedBlock(8 * SECTIONS * size)
        #: `[SECTIONS, COLUMNS]`, for the loops
        self.table = np.zeros((SECTIONS, COLUMNS), np.int64)
        self.table[:, ADDRESS] = self._block.address + 8 * size * np.arange(SECTIONS)
        self.table[:, HOMES], self.table[:, SIZE] = homes, size

    @property
    def nbytes(self) -> int:
        """Bytes that the table takes."""
        return self._block.nbytes

    def has_room(self, more: npt.NDArray[np.int64]) -> bool:
        """Whether `more` `[SECTIONS]` keys have room."""
        used, homes = self.table[:, USED] + more, self.table[:, HOMES]
        return not ((used > FULL * homes) | (self.table[:, END] + more + 1 > self.table[:, SIZE])).any()

    def clear(self) -> None:
        """Forget all keys, and keep the memory."""
        self._block.clear()
        self.table[:, USED] = self.table[:, END] = 0


@compiled
def home_of(low: Any, homes: Any) -> Any:
    """Where a hash of `SLOT_BITS` belongs among so many homes."""
    return np.int64((low * np.uint64(homes)) >> _THIRTY_TWO)


@compiled
def collect(table: Any, section: int, room: Any) -> int:
    """Put the slots of a section into `room` in order; how many."""
    slots, count = words_at(table[section, ADDRESS]), 0
    for at in range(table[section, END]):
        if slots[at] != _NOTHING:
            room[count] = slots[at]
            count += 1
    return count


@compiled
def end_with(table: Any, section: int, homes: int) -> int:
    """One past the last slot that a section would use with so many homes."""
    slots, end = words_at(table[section, ADDRESS]), 0
    for at in range(table[section, END]):
        if slots[at] != _NOTHING:
            end = max(home_of(slots[at] >> _THIRTY_TWO, homes), end) + 1
    return end


@compiled
def spread(table: Any, section: int, homes: int) -> None:
    """Give a section so many homes: all slots go to its far end, and from there to their places."""
    slots, size = words_at(table[section, ADDRESS]), table[section, SIZE]
    put = size
    for at in range(table[section, END] - 1, -1, -1):
        slot = slots[at]
        if slot != _NOTHING:
            slots[at] = _NOTHING
            put -= 1
            slots[put] = slot
    end = 0
    for at in range(put, size):
        slot = slots[at]
        slots[at] = _NOTHING
        end = max(home_of(slot >> _THIRTY_TWO, homes), end)
        slots[end] = slot
        end += 1
    table[section, HOMES], table[section, END] = homes, end


@compiled
def put_slot(table: Any, hashed: Any, number: int) -> None:
    """Give a key to a record, behind what holds an equal hash. There must be room."""
    section, low = np.int64(hashed >> _SLOT_BITS) * COLUMNS, hashed & _LOW
    slots = words_at(table[section + ADDRESS])
    at = home_of(low, table[section + HOMES])
    slot = slots[at]
    while slot != _NOTHING and slot >> _THIRTY_TWO <= low:
        at += 1
        slot = slots[at]
    slots[at] = (low << _THIRTY_TWO) | np.uint64(number + 1)
    at += 1
    while slot != _NOTHING:
        carried, slot = slot, slots[at]
        slots[at] = carried
        at += 1
    table[section + USED] += 1
    table[section + END] = max(table[section + END], at)
