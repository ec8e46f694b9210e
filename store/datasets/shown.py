"""Which records a version shows: a ledger's state with the shards of one version, and without what a rollback hides.

What reads a dataset counts what stands in such a state, so none of it is ever counted that its version does not show.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.store.datasets.dataset import Dataset, main_object
from headrace.store.ledger import ClosedShard, LedgerState, state_of, without_hidden


def as_shown(dataset: Dataset) -> Dataset:
    """A dataset without the shards that a rollback hides: those of its newest version, and those closed since."""
    found = without_hidden(dataset.state)
    return dataset if found is dataset.state else Dataset(dataset.store, found)


def state_at(state: LedgerState, version: int) -> LedgerState:
    """What the ledger says of the shards that a published version shows; of fragments, those of which it shows any."""
    published = state.published[version]
    shards = [shard for shard in state.shards if published.shows_entry(shard.number)]
    found = state_of(state, shards)
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
