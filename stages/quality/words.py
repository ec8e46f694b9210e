"""Words, as spaCy's rules for English cut them, found on the bytes of UTF-8.

The published filters count words, and each implementation means its own: the one that most corpora of today were made
with (datatrove) asks spaCy. Its rules: a text is cut at white space; from both ends of each piece, marks are taken off
while there are any (a full stop only behind certain characters); a URL stays whole; what is left is cut at marks
within it (hyphens between letters, ellipses). Some words have a rule of their own (`contractions`).

Prior art: spaCy 3.8, tokenizer and lang/punctuation. Special words are put together again where the rules have cut
them, even in the middle of a piece: "(item 8)" ends with the face "8)". Known difference: spaCy takes a public IP
address with a path for a URL.

Pieces of ASCII letters or digits, with at most one mark behind them, take a short way: they are nine tenths of prose.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.stages.quality import characters
from headrace.stages.quality.affixes import BYTE, CODE, FLAGS, MARK, infix_length, is_url, prefix_length, suffix_length
from headrace.stages.quality.characters import ALPHA, BEFORE_STOP, PUNCTUATION, SENTENCE_END, SPACE, SYMBOL, UPPER
from headrace.stages.quality.contractions import special_words
from headrace.stages.quality.kernels import compiled

#: Kinds of a word: it has a letter, a character that is no symbol, punctuation alone, is one mark that ends a sentence.
HAS_LETTER, HAS_NO_SYMBOL, IS_PUNCTUATION, ENDS_SENTENCE = 1, 2, 4, 8

_BYTE_OTHER, _BYTE_LETTER, _BYTE_DIGIT, _BYTE_SPACE, _BYTE_HIGH, _BYTE_MARK = 0, 1, 2, 3, 4, 5
SEED = np.uint64(0x243F6A8885A308D3)
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SLOT_SHIFT = np.uint64(51)
_BLOOM_SHIFT = np.uint64(48)
_BLOOM_BITS = 1 << 16
_SLOTS = 1 << 13
_PARTS_MAX = 4
#: Words that are put together again at most; no special word is cut into more.
_JOINED_MAX = 6
#: Pieces that are remembered, and how many words and bytes such a piece may have.
_KNOWN = 1 << 13
_KNOWN_WORDS_MAX = 4
_KNOWN_BYTES_MAX = 64
#: Marks that come off the end of a piece of letters or digits, whatever the piece is.
_TRAILING_MARKS = b",:;!?)]\"'."
_STOP = 0x2E

Bytes = npt.NDArray[np.uint8]


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


BEGIN, END, LENGTH, KIND = 0, 1, 2, 3


def room_for(text_bytes: int) -> Words:
    """Room for the words of a text of so many bytes, which this thread's next call may take back."""
    return _room(1 << (text_bytes + 2).bit_length())


@lru_cache(maxsize=1)
def _room(size: int) -> Words:
    i32, u64 = np.int32, np.uint64
    return Words(np.empty((size, 4), i32), np.empty(size, u64), np.empty((size, 4), i32), *_known_pieces())


@cache
def _known_pieces() -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64]]:
    """One memory of pieces for the process: a task runs its stages in one thread."""
    return np.zeros((_KNOWN, 1 + _KNOWN_WORDS_MAX), np.int32), np.zeros((_KNOWN, 1 + _KNOWN_WORDS_MAX), np.uint64)


def hash_of(word: str) -> int:
    """The hash that the splitter gives this word."""
    value = int(SEED)
    for byte in word.encode():
        value = (value ^ byte) * int(MULTIPLIER) & 0xFFFF_FFFF_FFFF_FFFF
    return value


def _byte_kinds() -> npt.NDArray[np.uint8]:
    kinds = np.zeros(256, np.uint8)
    kinds[128:] = _BYTE_HIGH
    kinds[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")] = _BYTE_LETTER
    kinds[list(b"0123456789")] = _BYTE_DIGIT
    kinds[list(b"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f ")] = _BYTE_SPACE
    kinds[list(_TRAILING_MARKS)] = _BYTE_MARK
    return kinds


def _specials() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
    """A Bloom filter of the special words, their hashes by slot, and the lengths of the parts of each."""
    bloom = np.zeros(_BLOOM_BITS // 8, np.uint8)
    slot_hashes = np.zeros(_SLOTS, np.uint64)
    slot_cuts = np.zeros((_SLOTS, _PARTS_MAX), np.int32)
    for word, parts in special_words().items():
        value = hash_of(word)
        bit = value >> int(_BLOOM_SHIFT)
        bloom[bit >> 3] |= 1 << (bit & 7)
        slot = value >> int(_SLOT_SHIFT)
        while slot_hashes[slot]:
            slot = (slot + 1) % _SLOTS
        slot_hashes[slot] = value
        slot_cuts[slot, : len(parts)] = [len(part) for part in parts]
    return bloom, slot_hashes, slot_cuts


def _special_ends() -> npt.NDArray[np.uint8]:
    """`[bytes of a word, byte]`: whether a special word of this length begins (1), ends (2) with this byte."""
    encoded = [word.encode() for word in special_words()]
    table = np.zeros((max(map(len, encoded)) + 1, 256), np.uint8)
    for word in encoded:
        table[len(word), word[0]] |= 1
        table[len(word), word[-1]] |= 2
    return table


# Compiled into the loops: arguments that are arrays cost more at each call than the work of most of these functions.
_BLOCK_OF, _BLOCKS = characters.two_levels(characters.flags_table())
_KINDS = _byte_kinds()
_BLOOM, _SLOT_HASHES, _SLOT_CUTS = _specials()
_SPECIAL_BYTES_MAX = max(len(word.encode()) for word in special_words())
_SPECIAL_ENDS = _special_ends()


def split_words(text: str) -> list[str]:
    """The words of a text; for tests and for curiosity: the filters never make Python strings."""
    data = np.frombuffer(text.encode(), np.uint8)
    words = room_for(len(data))
    count = find_words(data, 0, len(data), *words)
    raw = text.encode()
    return [raw[begin:end].decode() for begin, end in words.rows[:count, :2].tolist()]


@compiled
def decode(data: Any, at: int) -> tuple[Any, int]:
    """The code point at a byte of valid UTF-8 and its width in bytes."""
    lead = np.int64(data[at])
    if lead < 0x80:
        return lead, 1
    if lead < 0xE0:
        return (lead & 0x1F) << 6 | (np.int64(data[at + 1]) & 0x3F), 2
    if lead < 0xF0:
        return (lead & 0x0F) << 12 | (np.int64(data[at + 1]) & 0x3F) << 6 | (np.int64(data[at + 2]) & 0x3F), 3
    high = (lead & 0x07) << 18 | (np.int64(data[at + 1]) & 0x3F) << 12
    return high | (np.int64(data[at + 2]) & 0x3F) << 6 | (np.int64(data[at + 3]) & 0x3F), 4


@compiled
def flags_of(code: Any) -> Any:
    """The flags of a code point."""
    return np.int64(_BLOCKS[_BLOCK_OF[code >> 8], code & 0xFF])


@compiled
def space_width(data: Any, at: int) -> int:
    """The width in bytes of the white space at a byte; 0 where there is none."""
    lead = data[at]
    kind = _KINDS[lead]
    if kind == _BYTE_SPACE:
        return 1
    # White space above ASCII begins with these bytes.
    if kind == _BYTE_HIGH and (lead == 0xC2 or lead == 0xE2 or lead == 0xE3 or lead == 0xE1):
        code, width = decode(data, at)
        if flags_of(code) & SPACE:
            return width
    return 0


@compiled
def find_words(
    data: Any, start: int, end: int, rows: Any, hashes: Any, piece: Any, known_cuts: Any, known_hashes: Any
) -> int:
    """Find the words of the text `data[start:end]`; returns how many."""
    count = 0
    at = start
    while at < end:
        first = _KINDS[data[at]]
        if first == _BYTE_SPACE:
            at += 1
            continue
        begin = at
        value = SEED
        if first in (_BYTE_LETTER, _BYTE_DIGIT):
            while at < end and _KINDS[data[at]] == first:
                value = (value ^ np.uint64(data[at])) * MULTIPLIER
                at += 1
            behind = _KINDS[data[at]] if at < end else _BYTE_SPACE
            if behind == _BYTE_SPACE:
                count = _put_plain(data, begin, at, value, first, rows, hashes, count)
                continue
            if behind == _BYTE_MARK and (at + 1 == end or _KINDS[data[at + 1]] == _BYTE_SPACE):
                mark = data[at]
                whole = (value ^ np.uint64(mark)) * MULTIPLIER
                if (mark != _STOP or _stop_splits(data, begin, at)) and not _may_be_special(whole):
                    count = _put_plain(data, begin, at, value, first, rows, hashes, count)
                    count = _put(data, at, at + 1, rows, hashes, count)
                    at += 1
                    continue
        elif first == _BYTE_HIGH:
            width = space_width(data, at)
            if width:
                at += width
                continue
        count, at = _take_piece(data, begin, at, end, value, rows, hashes, piece, known_cuts, known_hashes, count)
    return count


@compiled
def _take_piece(
    data: Any, begin: int, at: int, end: int, value: Any,
    rows: Any, hashes: Any, piece: Any, known_cuts: Any, known_hashes: Any, count: int,
) -> tuple[int, int]:  # fmt: skip
    """Cut the piece that begins at `begin`, of which `value` is the hash up to `at`; returns the byte behind it too."""
    while at < end:
        kind = _KINDS[data[at]]
        if kind == _BYTE_SPACE or (kind == _BYTE_HIGH and space_width(data, at)):
            break
        value = (value ^ np.uint64(data[at])) * MULTIPLIER
        at += 1
    slot = np.int64(value >> _SLOT_SHIFT)
    if known_hashes[slot, 0] == value:
        count = _put_known(begin, slot, rows, hashes, count, known_cuts, known_hashes)
        return count, at
    before = count
    count = _cut_piece(data, begin, at, rows, hashes, piece, count)
    if at - begin <= _KNOWN_BYTES_MAX and count - before <= _KNOWN_WORDS_MAX:
        known_hashes[slot, 0] = value
        known_cuts[slot, 0] = count - before
        for word in range(before, count):
            place = 1 + word - before
            known_hashes[slot, place] = hashes[word]
            known_cuts[slot, place] = (rows[word, END] - begin) << 16 | rows[word, LENGTH] << 8 | rows[word, KIND]
    return count, at


@compiled
def _put_known(begin: int, slot: Any, rows: Any, hashes: Any, count: int, known_cuts: Any, known_hashes: Any) -> int:
    """Add the words of a piece that was cut before."""
    at = begin
    for place in range(1, 1 + known_cuts[slot, 0]):
        cut = known_cuts[slot, place]
        end = begin + (cut >> 16)
        rows[count, BEGIN], rows[count, END] = at, end
        rows[count, LENGTH], rows[count, KIND] = (cut >> 8) & 0xFF, cut & 0xFF
        hashes[count] = known_hashes[slot, place]
        count += 1
        at = end
    return count


@compiled
def _stop_splits(data: Any, begin: int, at: int) -> bool:
    """Whether the full stop at `at`, behind ASCII letters or digits, is a word of its own."""
    if flags_of(data[at - 1]) & BEFORE_STOP:
        return True
    return at - begin >= 2 and (flags_of(data[at - 1]) & flags_of(data[at - 2]) & UPPER) != 0


@compiled
def _may_be_special(value: Any) -> Any:
    bit = np.int64(value >> _BLOOM_SHIFT)
    return (_BLOOM[bit >> 3] >> (bit & 7)) & 1 != 0


@compiled
def _find_special(value: Any) -> Any:
    """The slot of the special word with this hash, or -1."""
    if not _may_be_special(value):
        return -1
    slot = np.int64(value >> _SLOT_SHIFT)
    while _SLOT_HASHES[slot] != 0:
        if _SLOT_HASHES[slot] == value:
            return slot
        slot = (slot + 1) & (_SLOTS - 1)
    return -1


@compiled
def _put(data: Any, begin: int, end: int, rows: Any, hashes: Any, count: int) -> int:
    """Add the word `data[begin:end]`."""
    value = SEED
    for at in range(begin, end):
        value = (value ^ np.uint64(data[at])) * MULTIPLIER
    some, symbols, marks, characters_found = 0, SYMBOL, PUNCTUATION, 0
    at = begin
    while at < end:
        code, width = (np.int64(data[at]), 1) if data[at] < 0x80 else decode(data, at)
        flag = flags_of(code)  # pyright: ignore[reportArgumentType]
        some |= flag
        symbols &= flag
        marks &= flag
        characters_found += 1
        at += width
    kind = 0
    if some & ALPHA:
        kind |= HAS_LETTER
    if not symbols:
        kind |= HAS_NO_SYMBOL
    if marks:
        kind |= IS_PUNCTUATION
    if characters_found == 1 and some & SENTENCE_END:
        kind |= ENDS_SENTENCE
    rows[count, BEGIN], rows[count, END], rows[count, LENGTH], rows[count, KIND] = begin, end, characters_found, kind
    hashes[count] = value
    return count + 1


@compiled
def _put_plain(data: Any, begin: int, end: int, value: Any, kind: Any, rows: Any, hashes: Any, count: int) -> int:
    """Add a word of ASCII letters or of digits alone, in its parts where it is special."""
    slot = -1
    if kind == _BYTE_LETTER:
        slot = _find_special(value)
    if slot >= 0 and _SLOT_CUTS[slot, 1]:
        at = begin
        for part in range(_PARTS_MAX):
            length = _SLOT_CUTS[slot, part]
            if length:
                count = _put(data, at, at + length, rows, hashes, count)
                at += length
        return count
    kinds = HAS_LETTER | HAS_NO_SYMBOL if kind == _BYTE_LETTER else HAS_NO_SYMBOL
    rows[count, BEGIN], rows[count, END], rows[count, LENGTH], rows[count, KIND] = begin, end, end - begin, kinds
    hashes[count] = value
    return count + 1


@compiled
def _put_characters(data: Any, low: int, high: int, rows: Any, hashes: Any, piece: Any, count: int) -> int:
    """Add the word of the piece's characters `low` to `high`."""
    return _put(data, piece[low, BYTE], piece[high, BYTE], rows, hashes, count)


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
def _cut_piece(data: Any, begin: int, end: int, rows: Any, hashes: Any, piece: Any, count: int) -> int:
    """Cut a piece without white space by the full rules."""
    first = count
    low, high, taken = 0, _decode_piece(data, begin, end, piece), 0
    while low < high:
        if _special_slot(data, low, high, piece) >= 0:
            break
        prefix = prefix_length(piece, low, high)
        if prefix and _special_slot(data, low + prefix, high, piece) >= 0:
            count = _put_characters(data, low, low + prefix, rows, hashes, piece, count)
            low += prefix
            break
        suffix = suffix_length(piece, low + prefix, high)
        if not prefix and not suffix:
            break
        special = suffix and _special_slot(data, low, high - suffix, piece) >= 0
        if prefix and not special:
            count = _put_characters(data, low, low + prefix, rows, hashes, piece, count)
            low += prefix
        if suffix:
            piece[taken, MARK] = high
            taken += 1
            high -= suffix
        if special:
            break
    count = _cut_middle(data, low, high, rows, hashes, piece, count)
    while taken:
        taken -= 1
        count = _put_characters(data, high, piece[taken, MARK], rows, hashes, piece, count)
        high = piece[taken, MARK]
    return _join_specials(data, first, rows, hashes, count)


@compiled
def _join_specials(data: Any, first: int, rows: Any, hashes: Any, count: int) -> int:
    """Put neighbours from word `first` on together again where they are a special word: "i." in "i.MX", "8)"."""
    put, at = first, first
    while at < count:
        taken = 1
        for longest in range(min(_JOINED_MAX, count - at), 1, -1):
            begin, end = rows[at, BEGIN], rows[at + longest - 1, END]
            slot = _find_word(data, begin, end)
            if slot >= 0 and _SLOT_CUTS[slot, 1] == 0:
                taken = longest
                _put(data, begin, end, rows, hashes, put)
                break
        if taken == 1 and put < at:
            for column in range(4):
                rows[put, column] = rows[at, column]
            hashes[put] = hashes[at]
        put += 1
        at += taken
    return put


@compiled
def _special_slot(data: Any, low: int, high: int, piece: Any) -> Any:
    """The slot of the special word that the piece's characters `low` to `high` are, or -1."""
    return _find_word(data, piece[low, BYTE], piece[high, BYTE])


@compiled
def _find_word(data: Any, begin: int, end: int) -> Any:
    """The slot of the special word `data[begin:end]`, or -1."""
    if end - begin > _SPECIAL_BYTES_MAX or begin >= end:
        return -1
    # Hashing takes longer than this, and few pieces come through.
    if not (_SPECIAL_ENDS[end - begin, data[begin]] & 1 and _SPECIAL_ENDS[end - begin, data[end - 1]] & 2):
        return -1
    value = SEED
    for at in range(begin, end):
        value = (value ^ np.uint64(data[at])) * MULTIPLIER
    return _find_special(value)


@compiled
def _cut_middle(data: Any, low: int, high: int, rows: Any, hashes: Any, piece: Any, count: int) -> int:
    """Cut what is left of a piece between its prefixes and suffixes."""
    if low >= high:
        return count
    slot = _special_slot(data, low, high, piece)
    if slot >= 0:
        for part in range(_PARTS_MAX):
            length = _SLOT_CUTS[slot, part]
            if length:
                count = _put_characters(data, low, low + length, rows, hashes, piece, count)
                low += length
        return count
    if is_url(piece, low, high):
        return _put_characters(data, low, high, rows, hashes, piece, count)
    begin, at = low, low
    while at < high:
        length = infix_length(piece, low, at, high)
        if length == 0 or at == low:
            at += max(length, 1)
            continue
        if at > begin:
            count = _put_characters(data, begin, at, rows, hashes, piece, count)
        count = _put_characters(data, at, at + length, rows, hashes, piece, count)
        at += length
        begin = at
    if begin < high:
        count = _put_characters(data, begin, high, rows, hashes, piece, count)
    return count
