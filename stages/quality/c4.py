"""C4's rules on lines and pages: Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 2.2.

The definitions are those of datatrove, whose reference is the code behind C4 (tensorflow_datasets, c4_utils.py). Lines
are Python's; each is stripped, and Wikipedia's citation marks are taken out. A line is dropped for a word of over
1,000 characters, for too few words, for the word "javascript" or for a notice about policies; a page for "lorem ipsum"
or a curly bracket in a line that was not dropped before, and for too few sentences in the lines that are kept. A
sentence ends where, behind a mark that ends sentences, something else than punctuation follows (spaCy's rule).
Case is that of ASCII.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stages.quality.gopher import behind_break, line_end
from headrace.stages.quality.repetition import stripped
from headrace.stages.runtime import Batch, Transform, text_of
from headrace.stages.text import (
    ENDS_SENTENCE,
    IS_PUNCTUATION,
    KIND,
    ONE_WORD,
    PADDING,
    WORDS_TYPE,
    ZERO,
    Rule,
    compile_words,
    drop,
    find_words,
    longest,
    pointers_to,
    room_for,
    space_width,
    tag,
    text_bytes,
    with_texts,
)
from headrace.stages.text.machine import compiled, entry, pointer, prepared

LOREM, SCRIPT, POLICY, CURLY, CITATION = 1, 2, 4, 8, 16
#: What is looked for in a line: each phrase, what it means, and the rare letter by which it is found.
_PHRASES = (
    ("lorem ipsum", LOREM, "p"),
    ("javascript", SCRIPT, "v"),
    ("terms of use", POLICY, "f"),
    ("privacy policy", POLICY, "v"),
    ("cookie policy", POLICY, "k"),
    ("uses cookies", POLICY, "k"),
    ("use of cookies", POLICY, "k"),
    ("use cookies", POLICY, "k"),
)
_CITATIONS = ("[edit]", "[citation needed]")
_SENTENCES, _OUTCOME, _DROPPED, _KEPT = range(4)
_COLUMNS = 4
_FINE, _HAS_LOREM, _HAS_CURLY = 0, 1, 2
_LINE_FEED, _CURLY, _BRACKET, _CLOSING = 0x0A, 0x7B, 0x5B, 0x5D


def compile_loops() -> None:
    """Compile what is not in the cache."""
    compile_words()
    with prepared("c4"):
        clean_lines(ONE_WORD, (1, 1, 0, False, 1))


class C4Quality(Transform):
    """Drops lines that are no text, and filters pages that are placeholders, code or fragments."""

    merges = True

    def __init__(
        self,
        name: str,
        sentences_min: int,
        words_per_line_min: int,
        word_characters_max: int,
        citations: bool,
        lorem_ipsum: bool,
        javascript: bool,
        curly_brackets: bool,
        policies: bool,
        terminal_punctuation: bool,
        tag: bool = False,
    ) -> None:
        self.name = name
        self.sentences_min = sentences_min
        self.words_per_line_min = words_per_line_min
        self.word_characters_max = word_characters_max
        wanted = (LOREM, not lorem_ipsum), (SCRIPT, not javascript), (POLICY, not policies), (CURLY, not curly_brackets)
        self.looked_for = sum(mark for mark, is_wanted in (*wanted, (CITATION, not citations)) if is_wanted)
        self.terminal_punctuation = terminal_punctuation
        self.tag = tag
        # So that what is not compiled yet is compiled before there is a batch to wait for.
        compile_loops()

    def process(self, batch: Batch) -> Batch:
        """The batch less the lines and the pages that break a rule; or all of it as it was, tagged."""
        enough = -1 if self.tag else self.sentences_min
        found, texts = clean_lines(
            text_of(batch, self.name),
            (self.words_per_line_min, self.word_characters_max, self.looked_for, self.terminal_punctuation, enough),
        )
        scores = {
            "sentences": found[:, _SENTENCES],
            "lorem ipsum": found[:, _OUTCOME] == _HAS_LOREM,
            "curly bracket": found[:, _OUTCOME] == _HAS_CURLY,
            "lines dropped": found[:, _DROPPED],
        }
        if self.tag:
            return tag(batch, self.name, scores)
        rules = self.rules(scores)
        kept = ~np.logical_or.reduce([mask for _, mask in rules])
        return drop(with_texts(batch, self.name, texts, kept, found[:, _DROPPED]), self.name, rules)

    def rules(self, scores: dict[str, Any]) -> list[Rule]:
        """Each reason, and which texts with these scores it holds for."""
        return [
            ("lorem ipsum", scores["lorem ipsum"]),
            ("curly bracket", scores["curly bracket"]),
            ("too few sentences", scores["sentences"] < self.sentences_min),
        ]


def clean_lines(
    column: pa.Array[Any], limits: tuple[int, int, int, bool, int]
) -> tuple[npt.NDArray[np.int64], pa.Array[Any]]:
    """For `n` texts what was found `[n, 4]` (sentences, outcome, lines dropped, lines kept), and the texts left.

    `limits`: words that a line needs, characters that a word may have, marks that are looked for, whether a line must
    end in punctuation, and sentences after which no more are counted (negative: all are). The text of a page with an
    outcome is empty.
    """
    data, offsets = text_bytes(column)
    found = np.zeros((len(column), _COLUMNS), np.int64)
    content = np.empty(int(offsets[-1]) + 2 + PADDING, np.uint8)
    bounds = np.zeros(len(offsets), np.int64)
    if len(data):
        _clean(data, offsets, found, room_for(longest(offsets)), content, bounds, *limits)
    content = content[: bounds[-1]]
    kind = pa.large_string() if pa.types.is_large_string(column.type) else pa.string()
    narrow = bounds if pa.types.is_large_string(kind) else bounds.astype(np.int32)
    parts: Any = (narrow, content)
    buffers: Any = [None, *(pa.py_buffer(part) for part in parts)]
    return found, pa.Array.from_buffers(kind, len(column), buffers)


def _anchors() -> npt.NDArray[np.uint8]:
    """`[256]`: which bytes a line is looked at more closely for."""
    table = np.zeros(256, np.uint8)
    for letter in {anchor for _, _, anchor in _PHRASES}:
        table[[ord(letter), ord(letter.upper())]] = 1
    table[_CURLY] = 1
    return table


def _matrix(phrases: tuple[str, ...]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    lengths = np.array([len(phrase) for phrase in phrases], np.int64)
    matrix = np.zeros((len(phrases), int(lengths.max())), np.uint8)
    for index, phrase in enumerate(phrases):
        matrix[index, : len(phrase)] = list(phrase.encode())
    return matrix, lengths


_ANCHORS = _anchors()
_TEXTS, _LENGTHS = _matrix(tuple(phrase for phrase, _, _ in _PHRASES))
_MARKS = np.array([mark for _, mark, _ in _PHRASES], np.int64)
_PLACES = np.array([phrase.index(anchor) for phrase, _, anchor in _PHRASES], np.int64)
_CITED, _CITED_LENGTHS = _matrix(_CITATIONS)


@entry(f"(u8[], i64[], i64[,], {WORDS_TYPE}, u8[], i64[], i64, i64, i64, bool, i64)")
def _clean(
    texts: Any, offsets: Any, found: Any, words: Any, left: Any, bounds: Any,
    words_min: int, characters_max: int, looked_for: int, punctuated: bool, enough: int,
) -> None:  # fmt: skip
    room = pointers_to(words)
    data, content = pointer(texts, 0), pointer(left, 0)
    put = ZERO
    for text in range(len(offsets) - 1):
        at, end = offsets[text], offsets[text + 1]
        begin, row = put, pointer(found, text * _COLUMNS)
        while at < end:
            stop = line_end(data, at, end)
            first, last = stripped(data, at, stop)
            at = behind_break(data, stop, end) if stop < end else end
            behind, marks = _copy_line(
                data, first, last, content, put, words_min, characters_max, looked_for, punctuated
            )
            if marks & (LOREM | CURLY):
                row[_OUTCOME] = _HAS_LOREM if marks & LOREM else _HAS_CURLY
                row[_SENTENCES] = 0
                break
            if behind < 0:
                row[_DROPPED] += first < last
                continue
            if enough < 0 or row[_SENTENCES] < enough:
                count = find_words(content, put, behind, room)
                row[_SENTENCES] += _count_sentences(room[0], count)
            row[_KEPT] += 1
            content[behind] = _LINE_FEED
            put = behind + 1
        put = _finish(content, begin, put - 1 if row[_OUTCOME] == _FINE and row[_KEPT] else begin)
        bounds[text + 1] = put


@compiled
def _finish(content: Any, begin: int, put: int) -> int:
    """Strip the text `content[begin:put]` where it lies; returns its new end."""
    first, last = stripped(content, begin, put)
    for at in range(first, last):
        content[begin + at - first] = content[at]
    return begin + last - first


@compiled
def _copy_line(
    data: Any, first: int, last: int, content: Any, put: int,
    words_min: int, characters_max: int, looked_for: int, punctuated: bool,
) -> tuple[int, int]:  # fmt: skip
    """Copy a line to `put`; returns where it ends there, -1 where it is dropped, and a page's mark if it has one."""
    count, most = _count_words(data, first, last)
    if most > characters_max:
        return -1, 0
    behind = _copy_uncited(data, first, last, content, put, looked_for & CITATION != 0)
    if punctuated and not _is_punctuated(content, put, behind):
        return -1, 0
    if count < words_min:
        return -1, 0
    marks = _find_marks(content, put, behind) & looked_for
    if marks & LOREM:
        return -1, LOREM
    if marks & SCRIPT:
        return -1, 0
    if marks & CURLY:
        return -1, CURLY
    return (-1 if marks & POLICY else behind), 0


@compiled
def _count_words(data: Any, start: int, end: int) -> tuple[int, int]:
    """The runs of anything but white space, and the characters of the longest."""
    count, most, size = 0, 0, 0
    at = start
    while at < end:
        width = space_width(data, at)
        if width:
            size = 0
            at += width
            continue
        count += size == 0
        size += (data[at] & 0xC0) != 0x80
        most = max(most, size)
        at += 1
    return count, most


@compiled
def _matches(data: Any, at: int, end: int, phrase: Any, length: int) -> bool:
    """Whether a phrase in lower case stands at `at`, in any case of ASCII."""
    if at + length > end:
        return False
    for place in range(length):
        byte = data[at + place]
        if 0x41 <= byte <= 0x5A:
            byte |= 0x20
        if byte != phrase[place]:
            return False
    return True


@compiled
def _citation_length(data: Any, at: int, end: int) -> Any:
    """The bytes of the citation mark at `at`: brackets around digits or nothing, or one of the notes; 0: none."""
    stop = at + 1
    while stop < end and 0x30 <= data[stop] <= 0x39:
        stop += 1
    if stop < end and data[stop] == _CLOSING:
        return stop + 1 - at
    for note in range(len(_CITED_LENGTHS)):
        length = _CITED_LENGTHS[note]
        if at + length <= end:
            same = True
            for place in range(length):
                same = same and data[at + place] == _CITED[note, place]
            if same:
                return length
    return 0


@compiled
def _copy_uncited(data: Any, first: int, last: int, content: Any, put: int, uncite: bool) -> int:
    """Copy a line less its citation marks; returns where it ends."""
    at = first
    while at < last:
        if uncite and data[at] == _BRACKET:
            length = _citation_length(data, at, last)
            if length:
                at += length
                continue
        content[put] = data[at]
        put += 1
        at += 1
    return put


@compiled
def _is_punctuated(data: Any, start: int, end: int) -> Any:
    if end <= start:
        return False
    last = data[end - 1]
    if last == 0x2E:
        return not (end - start >= 3 and data[end - 2] == 0x2E and data[end - 3] == 0x2E)
    return last == 0x3F or last == 0x21 or last == 0x22 or last == 0x27


@compiled
def _find_marks(data: Any, start: int, end: int) -> int:
    """What the line holds of what is looked for."""
    marks = 0
    for at in range(start, end):
        if not _ANCHORS[data[at]]:
            continue
        if data[at] == _CURLY:
            marks |= CURLY
            continue
        for phrase in range(len(_MARKS)):
            begin = at - _PLACES[phrase]
            if begin >= start and _matches(data, begin, end, _TEXTS[phrase], _LENGTHS[phrase]):
                marks |= _MARKS[phrase]
    return marks


@compiled
def _count_sentences(rows: Any, count: int) -> int:
    """The sentences of a line of `count` words; an empty line is one."""
    sentences, ended = 1, False
    for index in range(count):
        kind = rows[index, KIND]
        if kind & ENDS_SENTENCE:
            ended = True
        elif ended and not kind & IS_PUNCTUATION:
            sentences += 1
            ended = False
    return sentences
