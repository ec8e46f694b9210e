"""The long way: a piece of text without white space is cut into words by all the rules.

`room` is pointers to all of `words.Words`. Bytes are handed on as int64: each other type is one more loop to compile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.stages.text.affixes import BYTE, CODE, FLAGS, MARK, infix_length, is_url, prefix_length, suffix_length
from headrace.stages.text.characters import ALPHA, PUNCTUATION, SENTENCE_END, SYMBOL
from headrace.stages.text.machine import compiled, hash_span
from headrace.stages.text.specials import PARTS_MAX, SLOT_CUTS, SPECIAL_BYTES_MAX, special_slot
from headrace.stages.text.utf8 import decode, flags_of

BEGIN, END, LENGTH, KIND = 0, 1, 2, 3
#: Kinds of a word: it has a letter, a character that is no symbol, punctuation alone, is one mark that ends a sentence.
HAS_LETTER, HAS_NO_SYMBOL, IS_PUNCTUATION, ENDS_SENTENCE = 1, 2, 4, 8
#: Where a count begins that is handed to other loops: they would first be compiled for the literal 0, in vain.
ZERO: Any = np.int64(0)
#: As checkers of types do not see it.
_int64: Any = np.int64
#: Words that are put together again at most; no special word is cut into more.
_JOINED_MAX = 6


@compiled
def put_word(data: Any, begin: int, end: int, room: Any, count: int) -> int:
    """Add the word `data[begin:end]`."""
    rows, hashes, _, _, _ = room
    some, symbols, marks, characters_found = 0, SYMBOL, PUNCTUATION, 0
    at = begin
    while at < end:
        code, width = decode(data, at)
        flag = flags_of(code)
        some |= flag
        symbols &= flag
        marks &= flag
        characters_found += 1
        at += width
    kind = (HAS_LETTER if some & ALPHA else 0) | (0 if symbols else HAS_NO_SYMBOL) | (IS_PUNCTUATION if marks else 0)
    if characters_found == 1 and some & SENTENCE_END:
        kind |= ENDS_SENTENCE
    rows[count, BEGIN], rows[count, END], rows[count, LENGTH], rows[count, KIND] = begin, end, characters_found, kind
    hashes[count] = hash_span(data, begin, end)
    return count + 1


@compiled
def put_parts(data: Any, begin: int, slot: Any, room: Any, count: int) -> int:
    """Add the parts of the special word of this slot that begins at `begin`."""
    for part in range(PARTS_MAX):
        length = SLOT_CUTS[slot, part]
        if length:
            count = put_word(data, begin, begin + length, room, count)
            begin += length
    return count


@compiled
def _put_characters(data: Any, low: int, high: int, room: Any, count: int) -> int:
    """Add the word of the piece's characters `low` to `high`."""
    _, _, piece, _, _ = room
    return put_word(data, _int64(piece[low, BYTE]), _int64(piece[high, BYTE]), room, count)


@compiled
def _decode_piece(data: Any, begin: int, end: int, piece: Any) -> int:
    """Write the characters of `data[begin:end]` into `piece`; returns how many."""
    size = 0
    at = begin
    while at < end:
        code, width = decode(data, at)
        piece[size, CODE], piece[size, FLAGS], piece[size, BYTE] = code, flags_of(code), at
        size += 1
        at += width
    piece[size, BYTE] = end
    return size


@compiled
def _slot_of(data: Any, low: int, high: int, piece: Any) -> Any:
    """The slot of the special word that the piece's characters `low` to `high` are, or -1."""
    return special_slot(data, _int64(piece[low, BYTE]), _int64(piece[high, BYTE]))


@compiled
def cut_piece(data: Any, begin: int, end: int, room: Any, count: int) -> int:
    """Add the words of the piece `data[begin:end]`."""
    _, _, piece, _, _ = room
    first = count
    low, high, taken = ZERO, _decode_piece(data, begin, end, piece), ZERO
    while low < high:
        if _slot_of(data, low, high, piece) >= 0:
            break
        prefix = prefix_length(piece, low, high)
        if prefix and _slot_of(data, low + prefix, high, piece) >= 0:
            count = _put_characters(data, low, low + prefix, room, count)
            low += prefix
            break
        suffix = suffix_length(piece, low + prefix, high)
        if not prefix and not suffix:
            break
        special = suffix and _slot_of(data, low, high - suffix, piece) >= 0
        if prefix and not special:
            count = _put_characters(data, low, low + prefix, room, count)
            low += prefix
        if suffix:
            piece[taken, MARK] = high
            taken += 1
            high -= suffix
        if special:
            break
    count = _cut_middle(data, low, high, room, count)
    while taken:
        taken -= 1
        behind = _int64(piece[taken, MARK])
        count = _put_characters(data, high, behind, room, count)
        high = behind
    return _join_specials(data, first, room, count)


@compiled
def _cut_middle(data: Any, low: int, high: int, room: Any, count: int) -> int:
    """Cut what is left of a piece between its prefixes and suffixes."""
    _, _, piece, _, _ = room
    if low >= high:
        return count
    slot = _slot_of(data, low, high, piece)
    if slot >= 0:
        return put_parts(data, _int64(piece[low, BYTE]), slot, room, count)
    if is_url(piece, low, high):
        return _put_characters(data, low, high, room, count)
    begin, at = low, low + 1
    while at < high:
        # Most characters; no letter is a mark within a word.
        if piece[at, FLAGS] & ALPHA:
            at += 1
            continue
        length = infix_length(piece, low, at, high)
        if length == 0:
            at += 1
            continue
        if at > begin:
            count = _put_characters(data, begin, at, room, count)
        count = _put_characters(data, at, at + length, room, count)
        at += length
        begin = at
    if begin < high:
        count = _put_characters(data, begin, high, room, count)
    return count


@compiled
def _join_specials(data: Any, first: int, room: Any, count: int) -> int:
    """Put neighbours from word `first` on together again where they are a special word: "i." in "i.MX", "8)"."""
    rows, hashes, _, _, _ = room
    put, at = first, first
    while at < count:
        taken = 1
        begin = _int64(rows[at, BEGIN])
        for longer in range(2, min(_JOINED_MAX, count - at) + 1):
            end = _int64(rows[at + longer - 1, END])
            if end - begin > SPECIAL_BYTES_MAX:
                break
            slot = special_slot(data, begin, end)
            if slot >= 0 and SLOT_CUTS[slot, 1] == 0:
                taken = longer
        if taken > 1:
            put_word(data, begin, _int64(rows[at + taken - 1, END]), room, put)
        elif put < at:
            for column in range(4):
                rows[put, column] = rows[at, column]
            hashes[put] = hashes[at]
        put += 1
        at += taken
    return put
