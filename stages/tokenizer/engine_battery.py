"""Texts on which two engines are held against each other, made from a tokenizer's own file. Pure.

`probe_of` and `sweep_text` find the code points that the engines' tables of Unicode do not agree on: in a vocabulary
made for it, two bytes merge exactly where no boundary of words lies between them, so that the tokens show boundaries.
`company_text`, `spelled_text` and `unknown_codes` do so for a normalizer, which reorders and composes what stands
together.
`battery` is for all else: the words of the vocabulary, the added tokens and their neighbours, white space, digits.
"""

from __future__ import annotations

import itertools
import random
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: Words of the vocabulary that are tried.
WORDS_MAX = 16_384
#: Records of random characters.
MIXTURES = 4_096
#: Added tokens that are tried by themselves; those with properties of their own come first.
ADDED_MAX = 1_024
#: Added tokens with properties, or of white space, that are tried beside each other; and others with them.
BESIDE_MAX = 64
OTHERS_BESIDE = 8

#: What the boundaries beside a code point are looked at with.
_NEIGHBOURS = b"ab12 .\n"
#: Where code points of all planes have their first and last bytes.
_LEADS, _CONTINUATIONS = range(0xC2, 0xF5), range(0x80, 0xC0)
#: Behind the planes of ideographs nothing is assigned but some tags: of each 64 code points one stands for all.
_SPARSE_FROM = 0x40000
_TAGS = range(0xE0000, 0xE0200)
_SURROGATES = range(0xD800, 0xE000)
_STRIDE = 64

#: Kinds of characters that patterns of words tell apart, and what contractions are made of.
ALPHABET = (
    *" \t\n\r\v\f\x85\xa0\u1680\u2003\u2028\u202f\u3000\u200b\u200d\ufeff\0\x1b\x7f\u00ad",
    *("  ", "   ", "\n\n", "\r\n", " \n", "\t\t"),
    *"0123456789\u00bd\u00b2\u0663\u0967\u2167\uff15\U0001d7d8",
    *"abzABZ\u00e9\u00df\u0130\u01c5\u02b0\u03a3\u0416\u05d0\u0627\u0e01\u3042\u6f22\uac00\U00010400\u017f\u212a",
    *("'s", "'S", "'t", "'re", "'LL", "'ve", "'m", "'d", "\u2019s", "'\u017f", "n't"),
    *".,;:!?-_/\\'\"()[]{}<>@#$%^&*+=|~`\u2026\u2014\u201c\u3002\uff0c\u20ac\u00d7\u2192\U0001f600",
    *"\u0301\u0308\u093f\u0e31\u20dd\ufe0f",
    *("\U0001f469\u200d\U0001f469", "\U0001f1e9\U0001f1ea", "\ue000", "\U0010ffff", "\u0378"),
    *("the ", " of", "word", "http://", "://", "==", "//", "()", "\u4e2d\u6587", "\u0440\u0443"),
)
#: In which an added token is put.
_AROUND = "{0} x{0}y {0}  {0}\n{0}{0}\t{0}1 2{0}.{0}'s {0}\u00e9{0}\r\n {0} \u3000{0}"

#: What a normalizer makes one character of with a letter or a sign before it.
_MARKS = "\u0301\u0307\u0323\u0327\u0338\u3099"
#: Marks of the canonical classes 1, 7, 8, 202, 220 and 230: a normalizer puts another mark among them by its own.
_CLASSES = "\u0338\u093c\u3099\u0327\u0323\u0301"
#: Of the class behind all others, 240.
_LAST_CLASS = "\u0345"


def byte_characters() -> dict[int, str]:
    """The character that stands for each byte in a vocabulary of bytes, as GPT-2 has it."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}


def is_byte_level(parsed: Mapping[str, Any]) -> bool:
    """Whether the tokenizer splits text by patterns and merges bytes."""
    step = parsed.get("pre_tokenizer") or {}
    kinds = [part.get("type") for part in (step, *(step.get("pretokenizers") or ()))]
    return "ByteLevel" in kinds and not parsed["model"].get("byte_fallback")


def probe_of(parsed: Mapping[str, Any]) -> dict[str, Any]:
    """The same tokenizer with a vocabulary that shows boundaries; itself where it does not merge bytes."""
    if not is_byte_level(parsed):
        return dict(parsed)
    characters = byte_characters()
    merges = [
        *((beside, lead) for beside in _NEIGHBOURS for lead in _LEADS),
        *((last, beside) for last in _CONTINUATIONS for beside in _NEIGHBOURS),
        *((last, lead) for last in _CONTINUATIONS for lead in _LEADS),
    ]
    pairs = [[characters[left], characters[right]] for left, right in merges]
    vocabulary = {character: byte for byte, character in characters.items()}
    vocabulary |= {"".join(pair): number for number, pair in enumerate(pairs, start=len(vocabulary))}
    return {
        "version": parsed.get("version", "1.0"),
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": parsed.get("normalizer"),
        "pre_tokenizer": parsed.get("pre_tokenizer"),
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": pairs},
    }


def sweep_codes(*, every: bool = False) -> list[int]:
    """Code points above ASCII, ascending: `every` one, or without most of those where nothing is assigned."""
    return [
        code
        for code in range(0x80, 0x110000)
        if code not in _SURROGATES and (every or code < _SPARSE_FROM or code in _TAGS or code % _STRIDE == 0)
    ]


def sweep_text(codes: Sequence[int]) -> str:
    """Each code point within a word, between digits, behind a space and twice behind a full stop."""
    return "".join(f"a{c}b1{c}2 {c}.{c}{c}\n" for c in map(chr, codes))


def company_text(codes: Sequence[int]) -> str:
    """Each code point before marks of many classes, and behind one."""
    return "".join(f"a{c}{_CLASSES}b{_LAST_CLASS}{c}\n" for c in map(chr, codes))


def spelled_codes(codes: Sequence[int]) -> list[int]:
    """Those that have a canonical decomposition which Python knows."""
    return [code for code in codes if _spelled(code) != chr(code)]


def spelled_text(codes: Sequence[int]) -> str:
    """Each code point in its parts, all of them and the last two, with a mark before the last, and with one behind."""
    texts: list[str] = []
    for code in codes:
        parts = _spelled(code)
        first, last = parts[:-1], parts[-1]
        composed = unicodedata.normalize("NFC", first)
        texts.append(f"a{parts}b{composed}{last}c{first}\u0334{last}d{chr(code)}\u0323\n")
    return "".join(texts)


def spelled_with(code: int) -> set[int]:
    """The code point and those of its parts for which engines may differ on it.

    What Unicode had composed it keeps so: of the parts of a new character one is new, and version 3.2 is known to all.
    """
    parts = set(_spelled(code))
    new = {part for part in parts if unicodedata.ucd_3_2_0.category(part) == "Cn"}
    return {code, *map(ord, new or parts)}


def unknown_codes() -> set[int]:
    """Code points that Python's Unicode lacks: nothing says what a normalizer of a newer one makes of them."""
    return {code for code in range(0x80, 0x110000) if unicodedata.category(chr(code)) == "Cn"}


def battery(parsed: Mapping[str, Any]) -> Iterator[str]:
    """Texts, the same for the same file. Raises KeyError, TypeError or AttributeError for a file of another form."""
    generator = random.Random(0)
    yield from ("", " ", "a" * 1000, " " * 300, "\n" * 300, "1234567890" * 30, "ab " * 200, "a." * 200, "\u6f22" * 200)
    yield from ("".join(pair) for pair in itertools.product(ALPHABET, repeat=2))
    for _ in range(MIXTURES):
        yield "".join(generator.choices(ALPHABET, k=generator.randint(3, 40)))
    words = [word for word in _words(parsed) if word]
    words = generator.sample(words, min(len(words), WORDS_MAX))
    for start in range(0, len(words), 8):
        some = words[start : start + 8]
        yield " ".join(some)
        yield "".join(some)
        yield "".join(word.title() if at % 2 else word.upper() for at, word in enumerate(some))
    yield from _added_texts(parsed)


def ranges_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges, both ends included."""
    found: list[tuple[int, int]] = []
    for _, run in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        found.append((members[0], members[-1]))
    return found


def added_tokens(parsed: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Those with properties of their own first, then those with white space at an end, then the others."""
    every = [token for token in parsed.get("added_tokens") or [] if token["content"]]
    return sorted(every, key=lambda token: (not properties_of(token), not _is_blank(token)))


def properties_of(token: Mapping[str, Any]) -> frozenset[str]:
    """What else than its content decides where an added token matches."""
    return frozenset(name for name in ("single_word", "lstrip", "rstrip", "normalized") if token.get(name))


def _added_texts(parsed: Mapping[str, Any]) -> Iterator[str]:
    every = added_tokens(parsed)
    for token in every[:ADDED_MAX]:
        text = str(token["content"])
        yield _AROUND.format(text)
        yield f"{text[:-1]} {text[1:]} {text.upper()} {text.lower()} {text}{text[:-1]}"
        if parsed.get("normalizer"):
            # It is found in text that was normalized, or before: spelled otherwise, or with a mark behind it.
            spelled = {unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")}
            yield from (f"x{form}y {form} z" for form in sorted({*spelled, *(text + mark for mark in _MARKS)}))
    # What stands beside a token matters to those with properties, and to those of white space.
    special = [token for token in every if properties_of(token) or _is_blank(token)]
    near = [str(token["content"]) for token in (*special[:BESIDE_MAX], *every[len(special) :][:OTHERS_BESIDE])]
    for one, other in itertools.product(near, repeat=2):
        yield f"{one}{other}x{other}{one} {other} {one}"


def _spelled(code: int) -> str:
    return unicodedata.normalize("NFD", chr(code))


def _is_blank(token: Mapping[str, Any]) -> bool:
    text = str(token["content"])
    return text[0].isspace() or text[-1].isspace()


def _words(parsed: Mapping[str, Any]) -> Iterator[str]:
    """The words of the vocabulary as they stand in a text; what is no UTF-8 by itself is left out."""
    vocabulary: Any = parsed["model"]["vocab"]
    words = [str(entry[0]) for entry in vocabulary] if isinstance(vocabulary, list) else list(vocabulary)
    if not is_byte_level(parsed):
        yield from (word.replace("\u2581", " ").removeprefix("##").removesuffix("</w>") for word in words)
        return
    values = {character: byte for byte, character in byte_characters().items()}
    for word in words:
        if all(character in values for character in word):
            yield bytes(values[character] for character in word).decode("utf-8", "ignore")
