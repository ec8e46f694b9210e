"""Which records one engine would encode otherwise than the other: found by bytes, before they are encoded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from headrace.stages.tokenizer.engine_battery import ranges_of

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

#: Bytes that are looked at together: they and their masks stay in a core's cache.
CHUNK_BYTES = 64 << 10


@dataclass(frozen=True)
class Disputed:
    """Code points (`ranges`, both ends included, ascending) and added tokens that two engines do not treat alike."""

    ranges: tuple[tuple[int, int], ...] = ()
    tokens: tuple[str, ...] = ()

    def records(self, offsets: Places, content: Bytes) -> Places:
        """The records that hold one of these, ascending; `offsets` `[records + 1]` into the UTF-8 bytes `content`."""
        if not self.ranges and not self.tokens:
            return np.zeros(0, np.int64)
        begin = int(offsets[0])
        text = content[begin : int(offsets[-1])]
        kinds = [np.asarray(self._code_points(text) if self.ranges else (), np.int64)]
        if self.tokens:
            whole = text.tobytes()
            kinds += [np.fromiter(_occurrences(whole, token.encode()), np.int64) for token in self.tokens]
        places = np.concatenate(kinds) + begin
        found: Places = np.searchsorted(offsets, places, side="right") - 1
        found.sort()
        # Not by np.unique, which imports masked arrays.
        distinct: Places = found[np.append(True, found[1:] != found[:-1])[: len(found)]]
        return distinct

    def _code_points(self, text: Bytes) -> Places:
        """Where disputed code points begin."""
        leads = self._leads
        found: list[Places] = []
        for start in range(0, len(text), CHUNK_BYTES):
            chunk = text[start : start + CHUNK_BYTES]
            if chunk.max() < leads[0][0]:
                continue
            mask = np.zeros(len(chunk), np.bool_)
            for low, high in leads:
                mask |= chunk - np.uint8(low) <= high - low
            found.append(np.flatnonzero(mask) + start)
        if not found:
            return np.zeros(0, np.int64)
        places = np.concatenate(found)
        places = places[places + 1 < len(text)]
        pairs = text[places].astype(np.uint16) << 8 | text[places + 1]
        places = places[self._pairs[pairs]]
        codes = np.fromiter((_code_point(text, at) for at in places.tolist()), np.int64, len(places))
        bounds = np.array(self.ranges, np.int64)
        nearest = np.searchsorted(bounds[:, 0], codes, side="right") - 1
        within: npt.NDArray[np.bool_] = (nearest >= 0) & (codes <= bounds[nearest, 1])
        disputed: Places = places[within]
        return disputed

    @cached_property
    def _pairs(self) -> npt.NDArray[np.bool_]:
        """Of each two bytes, as a number, whether a disputed code point may begin with them."""
        pairs = np.zeros(1 << 16, np.bool_)
        for low, high in self.ranges:
            # The first two bytes stay the same over 64 code points at least, but for those of two bytes.
            step = 1 if low < 0x800 else 64
            for code in (*range(low, high + 1, step), high):
                first, second = chr(code).encode("utf-8", "surrogatepass")[:2]
                pairs[first << 8 | second] = True
        return pairs

    @cached_property
    def _leads(self) -> list[tuple[int, int]]:
        """The first bytes of disputed code points, as ranges."""
        return ranges_of(sorted(set((np.flatnonzero(self._pairs) >> 8).tolist())))


def _code_point(text: Bytes, at: int) -> int:
    """The code point that begins there; -1 where the text ends within it."""
    size = 2 if text[at] < 0xE0 else 3 if text[at] < 0xF0 else 4
    try:
        return ord(text[at : at + size].tobytes().decode())
    except (UnicodeDecodeError, TypeError):
        return -1


def _occurrences(text: bytes, part: bytes) -> Iterable[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)
