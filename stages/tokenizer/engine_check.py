"""gigatoken held against tokenizers on one tokenizer: which records it would encode otherwise."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from headrace.pipeline import PipelineError
from headrace.stages.runtime import tell
from headrace.stages.tokenizer.engine_battery import (
    added_tokens,
    battery,
    company_text,
    is_byte_level,
    probe_of,
    properties_of,
    ranges_of,
    spelled_codes,
    spelled_text,
    spelled_with,
    sweep_codes,
    sweep_text,
    unknown_codes,
)
from headrace.stages.tokenizer.engine_choice import TOKENS_MAX, Choice, engine_names, kept
from headrace.stages.tokenizer.engines import Disputed, Encoder, Gigatoken, is_fault, tokenizers_encoder
from headrace.stages.tokenizer.vocabulary import tokenizer_bytes

#: Code points a record of the sweep: where a record differs, each is looked at by itself.
SWEEP_RECORD = 16
#: Code points of records that differ, beyond which it is not for the code points that they do.
SUSPECTS_MAX = 32_768
#: Records that are encoded together.
BATCH_RECORDS = 4_096
#: Characters of a text, or of a reason, in a message.
_SHOWN = 200


class DiffersError(Exception):
    """gigatoken does not do for this tokenizer what tokenizers does."""


def held_against(tokenizer: str, sha256: str) -> Choice:
    """What was found by comparing them. Raises PipelineError where the file changed, or tokenizers cannot load it."""
    data = tokenizer_bytes(tokenizer, sha256)
    # This comes once for a tokenizer, and takes longer than all else in a declaration.
    tell("comparing gigatoken with tokenizers on this tokenizer, once (some seconds) ...")
    try:
        judge = tokenizers_encoder(data)
    except Exception as error:
        raise PipelineError(
            f"tokenizers cannot load {tokenizer} ({error}): give the path of a tokenizer.json"
        ) from error
    both, reference = engine_names()
    try:
        parsed = orjson.loads(data)
        _check_ids(parsed)
        quick = Gigatoken(data)
        ranges = _swept(parsed)
        return Choice(both, ranges, _disputed_tokens(parsed, ranges, _differing(battery(parsed), quick, judge)))
    except BaseException as error:
        if not is_fault(error):
            raise
        return Choice(reference, why=" ".join(str(error).split())[:_SHOWN] or type(error).__name__)


def _check_ids(parsed: Mapping[str, Any]) -> None:
    """Raise DiffersError where two tokens have one id: which of them gigatoken takes differs from load to load."""
    vocabulary: Any = parsed["model"]["vocab"]
    ids = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    ids |= {token["content"]: token["id"] for token in parsed.get("added_tokens") or []}
    names: dict[int, str] = {}
    for name, number in ids.items():
        if names.setdefault(number, name) != name:
            raise DiffersError(f"the tokens {names[number]!r} and {name!r} have the same id {number}")


def _swept(parsed: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """The code points that the engines do not treat alike."""
    probe = orjson.dumps(probe_of(parsed), option=orjson.OPT_SORT_KEYS)

    def sweep() -> Choice:
        quick, judge = Gigatoken(probe), tokenizers_encoder(probe)
        unknown = unknown_codes() if parsed.get("normalizer") else set()
        codes = [code for code in sweep_codes() if code not in unknown]
        disputed = unknown | sweep_disputed(quick, judge, codes)
        if parsed.get("normalizer"):
            disputed |= sweep_disputed(quick, judge, codes, company_text)
            for code in sweep_disputed(quick, judge, spelled_codes(codes), spelled_text):
                disputed |= spelled_with(code)
        return Choice(engine_names()[0], tuple(ranges_of(sorted(disputed))))

    beside = company_text([0x80]) if parsed.get("normalizer") else ""
    name = hashlib.sha256(probe + beside.encode()).hexdigest()
    # The probe of a vocabulary of bytes is that of many tokenizers; of another it is the tokenizer itself.
    return (kept(name, sweep) if is_byte_level(parsed) else sweep()).ranges


def sweep_disputed(
    quick: Encoder,
    judge: Encoder,
    codes: Sequence[int],
    text_of: Callable[[Sequence[int]], str] = sweep_text,
    size: int = SWEEP_RECORD,
) -> set[int]:
    """Those code points whose `text_of` the two do not encode alike; `size` a record at first."""
    groups = [codes[start : start + size] for start in range(0, len(codes), size)]
    of_text = {text_of(group): group for group in groups}
    suspects: list[int] = []
    for text in _differing(of_text, quick, judge):
        suspects += of_text[text]
        if len(suspects) > SUSPECTS_MAX:
            raise DiffersError(f"gigatoken encodes {text[:_SHOWN]!r}, and much else, differently from tokenizers")
    return set(suspects) if size == 1 or not suspects else sweep_disputed(quick, judge, suspects, text_of, 1)


def _disputed_tokens(
    parsed: Mapping[str, Any], ranges: tuple[tuple[int, int], ...], differing: Iterable[str]
) -> tuple[str, ...]:
    """The fewest added tokens of which one stands in each text that differs; raises DiffersError where none does.

    With one that differs go all that match by the same properties.
    """
    tokens = {str(token["content"]): properties_of(token) for token in added_tokens(parsed)}
    known = Disputed(ranges)
    left = [text for text in differing if not _holds(known, text)]
    chosen: set[str] = set()
    while left:
        counts = {token: sum(token in text for text in left) for token in tokens}
        best = max(counts, key=lambda token: (counts[token], bool(tokens[token])), default="")
        if not best or not counts[best]:
            raise DiffersError(f"gigatoken encodes {left[0][:_SHOWN]!r} differently from tokenizers")
        chosen.add(best)
        left = [text for text in left if best not in text]
    properties = {tokens[token] for token in chosen} - {frozenset()}
    chosen |= {token for token, its in tokens.items() if its in properties}
    if parsed.get("normalizer") and any("normalized" in tokens[token] for token in chosen):
        # It is found in text that was normalized, and not in that of the record.
        raise DiffersError(f"gigatoken matches the added token {min(chosen)!r} differently from tokenizers")
    if len(chosen) > TOKENS_MAX:
        raise DiffersError(f"gigatoken treats {len(chosen)} added tokens differently from tokenizers")
    return tuple(sorted(chosen))


def _holds(disputed: Disputed, text: str) -> bool:
    data = np.frombuffer(text.encode(), np.uint8)
    return bool(len(disputed.records(np.array([0, len(data)]), data)))


def _differing(texts: Iterable[str], quick: Encoder, judge: Encoder) -> Iterator[str]:
    """Those that the two do not encode alike."""
    rest = iter(texts)
    while batch := list(itertools.islice(rest, BATCH_RECORDS)):
        column = pa.array(batch, pa.string())
        (bounds, tokens), (expected_bounds, expected) = quick(column), judge(column)
        if np.array_equal(bounds, expected_bounds) and np.array_equal(tokens, expected):
            continue
        for at, text in enumerate(batch):
            mine = tokens[bounds[at] : bounds[at + 1]]
            if not np.array_equal(mine, expected[expected_bounds[at] : expected_bounds[at + 1]]):
                yield text
