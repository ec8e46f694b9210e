"""Gopher's quality rules: Rae et al. 2021, "Scaling Language Models", appendix A1.1; the definitions are datatrove's.

A word of symbols alone is no word to the rules on how many words there are and how long. Lines are Python's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.stages.quality.repetition import stripped
from headrace.stages.runtime import Batch, Transform, text_of
from headrace.stages.text import (
    HAS_LETTER,
    HAS_NO_SYMBOL,
    KIND,
    LENGTH,
    LINE_BREAK,
    ONE_WORD,
    WORDS_TYPE,
    Numbers,
    Rule,
    compile_words,
    decode,
    drop,
    find_words,
    flags_of,
    flags_table,
    longest,
    pointers_to,
    room_for,
    share,
    tag,
    text_bytes,
)
from headrace.stages.text.machine import compiled, entry, hash_of, pointer, prepared

#: The words of which Gopher asks for two.
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
_WORDS, _PLAIN, _PLAIN_CHARACTERS, _LETTERED, _STOPS, _HASHES, _ELLIPSES, _LINES, _BULLETS, _ENDINGS = range(10)
_COLUMNS = 10
_HASH_SIGN, _STOP, _DASH, _LINE_FEED, _RETURN = 0x23, 0x2E, 0x2D, 0x0A, 0x0D
_SIX, _ONE = np.uint64(58), np.uint64(1)
_ELLIPSIS = (0xE2, 0x80, 0xA6)
_BULLET = (0xE2, 0x80, 0xA2)


def _may_break() -> npt.NDArray[np.bool_]:
    """`[256]`: the bytes with which a line break begins."""
    found = np.flatnonzero(flags_table() & LINE_BREAK)
    table = np.zeros(256, np.bool_)
    table[[chr(code).encode()[0] for code in found.tolist()]] = True
    return table


_MAY_BREAK = _may_break()


def compile_loops() -> None:
    """Compile what is not in the cache."""
    compile_words()
    with prepared("gopher"):
        gopher_scores(ONE_WORD)


@dataclass(eq=False)
class GopherQuality(Transform):
    """Filters texts that do not read like prose."""

    merges = True
    judges = True

    name: str
    words_min: int
    words_max: int
    word_length_min: float
    word_length_max: float
    symbols_per_word_max: float
    bullet_lines_max: float
    ellipsis_lines_max: float
    alphabetic_words_min: float
    stop_words_min: int
    stop_words: list[str]
    tag: bool = False

    def __post_init__(self) -> None:
        """So that what is not compiled yet is compiled before there is a batch to wait for."""
        compile_loops()

    def process(self, batch: Batch) -> Batch:
        """The batch less the texts that break a rule; or all of it, tagged."""
        scores = gopher_scores(text_of(batch, self.name), self.stop_words)
        return tag(batch, self.name, scores) if self.tag else drop(batch, self.name, self.rules(scores))

    def rules(self, scores: dict[str, Any]) -> list[Rule]:
        """Each reason, and which texts with these scores it holds for."""
        words, length = scores["words"], scores["word length"]
        return [
            ("too few words", words < self.words_min),
            ("too many words", words > self.words_max),
            ("words too short", length < self.word_length_min),
            ("words too long", length > self.word_length_max),
            ("too many hash signs", scores["hash signs per word"] > self.symbols_per_word_max),
            ("too many ellipses", scores["ellipses per word"] > self.symbols_per_word_max),
            ("too many bullet lines", scores["bullet lines"] > self.bullet_lines_max),
            ("too many lines end in an ellipsis", scores["lines ending in an ellipsis"] > self.ellipsis_lines_max),
            ("too few words with a letter", scores["words with a letter"] < self.alphabetic_words_min),
            ("too few stop words", scores["stop words"] < self.stop_words_min),
        ]


def gopher_scores(column: Any, stop_words: list[str] | tuple[str, ...] = STOP_WORDS) -> dict[str, Numbers]:
    """For `n` texts what the rules limit, each `[n]`: counts, shares, and characters a word."""
    data, offsets = text_bytes(column)
    found = np.zeros((len(column), _COLUMNS), np.int64)
    chosen = np.array([hash_of(word) for word in stop_words], np.uint64)
    if len(data):
        _measure(data, offsets, found, room_for(longest(offsets)), chosen, _bits(chosen))
    words = found[:, _WORDS]
    stops = np.array([int(mask).bit_count() for mask in found[:, _STOPS]], np.int64)
    return {
        "words": found[:, _PLAIN].astype(np.float64),
        "word length": share(found[:, _PLAIN_CHARACTERS], found[:, _PLAIN]),
        "hash signs per word": share(found[:, _HASHES], words),
        "ellipses per word": share(found[:, _ELLIPSES], words),
        "bullet lines": share(found[:, _BULLETS], found[:, _LINES]),
        "lines ending in an ellipsis": share(found[:, _ENDINGS], found[:, _LINES]),
        "words with a letter": share(found[:, _LETTERED], words),
        "stop words": stops.astype(np.float64),
    }


def _bits(hashes: npt.NDArray[np.uint64]) -> np.uint64:
    """One bit for each hash, by its highest six: words without a bit that is set are none of these."""
    mask = 0
    for value in hashes.tolist():
        mask |= 1 << (value >> 58)
    return np.uint64(mask)


@entry(f"(u8[], i64[], i64[,], {WORDS_TYPE}, u64[], u64)")
def _measure(data: Any, offsets: Any, found: Any, words: Any, chosen: Any, bits: Any) -> None:
    room = pointers_to(words)
    rows, hashes, _, _, _ = room
    content = pointer(data, 0)
    for text in range(len(offsets) - 1):
        start, end = offsets[text], offsets[text + 1]
        row = pointer(found, text * _COLUMNS)
        count = find_words(content, start, end, room)
        row[_WORDS] = count
        for index in range(count):
            kind, length = rows[index, KIND], rows[index, LENGTH]
            if kind & HAS_NO_SYMBOL:
                row[_PLAIN] += 1
                row[_PLAIN_CHARACTERS] += length
            row[_LETTERED] += kind & HAS_LETTER
            if (bits >> (hashes[index] >> _SIX)) & _ONE:
                for place in range(len(chosen)):
                    if hashes[index] == chosen[place]:
                        row[_STOPS] |= 1 << place
        _count_symbols(content, start, end, row)
        _count_lines(content, start, end, row)


@compiled
def is_at(data: Any, at: int, end: int, mark: tuple[int, int, int]) -> bool:
    """Whether these three bytes stand at `at`."""
    return at + 2 < end and data[at] == mark[0] and data[at + 1] == mark[1] and data[at + 2] == mark[2]


@compiled
def _count_symbols(data: Any, start: int, end: int, row: Any) -> None:
    hash_signs = 0
    for at in range(start, end):
        hash_signs += data[at] == _HASH_SIGN
    row[_HASHES] = hash_signs
    # Few texts have one; looking for the first two bytes takes a tenth of the time of the search.
    begun = 0
    for at in range(start, end - 2):
        begun += (data[at] == _STOP) & (data[at + 1] == _STOP)
        begun += (data[at] == _ELLIPSIS[0]) & (data[at + 2] == _ELLIPSIS[2])
    at, ellipses = start if begun else end, 0
    while at < end:
        if data[at] == _STOP and at + 2 < end and data[at + 1] == _STOP and data[at + 2] == _STOP:
            ellipses += 1
            at += 3
        else:
            ellipses += data[at] == _ELLIPSIS[0] and is_at(data, at, end, _ELLIPSIS)
            at += 1
    row[_ELLIPSES] = ellipses


@compiled
def line_end(data: Any, at: int, end: int) -> int:
    """The byte of the next line break of `str.splitlines`, or the end."""
    while at < end:
        if _MAY_BREAK[data[at]]:
            code, _ = decode(data, at)
            if flags_of(code) & LINE_BREAK:
                return at
        at += 1
    return at


@compiled
def behind_break(data: Any, at: int, end: int) -> int:
    """The byte behind the line break at `at`."""
    if data[at] == _RETURN and at + 1 < end and data[at + 1] == _LINE_FEED:
        return at + 2
    _, width = decode(data, at)
    return at + width


@compiled
def _count_lines(data: Any, start: int, end: int, row: Any) -> None:
    at = start
    while at < end:
        stop = line_end(data, at, end)
        first, last = stripped(data, at, stop)
        row[_LINES] += 1
        if first < last:
            row[_BULLETS] += data[first] == _DASH or is_at(data, first, last, _BULLET)
            if last - first >= 3:
                dots = data[last - 1] == _STOP and data[last - 2] == _STOP and data[last - 3] == _STOP
                row[_ENDINGS] += dots or is_at(data, last - 3, last, _ELLIPSIS)
        at = behind_break(data, stop, end) if stop < end else end
