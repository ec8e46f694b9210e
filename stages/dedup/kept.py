"""Which key files an index begins with: the keys of all that is kept up to its epoch's position."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from headrace.pipeline import PipelineError
from headrace.store.ledger import LedgerState
from headrace.store.shards import KEYS_ROLE, SKETCHES_ROLE, numbered_role


class KeyFile(NamedTuple):
    """A file with the keys of so many records, its checksum, and the file of their sketches, "" where no judge is."""

    keys: str
    sketches: str
    checksum: str
    records: int


def key_files(state: LedgerState, epoch: int, sinks: Collection[str], uri: str, number: int = 0) -> list[KeyFile]:
    """The files with the keys of what sinks have kept up to an epoch's position. A record may be in those of several.

    `number` is that of the dedup stage, in the order of the pipeline. Raises PipelineError if one is missing.
    """
    of_keys, of_sketches = (numbered_role(kind, number) for kind in (KEYS_ROLE, SKETCHES_ROLE))
    if state.number < epoch:
        raise PipelineError(f"{uri}: the ledger ends at entry {state.number}, before epoch {epoch}: restore it")
    found: list[KeyFile] = []
    for shard in state.shards:
        closed = shard.closed
        if closed.sink not in sinks or shard.number > epoch or not closed.counts.kept:
            continue
        keys = [item for item in closed.objects if item.role == of_keys]
        sketches = next((item.key for item in closed.objects if item.role == of_sketches), "")
        if not keys:
            raise PipelineError(
                f"{uri}: the shard of entry {shard.number} keeps {closed.counts.kept} records and has no keys of them: "
                "it was made without deduplication; write a new dataset"
            )
        found += [KeyFile(item.key, sketches, item.checksum, closed.counts.kept) for item in keys]
    return found


def open_verdicts(state: LedgerState, epoch: int, sinks: Collection[str]) -> list[str]:
    """The tables of verdicts up to an entry with duplicates that another sink may have read again."""
    names = tuple(sinks)
    still = {name for name, item in state.fragments.items() if not item.done(names)}
    return [
        item.key
        for shard in state.shards
        if shard.number <= epoch and shard.closed.sink in names and shard.closed.counts.duplicate
        for item in shard.closed.objects
        if item.role == "verdicts" and not still.isdisjoint(part.fragment for part in shard.closed.ranges)
    ]
