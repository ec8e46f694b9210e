"""Reading a source to its end, and reading it again with gaps: the same records whatever was closed before."""

from __future__ import annotations

import random
from typing import Any

from headrace.stages.runtime.batch import ROW, Batch
from headrace.stages.runtime.contract import FragmentEnd, Source
from headrace.store.ledger.core.fragments import Fragment
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap, IntervalSet

WHOLE = [Gap(0, UNBOUNDED, 0)]


def fates(batches: list[Batch]) -> dict[int, tuple[Any, ...]]:
    """What became of each ordinal."""
    found: dict[int, tuple[Any, ...]] = {}
    for batch in batches:
        mine: dict[int, tuple[Any, ...]] = {}
        for row in batch.rows.to_pylist():
            mine[row[ROW]] = ("kept", row["id"], row["text"], row["metadata"])
        for row in batch.verdicts.to_pylist():
            assert row["row"] not in mine
            mine[row["row"]] = (row["verdict"], row["id"], row["reason"], row["raw"])
        assert sorted(mine) == list(range(batch.first, batch.first + batch.count))
        assert not mine.keys() & found.keys()
        found.update(mine)
    return found


def read_whole(source: Source, fragment: Fragment) -> tuple[list[Batch], int]:
    """Every batch of a fragment, and how many records it says it holds."""
    *batches, end = source.read(fragment, WHOLE)
    assert isinstance(end, FragmentEnd)
    whole = [item for item in batches if isinstance(item, Batch)]
    assert sorted(fates(whole)) == list(range(end.count))
    return whole, end.count


def read_all(source: Source) -> list[tuple[Any, ...]]:
    """The fate of each record of each fragment, in order."""
    found: list[tuple[Any, ...]] = []
    for fragment in source.list():
        batches, _ = read_whole(source, fragment)
        found += [fate for _, fate in sorted(fates(batches).items())]
    return found


def check_gaps(source: Source, seed: int = 0, rounds: int = 20) -> None:
    """Close any batches and any single records, read what is left: together they are what was there."""
    chance = random.Random(seed)
    for fragment in list(source.list()):
        batches, count = read_whole(source, fragment)
        whole = fates(batches)
        begins = {batch.first: batch.offset for batch in batches}
        end = list(source.read(fragment, WHOLE))[-1]
        assert isinstance(end, FragmentEnd)
        for _ in range(rounds):
            closed = IntervalSet()
            for batch in batches:
                stop = batch.offset + batch.length if batch.offset >= 0 and batch.length >= 0 else -1
                if chance.random() < 0.4:
                    closed.cover(batch.first, batch.first + batch.count, batch.offset, stop)
            for _ in range(chance.randrange(4) if count else 0):
                at = chance.randrange(count)
                closed.cover(at, at + 1)
            gaps = closed.gaps(count if chance.random() < 0.5 else UNBOUNDED)
            items = list(source.read(fragment, gaps))
            again = fates([item for item in items if isinstance(item, Batch)])
            for item in items:
                if isinstance(item, Batch) and min(item.offset, begins.get(item.first, -1)) >= 0:
                    assert item.offset == begins[item.first], "where a record begins is no matter of where reading does"
            held = {ordinal for first, end in closed for ordinal in range(first, end)}
            assert again == {ordinal: fate for ordinal, fate in whole.items() if ordinal not in held}
            if gaps and gaps[-1].end == UNBOUNDED:
                last = items[-1]
                assert isinstance(last, FragmentEnd)
                assert last.count == count
                # Who reads from the middle of an object may have no checksum of all of it, and never another.
                assert last.checksum in (b"", end.checksum)
