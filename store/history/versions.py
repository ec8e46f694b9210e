"""The versions of a dataset: when each was published, what made it, from which recipe and input, and its balance.

All of it follows from the fold of the ledger: entries are read, and no record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.store.datasets import count_retracted
from headrace.store.ledger import ClosedShard, Counts, LedgerState, main_sink

if TYPE_CHECKING:
    import pyarrow as pa

_VERDICTS = ("kept", "filtered", "duplicate", "quarantined")


@dataclass(frozen=True, slots=True)
class GrownObject:
    """An object of which a version shows more records than the version before it."""

    uri: str
    #: The version of the object: its ETag, or size, time and inode.
    version: str
    records: int


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """One version of a dataset, by the word of one sink."""

    version: int
    #: The entry that published it.
    entry: int
    #: Unix seconds; 0 where the entry does not say.
    at: int
    reason: str
    complete: bool
    #: The version whose shards it shows again; 0 where it is no rollback.
    restores: int
    #: The recipes of the records that it shows, in the order in which each last closed some; the last as JSON.
    recipes: tuple[str, ...]
    pipeline: Mapping[str, Any]
    #: What it shows of records, tokens and shards; `retracted` are documents among those kept.
    records: int
    kept: int
    filtered: int
    duplicate: int
    quarantined: int
    tokens: int
    shards: int
    retracted: int
    filtered_by: Mapping[str, int]
    quarantined_by: Mapping[str, int]
    #: Objects of which it shows records that the version before did not, and how many objects it shows at all.
    inputs: tuple[GrownObject, ...]
    objects: int


@dataclass(slots=True)
class _Shown:
    """What a version shows, as it is added up."""

    numbers: Counter[str] = field(default_factory=Counter[str])
    filtered_by: Counter[str] = field(default_factory=Counter[str])
    quarantined_by: Counter[str] = field(default_factory=Counter[str])
    recipes: dict[str, None] = field(default_factory=dict[str, None])

    def copy(self) -> _Shown:
        return _Shown(self.numbers.copy(), self.filtered_by.copy(), self.quarantined_by.copy(), dict(self.recipes))

    def add(self, shard: ClosedShard) -> None:
        counts: Counts = shard.closed.counts
        for name in (*_VERDICTS, "tokens"):
            self.numbers[name] += getattr(counts, name)
        self.numbers["shards"] += 1
        self.filtered_by.update(counts.filtered_by)
        self.quarantined_by.update(counts.quarantined_by)
        # An amendment may go back to a recipe that has closed records before.
        self.recipes.pop(shard.closed.version, None)
        self.recipes[shard.closed.version] = None


def history_of(state: LedgerState, sink: str) -> list[VersionFacts]:
    """The published versions, the oldest first, by the word of `sink`. Reads nothing."""
    shards = [shard for shard in state.shards if shard.closed.sink == sink]
    found: list[VersionFacts] = []
    shown_at: dict[int, _Shown] = {}
    shown, at = _Shown(), 0
    objects: set[tuple[str, str]] = set()
    for version, published in sorted(state.published.items()):
        restores = published.restores(version)
        fresh: list[ClosedShard] = []
        standing = [shard for shard in shards if published.shows_entry(shard.number)]
        if restores:
            shown = shown_at.get(restores, _Shown()).copy()
            objects = set(_read(standing, state))
        else:
            shown = shown.copy()
            while at < len(shards) and shards[at].number <= published.shows:
                if published.shows_entry(shards[at].number):
                    fresh.append(shards[at])
                at += 1
        for shard in fresh:
            shown.add(shard)
        inputs = _read(fresh, state)
        objects |= inputs.keys()
        shown_at[version] = shown
        numbers = shown.numbers
        found.append(
            VersionFacts(
                version=version,
                entry=published.number,
                at=published.at,
                reason=published.reason,
                complete=published.complete,
                restores=restores,
                recipes=tuple(shown.recipes),
                pipeline=state.pipelines.get(next(reversed(shown.recipes), state.pipeline_version), {}),
                records=sum(numbers[name] for name in _VERDICTS),
                **{name: numbers[name] for name in (*_VERDICTS, "tokens", "shards")},
                retracted=count_retracted(state, version, standing),
                filtered_by=dict(shown.filtered_by),
                quarantined_by=dict(shown.quarantined_by),
                inputs=tuple(GrownObject(*name, count) for name, count in inputs.items()),
                objects=len(objects),
            )
        )
    return found


def log_rows(state: LedgerState) -> pa.RecordBatchReader:
    """A row a published version, the oldest first, by the word of the main sink; what `headrace dataset log` shows."""
    import pyarrow as pa  # a command that shows the log needs none

    count = pa.int64()
    types: dict[str, pa.DataType] = {
        "version": count,
        "at": pa.timestamp("s", "UTC"),
        "reason": pa.string(),
        "complete": pa.bool_(),
        "restores": count,
        "recipes": pa.list_(pa.string()),
        **dict.fromkeys(("records", *_VERDICTS, "retracted", "tokens", "shards", "objects"), count),
    }
    schema = pa.schema(types)
    rows: list[dict[str, Any]] = []
    for facts in history_of(state, main_sink(state.counts)):
        row = {name: getattr(facts, name) for name in schema.names}
        rows.append({**row, "at": facts.at or None, "restores": facts.restores or None})
    return pa.Table.from_pylist(rows, schema).to_reader()


def _read(shards: Iterable[ClosedShard], state: LedgerState) -> Counter[tuple[str, str]]:
    """How many records the shards close of each object, by URI and version."""
    found: Counter[tuple[str, str]] = Counter()
    for shard in shards:
        for item in shard.closed.ranges:
            fragment = state.fragments[item.fragment].fragment
            found[fragment.uri, fragment.version] += item.count
    return found
