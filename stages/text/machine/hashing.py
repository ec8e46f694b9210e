"""The 64-bit hash by which words, pieces and lines are compared: eight bytes a step, and no secret."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.stages.text.machine.kernels import compiled
from headrace.stages.text.machine.lanes import ALL
from headrace.stages.text.machine.pointers import load_eight

SEED = np.uint64(0x243F6A8885A308D3)
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
FOLD = np.uint64(29)
_MASK = 0xFFFF_FFFF_FFFF_FFFF


def hash_of(word: str) -> int:
    """The hash that the loops give this word."""
    raw = word.encode()
    value = (int(SEED) ^ len(raw) * int(MULTIPLIER)) & _MASK
    for at in range(0, len(raw), 8):
        value = (value ^ int.from_bytes(raw[at : at + 8], "little")) * int(MULTIPLIER) & _MASK
        value ^= value >> int(FOLD)
    return value * int(MULTIPLIER) & _MASK


@compiled
def hash_span(data: Any, begin: int, end: int) -> Any:
    """The hash of `data[begin:end]`; its highest bits are the best. Different up to eight bytes: different hashes."""
    value = SEED ^ np.uint64(end - begin) * MULTIPLIER
    at = begin
    while at + 8 <= end:
        value = (value ^ load_eight(data, at)) * MULTIPLIER
        value ^= value >> FOLD
        at += 8
    if at < end:
        rest = load_eight(data, at) & (ALL >> np.uint64(64 - 8 * (end - at)))
        value = (value ^ rest) * MULTIPLIER
        value ^= value >> FOLD
    return value * MULTIPLIER
