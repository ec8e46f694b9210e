"""English words that are split, or kept whole, against the general rules of `words`, and the loops' tables of them.

The choice is that of spaCy (3.8) for English, written as rules: contractions with and without their apostrophe,
abbreviations with their full stops, single letters with one, and emoticons.
"""

# ruff: noqa: RUF001 (characters that look alike are what this file is about)

from __future__ import annotations

from itertools import product
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headrace.stages.text.machine import compiled, hash_of, hash_span

#: Words which, without an apostrophe, are words of their own.
_PLAIN_WORDS: Final = frozenset(
    word for stem in ("ill", "its", "hell", "shell", "shed", "were", "well", "whore") for word in (stem, stem.title())
)
_ABBREVIATIONS: Final = (
    "Mt. Ak. Ala. Apr. Ariz. Ark. Aug. Calif. Colo. Conn. Dec. Del. Feb. Fla. Ga. Ia. Id. Ill. Ind. Jan. "
    "Jul. Jun. Kan. Kans. Ky. La. Mar. Mass. Mich. Minn. Miss. N.C. N.D. N.H. N.J. N.M. N.Y. Neb. Nebr. "
    "Nev. Nov. Oct. Okla. Ore. Pa. S.C. Sep. Sept. Tenn. Va. Wash. Wis. a.m. Adm. Bros. co. Co. Corp. D.C. "
    "Dr. e.g. E.g. E.G. Gen. Gov. i.e. I.e. I.E. Inc. Jr. Ltd. Md. Messrs. Mo. Mont. Mr. Mrs. Ms. p.m. "
    "Ph.D. Prof. Rep. Rev. Sen. St. vs. v.s."
)
_WHOLE: Final = (
    "'S 's ‘S ‘s and/or w/o 're 'Cause 'cause 'cos 'Cos 'coz 'Coz 'cuz 'Cuz 'bout ma'am Ma'am o'clock "
    "O'clock 'd 'em 'll 'nuff ' '' C++ \\\") <space> ä. ö. ü. —"
)
_DROPPED_G: Final = ("lovin", "havin", "doin", "goin", "nothin", "nuthin", "somethin", "ol")
_SPLIT: Final = (
    "y'|all y|all how|'d|'y How|'d|'y not|'ve not|ve Not|'ve Not|ve can|not Can|not gon|na Gon|na got|ta "
    "Got|ta let|'s Let|'s c'm|on C'm|on"
)
_MODALS: Final = "ca could do does did had may might must need ought sha should wo would"
_EMOTICONS: Final = (
    ":) :-) :)) :-)) :))) :-))) (: (-: =) (= :] :-] [: [-: [= =] :o) (o: :} :-} 8) 8-) (-8 ;) ;-) (; (-; :( "
    ":-( :(( :-(( :((( :-((( ): )-: =( >:( :') :'-) :'( :'-( :/ :-/ =/ =| :| :-| ]= =[ :1 :P :-P :p :-p :O "
    ":-O :o :-o :0 :-0 :() >:o :* :-* :3 :-3 =3 :> :-> :X :-X :x :-x :D :-D ;D ;-D =D xD XD xDD XDD 8D 8-D "
    "^_^ ^__^ ^___^ >.< >.> <.< ._. ;_; -_- -__- v.v V.V v_v V_V o_o o_O O_o O_O 0_o o_0 0_0 o.O O.o O.O "
    "o.o 0.0 o.0 0.o @_@ <3 <33 <333 </3 (^_^) (-_-) (._.) (>_<) (*_*)"
)


def special_words() -> dict[str, tuple[str, ...]]:
    """What each such word is split into."""
    found: dict[str, tuple[str, ...]] = {}
    for stem, endings in _stems():
        for head, ending in product((stem, stem.title()), endings):
            _add(found, head, *ending)
            _add(found, head, *(part.replace("'", "") for part in ending))
    for word in _PLAIN_WORDS:
        found.pop(word, None)
    for split in _SPLIT.split():
        _add(found, *split.split("|"))
    for scale in "cfkCFK":
        _add(found, "°", scale, ".")
    for hour, half in product(range(1, 13), ("a.m.", "am", "p.m.", "pm")):
        _add(found, str(hour), half)
    letters = [f"{letter}." for letter in "abcdefghijklmnopqrstuvwxyz"]
    dropped = [form for word in _DROPPED_G for form in (word, word.title(), f"{word}'", f"{word.title()}'")]
    for word in (*_ABBREVIATIONS.split(), *_WHOLE.split(), *_EMOTICONS.split(), *letters, *dropped):
        _add(found, word)
    # With the typographic apostrophe too.
    for parts in list(found.values()):
        if any("'" in part for part in parts):
            _add(found, *(part.replace("'", "’") for part in parts))
    return found


def _stems() -> list[tuple[str, list[tuple[str, ...]]]]:
    will, would = [("'ll",), ("'ll", "'ve")], [("'d",), ("'d", "'ve")]
    are: list[tuple[str, ...]] = [("'re",)]
    have: list[tuple[str, ...]] = [("'ve",)]
    has: list[tuple[str, ...]] = [("'s",)]
    negated: list[tuple[str, ...]] = [("n't",)]
    stems: list[tuple[str, list[tuple[str, ...]]]] = [
        ("i", [("'m",), ("'m", "a"), *will, *would, *have]),
        *((word, [*will, *would, *are, *have]) for word in ("you", "we", "they", "these", "those")),
        *((word, [*will, *would, *has]) for word in ("he", "she", "it", "that", "this")),
        *((word, [*will, *would, *has, *are, *have]) for word in ("who", "what", "when", "where", "why", "how")),
        ("there", [*will, *would, *has, *are, *have]),
    ]
    stems += [(word, [*negated, ("n't", "'ve")]) for word in _MODALS.split()]
    stems += [(word, have) for word in ("could", "might", "must", "should", "would")]
    stems += [(word, negated) for word in ("ai", "are", "is", "was", "were", "have", "has", "dare")]
    return stems


def _add(found: dict[str, tuple[str, ...]], *parts: str) -> None:
    found["".join(parts)] = parts


PARTS_MAX = 4
_SLOTS = 1 << 13
_SLOT_SHIFT = np.uint64(51)
_BLOOM_BITS = 1 << 13
_BLOOM_SHIFT = np.uint64(51)


def _tables() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
    """The hashes of the special words by slot, and the bytes of the parts of each."""
    slot_hashes = np.zeros(_SLOTS, np.uint64)
    slot_cuts = np.zeros((_SLOTS, PARTS_MAX), np.int32)
    for word, parts in special_words().items():
        value = hash_of(word)
        slot = value >> int(_SLOT_SHIFT)
        while slot_hashes[slot]:
            slot = (slot + 1) % _SLOTS
        slot_hashes[slot] = value
        slot_cuts[slot, : len(parts)] = [len(part.encode()) for part in parts]
    return slot_hashes, slot_cuts


def _bloom() -> npt.NDArray[np.uint8]:
    """A bit for the words of ASCII letters that come apart; few other words have one that is set."""
    bloom = np.zeros(_BLOOM_BITS // 8, np.uint8)
    for word, parts in special_words().items():
        if len(parts) > 1 and word.isascii() and word.isalpha():
            bit = hash_of(word) >> int(_BLOOM_SHIFT)
            bloom[bit >> 3] |= 1 << (bit & 7)
    return bloom


def _ends() -> npt.NDArray[np.uint8]:
    """`[bytes of a word, byte]`: whether a special word of this length begins (1), ends (2) with this byte."""
    encoded = [word.encode() for word in special_words()]
    table = np.zeros((max(map(len, encoded)) + 1, 256), np.uint8)
    for word in encoded:
        table[len(word), word[0]] |= 1
        table[len(word), word[-1]] |= 2
    return table


_SLOT_HASHES, SLOT_CUTS = _tables()
_BLOOM = _bloom()
_ENDS = _ends()
SPECIAL_BYTES_MAX = len(_ENDS) - 1


@compiled
def letters_slot(value: Any) -> Any:
    """The slot of the special word of ASCII letters with this hash, or -1 where it does not come apart."""
    bit = np.int64(value >> _BLOOM_SHIFT)
    if not (_BLOOM[bit >> 3] >> (bit & 7)) & 1:
        return -1
    slot = _find(value)
    return slot if slot >= 0 and SLOT_CUTS[slot, 1] else -1


@compiled
def special_slot(data: Any, begin: int, end: int) -> Any:
    """The slot of the special word `data[begin:end]`, or -1."""
    if end - begin > SPECIAL_BYTES_MAX or begin >= end:
        return -1
    # Hashing takes longer than this, and few words come through.
    if not (_ENDS[end - begin, data[begin]] & 1 and _ENDS[end - begin, data[end - 1]] & 2):
        return -1
    return _find(hash_span(data, begin, end))


@compiled
def _find(value: Any) -> Any:
    slot = np.int64(value >> _SLOT_SHIFT)
    while _SLOT_HASHES[slot] != 0:
        if _SLOT_HASHES[slot] == value:
            return slot
        slot = (slot + 1) & (_SLOTS - 1)
    return -1
