"""The line rules that FineWeb adds: Penedo et al. 2024, "The FineWeb Datasets", section 3.6; datatrove's definitions.

Lines end at a line feed, and blank ones are left out of account; their white space is not stripped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from headrace.stages.quality.repetition import add_key, count_characters, slots_for
from headrace.stages.runtime import Batch, Transform, text_of
from headrace.stages.text import (
    LINE_END,
    ONE_WORD,
    WORDS_TYPE,
    Numbers,
    Rule,
    decode,
    drop,
    find_words,
    flags_of,
    longest,
    pointers_to,
    room_for,
    room_size,
    share,
    space_width,
    tag,
    text_bytes,
)
from headrace.stages.text.machine import compiled, entry, hash_span, pointer, prepared

_LINES, _PUNCTUATED, _SHORT, _DUPLICATE, _CHARACTERS, _FEEDS, _WORDS = range(7)
_COLUMNS = 7
_LINE_FEED = 0x0A


def compile_loops() -> None:
    """Compile what is not in the cache."""
    with prepared("fineweb"):
        fineweb_scores(ONE_WORD, 1)


@dataclass(eq=False)
class FinewebQuality(Transform):
    """Filters lists, menus and texts whose lines repeat."""

    merges = True
    judges = True

    name: str
    punctuated_lines_min: float
    short_lines_max: float
    short_line_characters: int
    duplicate_characters_max: float
    lines_per_word_max: float
    tag: bool = False

    def __post_init__(self) -> None:
        """So that what is not compiled yet is compiled before there is a batch to wait for."""
        compile_loops()

    def process(self, batch: Batch) -> Batch:
        """The batch less the texts that break a rule; or all of it, tagged."""
        limit = 0.0 if self.tag else self.lines_per_word_max
        scores = fineweb_scores(text_of(batch, self.name), self.short_line_characters, limit)
        if self.tag:
            return tag(batch, self.name, scores)
        return drop(batch, self.name, self.rules(scores))

    def rules(self, scores: dict[str, Any]) -> list[Rule]:
        """Each reason, and which texts with these scores it holds for."""
        return [
            ("no line", scores["lines"] == 0),
            ("too few lines end in punctuation", scores["punctuated lines"] < self.punctuated_lines_min),
            ("too many short lines", scores["short lines"] > self.short_lines_max),
            (
                "too many characters in duplicate lines",
                scores["characters in duplicate lines"] > self.duplicate_characters_max,
            ),
            ("too many lines for its words", scores["line feeds per word"] > self.lines_per_word_max),
        ]


def fineweb_scores(column: Any, short_line_characters: int, precise_above: float = 0.0) -> dict[str, Numbers]:
    """For `n` texts what the rules limit, each `[n]`: a count and shares.

    Line feeds per word are exact where they are above `precise_above`; elsewhere they are at most that, and the
    words were not cut: there are at least as many words as pieces between white space.
    """
    data, offsets = text_bytes(column)
    found = np.zeros((len(column), _COLUMNS), np.int64)
    if len(data):
        size = longest(offsets)
        keys = _keys(room_size(size))
        _measure(data, offsets, found, room_for(size), keys, short_line_characters, precise_above)
    lines = found[:, _LINES]
    return {
        "lines": lines.astype(np.float64),
        "punctuated lines": share(found[:, _PUNCTUATED], lines),
        "short lines": share(found[:, _SHORT], lines),
        "characters in duplicate lines": share(found[:, _DUPLICATE], found[:, _CHARACTERS]),
        "line feeds per word": share(found[:, _FEEDS], found[:, _WORDS]),
    }


@lru_cache(maxsize=1)
def _keys(size: int) -> Any:
    return np.empty(4 * size, np.uint64)


@entry(f"(u8[], i64[], i64[,], {WORDS_TYPE}, u64[], i64, f64)")
def _measure(
    data: Any, offsets: Any, found: Any, words: Any, slots: Any, short_characters: int, precise_above: float
) -> None:
    room = pointers_to(words)
    content, keys = pointer(data, 0), pointer(slots, 0)
    for text in range(len(offsets) - 1):
        start, end = offsets[text], offsets[text + 1]
        row = pointer(found, text * _COLUMNS)
        row[_CHARACTERS] = count_characters(content, start, end)
        _count_lines(content, start, end, row, keys, short_characters)
        row[_WORDS] = _count_pieces(content, start, end)
        if row[_WORDS] and row[_FEEDS] / row[_WORDS] > precise_above:
            row[_WORDS] = find_words(content, start, end, room)


@compiled
def _count_lines(data: Any, start: int, end: int, row: Any, keys: Any, short_characters: int) -> None:
    feeds = 0
    for at in range(start, end):
        feeds += data[at] == _LINE_FEED
    row[_FEEDS] = feeds
    row[_CHARACTERS] -= feeds
    slots = slots_for(feeds + 1)
    for slot in range(slots):
        keys[slot] = 0
    at = start
    while at < end:
        stop = at
        while stop < end and data[stop] != _LINE_FEED:
            stop += 1
        if not is_blank(data, at, stop):
            size = count_characters(data, at, stop)
            row[_LINES] += 1
            row[_SHORT] += size <= short_characters
            row[_PUNCTUATED] += _ends_in_punctuation(data, at, stop)
            _, is_new = add_key(keys, slots, hash_span(data, at, stop))
            if not is_new:
                row[_DUPLICATE] += size
        at = stop + 1


@compiled
def is_blank(data: Any, start: int, end: int) -> bool:
    """Whether there is nothing but white space."""
    while start < end:
        width = space_width(data, start)
        if width == 0:
            return False
        start += width
    return True


@compiled
def _ends_in_punctuation(data: Any, start: int, end: int) -> Any:
    at = end - 1
    while at > start and (data[at] & 0xC0) == 0x80:
        at -= 1
    code, _ = decode(data, at)
    return flags_of(code) & LINE_END != 0


@compiled
def _count_pieces(data: Any, start: int, end: int) -> int:
    """The runs of anything but white space."""
    count = 0
    inside = False
    at = start
    while at < end:
        width = space_width(data, at)
        if width:
            inside = False
            at += width
        else:
            count += not inside
            inside = True
            at += 1
    return count
