"""The tables of slots in memory: which record holds a key, by 42 bits of the key's hash.

A slot is 64 bits: 32 of the hash and the number of a record plus one; 0 is free. The ten highest bits of the hash
choose one of 1,024 sections. Slots stand in the order of their hashes. In a table of new keys each stands at its home
(the hash's share of the section) or as close behind it as the order allows, with no free slot between: an absent key is
known by the first larger one, and a section is read in order without sorting.

A table that is nearly full moves some hundred slots for a new key, which is what its time goes into. So a table that
keeps all keys is an array without free slots, with a fence for each 64 of them, and a small table of new keys behind
it. When that is full, it is merged into the array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.stages.dedup.index.memory import Block, FixedBlock, halves_at, words_at
from headrace.stages.text.machine import compiled, entry

#: Bits of a key's hash that count, those of them that choose a section, and those in a slot.
HASH_BITS = 42
SECTION_BITS = 10
SECTIONS = 1 << SECTION_BITS
SLOT_BITS = HASH_BITS - SECTION_BITS
#: The share of slots in use at which a table that gathers is full, and that of the new keys of a section.
FULL, NEW_FULL = 0.945, 0.9
#: Room for new keys for each that is sorted; the section with the least has this share of the mean.
NEW_SHARE, SHARE_LEAST = 0.09, 0.75
#: Slots of a range of hashes, on average: a fence says where each begins.
RANGE_SLOTS = 64
#: Homes that a section begins with.
HOMES_MIN = 352
#: Slots of a page, and those behind its homes that a section has at least.
PAGE_SLOTS, OVERHANG = 512, 24
#: Of a fixed table: standard deviations of a section's keys that have room, and slots behind its homes.
SPREAD, BEHIND = 3.5, 192

NOBODY = -1
_THIRTY_TWO, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_NOTHING = np.uint64(0)

#: Columns of a table of sections: where it lies, how many homes, how many slots are in use, one past the last of them,
#: how many slots there are, and how many there may be before it moves.
ADDRESS, HOMES, USED, END, SIZE, ROOM = range(6)
#: Of a table of sorted arrays besides: how many ranges of hashes, where their fences lie, and the words of both parts.
RANGES, FENCES, TOTAL = HOMES, END, SIZE
COLUMNS = 8


class Slots:
    """The sections of a table that keeps all keys: of each the sorted array, and the table of new keys behind it."""

    def __init__(self) -> None:
        #: `[SECTIONS, COLUMNS]`, for the loops: the tables of new keys, and the arrays. Both lie in one block.
        self.table, self.sorted = (np.zeros((SECTIONS, COLUMNS), np.int64) for _ in range(2))
        self._blocks = [Block() for _ in range(SECTIONS)]
        self.sorted[:, ADDRESS] = self.table[:, ADDRESS] = [block.address for block in self._blocks]
        self.table[:, SIZE] = self.sorted[:, TOTAL] = self.sorted[:, ROOM] = PAGE_SLOTS
        self.table[:, HOMES] = HOMES_MIN
        self._scratch = np.empty(PAGE_SLOTS, np.uint64)

    @property
    def nbytes(self) -> int:
        """Bytes that the table takes."""
        return 8 * int(self.sorted[:, TOTAL].sum())

    def make_room(self, more: npt.NDArray[np.int64]) -> None:
        """Have room for `more` `[SECTIONS]` keys, wherever in their sections they belong."""
        section, wanted = merge_all(self.table, self.sorted, more, 0, self._scratch)
        while section < SECTIONS:
            if self.table[section, USED] > len(self._scratch):
                self._scratch = np.empty(2 * self.table[section, USED], np.uint64)
            # Addresses are cheap: memory is taken when it is written.
            block, before = self._blocks[section], self._blocks[section].address
            if 8 * wanted > block.nbytes:
                block.grow(2 * 8 * wanted)
            self.sorted[section, ADDRESS], self.sorted[section, ROOM] = block.address, block.nbytes >> 3
            self.table[section, ADDRESS] += block.address - before
            self.sorted[section, FENCES] += block.address - before
            section, wanted = merge_all(self.table, self.sorted, more, section, self._scratch)


class FixedSlots:
    """Sections of one size in one block, for so many keys, `at_once` of them of one section in one batch at most."""

    def __init__(self, keys: int, at_once: int = 0) -> None:
        share = keys / SECTIONS
        self.keys, homes = keys, int((share + SPREAD * share**0.5) / FULL) + 2
        size = homes + max(BEHIND, at_once + 1)
        self._block = FixedBlock(8 * SECTIONS * size)
        #: `[SECTIONS, COLUMNS]`, for the loops
        self.table = np.zeros((SECTIONS, COLUMNS), np.int64)
        self.table[:, ADDRESS] = self._block.address + 8 * size * np.arange(SECTIONS)
        self.table[:, HOMES], self.table[:, SIZE] = homes, size

    @property
    def nbytes(self) -> int:
        """Bytes that the table takes."""
        return self._block.nbytes

    def with_room(self, keys: int, more: npt.NDArray[np.int64]) -> FixedSlots:
        """An empty table for so many keys at least, that has room for `more` `[SECTIONS]`; this one if it does."""
        at_once, table = int(more.max()), self
        if keys > self.keys:
            table = FixedSlots(keys, at_once)
        else:
            self.clear()
        while not table.has_room(more):
            table = FixedSlots(table.keys + table.keys // 2, at_once)
        return table

    def has_room(self, more: npt.NDArray[np.int64]) -> bool:
        """Whether `more` `[SECTIONS]` keys have room."""
        used, homes = self.table[:, USED] + more, self.table[:, HOMES]
        # All may want the last home.
        end = np.maximum(self.table[:, END], homes) + more + 1
        return not ((used > FULL * homes) | (end > self.table[:, SIZE])).any()

    def clear(self) -> None:
        """Forget all keys, and keep the memory."""
        self._block.clear()
        self.table[:, USED] = self.table[:, END] = 0


@compiled
def home_of(low: Any, homes: Any) -> Any:
    """Where a hash of `SLOT_BITS` belongs among so many homes."""
    return np.int64((low * np.uint64(homes)) >> _THIRTY_TWO)


@entry("(i64[,], i64[,], i64[], i64, u64[]) -> (i64, i64)")
def merge_all(table: Any, arrays: Any, more: Any, section: int, scratch: Any) -> Any:
    """Have room for `more` `[SECTIONS]` new keys in the sections from `section` on.

    Returns the first that wants more room before that, or a larger `scratch`, and how many words; SECTIONS: there is
    none.
    """
    while section < SECTIONS:
        new, row, count = table[section], arrays[section], more[section]
        # All may want the last home.
        if new[USED] + count > NEW_FULL * new[HOMES] or max(new[END], new[HOMES]) + count + 1 > new[SIZE]:
            kept = row[USED] + new[USED]
            ranges = kept // RANGE_SLOTS + 1
            # Each by another share: they would all be full at once.
            share = NEW_SHARE * (SHARE_LEAST + (1 - SHARE_LEAST) * 2 * section / SECTIONS)
            # Wherever they belong, all have room behind the homes.
            behind = OVERHANG + count
            least = kept + ranges // 2 + 1 + np.int64(max(np.int64(kept * share), count) / NEW_FULL) + 1 + behind
            total = (least + PAGE_SLOTS - 1) // PAGE_SLOTS * PAGE_SLOTS
            if total > row[ROOM] or new[USED] > len(scratch):
                return section, total
            gathered = collect(table, section, scratch)
            words = words_at(row[ADDRESS])
            for free in range(row[USED], row[TOTAL]):
                words[free] = _NOTHING
            merge_into(words, row[USED], scratch, gathered)
            row[USED], row[RANGES], row[TOTAL] = kept, ranges, total
            row[FENCES] = row[ADDRESS] + 8 * (total - ranges // 2 - 1)
            set_fences(words, kept, halves_at(row[FENCES]), ranges)
            # What the last page has besides is of use.
            new[ADDRESS], new[SIZE] = row[ADDRESS] + 8 * kept, total - kept - ranges // 2 - 1
            new[HOMES], new[USED], new[END] = new[SIZE] - behind, 0, 0
        section += 1
    return section, 0


@compiled
def merge_into(words: Any, end: Any, more: Any, count: Any) -> None:
    """Merge `more[:count]`, in order, into the first `end` slots, from behind."""
    at = end - 1
    for place in range(count - 1, -1, -1):
        slot = more[place]
        while at >= 0 and words[at] > slot:
            words[at + place + 1] = words[at]
            at -= 1
        words[at + place + 1] = slot


@compiled
def set_fences(words: Any, count: Any, fences: Any, ranges: Any) -> None:
    """Write how many slots are before each of the ranges of hashes, and before their end."""
    place = 0
    for at in range(count):
        mine = home_of(words[at] >> _THIRTY_TWO, ranges)
        while place <= mine:
            fences[place] = np.uint32(at)
            place += 1
    while place <= ranges:
        fences[place] = np.uint32(count)
        place += 1


@compiled
def sorted_place(row: Any, low: Any) -> Any:
    """Of an array: the slots between which a hash would be, and where it would be if hashes were spread evenly."""
    fences, product = halves_at(row[FENCES]), low * np.uint64(row[RANGES])
    place = np.int64(product >> _THIRTY_TWO)
    begin, end = np.int64(fences[place]), np.int64(fences[place + 1])
    return begin, end, begin + np.int64(((product & _LOW) * np.uint64(end - begin)) >> _THIRTY_TWO)


@entry("(i64[,], i64, u64[]) -> i64")
def collect(table: Any, section: int, room: Any) -> int:
    """Put the slots of a section into `room` in order; how many."""
    slots, count = words_at(table[section, ADDRESS]), 0
    for at in range(table[section, END]):
        # No branch: which slots are free is not to be guessed. What is written for one of them is written over.
        room[count] = slots[at]
        count += slots[at] != _NOTHING
    return count


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
