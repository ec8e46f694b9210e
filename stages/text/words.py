"""Words, as spaCy's rules for English cut them, found on the bytes of UTF-8.

The published filters count words, and each implementation means its own: the one that most corpora of today were made
with (datatrove) asks spaCy. Its rules: a text is cut at white space; from both ends of each piece, marks are taken off
while there are any (a full stop only behind certain characters); a URL stays whole; what is left is cut at marks
within it (hyphens between letters, ellipses). Some words have a rule of their own (`specials`).

Prior art: spaCy 3.8, tokenizer and lang/punctuation; the bits of 64 bytes at once are those of simdjson (Langdale and
Lemire 2019). Special words are put together again where the rules have cut them, even in the middle of a piece:
"(item 8)" ends with the face "8)". Known difference: spaCy takes a public IP address with a path for a URL.

Pieces of ASCII letters or digits, with at most one mark behind them, take a short way: they are nine tenths of prose.
How other short pieces were cut is remembered, and what is left goes the long way (`cutting`).
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stages.text.characters import BEFORE_STOP, UPPER
from headrace.stages.text.cutting import (
    BEGIN,
    END,
    HAS_LETTER,
    HAS_NO_SYMBOL,
    KIND,
    LENGTH,
    ZERO,
    cut_piece,
    put_parts,
    put_word,
)
from headrace.stages.text.machine import (
    ALL,
    LANES,
    compile_parts,
    compiled,
    entry,
    hash_span,
    is_prepared,
    look,
    pointer,
    prepared,
    trailing_zeros,
)
from headrace.stages.text.specials import letters_slot, special_slot
from headrace.stages.text.texts import longest, text_bytes
from headrace.stages.text.utf8 import flags_of, space_width

#: Pieces that are remembered, and how many words and bytes such a piece may have.
_KNOWN = 1 << 13
_KNOWN_SHIFT = np.uint64(51)
_KNOWN_WORDS_MAX = 4
_KNOWN_BYTES_MAX = 64
#: Marks that come off the end of a piece of letters or digits, whatever the piece is.
_TRAILING_MARKS = b",:;!?)]\"'."
_STOP = 0x2E
_ONE = np.uint64(1)
_ROOM_MIN = 1 << 20


class Words(NamedTuple):
    """Room for the words of one text, and for one piece.

    `rows` `[words, 4]`: the byte that a word begins at, the byte behind it, code points, kind. `hashes` `[words]`.
    `piece` `[characters, 4]`: code point, flags, byte, and a stack of the suffixes that were taken off. `known_cuts`
    and `known_hashes` remember how short pieces were cut, by their hash: a fifth of the pieces go the long way.
    """

    rows: npt.NDArray[np.int32]
    hashes: npt.NDArray[np.uint64]
    piece: npt.NDArray[np.int32]
    known_cuts: npt.NDArray[np.int32]
    known_hashes: npt.NDArray[np.uint64]


#: `Words` in the signature of a loop.
WORDS_TYPE = "(i32[,], u64[], i32[,], i32[,], u64[,])"


def room_size(text_bytes: int) -> int:
    """Words and characters that room for a text of so many bytes is made for; the same for nearly all texts.

    Room that is made anew is memory that the kernel has to clear. What is not used of it is none.
    """
    return max(_ROOM_MIN, 1 << (text_bytes + 2).bit_length())


def room_for(text_bytes: int) -> Words:
    """Room for the words of a text of so many bytes, which this thread's next call may take back."""
    return _room(room_size(text_bytes))


@lru_cache(maxsize=1)
def _room(size: int) -> Words:
    i32, u64 = np.int32, np.uint64
    return Words(np.empty((size, 4), i32), np.empty(size, u64), np.empty((size, 4), i32), *_known_pieces())


@cache
def _known_pieces() -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64]]:
    """One memory of pieces for the process: a task runs its stages in one thread."""
    return np.zeros((_KNOWN, 1 + _KNOWN_WORDS_MAX), np.int32), np.zeros((_KNOWN, 1 + _KNOWN_WORDS_MAX), np.uint64)


def _trailing() -> npt.NDArray[np.bool_]:
    table = np.zeros(256, np.bool_)
    table[list(_TRAILING_MARKS)] = True
    return table


_TRAILS = _trailing()


def split_words(text: str) -> list[str]:
    """The words of a text; for tests and for curiosity: the filters never make Python strings."""
    data, offsets = text_bytes(pa.array([text], pa.string()))
    words = room_for(longest(offsets))
    end: Any = np.int64(offsets[-1])
    count = _find_in_array(data, ZERO, end, words)
    raw = data.tobytes()
    return [raw[begin:end].decode() for begin, end in words.rows[:count, :2].tolist()]


def compile_words() -> None:
    """Compile `find_words` if it is not in the cache: half of the work for each filter that counts words."""
    if not is_prepared("words"):
        with prepared("words"):
            compile_parts(_find_in_array, np.empty(1, np.uint8), ZERO, ZERO, room_for(1))


@entry(f"(u8[], i64, i64, {WORDS_TYPE}) -> i64")
def _find_in_array(data: Any, start: int, end: int, words: Any) -> int:
    return find_words(pointer(data, 0), start, end, pointers_to(words))


@compiled
def pointers_to(words: Any) -> tuple[Any, Any, Any, Any, Any]:
    """`Words` as the loops pass it to each other."""
    rows, hashes, piece, known_cuts, known_hashes = words
    places = pointer(known_cuts, 0), pointer(known_hashes, 0)
    return pointer(rows, 0), pointer(hashes, 0), pointer(piece, 0), places[0], places[1]


@compiled
def find_words(data: Any, start: int, end: int, room: Any) -> int:
    """Find the words of the text `data[start:end]`; returns how many."""
    count: int = ZERO
    at = start
    while at < end:
        spaces, letters, digits = look(data, at, end)
        if spaces == ALL:
            at += LANES
            continue
        if spaces == 0:
            stop = _piece_end(data, at + LANES, end)
            count = _take_pieces(data, at, stop, room, count)
            at = stop
            continue
        while True:
            if spaces & _ONE:
                gap = trailing_zeros(~spaces)
                at += gap
                step = np.uint64(gap)
                spaces, letters, digits = spaces >> step, letters >> step, digits >> step
            # Zeros come in from above: the next piece may go on behind these 64 bytes, which begin again with it.
            if spaces == 0:
                break
            size = trailing_zeros(spaces)
            stop = at + size
            run = trailing_zeros(~letters if letters & _ONE else ~digits)
            if run >= size:
                count = _put_plain(data, at, stop, letters & _ONE, room, count)
            elif run and run + 1 == size and _is_plain_before_mark(data, at, stop):
                count = _put_plain(data, at, stop - 1, letters & _ONE, room, count)
                count = put_word(data, stop - 1, stop, room, count)
            else:
                count = _take_pieces(data, at, stop, room, count)
            at = stop
            step = np.uint64(size)
            spaces, letters, digits = spaces >> step, letters >> step, digits >> step
    return count


@compiled
def _piece_end(data: Any, at: int, end: int) -> Any:
    """The byte of the next ASCII white space, or the end."""
    while at < end:
        spaces, _, _ = look(data, at, end)
        if spaces:
            return min(at + trailing_zeros(spaces), end)
        at += LANES
    return end


@compiled
def _is_plain_before_mark(data: Any, begin: int, end: int) -> bool:
    """Whether the last byte, behind ASCII letters or digits alone, is a mark that is a word of its own."""
    mark = data[end - 1]
    if not _TRAILS[mark]:
        return False
    return (mark != _STOP or _stop_splits(data, begin, end - 1)) and special_slot(data, begin, end) < 0


@compiled
def _stop_splits(data: Any, begin: int, at: int) -> bool:
    """Whether the full stop at `at`, behind ASCII letters or digits, is a word of its own."""
    if flags_of(data[at - 1]) & BEFORE_STOP:
        return True
    return at - begin >= 2 and (flags_of(data[at - 1]) & flags_of(data[at - 2]) & UPPER) != 0


@compiled
def _put_plain(data: Any, begin: int, end: int, has_letters: Any, room: Any, count: int) -> int:
    """Add a word of ASCII letters or of digits alone, in its parts where it is special."""
    value = hash_span(data, begin, end)
    if has_letters:
        slot = letters_slot(value)
        if slot >= 0:
            return put_parts(data, begin, slot, room, count)
    kind = HAS_LETTER | HAS_NO_SYMBOL if has_letters else HAS_NO_SYMBOL
    rows, hashes, _, _, _ = room
    rows[count, BEGIN], rows[count, END], rows[count, LENGTH], rows[count, KIND] = begin, end, end - begin, kind
    hashes[count] = value
    return count + 1


@compiled
def _take_pieces(data: Any, begin: int, end: int, room: Any, count: int) -> int:
    """Cut the pieces of `data[begin:end]`, which holds no ASCII white space."""
    at = begin
    while at < end:
        stop = at
        while stop < end and (data[stop] < 0x80 or not space_width(data, stop)):
            stop += 1
        if stop > at:
            count = _take_piece(data, at, stop, room, count)
        at = stop + (space_width(data, stop) if stop < end else 0)
    return count


@compiled
def _take_piece(data: Any, begin: int, end: int, room: Any, count: int) -> int:
    """Cut a piece, as it was cut before if that is known."""
    if end - begin > _KNOWN_BYTES_MAX:
        return cut_piece(data, begin, end, room, count)
    rows, hashes, _, known_cuts, known_hashes = room
    value = hash_span(data, begin, end)
    slot = np.int64(value >> _KNOWN_SHIFT) * (1 + _KNOWN_WORDS_MAX)
    if known_hashes[slot] == value:
        return _put_known(begin, slot, room, count)
    before = count
    count = cut_piece(data, begin, end, room, count)
    if count - before <= _KNOWN_WORDS_MAX:
        known_hashes[slot] = value
        known_cuts[slot] = count - before
        for word in range(before, count):
            place = slot + 1 + word - before
            known_hashes[place] = hashes[word]
            known_cuts[place] = (rows[word, END] - begin) << 16 | rows[word, LENGTH] << 8 | rows[word, KIND]
    return count


@compiled
def _put_known(begin: int, slot: Any, room: Any, count: int) -> int:
    """Add the words of a piece that was cut before."""
    rows, hashes, _, known_cuts, known_hashes = room
    at = begin
    for place in range(slot + 1, slot + 1 + known_cuts[slot]):
        cut = known_cuts[place]
        end = begin + (cut >> 16)
        rows[count, BEGIN], rows[count, END] = at, end
        rows[count, LENGTH], rows[count, KIND] = (cut >> 8) & 0xFF, cut & 0xFF
        hashes[count] = known_hashes[place]
        count += 1
        at = end
    return count
