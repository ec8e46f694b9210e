"""The own key of a text: two 64-bit hashes, equal for texts that differ in white space alone.

Hashed are the text's pieces between white space, each with a space behind it, eight bytes a step: the last step of a
piece has its space, and zeros behind that. No piece holds a space, so that a sequence of steps is of one text only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.stages.text import space_width
from headrace.stages.text.machine import LANES, compiled, load_eight, look, pointer, trailing_zeros

#: Of the two hashes: where they begin, by what they multiply, by how far they fold.
SEEDS = (np.uint64(0x243F6A8885A308D3), np.uint64(0x13198A2E03707344))
PRIMES = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
FOLDS = (np.uint64(29), np.uint64(32))
_ONE, _EIGHT, _TOP = np.uint64(1), np.uint64(8), np.uint64(LANES - 1)
_SPACE = np.uint64(0x20)
#: The bit of each of eight bytes that no ASCII character has.
ABOVE_ASCII = np.uint64(0x8080_8080_8080_8080)


@compiled
def mixed(value: Any, item: Any, lane: int) -> Any:
    """The hash of a lane with one item more."""
    value = (value ^ np.uint64(item)) * PRIMES[lane]
    return value ^ (value >> FOLDS[lane])


@compiled
def finished(value: Any) -> Any:
    """All bits of a hash as good as its best."""
    value = (value ^ (value >> np.uint64(33))) * PRIMES[1]
    value = (value ^ (value >> np.uint64(29))) * PRIMES[0]
    return value ^ (value >> np.uint64(32))


@compiled
def _mix_piece(data: Any, begin: int, end: int, high: Any, low: Any) -> tuple[Any, Any, Any]:
    """The hashes with a piece and the space behind it, and the piece's bytes, all in one of eight by `or`."""
    at, seen = begin, np.uint64(0)
    while at + 8 <= end:
        step = load_eight(data, at)
        high, low, seen = mixed(high, step, 0), mixed(low, step, 1), seen | step
        at += 8
    above = _EIGHT * np.uint64(end - at)
    step = load_eight(data, at) & ((_ONE << above) - _ONE)
    seen |= step
    step |= _SPACE << above
    return mixed(high, step, 0), mixed(low, step, 1), seen


@compiled
def _mix_run(data: Any, begin: int, end: int, high: Any, low: Any) -> tuple[Any, Any]:
    """The hashes with a run of bytes that has no ASCII white space; there may be other white space in it."""
    piece_high, piece_low, seen = _mix_piece(data, begin, end, high, low)
    if not seen & ABOVE_ASCII:
        return piece_high, piece_low
    at = begin
    while at < end:
        width = space_width(data, at)
        if width:
            if at > begin:
                high, low, seen = _mix_piece(data, begin, at, high, low)
            begin = at + width
        at += max(1, width)
    if end > begin:
        high, low, seen = _mix_piece(data, begin, end, high, low)
    return high, low


@compiled
def own_key(array: Any, start: int, end: int) -> tuple[Any, Any]:
    """The two words of the own key of `array[start:end]`, valid UTF-8 with `PADDING` bytes behind all texts."""
    data = pointer(array, 0)
    high, low = SEEDS
    begin, was_space, at = -1, _ONE, start
    while at < end:
        spaces, _, _ = look(data, at, end)
        # A bit where a run begins or ends.
        edges = spaces ^ (spaces << _ONE | was_space)
        was_space = spaces >> _TOP
        while edges:
            place = at + trailing_zeros(edges)
            edges &= edges - _ONE
            if begin < 0:
                begin = place
            else:
                high, low = _mix_run(data, begin, place, high, low)
                begin = -1
        at += LANES
    if begin >= 0:
        high, low = _mix_run(data, begin, end, high, low)
    return finished(high), finished(low) | _ONE
