"""What entries, messages and tasks speak of: fragments, ranges of their records, stored objects, and counts.

Apart from entries, which a task does not know: of the ledger it loads this and intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import xxhash

from headrace.store import Natural

#: Bytes of a fragment's name.
NAME_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of input as the ledger names it.

    `id` is the xxh3-128 of source stage, URI, object version, range and reader. `start` and `end` are bytes
    (`end` -1: to the end of the object). `version` is the object's ETag or size-mtime-inode when it was listed.
    """

    id: bytes
    stage: str
    uri: str
    version: str
    start: int
    end: int
    reader: str
    size: int

    @staticmethod
    def named(stage: str, uri: str, version: str, *, start: int, end: int, reader: str, size: int) -> Fragment:
        """The fragment of these facts, under the name that follows from them."""
        facts = "\0".join((stage, uri, version, str(start), str(end), reader))
        identity = xxhash.xxh3_128_digest(facts.encode("utf-8", "surrogateescape"))
        return Fragment(identity, stage, uri, version, start, end, reader, size)


@dataclass(frozen=True, slots=True)
class Range:
    """Records `first` to `first + count` of a fragment; `offset` and `length` are its bytes, or -1."""

    fragment: bytes
    first: Natural
    count: Natural
    offset: int = -1
    length: int = -1

    @property
    def end(self) -> int:
        """The ordinal behind the last record."""
        return self.first + self.count

    @property
    def stop(self) -> int:
        """The byte behind the last record, or -1."""
        return self.offset + self.length if self.offset >= 0 and self.length >= 0 else -1


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object that an entry names: its role in the shard, key, checksum (`xxh3-128:<hex>`) and size in bytes."""

    role: str
    key: str
    checksum: str
    size: Natural


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the records of a shard.

    `filtered_by` is keyed `stage/reason`, `quarantined_by` likewise, `edited` by stage. `counters` is what stages have
    counted besides, keyed `stage/name`: the names are the stages' own, and no part of the balance. `padding` is in
    tokens.
    """

    kept: Natural = 0
    filtered: Natural = 0
    duplicate: Natural = 0
    quarantined: Natural = 0
    filtered_by: Mapping[str, Natural] = field(default_factory=dict[str, int])
    quarantined_by: Mapping[str, Natural] = field(default_factory=dict[str, int])
    edited: Mapping[str, Natural] = field(default_factory=dict[str, int])
    tokens: Natural = 0
    sequences: Natural = 0
    padding: Natural = 0
    counters: Mapping[str, Natural] = field(default_factory=dict[str, int])

    @property
    def records(self) -> int:
        """Every record counted once."""
        return self.kept + self.filtered + self.duplicate + self.quarantined

    @property
    def by_fate(self) -> dict[str, int]:
        """Every record counted once, by what became of it; of the filtered and the quarantined by stage and reason."""
        return {"kept": self.kept, "duplicate": self.duplicate, **self.filtered_by, **self.quarantined_by}

    def __add__(self, other: Counts) -> Counts:
        def merged(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
            return {key: left.get(key, 0) + right.get(key, 0) for key in sorted({*left, *right})}

        values: list[Any] = []
        for name in Counts.__match_args__:
            left, right = getattr(self, name), getattr(other, name)
            values.append(left + right if isinstance(left, int) else merged(left, right) if left or right else {})
        return Counts(*values)
