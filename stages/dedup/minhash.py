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
from headrace.stages.dedup.text_key import ABOVE_ASCII, PRIMES, SEEDS, finished, mixed, own_key
from headrace.stages.text import PUNCTUATION, SPACE, SYMBOL, characters, decode, flags_of, longest, text_bytes
from headrace.stages.text.machine import compiled, load_eight, pointer, prepared

Keys = npt.NDArray[np.uint64]

_BETWEEN = SPACE | PUNCTUATION | SYMBOL
_LOWER_MAX = characters.LOWER_MAX
_ZERO, _ONE, _EIGHT, _THIRTY_TWO = np.uint64(0), np.uint64(1), np.uint64(8), np.uint64(32)
_CHARACTER = np.uint64(0xFF)
#: Bytes of ASCII from which on they are read in four parts.
_LANES_MIN = 64
_USUAL_NGRAM = 3
_TEXT = pa.array(["One text to compile the loops with."], pa.string())


_STEP_OF, _LOWER_STEPS = characters.lower_steps()


def _kinds() -> npt.NDArray[np.uint64]:
    """`[256]`: of each byte that is a character of words and ASCII, its lower case, and 256 more; of others 0."""
    kinds, flags = np.zeros(256, np.uint64), characters.flags_table()
    for code in range(0x80):
        if not flags[code] & _BETWEEN:
            kinds[code] = 0x100 + ord(chr(code).lower())
    return kinds


_KINDS = _kinds()


def make_keys(column: Any, scheme: Scheme) -> Keys:
    """`[texts, scheme.words]`: the two words of each text's own key, and one a band; 0 where a text has no bands."""
    return make_sketches(column, scheme)[0]


def make_sketches(column: Any, scheme: Scheme) -> tuple[Keys, Any]:
    """The keys of texts (`make_keys`), and a binary column of their sketches, which are empty without a judge."""
    data, offsets = text_bytes(column)
    keys = np.zeros((len(column), scheme.words), np.uint64)
    room = np.empty(max(1, longest(offsets)), np.uint64)
    factors, shifts = _permutations(scheme.bands * scheme.rows)
    least = np.empty(max(1, len(factors)), np.uint32)
    ends = np.zeros(len(column) + 1, np.int32)
    sketches = np.empty(_room_for(offsets) if scheme.judged else 0, np.uint8)
    if len(column):
        lists, shingles = np.empty(WORDS_MAX, np.uint32), np.empty(len(room), np.uint32)
        scratch = room, least, lists, shingles
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
def _permutations(count: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
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


@compiled
def read_words(array: Any, start: int, end: int, room: Any) -> Any:
    """Put the hashes of the text's words into `room`, which has a place for each of its bytes; returns how many."""
    data, words = pointer(array, 0), pointer(room, 0)
    at: Any = start
    count: Any = np.int64(0)
    while at < end:
        above = _end_of_ascii(data, at, end)
        stop = above
        while stop < end and stop > at and _KINDS[data[stop - 1]]:
            stop -= 1
        if stop - at >= _LANES_MIN:
            count = _read_lanes(data, start, at, stop, words, count)
            at = stop
        if at < end:
            at, count = _read_codes(data, at, end, above, words, count)
    return count


@compiled
def _end_of_ascii(data: Any, at: int, end: int) -> int:
    """The byte of the next code point above ASCII, or the end."""
    while at + 8 <= end and not load_eight(data, at) & ABOVE_ASCII:
        at += 8
    while at < end and data[at] < 0x80:
        at += 1
    return at


@compiled
def _read_codes(data: Any, at: int, end: int, above: int, words: Any, count: Any) -> Any:
    """Read words, code point by code point, to the first end of a word behind the byte `above`; where that is."""
    word, begun = SEEDS[0], False
    while at < end:
        code, width = decode(data, at)
        at += width
        if flags_of(code) & _BETWEEN:
            if begun:
                words[count] = word
                count, word, begun = count + 1, SEEDS[0], False
            if at > above:
                return at, count
            continue
        if _stands_alone(code):
            if begun:
                words[count] = word
                count += 1
            words[count] = mixed(SEEDS[0], code, 0)
            count, word, begun = count + 1, SEEDS[0], False
            continue
        word, begun = mixed(word, _lower(code), 0), True
    if begun:
        words[count] = word
        count += 1
    return at, count


@compiled
def _read_lanes(data: Any, start: int, begin: int, end: int, words: Any, count: Any) -> Any:
    """Read the words of `data[begin:end]`, which is ASCII and behind and before whole words, in four parts at once.

    The hash of a word waits for each of its characters, and four words wait together. The parts write where no word
    before them can: at the places of their bytes.
    """
    size = (end - begin) >> 2
    second = _end_of_word(data, begin + size, end)
    third = _end_of_word(data, max(second, begin + 2 * size), end)
    fourth = _end_of_word(data, max(third, begin + 3 * size), end)
    one, two, three, four = np.int64(count), second - start, third - start, fourth - start
    word_1 = word_2 = word_3 = word_4 = SEEDS[0]
    was_1 = was_2 = was_3 = was_4 = _ZERO
    steps = min(second - begin, third - second, fourth - third, end - fourth)
    for step in range(steps):
        kind_1, kind_2 = _KINDS[data[begin + step]], _KINDS[data[second + step]]
        kind_3, kind_4 = _KINDS[data[third + step]], _KINDS[data[fourth + step]]
        words[one], words[two], words[three], words[four] = word_1, word_2, word_3, word_4
        one, two = one + _ended(was_1, kind_1), two + _ended(was_2, kind_2)
        three, four = three + _ended(was_3, kind_3), four + _ended(was_4, kind_4)
        word_1, word_2 = _longer(word_1, kind_1), _longer(word_2, kind_2)
        word_3, word_4 = _longer(word_3, kind_3), _longer(word_4, kind_4)
        was_1, was_2, was_3, was_4 = kind_1, kind_2, kind_3, kind_4
    one = _read_on(data, begin + steps, second, words, one, word_1, was_1)
    two = _read_on(data, second + steps, third, words, two, word_2, was_2)
    three = _read_on(data, third + steps, fourth, words, three, word_3, was_3)
    four = _read_on(data, fourth + steps, end, words, four, word_4, was_4)
    one = _moved(words, one, second - start, two)
    one = _moved(words, one, third - start, three)
    return _moved(words, one, fourth - start, four)


@compiled
def _read_on(data: Any, at: int, end: int, words: Any, count: Any, word: Any, was: Any) -> Any:
    """Read one part to its end."""
    while at < end:
        kind = _KINDS[data[at]]
        words[count] = word
        count, word, was = count + _ended(was, kind), _longer(word, kind), kind
        at += 1
    if was:
        words[count] = word
        count += 1
    return count


@compiled
def _ended(was: Any, kind: Any) -> Any:
    """1 where a word ends between two kinds of characters."""
    return np.int64((was & ~kind) >> _EIGHT)


@compiled
def _longer(word: Any, kind: Any) -> Any:
    """The word with a character, or none where it is none of a word."""
    value = mixed(word, kind & _CHARACTER, 0)
    return value if kind else SEEDS[0]


@compiled
def _end_of_word(data: Any, at: int, end: int) -> int:
    while at < end and _KINDS[data[at]]:
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
def _sign(words: Any, count: int, ngram: int, factors: Any, shifts: Any, least: Any, shingles: Any) -> None:
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


@compiled
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
        count = read_words(data, offsets[text], offsets[text + 1], words)
        ends[text + 1] = write(sketches, ends[text], words, count, lists) if len(sketches) else 0
        if count == 0:
            continue
        _sign(words, count, ngram, factors, shifts, least, shingles)
        for band in range(keys.shape[1] - EXACT_WORDS):
            value = SEEDS[0] ^ np.uint64(band)
            for place in range(band * rows, (band + 1) * rows):
                value = mixed(value, least[place], 0)
            keys[text, EXACT_WORDS + band] = finished(value) | _ONE
