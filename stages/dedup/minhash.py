"""The keys of a column of texts: a hash of each text, and of the bands of its MinHash signature.

Equal are texts that differ in white space alone (runs of it count as one space, at the ends as none). For the
signature a text is its words: runs of code points that are neither white space, punctuation nor symbols, in lower case;
of scripts that put no space between words, each code point. A shingle is `ngram` words in a row; a text of fewer words
is one shingle, and one of none has no bands. A MinHash value is the least of a * x + b (mod 2^32) over the shingles'
32-bit hashes x, with a and b of its own.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stages.dedup.core.scheme import EXACT_WORDS, PERMUTATIONS_MAX, Scheme
from headrace.stages.dedup.judge import SKETCH_BYTES_MAX, WORDS_MAX, write
from headrace.stages.dedup.text_key import PRIMES, SEEDS, finished, mixed, own_key
from headrace.stages.text import (
    PUNCTUATION,
    SPACE,
    SYMBOL,
    LoopRoom,
    characters,
    decode,
    flags_of,
    longest,
    text_bytes,
)
from headrace.stages.text.machine import LANES, compiled, entry, pointer, prepared, trailing_zeros, widen

Keys = npt.NDArray[np.uint64]

_BETWEEN = SPACE | PUNCTUATION | SYMBOL
_LOWER_MAX = characters.LOWER_MAX
_ONE, _THIRTY_TWO = np.uint64(1), np.uint64(32)
#: Characters that are written behind those of a text: a 0 at both ends, and what comes with the last ones.
CODES_MORE = LANES + 2
#: Characters from which on they are read in four parts.
_PARTS_MIN = 64
_USUAL_NGRAM = 3
_TEXT = pa.array(["One text to compile the loops with."], pa.string())


_STEP_OF, _LOWER_STEPS = characters.lower_steps()


def make_keys(column: Any, scheme: Scheme) -> Keys:
    """`[texts, scheme.words]`: the two words of each text's own key, and one a band; 0 where a text has no bands."""
    return make_sketches(column, scheme)[0]


def make_sketches(column: Any, scheme: Scheme, room: LoopRoom | None = None) -> tuple[Keys, Any]:
    """The keys of texts (`make_keys`), and a binary column of their sketches, which are empty without a judge."""
    room = room or LoopRoom()
    data, offsets = text_bytes(column, room)
    keys = np.zeros((len(column), scheme.words), np.uint64)
    size = max(1, longest(offsets))
    factors, shifts = permutations(scheme.bands * scheme.rows)
    ends = np.zeros(len(column) + 1, np.int32)
    sketches = room.take("sketches", _room_for(offsets) if scheme.judged else 0, np.uint8)
    if len(column):
        words, least = room.take("words", size, np.uint64), room.take("least", max(1, len(factors)), np.uint32)
        lists, shingles = room.take("lists", WORDS_MAX, np.uint32), room.take("codes", size + CODES_MORE, np.uint32)
        scratch = words, least, lists, shingles
        _fill(data, offsets, keys, scratch, factors, shifts, scheme.ngram, scheme.rows, sketches, ends)
    content = pa.py_buffer(sketches[: ends[-1]].tobytes())
    return keys, pa.Array.from_buffers(pa.binary(), len(column), [None, pa.py_buffer(ends.data), content])


def _room_for(offsets: npt.NDArray[np.int64]) -> int:
    """Bytes that the sketches of texts may take: a word has at least a byte, and most of them another behind it."""
    return int(np.minimum(2 * np.diff(offsets) + 1, SKETCH_BYTES_MAX).sum())


@cache
def compile_keys() -> None:
    """Compile what is not in the cache. A process does it once, and tasks that are forked have done it."""
    with prepared("keys"):
        make_keys(_TEXT, Scheme())


@lru_cache(maxsize=4)
def permutations(count: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """`[count]` each: the factors, which are odd, and the shifts; always the same (splitmix64, Steele et al. 2014)."""
    if count > PERMUTATIONS_MAX:
        raise ValueError(f"{count} MinHash values; the limit is {PERMUTATIONS_MAX}")
    with np.errstate(over="ignore"):
        state = SEEDS[0] + np.arange(1, 2 * count + 1, dtype=np.uint64) * PRIMES[0]
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    numbers = ((state ^ (state >> np.uint64(31))) >> _THIRTY_TWO).astype(np.uint32)
    return numbers[:count] | np.uint32(1), numbers[count:].copy()


@compiled
def _lower(code: Any) -> Any:
    return code + np.int64(_LOWER_STEPS[_STEP_OF[code >> 8], code & 0xFF]) if code < _LOWER_MAX else code


@compiled
def _stands_alone(code: Any) -> Any:
    """Whether a code point is of a script that puts no space between words."""
    if code < 0x0E00:
        return False
    thai_or_lao, burmese, khmer = code < 0x0F00, 0x1000 <= code < 0x10A0, 0x1780 <= code < 0x1800
    chinese_or_japanese = 0x2E80 <= code < 0xA000 or 0xF900 <= code < 0xFB00 or code >= _LOWER_MAX
    return thai_or_lao or burmese or khmer or chinese_or_japanese


@entry("(u8[], i64, i64, u64[], u32[]) -> i64")
def read_words(array: Any, start: int, end: int, room: Any, codes: Any) -> Any:
    """Put the hashes of the text's words into `room`, which has a place for each of its bytes; returns how many.

    `codes` has room for as many characters, and CODES_MORE.
    """
    data, words, found = pointer(array, 0), pointer(room, 0), pointer(codes, 0)
    return _hash_words(found, _read_codes(data, start, end, found), words)


@compiled
def _read_codes(data: Any, at: int, end: int, codes: Any) -> Any:
    """Put the code points of words, in lower case, into `codes`, and 0 between words and at both ends; how many.

    Between the ends are at most as many as bytes: what a script puts no space behind has a 0 on both sides, and three
    bytes.
    """
    codes[0] = 0
    size: Any = np.int64(1)
    while at < end:
        run = min(trailing_zeros(widen(data, at, codes, size)), end - at)
        at += run
        size += run
        while at < end and data[at] >= 0x80:
            code, width = decode(data, at)
            at += width
            alone = _stands_alone(code)
            between = flags_of(code) & _BETWEEN != 0
            codes[size] = 0 if between or alone else _lower(code)
            size += 1
            if alone and not between:
                codes[size], codes[size + 1] = code, 0
                size += 2
    codes[size] = 0
    return size + 1


@compiled
def _hash_words(codes: Any, size: int, words: Any) -> Any:
    """Put the hashes of words into `words`, in four parts at once; returns how many. First and last of `codes` are 0.

    The hash of a word waits for each of its characters, and four words wait together. Each part ends with a 0. The
    parts write where no word before them can, nor what is written before it is one: a word has two characters.
    """
    last = size - 1
    second = _end_of_word(codes, size >> 2, last) + 1
    third = _end_of_word(codes, max(second, size >> 1), last) + 1
    fourth = _end_of_word(codes, max(third, 3 * (size >> 2)), last) + 1
    if size < _PARTS_MIN or fourth >= last:
        return _read_on(codes, 1, size, words, np.int64(0), SEEDS[0])
    from_2, from_3, from_4 = (second >> 1) + 1, (third >> 1) + 2, (fourth >> 1) + 3
    one, two, three, four = np.int64(0), np.int64(from_2), np.int64(from_3), np.int64(from_4)
    word_1 = word_2 = word_3 = word_4 = SEEDS[0]
    steps = min(second - 1, third - second, fourth - third, size - fourth)
    for step in range(steps):
        words[one], words[two], words[three], words[four] = word_1, word_2, word_3, word_4
        one, word_1 = _longer(codes, 1 + step, one, word_1)
        two, word_2 = _longer(codes, second + step, two, word_2)
        three, word_3 = _longer(codes, third + step, three, word_3)
        four, word_4 = _longer(codes, fourth + step, four, word_4)
    one = _read_on(codes, 1 + steps, second, words, one, word_1)
    two = _read_on(codes, second + steps, third, words, two, word_2)
    three = _read_on(codes, third + steps, fourth, words, three, word_3)
    four = _read_on(codes, fourth + steps, size, words, four, word_4)
    one = _moved(words, one, from_2, two)
    one = _moved(words, one, from_3, three)
    return _moved(words, one, from_4, four)


@compiled
def _read_on(codes: Any, at: int, end: int, words: Any, count: Any, word: Any) -> Any:
    """Read one part to its end."""
    while at < end:
        words[count] = word
        count, word = _longer(codes, at, count, word)
        at += 1
    return count


@compiled
def _longer(codes: Any, at: int, count: Any, word: Any) -> Any:
    """How many words there are behind a character, and the word with it, or none where it is none of a word."""
    code = codes[at]
    value = mixed(word, code, 0)
    return count + np.int64((codes[at - 1] != 0) & (code == 0)), value if code else SEEDS[0]


@compiled
def _end_of_word(codes: Any, at: int, last: int) -> int:
    while at < last and codes[at]:
        at += 1
    return at


@compiled
def _moved(words: Any, count: Any, first: int, end: int) -> Any:
    """Put the words from `first` on behind `count` others."""
    for place in range(first, end):
        words[count] = words[place]
        count += 1
    return count


@compiled
def sign(words: Any, count: int, ngram: int, factors: Any, shifts: Any, least: Any, shingles: Any) -> None:
    """The MinHash values of a text of `count` words, at least one. `shingles` has room for as many."""
    size = min(ngram, count)
    made = count - size + 1
    for first in range(made):
        value = SEEDS[1]
        if size == _USUAL_NGRAM:
            value = mixed(mixed(mixed(value, words[first], 1), words[first + 1], 1), words[first + 2], 1)
        else:
            for place in range(first, first + size):
                value = mixed(value, words[place], 1)
        shingles[first] = np.uint32(finished(value) >> _THIRTY_TWO)
    # A value at a time: its factor and the least so far stay in registers, and eight shingles are one instruction.
    for place in range(len(factors)):
        factor, shift, found = factors[place], shifts[place], np.uint32(0xFFFFFFFF)
        for at in range(made):
            found = min(found, np.uint32(factor * shingles[at] + shift))
        least[place] = found


@entry("(u8[], i64[], u64[,], (u64[], u32[], u32[], u32[]), u32[], u32[], i64, i64, u8[], i32[])")
def _fill(
    data: Any,
    offsets: Any,
    keys: Any,
    scratch: Any,
    factors: Any,
    shifts: Any,
    ngram: int,
    rows: int,
    sketches: Any,
    ends: Any,
) -> None:
    words, least, lists, shingles = scratch
    for text in range(len(offsets) - 1):
        keys[text, 0], keys[text, 1] = own_key(data, offsets[text], offsets[text + 1])
        ends[text + 1] = ends[text]
        if len(factors) == 0:
            continue
        count = read_words(data, offsets[text], offsets[text + 1], words, shingles)
        ends[text + 1] = write(sketches, ends[text], words, count, lists) if len(sketches) else 0
        if count == 0:
            continue
        sign(words, count, ngram, factors, shifts, least, shingles)
        for band in range(keys.shape[1] - EXACT_WORDS):
            value = SEEDS[0] ^ np.uint64(band)
            for place in range(band * rows, (band + 1) * rows):
                value = mixed(value, least[place], 0)
            keys[text, EXACT_WORDS + band] = finished(value) | _ONE
