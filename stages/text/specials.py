"""The words with rules of their own (`contractions`) as tables that the loops look them up in."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.stages.text.contractions import special_words
from headrace.stages.text.machine import compiled, hash_of, hash_span

PARTS_MAX = 4
_SLOTS = 1 << 13
_SLOT_SHIFT = np.uint64(51)
_BLOOM_BITS = 1 << 13
_BLOOM_SHIFT = np.uint64(51)


def _tables() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
    """The hashes of the special words by slot, and the bytes of the parts of each."""
    slot_hashes = np.zeros(_SLOTS, np.uint64)
    slot_cuts = np.zeros((_SLOTS, PARTS_MAX), np.int32)
    for word, parts in special_words().items():
        value = hash_of(word)
        slot = value >> int(_SLOT_SHIFT)
        while slot_hashes[slot]:
            slot = (slot + 1) % _SLOTS
        slot_hashes[slot] = value
        slot_cuts[slot, : len(parts)] = [len(part.encode()) for part in parts]
    return slot_hashes, slot_cuts


def _bloom() -> npt.NDArray[np.uint8]:
    """A bit for the words of ASCII letters that come apart; few other words have one that is set."""
    bloom = np.zeros(_BLOOM_BITS // 8, np.uint8)
    for word, parts in special_words().items():
        if len(parts) > 1 and word.isascii() and word.isalpha():
            bit = hash_of(word) >> int(_BLOOM_SHIFT)
            bloom[bit >> 3] |= 1 << (bit & 7)
    return bloom


def _ends() -> npt.NDArray[np.uint8]:
    """`[bytes of a word, byte]`: whether a special word of this length begins (1), ends (2) with this byte."""
    encoded = [word.encode() for word in special_words()]
    table = np.zeros((max(map(len, encoded)) + 1, 256), np.uint8)
    for word in encoded:
        table[len(word), word[0]] |= 1
        table[len(word), word[-1]] |= 2
    return table


_SLOT_HASHES, SLOT_CUTS = _tables()
_BLOOM = _bloom()
_ENDS = _ends()
SPECIAL_BYTES_MAX = len(_ENDS) - 1


@compiled
def letters_slot(value: Any) -> Any:
    """The slot of the special word of ASCII letters with this hash, or -1 where it does not come apart."""
    bit = np.int64(value >> _BLOOM_SHIFT)
    if not (_BLOOM[bit >> 3] >> (bit & 7)) & 1:
        return -1
    slot = _find(value)
    return slot if slot >= 0 and SLOT_CUTS[slot, 1] else -1


@compiled
def special_slot(data: Any, begin: int, end: int) -> Any:
    """The slot of the special word `data[begin:end]`, or -1."""
    if end - begin > SPECIAL_BYTES_MAX or begin >= end:
        return -1
    # Hashing takes longer than this, and few words come through.
    if not (_ENDS[end - begin, data[begin]] & 1 and _ENDS[end - begin, data[end - 1]] & 2):
        return -1
    return _find(hash_span(data, begin, end))


@compiled
def _find(value: Any) -> Any:
    slot = np.int64(value >> _SLOT_SHIFT)
    while _SLOT_HASHES[slot] != 0:
        if _SLOT_HASHES[slot] == value:
            return slot
        slot = (slot + 1) & (_SLOTS - 1)
    return -1
