"""English words that are split, or kept whole, against the general rules of `words`.

The choice is that of spaCy (3.8) for English, written as rules: contractions with and without their apostrophe,
abbreviations with their full stops, single letters with one, and emoticons.
"""

# ruff: noqa: RUF001 (characters that look alike are what this file is about)

from __future__ import annotations

from itertools import product
from typing import Final

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
