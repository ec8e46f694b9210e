"""A text as units, and the hashes of what begins at its words.

A unit is a letter, a mark or a digit (Unicode categories L, M, N) in lower case; all else is left out, so that case,
punctuation and white space do not count. Of a script that puts no space between words each code point is a word of
ALONE_UNITS units. In a text a word begins behind whatever is left out, in an item behind white space only: so "3,000"
of an item begins where "3,000", "3 000" and "3000" begin in a text. A gram is the hash of the GRAM units from a word's
begin on, which is about five words.
"""

from __future__ import annotations

import unicodedata
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headrace.stages.text import characters, decode, flags_table
from headrace.stages.text.machine import compiled

#: Units of a gram of a question or a passage, and of one of an answer (about three words).
GRAM: Final = 24
ANSWER_GRAM: Final = 14
#: Units of a code point that is a word by itself.
ALONE_UNITS: Final = 4

_GAP, _LEFT_OUT, _UNIT, _ALONE = range(4)
_CODES: Final = 0x32400
_LOWER_MAX: Final = characters.LOWER_MAX
#: Scripts without spaces between words: Thai and Lao, Burmese, Khmer, Chinese and Japanese.
_WITHOUT_SPACES: Final = (
    (0x0E00, 0x0F00), (0x1000, 0x10A0), (0x1780, 0x1800), (0x2E80, 0xA000), (0xF900, 0xFB00), (0x20000, _CODES),
)  # fmt: skip
_BASE: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT, _ONE = np.uint64(33), np.uint64(1)


def _kinds() -> npt.NDArray[np.uint16]:
    """`[_CODES]`: what each code point is."""
    table = np.full(_CODES, _LEFT_OUT, np.uint16)
    for code in range(_CODES):
        if unicodedata.category(chr(code))[0] in "LMN":
            table[code] = _UNIT
    for first, end in _WITHOUT_SPACES:
        part = table[first:end]
        part[part == _UNIT] = _ALONE
    table[(flags_table()[:_CODES] & characters.SPACE) != 0] = _GAP
    return table


_KINDS_TABLE = _kinds()
#: Of an ASCII character its unit, or _GAP or _LEFT_OUT.
_ASCII = np.array(
    [kind if kind < _UNIT else ord(chr(code).lower()) for code, kind in enumerate(_KINDS_TABLE[:128].tolist())],
    np.uint8,
)
_KIND_OF, _KINDS = characters.two_levels(_KINDS_TABLE)
_STEP_OF, _LOWER = characters.lower_steps()


#: What a unit weighs in a hash when GRAM units have followed it.
_GRAM_POWER = np.uint64(pow(int(_BASE), GRAM, 1 << 64))


@compiled
def finished(value: Any) -> Any:
    """All bits of a hash as good as its best, and never 0."""
    value = (value ^ (value >> _SHIFT)) * _FIRST
    value = (value ^ (value >> _SHIFT)) * _SECOND
    value ^= value >> _SHIFT
    return value if value != 0 else _ONE


@compiled
def hash_units(units: Any, first: int, size: int) -> Any:
    """The hash of `size` units."""
    value = np.uint64(0)
    for at in range(first, first + size):
        value = value * _BASE + np.uint64(units[at])
    return finished(value)


@compiled
def read_units(
    data: Any, at: int, end: int, is_item: bool, units: Any, starts: Any, grams: Any
) -> tuple[int, int, int]:
    """Read `data[at:end]` into its units, the units at which words begin, and the grams of these.

    Returns how many there are of each: words near the end have no gram. There must be `room_for` them.
    """
    count, words, ready = 0, 0, 0
    begins = True
    value = np.uint64(0)
    while at < end:
        lead = np.int64(data[at])
        alone = False
        if lead < 0x80:
            at += 1
            unit = np.int64(_ASCII[lead])
            if unit < _UNIT:
                begins = begins or unit == _GAP or not is_item
                continue
        else:
            unit, width = decode(data, at)
            at += width
            kind = np.int64(_KINDS[_KIND_OF[unit >> 8], unit & 0xFF]) if unit < _CODES else _LEFT_OUT
            if kind < _UNIT:
                begins = begins or kind == _GAP or not is_item
                continue
            alone = kind == _ALONE
            if unit < _LOWER_MAX:
                unit += np.int64(_LOWER[_STEP_OF[unit >> 8], unit & 0xFF])
        if begins or alone:
            starts[words] = count
            words += 1
        begins = alone
        for _ in range(ALONE_UNITS if alone else 1):
            units[count] = unit
            value = value * _BASE + np.uint64(unit)
            if count >= GRAM:
                value -= np.uint64(units[count - GRAM]) * _GRAM_POWER
            count += 1
            if ready < words and starts[ready] + GRAM == count:
                grams[ready] = finished(value)
                ready += 1
    return count, words, ready


def room_for(size: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Room for the units, words and grams of a text of `size` bytes."""
    units = np.empty(size * ALONE_UNITS // 3 + ALONE_UNITS, np.uint32)
    return units, np.empty(size + 1, np.int32), np.empty(size + 1, np.uint64)
