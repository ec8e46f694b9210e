"""Recipes: the versions of the pipeline that have closed a part of a dataset, and which part each has.

An amended pipeline, or another environment, goes on with what is open; what is closed stays as the one before made it.
So each closed range is of one recipe, that of the entry which closed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from headrace.store.ledger import ClosedShard, Counts, Fragment, LedgerState


@dataclass(frozen=True, slots=True)
class Recipe:
    """One version of the pipeline, and what the records that it closed became at one sink."""

    #: The pipeline's hash.
    version: str
    #: The pipeline as JSON; empty where the ledger does not hold it.
    pipeline: Mapping[str, Any]
    #: Whether what is open will be closed by it.
    in_force: bool
    counts: Counts
    #: Shards of all sinks, and the first and the last entry that closes one; -1 where there is none.
    shards: int
    first_entry: int = -1
    last_entry: int = -1


@dataclass(frozen=True, slots=True)
class ClosedRange:
    """Records `first` to `end` (exclusive) of a fragment, closed by one recipe."""

    fragment: Fragment
    first: int
    end: int
    version: str


def recipes_of(state: LedgerState, sink: str) -> tuple[Recipe, ...]:
    """The recipes that made a part of the dataset, and the one in force, in the order in which they were applied."""
    by_version: dict[str, list[ClosedShard]] = {version: [] for version in state.pipelines}
    for shard in state.shards:
        by_version.setdefault(shard.closed.version, []).append(shard)
    found: list[Recipe] = []
    for version, shards in by_version.items():
        in_force = version == state.pipeline_version
        if not shards and not in_force:
            continue
        counts = reduce(add, (shard.closed.counts for shard in shards if shard.closed.sink == sink), Counts())
        entries = [shard.number for shard in shards] or [-1]
        pipeline = state.pipelines.get(version, {})
        found.append(Recipe(version, pipeline, in_force, counts, len(shards), min(entries), max(entries)))
    return tuple(found)


def closed_ranges(state: LedgerState, sink: str) -> Iterator[ClosedRange]:
    """What a sink has closed of each fragment, in its order; neighbours of one recipe in one."""
    parts: dict[bytes, list[tuple[int, int, str]]] = {}
    for shard in state.shards:
        if shard.closed.sink == sink:
            for item in shard.closed.ranges:
                parts.setdefault(item.fragment, []).append((item.first, item.end, shard.closed.version))
    for name, fragment in state.fragments.items():
        joined: list[tuple[int, int, str]] = []
        for first, end, version in sorted(parts.get(name, ())):
            if joined and joined[-1][1:] == (first, version):
                joined[-1] = (joined[-1][0], end, version)
            else:
                joined.append((first, end, version))
        for first, end, version in joined:
            yield ClosedRange(fragment.fragment, first, end, version)
