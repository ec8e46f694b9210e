"""The keys of a column of texts: a hash of each text, and of the bands of its MinHash signature.

Equal are texts that differ in white space alone (runs of it count as one space, at the ends as none). For the
signature a text is its words: runs of code points that are neither white space, punctuation nor symbols, in lower case;
of scripts that put no space between words, each code point. A shingle is `ngram` words in a row; a text of fewer words
is one shingle, and one of none has no bands. A MinHash value is the least of a * x + b (mod 2^32) over the shingles'
32-bit hashes x, with a and b of its own.
"""

from __future__ import annotations

from functools import lru_cache
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
    characters,
    compiled,
    decode,
    flags_of,
    longest,
    prepared,
    text_bytes,
)

Keys = npt.NDArray[np.uint64]

_BETWEEN = SPACE | PUNCTUATION | SYMBOL
_LOWER_MAX = characters.LOWER_MAX
_ONE, _THIRTY_TWO = np.uint64(1), np.uint64(32)
_TEXT = pa.array(["One text to compile the loops with."], pa.string())


_STEP_OF, _LOWER_STEPS = characters.lower_steps()


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
        lists = np.empty(WORDS_MAX, np.uint32)
        _fill(data, offsets, keys, room, factors, shifts, least, scheme.ngram, scheme.rows, sketches, ends, lists)
    content = pa.py_buffer(sketches[: ends[-1]].tobytes())
    return keys, pa.Array.from_buffers(pa.binary(), len(column), [None, pa.py_buffer(ends.data), content])


def _room_for(offsets: npt.NDArray[np.int64]) -> int:
    """Bytes that the sketches of texts may take: a word has at least a byte, and most of them another behind it."""
    return int(np.minimum(2 * np.diff(offsets) + 1, SKETCH_BYTES_MAX).sum())


def compile_keys() -> None:
    """Compile what is not in the cache."""
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
def read_words(data: Any, start: int, end: int, words: Any) -> int:
    """Put the hashes of the text's words into `words`; returns how many."""
    word, count, begun = SEEDS[0], 0, False
    at = start
    while at < end:
        code, width = decode(data, at)
        at += width
        if flags_of(code) & _BETWEEN:
            if begun:
                words[count] = word
                count, word, begun = count + 1, SEEDS[0], False
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
    return count


@compiled
def _sign(words: Any, count: int, ngram: int, factors: Any, shifts: Any, least: Any) -> None:
    """The MinHash values of a text of `count` words, at least one."""
    size = min(ngram, count)
    for place in range(len(factors)):
        least[place] = np.uint32(0xFFFFFFFF)
    for first in range(count - size + 1):
        shingle = SEEDS[1]
        for place in range(first, first + size):
            shingle = mixed(shingle, words[place], 1)
        hashed = np.uint32(finished(shingle) >> _THIRTY_TWO)
        for place in range(len(factors)):
            value = np.uint32(factors[place] * hashed + shifts[place])
            least[place] = min(least[place], value)


@compiled
def _fill(
    data: Any,
    offsets: Any,
    keys: Any,
    words: Any,
    factors: Any,
    shifts: Any,
    least: Any,
    ngram: int,
    rows: int,
    sketches: Any,
    ends: Any,
    lists: Any,
) -> None:
    for text in range(len(offsets) - 1):
        keys[text, 0], keys[text, 1] = own_key(data, offsets[text], offsets[text + 1])
        ends[text + 1] = ends[text]
        if len(factors) == 0:
            continue
        count = read_words(data, offsets[text], offsets[text + 1], words)
        ends[text + 1] = write(sketches, ends[text], words, count, lists) if len(sketches) else 0
        if count == 0:
            continue
        _sign(words, count, ngram, factors, shifts, least)
        for band in range(keys.shape[1] - EXACT_WORDS):
            value = SEEDS[0] ^ np.uint64(band)
            for place in range(band * rows, (band + 1) * rows):
                value = mixed(value, least[place], 0)
            keys[text, EXACT_WORDS + band] = finished(value) | _ONE
