"""What a simulated sink behind dedup tells of its shards: acts out worker/task/dependencies.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.chaos.sim.world import Name, Part, ordinals
from headrace.controller.core.run import Records
from headrace.store.ledger import Range


def needs(parts: Sequence[Part]) -> Records:
    """The records that duplicates among these name and that are not kept here."""
    named = {target for part in parts for _, target in part.duplicates}
    return _records(named - _kept(parts, {fragment for fragment, _ in named})) if named else ()


def released(parts: Sequence[Part]) -> Records:
    """The records that dedup may have let through and that are not kept: those that killed their task."""
    return _records((part.item.fragment, row) for part in parts for row in ordinals(part.quarantined, part.item.first))


def leaning_on(parts: Sequence[Part], records: Records) -> tuple[Range, ...]:
    """The duplicates among these that name one of these records."""
    wanted = {(fragment, row) for fragment, rows in records for row in rows}
    return tuple(
        Range(part.item.fragment, row, 1)
        for part in parts
        if wanted
        for row, target in part.duplicates
        if target in wanted
    )


def keys_of(content: Sequence[Part]) -> tuple[Part, ...]:
    """What lies in the file of keys beside a shard: who is kept; the keys follow from that. Empty if nobody is."""
    # Of two who write the same, one may have lost the offsets at a cut.
    kept = [part for part in content if part.kept]
    return tuple(Part(Range(part.item.fragment, part.item.first, part.item.count), part.kept, 0) for part in kept)


def _kept(parts: Iterable[Part], fragments: set[bytes]) -> set[Name]:
    mine = (part for part in parts if part.item.fragment in fragments)
    return {(part.item.fragment, row) for part in mine for row in ordinals(part.kept, part.item.first)}


def _records(names: Iterable[Name]) -> Records:
    found: dict[bytes, list[int]] = {}
    for fragment, row in sorted(names):
        found.setdefault(fragment, []).append(row)
    return tuple((fragment, tuple(rows)) for fragment, rows in found.items())
