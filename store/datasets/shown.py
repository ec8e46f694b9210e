"""Which records a version shows: a ledger's state with the shards of one version, and without what a rollback hides.

What reads a dataset counts what stands in such a state, so none of it is ever counted that its version does not show.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import reduce
from operator import add

from headrace.store.datasets.dataset import Dataset, main_object
from headrace.store.ledger import ClosedShard, Counts, FragmentState, LedgerState


def as_shown(dataset: Dataset) -> Dataset:
    """A dataset without the shards that a rollback hides: those of its newest version, and those closed since."""
    state = dataset.state
    newest = state.newest
    if newest is None or not state.rolled_back:
        return dataset
    shards = [shard for shard in state.shards if not newest.hides_entry(shard.number)]
    closed = {item.fragment for shard in state.shards for item in shard.closed.ranges}
    found = _state_of(state, shards, [name for name in state.fragments if name not in closed])
    found.pipeline_version, found.pipeline = state.pipeline_version, state.pipeline
    found.version, found.published = state.version, state.published
    found.retracted, found.retracted_at = state.retracted, state.retracted_at
    found.held_at, found.held = state.held_at, state.held
    return Dataset(dataset.store, found)


def state_at(state: LedgerState, version: int) -> LedgerState:
    """What the ledger says of the shards that a published version shows; of fragments, those of which it shows any."""
    published = state.published[version]
    shards = [shard for shard in state.shards if published.shows_entry(shard.number)]
    found = _state_of(state, shards)
    found.pipeline_version = shards[-1].closed.version if shards else state.pipeline_version
    found.pipeline = state.pipelines.get(found.pipeline_version, state.pipeline)
    found.version = version
    found.published = {number: item for number, item in state.published.items() if number <= version}
    # What was taken down since is gone from this version too, as if from its beginning.
    found.retracted = [
        [min(since, version), key, rows] for since, key, rows in state.retracted if state.hides(since, version)
    ]
    found.retracted_at = state.retracted_at if found.retracted else -1
    return found


def hidden_at(state: LedgerState, version: int) -> dict[str, frozenset[int]]:
    """Rows that whoever read a version then was not shown, by the key of the shard's tokens."""
    found: dict[str, frozenset[int]] = {}
    for since, key, rows in state.retracted:
        if since <= version and state.hides(since, version):
            found[key] = found.get(key, frozenset()).union(rows)
    return found


def count_retracted(state: LedgerState, version: int, shards: Iterable[ClosedShard]) -> int:
    """How many documents of these shards, which are of one sink, a version does not show."""
    mains = [main_object(shard.closed) for shard in shards] if state.retracted else []
    hidden: dict[str, list[list[int]]] = {main.key: [] for main in mains if main is not None}
    for since, key, rows in state.retracted:
        if key in hidden and state.hides(since, version):
            hidden[key].append(rows)
    return sum(len(set[int]().union(*rows)) for rows in hidden.values() if rows)


def _state_of(state: LedgerState, shards: list[ClosedShard], more: Collection[bytes] = ()) -> LedgerState:
    """What a ledger says of some shards; of fragments, those of which they hold any, and `more`."""
    found = LedgerState(
        number=state.number, term=state.term, leader=state.leader, resigned=state.resigned, origin=state.origin,
        pipelines=state.pipelines, pipeline_number=state.pipeline_number, epoch=state.epoch, seen=state.seen,
        shards=shards, erased=state.erased,
    )  # fmt: skip
    for shard in shards:
        sink = shard.closed.sink
        for item in shard.closed.ranges:
            known = state.fragments[item.fragment]
            held = found.fragments.get(item.fragment)
            if held is None:
                held = FragmentState(known.fragment, known.count, known.checksum, dropped=known.dropped)
                held.released = known.released
                found.fragments[item.fragment] = held
            held.of(sink).add(item.first, item.end, item.offset, item.stop)
    for sink in dict.fromkeys(shard.closed.sink for shard in shards):
        found.counts[sink] = reduce(add, (item.closed.counts for item in shards if item.closed.sink == sink), Counts())
    found.fragments.update((name, state.fragments[name]) for name in more)
    found.totals = found.totals.of(found.fragments.values())
    return found
