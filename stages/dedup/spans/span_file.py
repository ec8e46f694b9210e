"""The file of an index of repeated spans: its header, and what a reader believes of it.

An index is a file: HEADER_BYTES of JSON with its facts and the checksum of what follows, the hashes in ascending order
(uint64, the lowest byte first), and where one record keeps its span a hash of that one's id for each. Tasks map it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

import xxhash

from headrace.store import FormatError

#: How spans are found and hashed: behind any change in it.
SPAN_RULE = 2
SPANS_FORMAT = 1
#: Of a passage `words_min` is how many words it has.
UNITS = ("line", "paragraph", "passage")
#: Bytes of the header of an index, and hashes in one at most: 256 GiB.
HEADER_BYTES = 1024
SPANS_MAX = 1 << 34
#: Words of a span, at most.
WORDS_MAX = 1 << 16
_NAME = "headrace repeats"


@dataclass(frozen=True, slots=True)
class SpanFacts:
    """What an index holds: spans of `words_min` words and more that at least `records_min` records have.

    `keeps_one`: of these records one keeps it. `records` were counted. `checksum` is of the hashes.
    """

    unit: str
    words_min: int
    records_min: int
    keeps_one: bool
    records: int
    spans: int
    checksum: str
    rule: int = SPAN_RULE


def begin_checksum(unit: str, words_min: int, records_min: int, *, keeps_one: bool) -> Any:
    """The checksum of an index before its hashes: of what these stand for."""
    return xxhash.xxh3_128(json.dumps([SPAN_RULE, unit, words_min, records_min, keeps_one]).encode())


def write_header(facts: SpanFacts) -> bytes:
    """The first HEADER_BYTES of an index."""
    said = json.dumps({"name": _NAME, "format": SPANS_FORMAT, **asdict(facts)}, sort_keys=True).encode()
    return said.ljust(HEADER_BYTES, b" ")


def read_facts(path: str | os.PathLike[str]) -> SpanFacts:
    """What the header of an index says, and the size of the file confirms. Raises OSError, FormatError."""
    with open(path, "rb") as file:
        head, size = file.read(HEADER_BYTES), os.fstat(file.fileno()).st_size
    return facts_of(head, size, str(path))


def facts_of(head: bytes, size: int, path: str) -> SpanFacts:
    """What a header says of a file of so many bytes, whose name is for errors. Raises FormatError."""
    unreadable = f"{path} is no index of repeats"
    try:
        said = json.loads(head)
        name, made = said.pop("name"), said.pop("format")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise FormatError(f"{unreadable}: write it by `headrace dataset repeats`") from error
    if (name, made, said.get("rule")) != (_NAME, SPANS_FORMAT, SPAN_RULE):
        raise FormatError(f"{unreadable} of format {SPANS_FORMAT} and rule {SPAN_RULE}: write it again")
    kinds = {"unit": str, "keeps_one": bool, "checksum": str}
    fields: list[str] = list(SpanFacts.__dataclass_fields__)
    if sorted(said) != sorted(fields) or any(type(said[field]) is not kinds.get(field, int) for field in fields):
        raise FormatError(f"{unreadable}: its header says {sorted(said)}; write it again")
    facts = SpanFacts(**said)
    sound = (
        facts.unit in UNITS
        and 1 <= facts.words_min <= WORDS_MAX
        and facts.records_min >= 2
        and 0 <= facts.spans <= SPANS_MAX
    )
    if not sound or size != HEADER_BYTES + facts.spans * (16 if facts.keeps_one else 8):
        raise FormatError(f"{unreadable}: {size} bytes for {facts.spans} spans; write it again")
    return facts
