"""The table of slots in memory: which record holds a key, by 42 bits of the key's hash.

A slot is 64 bits: 32 of the hash and the number of a record plus one; 0 is free. The ten highest bits of the hash
choose one of 1,024 sections, which grow one by one by a twentieth and begin at sizes apart, so that at each moment the
mean load is the same, 0.92. Within a section slots stand in the order of their hashes, each at its home (the hash's
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
FULL = 0.945
GROWTH = 1.045
#: Homes that the first section begins with: those of the last one fit the page that it takes anyway.
HOMES_MIN = 352
#: Slots of a page, and those behind its homes that a section has at least.
PAGE_SLOTS, OVERHANG = 512, 24
#: Of a fixed table: standard deviations of a section's keys that have room, and slots behind its homes.
SPREAD, BEHIND = 3.5, 192

NOBODY = -1
_THIRTY_TWO, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_NOTHING = np.uint64(0)
_SLOT_BITS = np.uint64(SLOT_BITS)

#: Columns of a table of sections: where it lies, how many homes, how many slots are in use, one past the last of them,
#: how many slots there are, and how many there may be before it moves.
ADDRESS, HOMES, USED, END, SIZE, ROOM = range(6)
COLUMNS = 8


class Slots:
    """The sections of a table."""

    def __init__(self) -> None:
        #: `[SECTIONS, COLUMNS]`, for the loops
        self.table = np.zeros((SECTIONS, COLUMNS), np.int64)
        self._blocks = [Block() for _ in range(SECTIONS)]
        self.table[:, ADDRESS] = [block.address for block in self._blocks]
        self.table[:, SIZE] = self.table[:, ROOM] = PAGE_SLOTS
        self._scratch = np.empty(PAGE_SLOTS, np.uint64)
        self.table[:, HOMES] = [int(HOMES_MIN * GROWTH ** (section / SECTIONS)) for section in range(SECTIONS)]

    @property
    def nbytes(self) -> int:
        """Bytes that the table takes."""
        return 8 * int(self.table[:, SIZE].sum())

    def make_room(self, more: npt.NDArray[np.int64]) -> None:
        """Have room for `more` `[SECTIONS]` keys, wherever in their sections they belong."""
        section, wanted = grow_all(self.table, more, 0, self._scratch)
        while section < SECTIONS:
            if wanted > len(self._scratch):
                self._scratch = np.empty(2 * wanted, np.uint64)
            # Addresses are cheap: memory is taken when it is written.
            block = self._blocks[section]
            if 8 * wanted > block.nbytes:
                block.grow(2 * 8 * wanted)
            self.table[section, ADDRESS], self.table[section, ROOM] = block.address, block.nbytes >> 3
            section, wanted = grow_all(self.table, more, section, self._scratch)


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
def grow_all(table: Any, more: Any, section: int, scratch: Any) -> Any:
    """Have room for `more` `[SECTIONS]` keys in the sections from `section` on.

    Returns the first that wants more room before that, or a larger `scratch`, and how many slots; SECTIONS: there is
    none.
    """
    while section < SECTIONS:
        row, count = table[section], more[section]
        homes, used = row[HOMES], row[USED] + count
        if used > FULL * homes or row[END] + count + 1 > row[SIZE]:
            if used > FULL * homes:
                homes = max(np.int64(homes * GROWTH), np.int64(used / FULL)) + 1
            # What the last page has beside is of use. Wherever they belong, all have room behind the homes.
            behind = OVERHANG + count
            homes = (homes + behind + PAGE_SLOTS - 1) // PAGE_SLOTS * PAGE_SLOTS - behind
            wanted = homes + used + PAGE_SLOTS
            if wanted > row[ROOM] or wanted > len(scratch):
                return section, wanted
            spread(table, section, homes, scratch, collect(table, section, scratch))
            size = max(row[END] + count + 1, homes + behind)
            row[SIZE] = (size + PAGE_SLOTS - 1) // PAGE_SLOTS * PAGE_SLOTS
        section += 1
    return section, 0


@compiled
def collect(table: Any, section: int, room: Any) -> int:
    """Put the slots of a section into `room` in order; how many."""
    slots, count = words_at(table[section, ADDRESS]), 0
    for at in range(table[section, END]):
        # No branch: which slots are free is not to be guessed. What is written for one of them is written over.
        room[count] = slots[at]
        count += slots[at] != _NOTHING
    return count


@compiled
def spread(table: Any, section: int, homes: int, kept: Any, count: int) -> None:
    """Give a section so many homes, and put there what it holds: `kept[:count]`, in order."""
    slots, end = words_at(table[section, ADDRESS]), 0
    for free in range(table[section, END]):
        slots[free] = _NOTHING
    for place in range(count):
        end = max(home_of(kept[place] >> _THIRTY_TWO, homes), end)
        slots[end] = kept[place]
        end += 1
    table[section, HOMES], table[section, END] = homes, end


@compiled
def put_slot(table: Any, hashed: Any, number: int) -> None:
    """Give a key to a record, behind what holds an equal hash. There must be room."""
    section, low = np.int64(hashed >> _SLOT_BITS) * COLUMNS, hashed & _LOW
    slots = words_at(table[section + ADDRESS])
    at = home_of(low, table[section + HOMES])
    while slots[at] != _NOTHING and slots[at] >> _THIRTY_TWO <= low:
        at += 1
    put_at(table, section, at, (low << _THIRTY_TWO) | np.uint64(number + 1))


@compiled
def put_at(table: Any, section: Any, at: int, carried: Any) -> None:
    """Put a slot in its place of a section, whose first column is `section`, and those that stand there behind it."""
    slots = words_at(table[section + ADDRESS])
    while carried != _NOTHING:
        slot = slots[at]
        slots[at] = carried
        carried = slot
        at += 1
    table[section + USED] += 1
    table[section + END] = max(table[section + END], at)
