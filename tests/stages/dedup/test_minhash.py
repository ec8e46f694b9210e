"""Words and signatures against their definition, written down in Python."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace.stages.dedup.core.scheme import EXACT_WORDS, Scheme
from headrace.stages.dedup.minhash import CODES_MORE, make_sketches, read_words
from headrace.stages.dedup.text_key import PRIMES, SEEDS
from headrace.stages.text import PUNCTUATION, SPACE, SYMBOL, characters, text_bytes

MASK = (1 << 64) - 1
FIRST = int(SEEDS[0])
#: What nothing may write over.
GUARD = 0xDEADBEEF
PIECES = [
    "a",
    "Zebra",
    "x1",
    " ",
    "  ",
    "\n",
    "\0",
    ". ",
    "(",
    "“",
    "é",
    "Ä",
    "İ",
    "中文",
    "ไทย",
    "\u00a0",
    "😀",
    "word " * 30,
    "w" * 90,
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


def mixed(value: int, item: int, lane: int = 0) -> int:
    value = (value ^ item) * int(PRIMES[lane]) & MASK
    return value ^ value >> (29, 32)[lane]


def finished(value: int) -> int:
    value = (value ^ value >> 33) * int(PRIMES[1]) & MASK
    value = (value ^ value >> 29) * int(PRIMES[0]) & MASK
    return value ^ value >> 32


def words_of(text: str) -> list[int]:
    """The words of a text that has of scripts without spaces only Chinese and Thai."""
    words, word = [], ""
    for character in [*text, " "]:
        between = characters.flags_table()[ord(character)] & (SPACE | PUNCTUATION | SYMBOL)
        alone = "\u0e00" <= character < "\u0f00" or "\u2e80" <= character < "\ua000"
        if (between or alone) and word:
            words, word = [*words, word], ""
        if alone:
            words.append(character)
        elif not between:
            word += character
    return [hash_of(word) for word in words]


def hash_of(word: str) -> int:
    value = FIRST
    for character in word:
        lower = character.lower()
        value = mixed(value, ord(lower) if len(lower) == 1 else ord(character))
    return value


@given(TEXTS, TEXTS)
def test_words_are_those_of_the_definition_wherever_the_text_stands(before: str, text: str) -> None:
    data, offsets = text_bytes(pa.array([before, text], pa.string()))
    size = int(offsets[2] - offsets[1])
    # What stands behind the places of the text is not written.
    room, codes = np.full(size + 8, GUARD, np.uint64), np.full(size + CODES_MORE + 8, GUARD, np.uint32)
    count = read_words(data, offsets[1], offsets[2], room[:size], codes[: size + CODES_MORE])
    assert room[:count].tolist() == words_of(text)
    assert (room[max(size, 1) :] == GUARD).all()
    assert (codes[size + CODES_MORE :] == GUARD).all()


@pytest.mark.parametrize("word", ["a", "ab ", "a  ", "Ä", "word—", "字", " ", "x" * 70 + " "])
def test_words_of_texts_of_all_lengths_stay_in_their_places(word: str) -> None:
    for count in (*range(1, 70), 200, 1000):
        text = (word * count)[: 4 * count]
        data, offsets = text_bytes(pa.array([text], pa.string()))
        room, codes = np.full(len(data), GUARD, np.uint64), np.full(len(data) + CODES_MORE, GUARD, np.uint32)
        found = read_words(data, 0, offsets[1], room, codes)
        assert room[:found].tolist() == words_of(text)
        assert (room[int(offsets[1]) :] == GUARD).all()


@pytest.mark.parametrize("ngram", [1, 3, 5])
@given(text=TEXTS)
def test_a_signature_is_the_least_of_each_permutation(ngram: int, text: str) -> None:
    scheme = Scheme(ngram, 2, 1)
    words = words_of(text)
    (keys,) = make_sketches(pa.array([text], pa.string()), scheme)[0].tolist()
    if not words:
        assert keys[EXACT_WORDS:] == [0, 0]
        return
    shingles = []
    for first in range(max(1, len(words) - ngram + 1)):
        value = int(SEEDS[1])
        for word in words[first : first + ngram]:
            value = mixed(value, word, 1)
        shingles.append(finished(value) >> 32)
    factors, shifts = permutations(2)
    for band, (factor, shift) in enumerate(zip(factors, shifts, strict=True)):
        least = min((factor * shingle + shift) & 0xFFFFFFFF for shingle in shingles)
        assert keys[EXACT_WORDS + band] == finished(mixed(FIRST ^ band, least)) | 1


def permutations(count: int) -> tuple[list[int], list[int]]:
    """Factors and shifts, by splitmix64."""
    numbers = []
    for place in range(1, 2 * count + 1):
        state = (FIRST + place * int(PRIMES[0])) & MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK
        numbers.append((state ^ state >> 31) >> 32)
    return [number | 1 for number in numbers[:count]], numbers[count:]
