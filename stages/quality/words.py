"""Words, as spaCy's rules for English cut them, found on the bytes of UTF-8.

The published filters count words, and each implementation means its own: the one that most corpora of today were made
with (datatrove) asks spaCy. Its rules: a text is cut at white space; from both ends of each piece, marks are taken off
while there are any (a full stop only behind certain characters); a URL stays whole; what is left is cut at marks
within it (hyphens between letters, ellipses). Some words have a rule of their own (`contractions`).

Prior art: spaCy 3.8, tokenizer and lang/punctuation. Known differences: spaCy puts emoticons together again that it
has cut ("(item 8)" ends with the face "8)"), and takes a private IP address with a path for no URL.

Pieces of ASCII letters or digits, with at most one mark behind them, take a short way: they are nine tenths of prose.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.stages.quality import characters
from headrace.stages.quality.characters import (
    ALPHA,
    BEFORE_STOP,
    ICON,
    LETTER,
    LOWER,
    PREFIX,
    PUNCTUATION,
    QUOTE,
    SENTENCE_END,
    SPACE,
    SUFFIX,
    SYMBOL,
    UPPER,
)
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
#: Pieces that are remembered, and how many words and bytes such a piece may have.
_KNOWN = 1 << 13
_KNOWN_WORDS_MAX = 4
_KNOWN_BYTES_MAX = 64
#: Marks that come off the end of a piece of letters or digits, whatever the piece is.
_TRAILING_MARKS = b",:;!?)]\"'."
#: A measure behind a digit is a word of its own: "5km".
_UNITS = (
    "km km² km³ m m² m³ dm dm² dm³ cm cm² cm³ mm mm² mm³ ha µm nm yd in ft kg g mg µg t lb oz m/s km/h kmh mph hPa Pa "
    "mbar mb MB kb KB gb GB tb TB T G M K % км км² км³ м м² м³ дм дм² дм³ см см² см³ мм мм² мм³ нм кг г мг м/с км/ч "
    "кПа Па мбар Кб КБ кб Мб МБ мб Гб ГБ гб Тб ТБ US$ C$ A$"
).split()
_UNIT_CHARACTERS_MAX = 4
_HOST_CHARACTERS_MAX = 64
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
_CODE, _FLAGS, _BYTE, _MARK = 0, 1, 2, 3


def room_for(text_bytes: int) -> Words:
    """Room for the words of a text of so many bytes."""
    size = text_bytes + 2
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


def _unit_key(unit: str) -> int:
    key = 0
    for character in unit:
        key = key << 16 | ord(character)
    return key


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


# Compiled into the loops: arguments that are arrays cost more at each call than the work of most of these functions.
_BLOCK_OF, _BLOCKS = characters.two_levels(characters.flags_table())
_KINDS = _byte_kinds()
_BLOOM, _SLOT_HASHES, _SLOT_CUTS = _specials()
_SPECIAL_BYTES_MAX = max(len(word.encode()) for word in special_words())
_UNIT_KEYS = np.array(sorted(_unit_key(unit) for unit in _UNITS), np.uint64)


def split_words(text: str) -> list[str]:
    """The words of a text; for tests and for curiosity: the filters never make Python strings."""
    data = np.frombuffer(text.encode(), np.uint8)
    words = room_for(len(data))
    count = find_words(data, 0, len(data), *words)
    raw = text.encode()
    return [raw[begin:end].decode() for begin, end in words.rows[:count, :2].tolist()]


@compiled
def decode(data: Any, at: int) -> tuple[int, int]:
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
def flags_of(code: int) -> int:
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
        if first == _BYTE_LETTER or first == _BYTE_DIGIT:
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
        while at < end:
            kind = _KINDS[data[at]]
            if kind == _BYTE_SPACE or (kind == _BYTE_HIGH and space_width(data, at)):
                break
            value = (value ^ np.uint64(data[at])) * MULTIPLIER
            at += 1
        slot = np.int64(value >> _SLOT_SHIFT)
        if known_hashes[slot, 0] == value:
            count = _put_known(begin, slot, rows, hashes, count, known_cuts, known_hashes)
            continue
        before = count
        count = _cut_piece(data, begin, at, rows, hashes, piece, count)
        if at - begin <= _KNOWN_BYTES_MAX and count - before <= _KNOWN_WORDS_MAX:
            known_hashes[slot, 0] = value
            known_cuts[slot, 0] = count - before
            for word in range(before, count):
                place = 1 + word - before
                known_hashes[slot, place] = hashes[word]
                known_cuts[slot, place] = (rows[word, END] - begin) << 16 | rows[word, LENGTH] << 8 | rows[word, KIND]
    return count


@compiled
def _put_known(
    begin: int, slot: int, rows: Any, hashes: Any, count: int, known_cuts: Any, known_hashes: Any
) -> int:
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
def _may_be_special(value: Any) -> bool:
    bit = np.int64(value >> _BLOOM_SHIFT)
    return (_BLOOM[bit >> 3] >> (bit & 7)) & 1 != 0


@compiled
def _find_special(value: Any) -> int:
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
        code, width = decode(data, at)
        flag = flags_of(code)
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
def _put_plain(data: Any, begin: int, end: int, value: Any, kind: int, rows: Any, hashes: Any, count: int) -> int:
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
    return _put(data, piece[low, _BYTE], piece[high, _BYTE], rows, hashes, count)


@compiled
def _decode_piece(data: Any, begin: int, end: int, piece: Any) -> int:
    """Write the characters of `data[begin:end]` into `piece`; returns how many."""
    size = 0
    at = begin
    while at < end:
        code, width = decode(data, at)
        piece[size, _CODE], piece[size, _FLAGS], piece[size, _BYTE] = code, flags_of(code), at
        size += 1
        at += width
    piece[size, _BYTE] = end
    return size


@compiled
def _cut_piece(data: Any, begin: int, end: int, rows: Any, hashes: Any, piece: Any, count: int) -> int:
    """Cut a piece without white space by the full rules."""
    low, high, taken = 0, _decode_piece(data, begin, end, piece), 0
    while low < high:
        if _special_slot(data, low, high, piece) >= 0:
            break
        prefix = _prefix_length(piece, low, high)
        if prefix and _special_slot(data, low + prefix, high, piece) >= 0:
            count = _put_characters(data, low, low + prefix, rows, hashes, piece, count)
            low += prefix
            break
        suffix = _suffix_length(piece, low + prefix, high)
        if not prefix and not suffix:
            break
        special = suffix and _special_slot(data, low, high - suffix, piece) >= 0
        if prefix and not special:
            count = _put_characters(data, low, low + prefix, rows, hashes, piece, count)
            low += prefix
        if suffix:
            piece[taken, _MARK] = high
            taken += 1
            high -= suffix
        if special:
            break
    count = _cut_middle(data, low, high, rows, hashes, piece, count)
    while taken:
        taken -= 1
        count = _put_characters(data, high, piece[taken, _MARK], rows, hashes, piece, count)
        high = piece[taken, _MARK]
    return count


@compiled
def _special_slot(data: Any, low: int, high: int, piece: Any) -> int:
    """The slot of the special word that the piece's characters `low` to `high` are, or -1."""
    begin, end = piece[low, _BYTE], piece[high, _BYTE]
    if end - begin > _SPECIAL_BYTES_MAX or begin >= end:
        return -1
    value = SEED
    for at in range(begin, end):
        value = (value ^ np.uint64(data[at])) * MULTIPLIER
    return _find_special(value)


@compiled
def _is_digit(code: int) -> bool:
    return 0x30 <= code <= 0x39


@compiled
def _stops(piece: Any, at: int, high: int) -> int:
    """How many full stops stand in a row from `at` on."""
    end = at
    while end < high and piece[end, _CODE] == 0x2E:
        end += 1
    return end - at


@compiled
def _prefix_length(piece: Any, low: int, high: int) -> int:
    """How many characters come off the beginning."""
    code = piece[low, _CODE]
    if piece[low, _FLAGS] & PREFIX:
        return 1
    if code == 0x2B:
        return 0 if low + 1 < high and _is_digit(piece[low + 1, _CODE]) else 1
    if code == 0x2E:
        run = _stops(piece, low, high)
        return run if run >= 2 else 0
    if low + 1 < high and (code == 0x43 or code == 0x41) and piece[low + 1, _CODE] == 0x24:
        return 2
    if low + 2 < high and code == 0x55 and piece[low + 1, _CODE] == 0x53 and piece[low + 2, _CODE] == 0x24:
        return 3
    return 0


@compiled
def _suffix_length(piece: Any, low: int, high: int) -> int:
    """How many characters come off the end."""
    if low >= high:
        return 0
    longest = _unit_length(piece, low, high)
    last = piece[high - 1, _CODE]
    before = piece[high - 2, _CODE] if high - 2 >= low else 0
    if last == 0x2E:
        run = 1
        while high - run - 1 >= low and piece[high - run - 1, _CODE] == 0x2E:
            run += 1
        if run >= 2:
            return max(longest, run)
        return max(longest, _stop_length(piece, low, high))
    if last == 0x2026 and before == 0x2026:
        return max(longest, 2)
    if piece[high - 1, _FLAGS] & SUFFIX:
        return max(longest, 1)
    if (last == 0x73 or last == 0x53) and (before == 0x27 or before == 0x2019):
        return max(longest, 2)
    if last == 0x2B and _is_digit(before):
        return max(longest, 1)
    return longest


@compiled
def _stop_length(piece: Any, low: int, high: int) -> int:
    """1 where the one full stop at the end comes off, else 0."""
    if high - 2 < low:
        return 0
    if piece[high - 2, _FLAGS] & BEFORE_STOP:
        return 1
    if high - 3 < low:
        return 0
    if piece[high - 2, _FLAGS] & piece[high - 3, _FLAGS] & UPPER:
        return 1
    scale = piece[high - 2, _CODE]
    return 1 if piece[high - 3, _CODE] == 0xB0 and (scale == 0x43 or scale == 0x46 or scale == 0x4B) else 0


@compiled
def _unit_length(piece: Any, low: int, high: int) -> int:
    """The length of the measure or currency behind the last digit, where the end is one."""
    key = np.uint64(0)
    shift = np.uint64(0)
    at = high
    while at > low and high - at < _UNIT_CHARACTERS_MAX:
        at -= 1
        code = piece[at, _CODE]
        if _is_digit(code) or code > 0xFFFF:
            return 0
        key |= np.uint64(code) << shift
        shift += np.uint64(16)
        if at > low and _is_digit(piece[at - 1, _CODE]):
            if high - at == 1 and piece[at, _FLAGS] & characters.CURRENCY:
                return 1
            place = np.searchsorted(_UNIT_KEYS, key)
            return high - at if place < len(_UNIT_KEYS) and _UNIT_KEYS[place] == key else 0
    return 0


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
        length = _infix_length(piece, low, at, high)
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


@compiled
def _infix_length(piece: Any, low: int, at: int, high: int) -> int:
    """How many characters at `at`, within a word, are a word of their own."""
    code = piece[at, _CODE]
    if piece[at, _FLAGS] & ICON or code == 0x2026:
        return 1
    if code == 0x2E and _stops(piece, at, high) >= 2:
        return _stops(piece, at, high)
    if at == low or at + 1 >= high:
        return 0
    before, after = piece[at - 1, _FLAGS], piece[at + 1, _FLAGS]
    digit = _is_digit(piece[at - 1, _CODE])
    if code == 0x2B or code == 0x2D or code == 0x2A or code == 0x5E:
        if digit and (_is_digit(piece[at + 1, _CODE]) or piece[at + 1, _CODE] == 0x2D):
            return 1
    if code == 0x2E:
        return 1 if before & (LOWER | QUOTE) and after & (UPPER | QUOTE) else 0
    if code == 0x2C:
        return 1 if before & after & LETTER else 0
    if not (digit or before & LETTER):
        return 0
    if code == 0x3A or code == 0x3C or code == 0x3E or code == 0x3D or code == 0x2F:
        return 1 if after & LETTER else 0
    return _hyphen_length(piece, at, high)


@compiled
def _hyphen_length(piece: Any, at: int, high: int) -> int:
    """The length of the hyphen or dash at `at` that has a letter behind it, or 0."""
    code = piece[at, _CODE]
    if code != 0x2D and code != 0x2013 and code != 0x2014 and code != 0x7E:
        return 0
    longest = 3 if code == 0x2D else 2 if code == 0x2014 else 1
    for length in range(1, longest + 1):
        if at + length >= high:
            return 0
        if piece[at + length, _FLAGS] & LETTER:
            return length
        if piece[at + length, _CODE] != code:
            return 0
    return 0


@compiled
def is_url(piece: Any, low: int, high: int) -> bool:
    """Whether the characters are a URL as spaCy takes it: a scheme, a user and a path may be missing, a host not."""
    found = False
    for at in range(low + 1, high - 2):
        if piece[at, _CODE] == 0x2E:
            found = True
            break
    if not found:
        return False
    if _is_host(piece, low, high):
        return True
    scheme = True
    for at in range(low, high):
        code = piece[at, _CODE]
        if code == 0x40 and at > low and _is_host(piece, at + 1, high):
            return True
        if scheme and code == 0x3A and at - low >= 2 and at + 2 < high and piece[at + 1, _CODE] == 0x2F:
            if piece[at + 2, _CODE] == 0x2F and _is_host(piece, at + 3, high):
                return True
        word = piece[at, _FLAGS] & ALPHA or _is_digit(code) or code == 0x5F
        if not (word or code == 0x2B or code == 0x2D or code == 0x2E):
            scheme = False
    return False


@compiled
def _is_host(piece: Any, low: int, high: int) -> bool:
    """Whether a host name begins here, with nothing but a port and a path behind it."""
    at, label = low, low
    labels = 0
    while at < high:
        code = piece[at, _CODE]
        plain = _is_digit(code) or 0x41 <= code <= 0x5A or 0x61 <= code <= 0x7A or 0xA1 <= code <= 0xFFFF
        if code == 0x2E:
            size = at - label
            if size == 0 or size > _HOST_CHARACTERS_MAX or piece[at - 1, _CODE] == 0x2D or piece[at - 1, _CODE] == 0x5F:
                return False
            labels += 1
            label = at + 1
        elif not plain and (at == label or (code != 0x2D and code != 0x5F)):
            break
        at += 1
    if labels == 0 or not 2 <= at - label < _HOST_CHARACTERS_MAX:
        return False
    for place in range(label, at):
        if not piece[place, _FLAGS] & LOWER:
            return False
    return _is_behind_host(piece, at, high)


@compiled
def _is_behind_host(piece: Any, at: int, high: int) -> bool:
    if at < high and piece[at, _CODE] == 0x3A:
        at += 1
        digits = 0
        while at < high and _is_digit(piece[at, _CODE]):
            digits += 1
            at += 1
        if not 2 <= digits <= 5:
            return False
    return at == high or piece[at, _CODE] == 0x2F or piece[at, _CODE] == 0x3F or piece[at, _CODE] == 0x23
