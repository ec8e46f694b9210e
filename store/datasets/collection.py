"""Collection: which objects of a dataset are reached from nothing, and their removal.

Theory. A sink writes an object first and proposes it afterwards, so an object that no entry names may yet be named.
What cannot be named any more follows from epochs alone: a key holds the epoch that its writer was born with, the
controller refuses a proposal of another epoch than the ledger's, the fold refuses an entry that would close one, and
the ledger's epoch never falls. So the floor is the epoch of any fold of the log: below it, what the fold does not name
nobody ever will. Age is never looked at: a sink that was frozen for a week may still propose, in the ledger's epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from headrace.store import ObjectInfo, ObjectStore
from headrace.store.ledger import LedgerState
from headrace.store.shards import FOLDERS, epoch_of


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection found: garbage below the floor, and what no entry names but may yet be named."""

    #: The epoch below which nothing can be proposed any more.
    floor: int
    #: Keys of the objects that are deleted, or would be, and their bytes.
    keys: tuple[str, ...]
    size: int
    #: Objects of the floor's own epoch that no entry names, and their bytes: a sink may be about to propose them.
    undecided: int
    undecided_size: int


def garbage(state: LedgerState, objects: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
    """Of the listed objects those that no entry names and none ever can."""
    named = named_keys(state)
    for info in objects:
        epoch = epoch_of(info.key)
        if epoch is not None and epoch < state.epoch and info.key not in named:
            yield info


def collect(
    store: ObjectStore, state: LedgerState, *, dry_run: bool, deleted: Callable[[str], None] | None = None
) -> Collected:
    """Delete what is garbage by this fold; it may be older than the log, and the log may grow meanwhile.

    A collection that is killed has deleted some of it, and the next one deletes the rest. Raises StoreError.
    """
    named = named_keys(state)
    listed = [info for folder in FOLDERS for info in store.list(f"{folder}/")]
    found = list(garbage(state, listed))
    doomed = {info.key for info in found}
    undecided = [info for info in listed if epoch_of(info.key) is not None and info.key not in named | doomed]
    if not dry_run:
        for info in found:
            store.delete(info.key)
            if deleted is not None:
                deleted(info.key)
    return Collected(
        floor=state.epoch,
        keys=tuple(info.key for info in found),
        size=sum(info.size for info in found),
        undecided=len(undecided),
        undecided_size=sum(info.size for info in undecided),
    )


def named_keys(state: LedgerState) -> set[str]:
    """The keys of all objects that the fold names."""
    return {item.key for shard in state.shards for item in shard.closed.objects}
