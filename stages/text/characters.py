"""What each code point is to the rules: one table of flags, indexed by code point.

The classes are those of the word splitter of spaCy (3.8) for English, which datatrove uses, told by Unicode category
where that says the same: icons are category So, and letters are those of Latin, Greek and Cyrillic with their case and
whole blocks of the scripts without case. Sentence ends are Unicode's property Sentence_Terminal (PropList.txt, 16.0).
"""

# ruff: noqa: RUF001 (characters that look alike are what this file is about)

from __future__ import annotations

import string
import unicodedata
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

#: Code points with a lower case of their own are below this.
LOWER_MAX: Final = 0x20000
#: `str.isspace`.
SPACE: Final = 1 << 0
#: `str.isalpha`.
ALPHA: Final = 1 << 1
#: May stand for a lower-case letter, for an upper-case letter, for any letter, when words are split.
LOWER: Final = 1 << 2
UPPER: Final = 1 << 3
LETTER: Final = 1 << 4
#: Splits off the beginning of a word, off its end, and anywhere within.
PREFIX: Final = 1 << 5
SUFFIX: Final = 1 << 6
ICON: Final = 1 << 7
QUOTE: Final = 1 << 8
#: A word of these alone is no word to Gopher's counts.
SYMBOL: Final = 1 << 9
#: Unicode category P.
PUNCTUATION: Final = 1 << 10
#: A full stop behind it splits off.
BEFORE_STOP: Final = 1 << 11
#: Ends a sentence, as a word of its own.
SENTENCE_END: Final = 1 << 12
CURRENCY: Final = 1 << 13
#: `str.splitlines`.
LINE_BREAK: Final = 1 << 14
#: Ends a line that FineWeb counts as punctuated.
LINE_END: Final = 1 << 15

CODE_POINTS: Final = 0x110000
#: Behind it there are no letters, marks of punctuation or symbols.
_NAMED_MAX: Final = 0x323B0
#: Code points that are asked about at once.
_BLOCK: Final = 256

_UNCASED: Final = (
    (0x0591, 0x05F4), (0xFB1D, 0xFB4F),  # Hebrew
    (0x0620, 0x064A), (0x066E, 0x06D5), (0x06E5, 0x06FF), (0x0750, 0x077F), (0x08A0, 0x08BD), (0xFB50, 0xFBB1),
    (0xFBD3, 0xFD3D), (0xFD50, 0xFDC7), (0xFDF0, 0xFDFB), (0xFE70, 0xFEFC), (0x1EE00, 0x1EEBB),  # Arabic
    (0x0900, 0x09FF), (0x0B80, 0x0BFF), (0x0C00, 0x0CFF), (0x0D80, 0x0DFF),  # Indic
    (0x1100, 0x11FF), (0xAC00, 0xD7AF),  # Hangul
    (0x1200, 0x137F),  # Ethiopic
    (0x2E80, 0x2FDF), (0x2FF0, 0x303F), (0x3040, 0x30FF), (0x31C0, 0x31EF), (0x3200, 0x33FF), (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0xFE30, 0xFE4F), (0x1F200, 0x1F2FF),
    (0x20000, 0x2FA1F),  # Chinese, Japanese
)  # fmt: skip
_CASED: Final = (
    (0x0041, 0x024F), (0x0250, 0x02AF), (0x1D00, 0x1D25), (0x1D6B, 0x1D9A), (0x1E00, 0x1EFF), (0x2C60, 0x2C7F),
    (0xA722, 0xA7FA), (0xAB30, 0xAB64), (0xFF21, 0xFF3A), (0xFF41, 0xFF5A),  # Latin
    (0x0386, 0x03CE), (0x0400, 0x045F), (0x0490, 0x0491), (0x0496, 0x0497), (0x04A2, 0x04A3), (0x04AE, 0x04AF),
    (0x04BA, 0x04BB), (0x04D8, 0x04D9), (0x04E8, 0x04E9),  # Greek, Cyrillic
)  # fmt: skip

SENTENCE_ENDS: Final = (
    (0x21, 0x21), (0x2E, 0x2E), (0x3F, 0x3F), (0x589, 0x589), (0x61D, 0x61F), (0x6D4, 0x6D4), (0x700, 0x702),
    (0x7F9, 0x7F9), (0x837, 0x837), (0x839, 0x839), (0x83D, 0x83E), (0x964, 0x965), (0x104A, 0x104B),
    (0x1362, 0x1362), (0x1367, 0x1368), (0x166E, 0x166E), (0x1735, 0x1736), (0x17D4, 0x17D6), (0x17D9, 0x17DA),
    (0x1803, 0x1803), (0x1809, 0x1809), (0x1944, 0x1945), (0x1AA8, 0x1AAB), (0x1B5A, 0x1B5B), (0x1B5E, 0x1B5F),
    (0x1B7D, 0x1B7E), (0x1C3B, 0x1C3C), (0x1C7E, 0x1C7F), (0x203C, 0x203D), (0x2047, 0x2049), (0x2E2E, 0x2E2E),
    (0x2E3C, 0x2E3C), (0x2E53, 0x2E54), (0x3002, 0x3002), (0xA4FF, 0xA4FF), (0xA60E, 0xA60F), (0xA6F3, 0xA6F3),
    (0xA6F7, 0xA6F7), (0xA876, 0xA877), (0xA8CE, 0xA8CF), (0xA92F, 0xA92F), (0xA9C8, 0xA9C9), (0xAA5D, 0xAA5F),
    (0xAAF0, 0xAAF1), (0xABEB, 0xABEB), (0xFE52, 0xFE52), (0xFE56, 0xFE57), (0xFF01, 0xFF01), (0xFF0E, 0xFF0E),
    (0xFF1F, 0xFF1F), (0xFF61, 0xFF61), (0x10A56, 0x10A57), (0x10F55, 0x10F59), (0x10F86, 0x10F89),
    (0x11047, 0x11048), (0x110BE, 0x110C1), (0x11141, 0x11143), (0x111C5, 0x111C6), (0x111CD, 0x111CD),
    (0x111DE, 0x111DF), (0x11238, 0x11239), (0x1123B, 0x1123C), (0x112A9, 0x112A9), (0x1144B, 0x1144C),
    (0x115C2, 0x115C3), (0x115C9, 0x115D7), (0x11641, 0x11642), (0x1173C, 0x1173E), (0x11944, 0x11944),
    (0x11946, 0x11946), (0x11A42, 0x11A43), (0x11A9B, 0x11A9C), (0x11C41, 0x11C42), (0x11EF7, 0x11EF8),
    (0x11F43, 0x11F44), (0x16A6E, 0x16A6F), (0x16AF5, 0x16AF5), (0x16B37, 0x16B38), (0x16B44, 0x16B44),
    (0x16E98, 0x16E98), (0x1BC9F, 0x1BC9F), (0x1DA88, 0x1DA88),
)  # fmt: skip

_QUOTES: Final = "'\"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉\u2329\u232a⟦⟧"
_MARKS: Final = "…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪"
_CURRENCIES: Final = "$£€¥฿₽﷼₴" + "".join(map(chr, range(0x20A0, 0x20C0)))
#: Beside ASCII punctuation, control characters and sentence ends: what text normalisers of web crawls take out.
_SYMBOLS: Final = "«´»–—’“”„…∶━►、。〈〉《》「」【】！％（），．１：；？～\u300c\u300d"
#: Python tells these spaces and lines apart from Unicode's category Z.
_SPACES: Final = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f\x20\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_LINE_BREAKS: Final = "\n\x0b\x0c\r\x1c\x1d\x1e\x85\u2028\u2029"


@cache
def flags_table() -> npt.NDArray[np.uint16]:
    """`[0x110000]` the flags of each code point."""
    table = np.zeros(CODE_POINTS, np.uint16)
    _mark_categories(table)
    for first, last in _UNCASED:
        table[first : last + 1] |= LOWER | UPPER | LETTER
    for first, last in SENTENCE_ENDS:
        table[first : last + 1] |= SYMBOL | SENTENCE_END | LINE_END
    _mark(table, _SPACES, SPACE)
    _mark(table, _LINE_BREAKS, LINE_BREAK)
    _mark(table, _QUOTES, PREFIX | SUFFIX | QUOTE | BEFORE_STOP)
    _mark(table, _MARKS, PREFIX | SUFFIX | BEFORE_STOP)
    _mark(table, "—–", PREFIX | SUFFIX)
    _mark(table, "§%=", PREFIX)
    _mark(table, "%²-+|0123456789", BEFORE_STOP)
    _mark(table, _CURRENCIES, PREFIX | CURRENCY)
    _mark(table, string.punctuation + _SYMBOLS, SYMBOL)
    for first, last in ((0, 8), (11, 12), (13, 31), (127, 159)):
        table[first : last + 1] |= SYMBOL
    table[(table & LOWER) != 0] |= BEFORE_STOP
    table.flags.writeable = False
    return table


def two_levels(table: npt.NDArray[np.uint16]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint16]]:
    """The same table as `[4352]` numbers of blocks and `[blocks, 256]`: it fits a cache, and compiled code."""
    numbers: dict[bytes, int] = {}
    block_of = [numbers.setdefault(block.tobytes(), len(numbers)) for block in table.reshape(-1, 256)]
    assert len(numbers) <= 256
    return np.array(block_of, np.uint8), np.frombuffer(b"".join(numbers), np.uint16).reshape(-1, 256)


@cache
def lower_steps() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int16]]:
    """What leads from a code point below LOWER_MAX to its lower case, as `two_levels` gives a table.

    It is 0 where the lower case is more than one code point, or far off.
    """
    table = np.zeros(LOWER_MAX, np.int16)
    for first in range(0, LOWER_MAX, _BLOCK):
        block = _characters(first)
        lower = block.lower()
        if lower == block:
            continue
        if len(lower) == len(block):
            codes = np.frombuffer(lower.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.int64)
        else:
            folded = [character.lower() for character in block]
            codes = np.array([ord(low) if len(low) == 1 else ord(own) for low, own in zip(folded, block, strict=True)])
        ahead = codes - np.arange(first, first + _BLOCK)
        table[first : first + _BLOCK] = np.where(abs(ahead) < 1 << 15, ahead, 0)
    blocks, steps = two_levels(table.view(np.uint16))
    return blocks, steps.view(np.int16)


def _mark(table: npt.NDArray[np.uint16], characters: str, flag: int) -> None:
    table[[ord(character) for character in characters]] |= flag


def _mark_categories(table: npt.NDArray[np.uint16]) -> None:
    meant = {"So": ICON | PREFIX | SUFFIX, "Ll": ALPHA, "Lu": ALPHA, "Lt": ALPHA, "Lm": ALPHA, "Lo": ALPHA}
    meant |= dict.fromkeys(("Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"), PUNCTUATION)
    for first in range(0, _NAMED_MAX, _BLOCK):
        block = _characters(first)
        # Most blocks are of letters alone, and a question a block takes no time.
        kinds = ["Lo"] if block.isalpha() else list(map(unicodedata.category, block))
        table[first : first + _BLOCK] |= np.array([meant.get(kind, 0) for kind in kinds], np.uint16)
    cased = {"Ll": LOWER, "Lu": UPPER}
    for first, last in _CASED:
        for code in range(first, last + 1):
            kind = unicodedata.category(chr(code))
            if kind.startswith("L"):
                table[code] |= LETTER | cased.get(kind, 0)


def _characters(first: int) -> str:
    """The code points of a block, surrogates among them."""
    return np.arange(first, first + _BLOCK, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
