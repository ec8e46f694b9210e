"""The filter in front of the runs: whether a key was ever held, with no false no and about one false yes in forty.

A blocked Bloom filter (Putze, Sanders and Singler 2007): six bits a key, three in each of two words of one cache line.
It has 64 parts, by the hash's highest bits, which grow one by one by a third: what a part holds is then entered anew,
from the slots and the runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.stages.dedup.index.memory import FixedBlock, words_at
from headrace.stages.dedup.index.slots import HASH_BITS, SECTION_BITS, SLOT_BITS
from headrace.stages.text.machine import compiled, entry

#: Bits a key at which a part grows, and by how much.
BITS_MIN = 7.1
GROWTH = 1.33
BLOCK_BYTES = 64
#: Blocks that the first part begins with.
BLOCKS_MIN = 1024
#: Bits of a hash that choose the part, and how many parts that makes.
PART_BITS = 6
PARTS = 1 << PART_BITS

_THIRTY_TWO = np.uint64(32)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_FOLD, _THREE, _SIX_BITS = np.uint64(21), np.uint64(3), np.uint64(63)
_ONE = np.uint64(1)
_SLOT_BITS = np.uint64(SLOT_BITS)
_BELOW = np.uint64(HASH_BITS - PART_BITS)
_REST = np.uint64((1 << (HASH_BITS - PART_BITS)) - 1)
_SHIFTS = (np.uint64(62), np.uint64(60), np.uint64(54), np.uint64(48), np.uint64(42))
_SHIFTS_AFTER = (np.uint64(36), np.uint64(30), np.uint64(24))

#: Columns of a table of parts: where one lies, how many blocks, how many keys were entered.
ADDRESS, BLOCKS, KEYS = range(3)
COLUMNS = 4


class Filters:
    """The parts of the filter."""

    def __init__(self) -> None:
        #: `[PARTS, COLUMNS]`, for the loops
        self.table = np.zeros((PARTS, COLUMNS), np.int64)
        self._blocks: list[FixedBlock | None] = [None] * PARTS
        for part in range(PARTS):
            self.restore(part, int(BLOCKS_MIN * GROWTH ** (part / PARTS)), 0)

    @property
    def nbytes(self) -> int:
        """Bytes that the filter takes."""
        return sum(block.nbytes for block in self._blocks if block is not None)

    def full(self, more: npt.NDArray[np.int64]) -> list[int]:
        """The parts that must grow before they take `more` `[PARTS]` keys."""
        wanted = (self.table[:, KEYS] + more) * BITS_MIN
        found: list[int] = np.flatnonzero(wanted > self.table[:, BLOCKS] * (8 * BLOCK_BYTES)).tolist()
        return found

    def begin_anew(self, part: int, more: int) -> None:
        """An empty, larger part in place of one: what it held has to be entered again."""
        blocks, keys = int(self.table[part, BLOCKS]), int(self.table[part, KEYS]) + more
        while keys * BITS_MIN > blocks * 8 * BLOCK_BYTES:
            blocks = int(blocks * GROWTH) + 1
        self.restore(part, blocks, 0)

    def restore(self, part: int, blocks: int, keys: int) -> npt.NDArray[np.uint64]:
        """A part of so many blocks that says to hold so many keys, to be filled; its bits."""
        # The old one goes first.
        self._blocks[part] = None
        block = self._blocks[part] = FixedBlock(blocks * BLOCK_BYTES)
        # What the last page has besides is of no use: parts rounded to the same sizes would grow at the same time.
        self.table[part, : KEYS + 1] = block.address, blocks, keys
        return self.bits(part)

    def bits(self, part: int) -> npt.NDArray[np.uint64]:
        """The words of a part."""
        block = self._blocks[part]
        assert block is not None
        return block.words(int(self.table[part, BLOCKS]) * BLOCK_BYTES // 8)


@compiled
def line_of(filters: Any, hashed: Any) -> Any:
    """Where the cache line of a key is."""
    part = np.int64(hashed >> _BELOW) * COLUMNS
    block = ((hashed & _REST) * np.uint64(filters[part + BLOCKS])) >> _BELOW
    return filters[part + ADDRESS] + np.int64(block) * BLOCK_BYTES


@compiled
def _bits_of(hashed: Any) -> Any:
    """Of a key: one of the line's first four words and its bits, and one of the last four and its bits."""
    value = (hashed ^ (hashed >> _FOLD)) * _ODD
    first = np.int64(value >> _SHIFTS[0])
    second = np.int64((value >> _SHIFTS[1]) & _THREE) + 4
    ones = (_ONE << ((value >> _SHIFTS[2]) & _SIX_BITS)) | (_ONE << ((value >> _SHIFTS[3]) & _SIX_BITS))
    ones |= _ONE << ((value >> _SHIFTS[4]) & _SIX_BITS)
    others = (_ONE << ((value >> _SHIFTS_AFTER[0]) & _SIX_BITS)) | (_ONE << ((value >> _SHIFTS_AFTER[1]) & _SIX_BITS))
    others |= _ONE << ((value >> _SHIFTS_AFTER[2]) & _SIX_BITS)
    return first, ones, second, others


@compiled
def may_hold(filters: Any, hashed: Any) -> Any:
    """Whether a key may have been entered."""
    words = words_at(line_of(filters, hashed))
    first, ones, second, others = _bits_of(hashed)
    return ((words[first] & ones) == ones) & ((words[second] & others) == others)


@compiled
def enter(filters: Any, hashed: Any) -> None:
    """Enter a key."""
    _set_bits(line_of(filters, hashed), hashed)
    filters[np.int64(hashed >> _BELOW) * COLUMNS + KEYS] += 1


@compiled
def _set_bits(line: Any, hashed: Any) -> None:
    words = words_at(line)
    first, ones, second, others = _bits_of(hashed)
    words[first] |= ones
    words[second] |= others


@entry("(i64[,], i64, u64[], i64)")
def enter_all(filters: Any, section: int, slots: Any, count: int) -> None:
    """Enter the keys of the first `count` slots of a section."""
    part = section >> (SECTION_BITS - PART_BITS)
    address, blocks, high = filters[part, ADDRESS], np.uint64(filters[part, BLOCKS]), np.uint64(section) << _SLOT_BITS
    for at in range(count):
        hashed = high | (slots[at] >> _THIRTY_TWO)
        block = ((hashed & _REST) * blocks) >> _BELOW
        _set_bits(address + np.int64(block) * BLOCK_BYTES, hashed)
    filters[part, KEYS] += count
