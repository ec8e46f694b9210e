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

_BYTE_OTHER, _BYTE_LETTER, _BYTE_DIGIT, _BYTE_SPACE, _BYTE_HIGH = 0, 1, 2, 3, 4
SEED = np.uint64(0x243F6A8885A308D3)
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(51)
_BLOOM_SHIFT = np.uint64(48)
_BLOOM_BITS = 1 << 16
_SLOTS = 1 << 13
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

Bytes = npt.NDArray[np.uint8]


class Tables(NamedTuple):
    """What the splitter looks up."""

    flags: npt.NDArray[np.uint16]
    kinds: npt.NDArray[np.uint8]
    trailing: npt.NDArray[np.bool_]
    bloom: npt.NDArray[np.uint8]
    slot_hash: npt.NDArray[np.uint64]
    slot_cuts: npt.NDArray[np.int32]
    special_bytes_max: int
    units: npt.NDArray[np.uint64]


class Words(NamedTuple):
    """The words of one text: byte spans, code points, hashes and kinds; and scratch for one piece."""

    start: npt.NDArray[np.int32]
    end: npt.NDArray[np.int32]
    characters: npt.NDArray[np.int32]
    hash: npt.NDArray[np.uint64]
    kind: npt.NDArray[np.uint8]
    codes: npt.NDArray[np.int32]
    flags: npt.NDArray[np.uint16]
    offsets: npt.NDArray[np.int32]
    marks: npt.NDArray[np.int32]


def room_for(text_bytes: int) -> Words:
    """Room for the words of a text of so many bytes."""
    size = text_bytes + 2
    i32 = np.int32
    return Words(
        np.empty(size, i32), np.empty(size, i32), np.empty(size, i32), np.empty(size, np.uint64),
        np.empty(size, np.uint8), np.empty(size, i32), np.empty(size, np.uint16), np.empty(size, i32),
        np.empty(size, i32),
    )  # fmt: skip


def hash_of(word: str) -> int:
    """The hash that the splitter gives this word."""
    value = int(SEED)
    for byte in word.encode():
        value = (value ^ byte) * int(MULTIPLIER) & 0xFFFF_FFFF_FFFF_FFFF
    return value


@cache
def word_tables() -> Tables:
    """The tables for English."""
    kinds = np.zeros(256, np.uint8)
    kinds[128:] = _BYTE_HIGH
    kinds[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")] = _BYTE_LETTER
    kinds[list(b"0123456789")] = _BYTE_DIGIT
    kinds[list(b"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f ")] = _BYTE_SPACE
    trailing = np.zeros(256, np.bool_)
    trailing[list(_TRAILING_MARKS)] = True
    bloom = np.zeros(_BLOOM_BITS // 8, np.uint8)
    slot_hash = np.zeros(_SLOTS, np.uint64)
    slot_cuts = np.zeros((_SLOTS, 4), np.int32)
    specials = special_words()
    for word, parts in specials.items():
        value = hash_of(word)
        bit = value >> int(_BLOOM_SHIFT)
        bloom[bit >> 3] |= 1 << (bit & 7)
        slot = value >> int(_SHIFT)
        while slot_hash[slot]:
            slot = (slot + 1) % _SLOTS
        slot_hash[slot] = value
        slot_cuts[slot, : len(parts)] = [len(part) for part in parts]
    longest = max(len(word.encode()) for word in specials)
    units = np.array(sorted(_unit_key(unit) for unit in _UNITS), np.uint64)
    return Tables(characters.flags_table(), kinds, trailing, bloom, slot_hash, slot_cuts, longest, units)


def _unit_key(unit: str) -> int:
    key = 0
    for character in unit:
        key = key << 16 | ord(character)
    return key


def split_words(text: str) -> list[str]:
    """The words of a text; for tests and for curiosity: the filters never make Python strings."""
    data = np.frombuffer(text.encode(), np.uint8)
    words = room_for(len(data))
    count = find_words(data, 0, len(data), words, word_tables())
    raw = text.encode()
    return [raw[words.start[index] : words.end[index]].decode() for index in range(count)]


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
def space_width(data: Any, at: int, kinds: Any, flags: Any) -> int:
    """The width in bytes of the white space at a byte; 0 where there is none."""
    kind = kinds[data[at]]
    if kind == _BYTE_SPACE:
        return 1
    if kind != _BYTE_HIGH:
        return 0
    lead = data[at]
    # White space above ASCII begins with these bytes.
    if lead == 0xC2 or lead == 0xE2 or lead == 0xE3 or lead == 0xE1:
        code, width = decode(data, at)
        if flags[code] & SPACE:
            return width
    return 0


@compiled
def find_words(data: Any, start: int, end: int, words: Any, tables: Any) -> int:
    """Find the words of the text `data[start:end]`; returns how many."""
    kinds, flags = tables.kinds, tables.flags
    count = 0
    at = start
    while at < end:
        kind = kinds[data[at]]
        if kind == _BYTE_SPACE:
            at += 1
            continue
        if kind == _BYTE_HIGH:
            width = space_width(data, at, kinds, flags)
            if width:
                at += width
                continue
        count, at = _take_piece(data, at, end, words, count, tables)
    return count


@compiled
def _take_piece(data: Any, begin: int, end: int, words: Any, count: int, tables: Any) -> tuple[int, int]:
    """Cut the piece that begins here into words; returns the count of words so far, and the byte behind the piece."""
    kinds = tables.kinds
    value = SEED
    first = kinds[data[begin]]
    at = begin
    if first == _BYTE_LETTER or first == _BYTE_DIGIT:
        while at < end and kinds[data[at]] == first:
            value = (value ^ np.uint64(data[at])) * MULTIPLIER
            at += 1
        if at == end or kinds[data[at]] == _BYTE_SPACE:
            return _put_plain(data, begin, at, value, first, words, count, tables), at
        mark = data[at]
        if tables.trailing[mark] and (at + 1 == end or kinds[data[at + 1]] == _BYTE_SPACE):
            whole = (value ^ np.uint64(mark)) * MULTIPLIER
            splits = mark != 0x2E or _stop_splits(data, begin, at, tables)
            if splits and not _may_be_special(whole, tables):
                count = _put_plain(data, begin, at, value, first, words, count, tables)
                return _put(data, at, at + 1, words, count, tables.flags), at + 1
    while at < end:
        kind = kinds[data[at]]
        if kind == _BYTE_SPACE or (kind == _BYTE_HIGH and space_width(data, at, kinds, tables.flags)):
            break
        at += 1
    return _cut_piece(data, begin, at, words, count, tables), at


@compiled
def _stop_splits(data: Any, begin: int, at: int, tables: Any) -> bool:
    """Whether the full stop at `at`, behind ASCII letters or digits, is a word of its own."""
    flags = tables.flags
    if flags[data[at - 1]] & BEFORE_STOP:
        return True
    return at - begin >= 2 and (flags[data[at - 1]] & flags[data[at - 2]] & UPPER) != 0


@compiled
def _may_be_special(value: Any, tables: Any) -> bool:
    bit = np.int64(value >> _BLOOM_SHIFT)
    return (tables.bloom[bit >> 3] >> (bit & 7)) & 1 != 0


@compiled
def _find_special(value: Any, tables: Any) -> int:
    """The slot of the special word with this hash, or -1."""
    if not _may_be_special(value, tables):
        return -1
    slot = np.int64(value >> _SHIFT)
    while tables.slot_hash[slot] != 0:
        if tables.slot_hash[slot] == value:
            return slot
        slot = (slot + 1) & (_SLOTS - 1)
    return -1


@compiled
def _put(data: Any, begin: int, end: int, words: Any, count: int, flags: Any) -> int:
    """Add the word `data[begin:end]`."""
    value = SEED
    for at in range(begin, end):
        value = (value ^ np.uint64(data[at])) * MULTIPLIER
    some, symbols, marks, characters_found = 0, SYMBOL, PUNCTUATION, 0
    at = begin
    while at < end:
        code, width = decode(data, at)
        flag = np.int64(flags[code])
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
    words.start[count] = begin
    words.end[count] = end
    words.characters[count] = characters_found
    words.hash[count] = value
    words.kind[count] = kind
    return count + 1


@compiled
def _put_plain(data: Any, begin: int, end: int, value: Any, kind: int, words: Any, count: int, tables: Any) -> int:
    """Add a word of ASCII letters or of digits alone, in its parts where it is special."""
    slot = -1
    if kind == _BYTE_LETTER:
        slot = _find_special(value, tables)
    if slot >= 0 and tables.slot_cuts[slot, 1]:
        at = begin
        for part in range(4):
            length = tables.slot_cuts[slot, part]
            if length:
                count = _put(data, at, at + length, words, count, tables.flags)
                at += length
        return count
    words.start[count] = begin
    words.end[count] = end
    words.characters[count] = end - begin
    words.hash[count] = value
    words.kind[count] = HAS_LETTER | HAS_NO_SYMBOL if kind == _BYTE_LETTER else HAS_NO_SYMBOL
    return count + 1


@compiled
def _put_characters(data: Any, low: int, high: int, words: Any, count: int, tables: Any) -> int:
    """Add the word of the piece's characters `low` to `high`."""
    return _put(data, words.offsets[low], words.offsets[high], words, count, tables.flags)


@compiled
def _cut_piece(data: Any, begin: int, end: int, words: Any, count: int, tables: Any) -> int:
    """Cut a piece without white space by the full rules."""
    codes, flags, offsets = words.codes, words.flags, words.offsets
    size = 0
    at = begin
    while at < end:
        code, width = decode(data, at)
        codes[size] = code
        flags[size] = tables.flags[code]
        offsets[size] = at
        size += 1
        at += width
    offsets[size] = end
    low, high, taken = 0, size, 0
    while low < high:
        if _special_slot(data, low, high, words, tables) >= 0:
            break
        prefix = _prefix_length(codes, flags, low, high)
        if prefix and _special_slot(data, low + prefix, high, words, tables) >= 0:
            count = _put_characters(data, low, low + prefix, words, count, tables)
            low += prefix
            break
        suffix = _suffix_length(codes, flags, low + prefix, high, tables.units)
        if suffix and _special_slot(data, low, high - suffix, words, tables) >= 0:
            words.marks[taken] = high
            taken += 1
            high -= suffix
            break
        if not prefix and not suffix:
            break
        if prefix:
            count = _put_characters(data, low, low + prefix, words, count, tables)
            low += prefix
        if suffix:
            words.marks[taken] = high
            taken += 1
            high -= suffix
    count = _cut_middle(data, low, high, words, count, tables)
    while taken:
        taken -= 1
        count = _put_characters(data, high, words.marks[taken], words, count, tables)
        high = words.marks[taken]
    return count


@compiled
def _special_slot(data: Any, low: int, high: int, words: Any, tables: Any) -> int:
    """The slot of the special word that the piece's characters `low` to `high` are, or -1."""
    begin, end = words.offsets[low], words.offsets[high]
    if end - begin > tables.special_bytes_max or begin >= end:
        return -1
    value = SEED
    for at in range(begin, end):
        value = (value ^ np.uint64(data[at])) * MULTIPLIER
    return _find_special(value, tables)


@compiled
def _is_digit(code: int) -> bool:
    return 0x30 <= code <= 0x39


@compiled
def _stops(codes: Any, at: int, high: int) -> int:
    """How many full stops stand in a row from `at` on."""
    end = at
    while end < high and codes[end] == 0x2E:
        end += 1
    return end - at


@compiled
def _prefix_length(codes: Any, flags: Any, low: int, high: int) -> int:
    """How many characters come off the beginning."""
    code = codes[low]
    if flags[low] & PREFIX:
        return 1
    if code == 0x2B:
        return 0 if low + 1 < high and _is_digit(codes[low + 1]) else 1
    if code == 0x2E:
        run = _stops(codes, low, high)
        return run if run >= 2 else 0
    if low + 1 < high and (code == 0x43 or code == 0x41) and codes[low + 1] == 0x24:
        return 2
    if low + 2 < high and code == 0x55 and codes[low + 1] == 0x53 and codes[low + 2] == 0x24:
        return 3
    return 0


@compiled
def _suffix_length(codes: Any, flags: Any, low: int, high: int, units: Any) -> int:
    """How many characters come off the end."""
    if low >= high:
        return 0
    longest = _unit_length(codes, flags, low, high, units)
    last = codes[high - 1]
    before = codes[high - 2] if high - 2 >= low else 0
    if last == 0x2E:
        run = 1
        while high - run - 1 >= low and codes[high - run - 1] == 0x2E:
            run += 1
        if run >= 2:
            return max(longest, run)
        return max(longest, _stop_length(codes, flags, low, high))
    if last == 0x2026 and before == 0x2026:
        return max(longest, 2)
    if flags[high - 1] & SUFFIX:
        return max(longest, 1)
    if (last == 0x73 or last == 0x53) and (before == 0x27 or before == 0x2019):
        return max(longest, 2)
    if last == 0x2B and _is_digit(before):
        return max(longest, 1)
    return longest


@compiled
def _stop_length(codes: Any, flags: Any, low: int, high: int) -> int:
    """1 where the one full stop at the end comes off, else 0."""
    if high - 2 < low:
        return 0
    if flags[high - 2] & BEFORE_STOP:
        return 1
    if high - 3 < low:
        return 0
    if flags[high - 2] & flags[high - 3] & UPPER:
        return 1
    scale = codes[high - 2]
    return 1 if codes[high - 3] == 0xB0 and (scale == 0x43 or scale == 0x46 or scale == 0x4B) else 0


@compiled
def _unit_length(codes: Any, flags: Any, low: int, high: int, units: Any) -> int:
    """The length of the measure or currency behind the last digit, where the end is one."""
    key = np.uint64(0)
    shift = np.uint64(0)
    at = high
    while at > low and high - at < _UNIT_CHARACTERS_MAX:
        at -= 1
        code = codes[at]
        if _is_digit(code) or code > 0xFFFF:
            return 0
        key |= np.uint64(code) << shift
        shift += np.uint64(16)
        if at > low and _is_digit(codes[at - 1]):
            if high - at == 1 and flags[at] & characters.CURRENCY:
                return 1
            place = np.searchsorted(units, key)
            return high - at if place < len(units) and units[place] == key else 0
    return 0


@compiled
def _cut_middle(data: Any, low: int, high: int, words: Any, count: int, tables: Any) -> int:
    """Cut what is left of a piece between its prefixes and suffixes."""
    if low >= high:
        return count
    slot = _special_slot(data, low, high, words, tables)
    if slot >= 0:
        for part in range(4):
            length = tables.slot_cuts[slot, part]
            if length:
                count = _put_characters(data, low, low + length, words, count, tables)
                low += length
        return count
    if is_url(words.codes, words.flags, low, high):
        return _put_characters(data, low, high, words, count, tables)
    begin, at = low, low
    while at < high:
        length = _infix_length(words.codes, words.flags, low, at, high)
        if length == 0 or at == low:
            at += max(length, 1)
            continue
        if at > begin:
            count = _put_characters(data, begin, at, words, count, tables)
        count = _put_characters(data, at, at + length, words, count, tables)
        at += length
        begin = at
    if begin < high:
        count = _put_characters(data, begin, high, words, count, tables)
    return count


@compiled
def _infix_length(codes: Any, flags: Any, low: int, at: int, high: int) -> int:
    """How many characters at `at`, within a word, are a word of their own."""
    code = codes[at]
    if flags[at] & ICON or code == 0x2026:
        return 1
    if code == 0x2E and _stops(codes, at, high) >= 2:
        return _stops(codes, at, high)
    if at == low or at + 1 >= high:
        return 0
    before, after = flags[at - 1], flags[at + 1]
    digit = _is_digit(codes[at - 1])
    if code == 0x2B or code == 0x2D or code == 0x2A or code == 0x5E:
        if digit and (_is_digit(codes[at + 1]) or codes[at + 1] == 0x2D):
            return 1
    if code == 0x2E:
        return 1 if before & (LOWER | QUOTE) and after & (UPPER | QUOTE) else 0
    if code == 0x2C:
        return 1 if before & after & LETTER else 0
    if not (digit or before & LETTER):
        return 0
    if code == 0x3A or code == 0x3C or code == 0x3E or code == 0x3D or code == 0x2F:
        return 1 if after & LETTER else 0
    return _hyphen_length(codes, flags, at, high)


@compiled
def _hyphen_length(codes: Any, flags: Any, at: int, high: int) -> int:
    """The length of the hyphen or dash at `at` that has a letter behind it, or 0."""
    code = codes[at]
    if code != 0x2D and code != 0x2013 and code != 0x2014 and code != 0x7E:
        return 0
    longest = 3 if code == 0x2D else 2 if code == 0x2014 else 1
    for length in range(1, longest + 1):
        if at + length >= high:
            return 0
        if flags[at + length] & LETTER:
            return length
        if codes[at + length] != code:
            return 0
    return 0


@compiled
def is_url(codes: Any, flags: Any, low: int, high: int) -> bool:
    """Whether the characters are a URL as spaCy takes it: a scheme, a user and a path may be missing, a host not."""
    found = False
    for at in range(low + 1, high - 2):
        if codes[at] == 0x2E:
            found = True
            break
    if not found:
        return False
    if _is_host(codes, flags, low, high):
        return True
    scheme = True
    for at in range(low, high):
        code = codes[at]
        if code == 0x40 and at > low and _is_host(codes, flags, at + 1, high):
            return True
        if scheme and code == 0x3A and at - low >= 2 and at + 2 < high and codes[at + 1] == 0x2F:
            if codes[at + 2] == 0x2F and _is_host(codes, flags, at + 3, high):
                return True
        word = flags[at] & ALPHA or _is_digit(code) or code == 0x5F
        if not (word or code == 0x2B or code == 0x2D or code == 0x2E):
            scheme = False
    return False


@compiled
def _is_host(codes: Any, flags: Any, low: int, high: int) -> bool:
    """Whether a host name begins here, with nothing but a port and a path behind it."""
    at, label = low, low
    labels = 0
    while at < high:
        code = codes[at]
        plain = _is_digit(code) or 0x41 <= code <= 0x5A or 0x61 <= code <= 0x7A or 0xA1 <= code <= 0xFFFF
        if code == 0x2E:
            size = at - label
            if size == 0 or size > _HOST_CHARACTERS_MAX or codes[at - 1] == 0x2D or codes[at - 1] == 0x5F:
                return False
            labels += 1
            label = at + 1
        elif not plain and (at == label or (code != 0x2D and code != 0x5F)):
            break
        at += 1
    if labels == 0 or not 2 <= at - label < _HOST_CHARACTERS_MAX:
        return False
    for place in range(label, at):
        if not flags[place] & LOWER:
            return False
    return _is_behind_host(codes, at, high)


@compiled
def _is_behind_host(codes: Any, at: int, high: int) -> bool:
    if at < high and codes[at] == 0x3A:
        at += 1
        digits = 0
        while at < high and _is_digit(codes[at]):
            digits += 1
            at += 1
        if not 2 <= digits <= 5:
            return False
    return at == high or codes[at] == 0x2F or codes[at] == 0x3F or codes[at] == 0x23
