"""Counts over a column of texts, worked out on its bytes: no Python object a record.

White space is that of ASCII, a word is what stands between it, and each byte above 0x7F is taken for a letter. So the
words of Chinese or Thai are not told apart, which none of the rules that use these counts claims to do.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.stages.batch import Batch
from headrace.stages.errors import StageContractError

Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SPACES = b" \t\n\r\x0b\x0c"
LETTERS = bytes(range(ord("A"), ord("Z") + 1)) + bytes(range(ord("a"), ord("z") + 1)) + bytes(range(0x80, 0x100))
NEWLINE = ord("\n")


def text_of(batch: Batch, stage: str) -> pa.Array[Any]:
    """The column of texts; StageContractError where an earlier stage has taken it away."""
    if "text" not in batch.rows.schema.names:
        raise StageContractError(f'stage "{stage}" needs text and got none: put it before tokenize')
    return batch.rows.column("text")


def table_of(members: bytes) -> Mask:
    """`[256]`: which bytes are in `members`."""
    table = np.zeros(256, dtype=np.bool_)
    table[list(members)] = True
    return table


_IS_SPACE = table_of(SPACES)
_IS_LETTER = table_of(LETTERS)


class Texts:
    """A column of `n` texts as bytes, with what is counted in them; each count is an array `[n]`."""

    def __init__(self, column: pa.Array[Any]) -> None:
        if column.null_count:
            raise ValueError(f"text is null in {column.null_count} records")
        self.column = column
        buffers: Any = column.cast(pa.string()).buffers()
        _, bounds, content = buffers
        self.offsets = np.zeros(1, np.int64)
        if len(column):
            part = np.frombuffer(bounds, np.int32)[column.offset : column.offset + len(column) + 1]
            self.offsets = part.astype(np.int64)
        whole = np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
        self.bytes = whole[self.offsets[0] : self.offsets[-1]]
        self.offsets = self.offsets - self.offsets[0]

    def per_text(self, positions: Counts) -> Counts:
        """How many of these ascending byte positions lie in each text."""
        found: Counts = np.diff(np.searchsorted(positions, self.offsets))
        return found

    def count_bytes(self, mask: Mask) -> Counts:
        """How many bytes of each text `mask` holds for."""
        if not len(mask):
            return np.zeros(len(self.column), np.int64)
        sums = np.add.reduceat(np.append(mask, False), self.offsets[:-1], dtype=np.int64)
        return np.where(np.diff(self.offsets) > 0, sums, 0)

    def count_text(self, pattern: str) -> Counts:
        """How often each text holds `pattern`, overlaps not counted."""
        column: Any = self.column
        return _as_counts(pc.count_substring(column, pattern))

    @cached_property
    def is_space(self) -> Mask:
        """`[bytes]`"""
        return _IS_SPACE[self.bytes]

    @cached_property
    def _starts_text(self) -> Mask:
        """`[bytes]`: the first byte of each text."""
        mask = np.zeros(len(self.bytes) + 1, dtype=np.bool_)
        mask[self.offsets[:-1]] = True
        return mask[:-1]

    @cached_property
    def word_starts(self) -> Counts:
        """`[words of all]`: the byte at which each word begins."""
        after_space = np.append(True, self.is_space[:-1])[: len(self.bytes)]
        return np.flatnonzero(~self.is_space & (after_space | self._starts_text))

    @cached_property
    def word_ends(self) -> Counts:
        """`[words of all]`: the byte behind each word."""
        before_break = np.append(self.is_space[1:] | self._starts_text[1:], True)[: len(self.bytes)]
        return np.flatnonzero(~self.is_space & before_break) + 1

    @cached_property
    def words(self) -> Counts:
        """Words of each text."""
        return self.per_text(self.word_starts)

    @cached_property
    def characters_in_words(self) -> Counts:
        """Code points of each text that are no white space."""
        return self.count_bytes(~self.is_space & ((self.bytes & 0xC0) != 0x80))

    @cached_property
    def alphabetic_words(self) -> Counts:
        """Words of each text with at least one letter."""
        starts = self.word_starts
        if not len(starts):
            return np.zeros(len(self.column), np.int64)
        has_letter = np.logical_or.reduceat(_IS_LETTER[self.bytes], starts)
        return self.per_text(starts[has_letter])

    def distinct_words_of(self, chosen: tuple[str, ...]) -> Counts:
        """How many of the `chosen` words (lower case, ASCII, at most 4 letters) each text holds, in any case."""
        lengths = self.word_ends - self.word_starts
        short = self.word_starts[lengths <= 4]
        padded = np.append(self.bytes, np.zeros(4, np.uint8))
        code = np.zeros(len(short), np.uint32)
        for place in range(4):
            letter = np.where(lengths[lengths <= 4] > place, padded[short + place] | 0x20, 0).astype(np.uint32)
            code |= letter << np.uint32(8 * place)
        found = np.zeros(len(self.column), np.int64)
        for word in chosen:
            found += self.per_text(short[code == int.from_bytes(word.encode(), "little")]) > 0
        return found

    @cached_property
    def lines(self) -> Lines:
        """The lines that are not blank."""
        return Lines(self)


class Lines:
    """The lines of all texts that hold more than white space; `first` and `last` are bytes, `count` is a text's."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        size = len(texts.bytes)
        breaks = np.append(np.flatnonzero(texts.bytes == NEWLINE) + 1, texts.offsets[:-1])
        starts = np.unique(breaks[breaks < size])
        ends = np.append(starts[1:], size)[: len(starts)]
        solid = np.flatnonzero(~texts.is_space)
        low, high = np.searchsorted(solid, starts), np.searchsorted(solid, ends)
        filled = high > low
        #: `[lines]`: the first and the last byte of each line that is no white space.
        self.first: Counts = solid[low[filled]]
        self.last: Counts = solid[high[filled] - 1]

    @cached_property
    def count(self) -> Counts:
        """Lines of each text."""
        return self.texts.per_text(self.first)

    def per_text(self, mask: Mask) -> Counts:
        """How many lines of each text `mask` `[lines]` holds for."""
        return self.texts.per_text(self.first[mask])

    def starting_with(self, *marks: str) -> Mask:
        """`[lines]`: those that begin with one of the marks, white space aside."""
        found = np.zeros(len(self.first), dtype=np.bool_)
        for mark in marks:
            found |= self._match(mark.encode(), self.first)
        return found

    def ending_with(self, *marks: str) -> Mask:
        """`[lines]`: those that end with one of the marks, white space aside."""
        found = np.zeros(len(self.first), dtype=np.bool_)
        for mark in marks:
            encoded = mark.encode()
            found |= self._match(encoded, self.last + 1 - len(encoded))
        return found

    @cached_property
    def characters(self) -> Counts:
        """`[lines]`: code points from the first to the last that is no white space."""
        heads = np.append(0, np.cumsum((self.texts.bytes & 0xC0) != 0x80))
        count: Counts = heads[self.last + 1] - heads[self.first]
        return count

    def repeated(self) -> Mask:
        """`[lines]`: those that are equal to an earlier line of the same text."""
        lines = self._strings()
        codes = np.asarray(lines.dictionary_encode().indices)
        owner = np.searchsorted(self.texts.offsets, self.first, side="right") - 1
        keys = owner * (int(codes.max()) + 1 if len(codes) else 1) + codes
        _, earliest = np.unique(keys, return_index=True)
        repeated = np.ones(len(self.first), dtype=np.bool_)
        repeated[earliest] = False
        return repeated

    def _strings(self) -> Any:
        """The lines as an Arrow array: the bytes between them cut away by views of the same buffer."""
        lengths = self.last + 1 - self.first
        offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
        inside = np.zeros(len(self.texts.bytes) + 1, np.int8)
        inside[self.first] += 1
        inside[self.last + 1] -= 1
        content = self.texts.bytes[np.cumsum(inside[:-1], dtype=np.int8).astype(np.bool_)]
        buffers: Any = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(content.tobytes())]
        return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)

    def _match(self, mark: bytes, at: Counts) -> Mask:
        inside = (at >= self.first) & (at + len(mark) <= self.last + 1)
        found = inside.copy()
        data = self.texts.bytes
        for place, byte in enumerate(mark):
            found[inside] &= data[at[inside] + place] == byte
        return found


def _as_counts(column: Any) -> Counts:
    counts: Counts = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)
    return counts
