"""The invariants of deduplication as plain checks: what one names a fault of each, empty where all is well.

The tests of cores call them after their events, and those of whole runs over what a dataset holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from headrace.store.shards.dedup_files import RecordName


def leaning_faults(
    duplicates: Iterable[tuple[int, RecordName, RecordName]], kept: Mapping[RecordName, int]
) -> Iterator[str]:
    """The record that a closed duplicate names is kept at or before the duplicate's entry (invariant 9).

    `duplicates` are entry, record and the record that it names; `kept` is the entry that keeps a record.
    """
    for number, name, target in duplicates:
        if target not in kept:
            yield f"entry {number}: record {name} is a duplicate of {target}, which is not kept"
        elif kept[target] > number:
            yield f"entry {number}: record {name} is a duplicate of {target}, kept behind it by {kept[target]}"


def shared_keys(keys: Iterable[tuple[RecordName, Collection[int]]]) -> Iterator[str]:
    """No two kept records share a key: not that of their texts, nor one of a band (invariant 10).

    `keys` are the keys of each kept record, each with what tells its band from another.
    """
    holders: dict[int, RecordName] = {}
    for name, mine in keys:
        for key in mine:
            holder = holders.setdefault(key, name)
            if holder != name:
                yield f"records {holder} and {name} are both kept and share a key"
                break


def index_faults(
    held: Collection[RecordName], kept: Collection[RecordName], granted: Collection[RecordName]
) -> Iterator[str]:
    """A serving index holds the keys of the kept up to its load position and the claims it granted (invariant 11).

    `held` are the records whose keys it holds; `kept` those kept at its epoch's position; `granted` those that it let
    through since, less what was released.
    """
    wanted = {*kept, *granted}
    for name in sorted(wanted.difference(held), key=str):
        yield f"the index does not hold the keys of {name}, which {'is kept' if name in kept else 'it let through'}"
    for name in sorted(set(held) - wanted, key=str):
        yield f"the index holds the keys of {name}, which is neither kept nor let through"
