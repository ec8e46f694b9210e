"""Code points of UTF-8, and what they are to the rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.stages.text import characters
from headrace.stages.text.characters import SPACE
from headrace.stages.text.machine import compiled

# Compiled into the loops: arguments that are arrays cost more at each call than the work of most of these functions.
_BLOCK_OF, _BLOCKS = characters.two_levels(characters.flags_table())
_ASCII = np.ascontiguousarray(characters.flags_table()[:0x80])


def _may_be_space() -> npt.NDArray[np.uint8]:
    """`[256]`: bytes that are white space (1), and those with which white space above ASCII begins (2)."""
    kinds = np.zeros(256, np.uint8)
    for code in np.flatnonzero(characters.flags_table() & SPACE).tolist():
        raw = chr(code).encode()
        kinds[raw[0]] = 1 if len(raw) == 1 else 2
    return kinds


_SPACES = _may_be_space()


@compiled
def decode(data: Any, at: int) -> tuple[Any, int]:
    """The code point at a byte of valid UTF-8 and its width in bytes."""
    lead = np.int64(data[at])
    if lead < 0x80:
        return lead, 1
    if lead < 0xE0:
        return (lead & 0x1F) << 6 | (np.int64(data[at + 1]) & 0x3F), 2
    if lead < 0xF0:
        return (lead & 0x0F) << 12 | (np.int64(data[at + 1]) & 0x3F) << 6 | (np.int64(data[at + 2]) & 0x3F), 3
    high = (lead & 0x07) << 18 | (np.int64(data[at + 1]) & 0x3F) << 12
    return high | (np.int64(data[at + 2]) & 0x3F) << 6 | (np.int64(data[at + 3]) & 0x3F), 4


@compiled
def flags_of(code: Any) -> Any:
    """The flags of a code point."""
    if code < 0x80:
        return np.int64(_ASCII[code])
    return np.int64(_BLOCKS[_BLOCK_OF[code >> 8], code & 0xFF])


@compiled
def space_width(data: Any, at: int) -> int:
    """The width in bytes of the white space at a byte; 0 where there is none."""
    kind = _SPACES[data[at]]
    if kind == 1:
        return 1
    if kind == 2:
        code, width = decode(data, at)
        if flags_of(code) & SPACE:
            return width
    return 0
