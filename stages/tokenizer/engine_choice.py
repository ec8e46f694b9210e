"""Which engine encodes with a tokenizer: gigatoken, held against Hugging Face tokenizers before the first record.

What the two do not treat alike goes to tokenizers: a record with a disputed code point or added token by itself, a
whole tokenizer where other texts differ (`headrace.stages.tokenizer.engine_check`). What was found is kept in the
user's cache, by the hash of what was looked at and the versions of both, since it takes seconds.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.stages.runtime import environment
from headrace.store.files import own_cache, whole_file

GIGATOKEN = "gigatoken"
TOKENIZERS = "tokenizers"

#: Rises when what is compared, or the form of what is kept, changes.
COMPARISON = 3
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
