"""Where a piece of text without white space is cut: marks at its ends, marks within it, and URLs, which stay whole.

The loops look at a piece's characters, `[characters, 4]`: code point, flags (`characters`), byte, and one for `words`.
"""

# ruff: noqa: RUF001 (characters that look alike are what this file is about)

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.stages.text.characters import (
    ALPHA,
    BEFORE_STOP,
    CURRENCY,
    ICON,
    LETTER,
    LOWER,
    PREFIX,
    QUOTE,
    SUFFIX,
    UPPER,
)
from headrace.stages.text.machine import compiled

CODE, FLAGS, BYTE, MARK = 0, 1, 2, 3
#: A measure behind a digit is a word of its own: "5km".
UNITS = (
    "km km² km³ m m² m³ dm dm² dm³ cm cm² cm³ mm mm² mm³ ha µm nm yd in ft kg g mg µg t lb oz m/s km/h kmh "
    "mph hPa Pa mbar mb MB kb KB gb GB tb TB T G M K % км км² км³ м м² м³ дм дм² дм³ см см² см³ мм мм² мм³ "
    "нм кг г мг м/с км/ч кПа Па мбар Кб КБ кб Мб МБ мб Гб ГБ гб Тб ТБ US$ C$ A$"
)
_UNIT_CHARACTERS_MAX = 4
_HOST_CHARACTERS_MAX = 64


def _unit_key(unit: str) -> int:
    key = 0
    for character in unit:
        key = key << 16 | ord(character)
    return key


_UNIT_KEYS = np.array(sorted(_unit_key(unit) for unit in UNITS.split()), np.uint64)


@compiled
def _is_digit(code: int) -> bool:
    return 0x30 <= code <= 0x39


@compiled
def _stops(piece: Any, at: int, high: int) -> int:
    """How many full stops stand in a row from `at` on."""
    end = at
    while end < high and piece[end, CODE] == 0x2E:
        end += 1
    return end - at


@compiled
def prefix_length(piece: Any, low: int, high: int) -> int:
    """How many characters come off the beginning."""
    code = piece[low, CODE]
    if piece[low, FLAGS] & PREFIX:
        return 1
    if code == 0x2B:
        return 0 if low + 1 < high and _is_digit(piece[low + 1, CODE]) else 1
    if code == 0x2E:
        run = _stops(piece, low, high)
        return run if run >= 2 else 0
    if low + 1 < high and (code == 0x43 or code == 0x41) and piece[low + 1, CODE] == 0x24:
        return 2
    if low + 2 < high and code == 0x55 and piece[low + 1, CODE] == 0x53 and piece[low + 2, CODE] == 0x24:
        return 3
    return 0


@compiled
def suffix_length(piece: Any, low: int, high: int) -> int:
    """How many characters come off the end."""
    if low >= high:
        return 0
    longest = _unit_length(piece, low, high)
    last = piece[high - 1, CODE]
    before = piece[high - 2, CODE] if high - 2 >= low else 0
    if last == 0x2E:
        run = 1
        while high - run - 1 >= low and piece[high - run - 1, CODE] == 0x2E:
            run += 1
        if run >= 2:
            return max(longest, run)
        return max(longest, _stop_length(piece, low, high))
    if last == 0x2026 and before == 0x2026:
        return max(longest, 2)
    if piece[high - 1, FLAGS] & SUFFIX:
        return max(longest, 1)
    if (last == 0x73 or last == 0x53) and (before == 0x27 or before == 0x2019):
        return max(longest, 2)
    if last == 0x2B and _is_digit(before):
        return max(longest, 1)
    return longest


@compiled
def _stop_length(piece: Any, low: int, high: int) -> int:
    """1 where the one full stop at the end comes off, else 0."""
    if high - 2 < low:
        return 0
    if piece[high - 2, FLAGS] & BEFORE_STOP:
        return 1
    if high - 3 < low:
        return 0
    if piece[high - 2, FLAGS] & piece[high - 3, FLAGS] & UPPER:
        return 1
    scale = piece[high - 2, CODE]
    return 1 if piece[high - 3, CODE] == 0xB0 and (scale == 0x43 or scale == 0x46 or scale == 0x4B) else 0


@compiled
def _unit_length(piece: Any, low: int, high: int) -> int:
    """The length of the measure or currency behind the last digit, where the end is one."""
    key = np.uint64(0)
    shift = np.uint64(0)
    at = high
    while at > low and high - at < _UNIT_CHARACTERS_MAX:
        at -= 1
        code = piece[at, CODE]
        if _is_digit(code) or code > 0xFFFF:
            return 0
        key |= np.uint64(code) << shift
        shift += np.uint64(16)
        if at > low and _is_digit(piece[at - 1, CODE]):
            if high - at == 1 and piece[at, FLAGS] & CURRENCY:
                return 1
            for unit in _UNIT_KEYS:
                if unit >= key:
                    return high - at if unit == key else 0
            return 0
    return 0


@compiled
def infix_length(piece: Any, low: int, at: int, high: int) -> int:
    """How many characters at `at`, within a word, are a word of their own."""
    code = piece[at, CODE]
    if piece[at, FLAGS] & ICON or code == 0x2026:
        return 1
    if code == 0x2E and _stops(piece, at, high) >= 2:
        return _stops(piece, at, high)
    if at == low or at + 1 >= high:
        return 0
    before, after = piece[at - 1, FLAGS], piece[at + 1, FLAGS]
    digit = _is_digit(piece[at - 1, CODE])
    if digit and code in (0x2B, 0x2D, 0x2A, 0x5E) and (_is_digit(piece[at + 1, CODE]) or piece[at + 1, CODE] == 0x2D):
        return 1
    if code == 0x2E:
        return 1 if before & (LOWER | QUOTE) and after & (UPPER | QUOTE) else 0
    if code == 0x2C:
        return 1 if before & after & LETTER else 0
    if not (digit or before & LETTER):
        return 0
    if code in (0x3A, 0x3C, 0x3E, 0x3D, 0x2F):
        return 1 if after & LETTER else 0
    return _hyphen_length(piece, at, high)


@compiled
def _hyphen_length(piece: Any, at: int, high: int) -> int:
    """The length of the hyphen or dash at `at` that has a letter behind it, or 0."""
    code = piece[at, CODE]
    if code != 0x2D and code != 0x2013 and code != 0x2014 and code != 0x7E:
        return 0
    longest = 3 if code == 0x2D else 2 if code == 0x2014 else 1
    for length in range(1, longest + 1):
        if at + length >= high:
            return 0
        if piece[at + length, FLAGS] & LETTER:
            return length
        if piece[at + length, CODE] != code:
            return 0
    return 0


@compiled
def is_url(piece: Any, low: int, high: int) -> bool:
    """Whether the characters are a URL as spaCy takes it: a scheme, a user and a path may be missing, a host not."""
    found = False
    for at in range(low + 1, high - 2):
        if piece[at, CODE] == 0x2E:
            found = True
            break
    if not found:
        return False
    if _is_host(piece, low, high):
        return True
    scheme = True
    for at in range(low, high):
        code = piece[at, CODE]
        if code == 0x40 and at > low and _is_host(piece, at + 1, high):
            return True
        slashes = at + 2 < high and piece[at + 1, CODE] == 0x2F and piece[at + 2, CODE] == 0x2F
        if scheme and code == 0x3A and slashes and at - low >= 2 and _is_host(piece, at + 3, high):
            return True
        word = piece[at, FLAGS] & ALPHA or _is_digit(code) or code == 0x5F
        if not (word or code == 0x2B or code == 0x2D or code == 0x2E):
            scheme = False
    return False


@compiled
def _is_host(piece: Any, low: int, high: int) -> bool:
    """Whether a host name begins here, with nothing but a port and a path behind it."""
    at, label = low, low
    labels = 0
    while at < high:
        code = piece[at, CODE]
        plain = _is_digit(code) or 0x41 <= code <= 0x5A or 0x61 <= code <= 0x7A or 0xA1 <= code <= 0xFFFF
        if code == 0x2E:
            size = at - label
            if size == 0 or size > _HOST_CHARACTERS_MAX or piece[at - 1, CODE] == 0x2D or piece[at - 1, CODE] == 0x5F:
                return False
            labels += 1
            label = at + 1
        elif not plain and (at == label or (code != 0x2D and code != 0x5F)):
            break
        at += 1
    if labels == 0 or not 2 <= at - label < _HOST_CHARACTERS_MAX:
        return False
    for place in range(label, at):
        if not piece[place, FLAGS] & LOWER:
            return False
    return _is_behind_host(piece, at, high)


@compiled
def _is_behind_host(piece: Any, at: int, high: int) -> bool:
    if at < high and piece[at, CODE] == 0x3A:
        at += 1
        digits = 0
        while at < high and _is_digit(piece[at, CODE]):
            digits += 1
            at += 1
        if not 2 <= digits <= 5:
            return False
    return at == high or piece[at, CODE] == 0x2F or piece[at, CODE] == 0x3F or piece[at, CODE] == 0x23
