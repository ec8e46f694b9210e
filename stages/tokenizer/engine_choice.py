"""Which engine encodes with a tokenizer: gigatoken, held against Hugging Face tokenizers before the first record.

What the two do not treat alike goes to tokenizers: a record with a disputed code point or added token by itself, a
whole tokenizer where other texts differ (`headrace.stages.tokenizer.engine_check`). What was found is kept in the
user's cache, by the hash of what was looked at and the versions of both, since it takes seconds.

Which records one engine would encode otherwise than the other: found by bytes, before they are encoded.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.stages.runtime import environment
from headrace.stages.tokenizer.engine_battery import ranges_of
from headrace.store.files import own_cache, whole_file

GIGATOKEN = "gigatoken"
TOKENIZERS = "tokenizers"

#: Rises when what is compared, or the form of what is kept, changes.
COMPARISON = 2
#: Ranges of code points, and added tokens, of one tokenizer: more of them are no exception any longer.
RANGES_MAX = 1024
TOKENS_MAX = 64
#: What is kept of one tokenizer takes a few kilobytes.
KEPT_BYTES_MAX = 1 << 20

_CODE_POINT_MAX = 0x10FFFF
_CODE_POINT_MIN = 0x80  # below it a code point is one byte, and in every text


@dataclass(frozen=True)
class Choice:
    """An engine, and what goes to tokenizers all the same.

    `engine` says with versions what decides the tokens of a record: `gigatoken 0.10.0 + tokenizers 0.23.3`, or
    `tokenizers 0.23.3`; `why` is then what gigatoken does otherwise. `ranges` are code points, both ends included,
    ascending; `tokens` the contents of added tokens.
    """

    engine: str
    ranges: tuple[tuple[int, int], ...] = ()
    tokens: tuple[str, ...] = ()
    why: str = ""

    def __post_init__(self) -> None:
        ends = [end for pair in self.ranges for end in pair]
        if len(self.ranges) > RANGES_MAX or len(self.tokens) > TOKENS_MAX or not all(self.tokens):
            raise ValueError(f"{len(self.ranges)} ranges and {len(self.tokens)} added tokens are too many, or empty")
        if ends != sorted(ends) or any(not _CODE_POINT_MIN <= end <= _CODE_POINT_MAX for end in ends):
            raise ValueError("the ranges of code points are not ascending, or out of bounds")

    @property
    def is_gigatoken(self) -> bool:
        """Whether gigatoken encodes all but what is named."""
        return self.engine.startswith(GIGATOKEN)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        ranges = [list(pair) for pair in self.ranges]
        return {"engine": self.engine, "ranges": ranges, "tokens": list(self.tokens), "why": self.why}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Choice:
        """What `to_dict` gave; raises ValueError, KeyError or TypeError for anything else."""
        ranges = tuple((low, high) for low, high in data["ranges"])
        if any(type(end) is not int for pair in ranges for end in pair):
            raise TypeError("a code point is no whole number")
        tokens, engine, why = tuple(data["tokens"]), data["engine"], data["why"]
        if not all(isinstance(text, str) for text in (*tokens, engine, why)):
            raise TypeError("an added token, the engine or the reason is no text")
        return Choice(engine, ranges, tokens, why)


def engine_names() -> tuple[str, str]:
    """What `Choice.engine` is with the installed versions: where gigatoken encodes, and where tokenizers does all."""
    installed = environment(everything=False)
    quick, reference = (f"{name} {installed.get(name, '(absent)')}" for name in (GIGATOKEN, TOKENIZERS))
    return f"{quick} + {reference}", reference


def choose_engine(tokenizer: str, sha256: str) -> Choice:
    """Which engine encodes with the tokenizer.json at that path, whose hash is given.

    Raises PipelineError where tokenizers, which says what is right, cannot load it, or the file has changed.
    """

    def compare() -> Any:
        from headrace.stages.tokenizer.engine_check import held_against  # loads both engines

        return held_against(tokenizer, sha256)

    return kept(sha256, compare)


def kept(name: str, find_out: Callable[[], Choice]) -> Choice:
    """What was found out before under that name with the installed versions, or what `find_out` says."""
    names = engine_names()
    folder = own_cache("engines")
    versions = "-".join(part for part in names[0].split() if part[0].isdigit())
    path = folder / f"{name}-{versions}-{COMPARISON}.json" if folder else None
    if path:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            with path.open("rb") as file:
                found = Choice.from_dict(json.loads(file.read(KEPT_BYTES_MAX)))
            if found.engine in names:
                return found
    found = find_out()
    if path:
        # It is found out again next time.
        with contextlib.suppress(OSError), whole_file(path) as file:
            file.write(json.dumps(found.to_dict()).encode())
    return found


Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

#: Bytes that are looked at together: they and their masks stay in a core's cache.
CHUNK_BYTES = 64 << 10


@dataclass(frozen=True)
class Disputed:
    """Code points (`ranges`, both ends included, ascending) and added tokens that two engines do not treat alike."""

    ranges: tuple[tuple[int, int], ...] = ()
    tokens: tuple[str, ...] = ()

    def records(self, offsets: Places, content: Bytes) -> Places:
        """The records that hold one of these, ascending; `offsets` `[records + 1]` into the UTF-8 bytes `content`."""
        if not self.ranges and not self.tokens:
            return np.zeros(0, np.int64)
        begin = int(offsets[0])
        text = content[begin : int(offsets[-1])]
        kinds = [np.asarray(self._code_points(text) if self.ranges else (), np.int64)]
        if self.tokens:
            whole = text.tobytes()
            kinds += [np.fromiter(_occurrences(whole, token.encode()), np.int64) for token in self.tokens]
        places = np.concatenate(kinds) + begin
        found: Places = np.searchsorted(offsets, places, side="right") - 1
        found.sort()
        # Not by np.unique, which imports masked arrays.
        distinct: Places = found[np.append(True, found[1:] != found[:-1])[: len(found)]]
        return distinct

    def _code_points(self, text: Bytes) -> Places:
        """Where disputed code points begin."""
        leads = self._leads
        found: list[Places] = []
        for start in range(0, len(text), CHUNK_BYTES):
            chunk = text[start : start + CHUNK_BYTES]
            if chunk.max() < leads[0][0]:
                continue
            mask = np.zeros(len(chunk), np.bool_)
            for low, high in leads:
                mask |= chunk - np.uint8(low) <= high - low
            found.append(np.flatnonzero(mask) + start)
        if not found:
            return np.zeros(0, np.int64)
        places = np.concatenate(found)
        places = places[places + 1 < len(text)]
        pairs = text[places].astype(np.uint16) << 8 | text[places + 1]
        places = places[self._pairs[pairs]]
        codes = np.fromiter((_code_point(text, at) for at in places.tolist()), np.int64, len(places))
        bounds = np.array(self.ranges, np.int64)
        nearest = np.searchsorted(bounds[:, 0], codes, side="right") - 1
        within: npt.NDArray[np.bool_] = (nearest >= 0) & (codes <= bounds[nearest, 1])
        disputed: Places = places[within]
        return disputed

    @cached_property
    def _pairs(self) -> npt.NDArray[np.bool_]:
        """Of each two bytes, as a number, whether a disputed code point may begin with them."""
        pairs = np.zeros(1 << 16, np.bool_)
        for low, high in self.ranges:
            # The first two bytes stay the same over 64 code points at least, but for those of two bytes.
            step = 1 if low < 0x800 else 64
            for code in (*range(low, high + 1, step), high):
                first, second = chr(code).encode("utf-8", "surrogatepass")[:2]
                pairs[first << 8 | second] = True
        return pairs

    @cached_property
    def _leads(self) -> list[tuple[int, int]]:
        """The first bytes of disputed code points, as ranges."""
        return ranges_of(sorted(set((np.flatnonzero(self._pairs) >> 8).tolist())))


def _code_point(text: Bytes, at: int) -> int:
    """The code point that begins there; -1 where the text ends within it."""
    size = 2 if text[at] < 0xE0 else 3 if text[at] < 0xF0 else 4
    try:
        return ord(text[at : at + size].tobytes().decode())
    except (UnicodeDecodeError, TypeError):
        return -1


def _occurrences(text: bytes, part: bytes) -> Iterable[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)
