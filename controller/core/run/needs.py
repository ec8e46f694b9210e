"""What a duplicate leans on: the record that its verdict names must be kept, or the verdict is void.

A sink asks before it writes (`NeedsAsked`), so that a shard never has to wait for another: the verdicts whose records
are not closed yet stay in its hands and go with a later shard, and the kept rows, which need nothing, are closed at
once. A record that dedup let through and that was not kept after all, since it raised behind dedup or its fragment is
given up, is gone: whoever leans on it is read again, and the claim is released, so that the next of its duplicates is
kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.store.ledger import LedgerState

#: Records by fragment: their ordinals, ascending.
Records = tuple[tuple[bytes, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class NeedsAsked:
    """A sink is about to write a shard whose duplicates name these records, which it does not hold itself."""

    task: str
    attempt: int
    proposal: int
    sink: str
    records: Records


@dataclass(frozen=True, slots=True)
class VerdictsLetGo:
    """A sink had no room for all the verdicts that should wait: what it let go of is open, and held by nobody."""

    task: str
    attempt: int


#: What sinks behind dedup say.
NEEDS_EVENTS = (NeedsAsked, VerdictsLetGo)


@dataclass(frozen=True, slots=True)
class AnswerNeeds:
    """Tell a sink which of the records are `open` still and which are `gone`; the others are kept."""

    worker: str
    task: str
    attempt: int
    proposal: int
    open: Records = ()
    gone: Records = ()


@dataclass(frozen=True, slots=True)
class ReleaseClaims:
    """Tell a decider that records which it let through are not kept after all."""

    worker: str
    task: str
    attempt: int
    records: Records


@dataclass(slots=True)
class _Sorted:
    open: dict[bytes, list[int]] = field(default_factory=dict[bytes, list[int]])
    gone: dict[bytes, list[int]] = field(default_factory=dict[bytes, list[int]])


def unmet(ledger: LedgerState, sink: str, records: Records) -> tuple[Records, Records]:
    """Of these records, those that are open still and those that are gone for good; the others are kept.

    What is only queued for the log is open: nobody may lean on what is not durable.
    """
    found = _Sorted()
    for fragment, rows in records:
        state = ledger.fragments.get(fragment)
        lost = state is None or state.dropped is not None
        for row in rows:
            closed = state is not None and bool(state.of(sink).overlap(row, row + 1))
            if state is not None and row in state.released.get(sink, ()):
                found.gone.setdefault(fragment, []).append(row)
            elif not closed:
                (found.gone if lost else found.open).setdefault(fragment, []).append(row)
    return _records(found.open), _records(found.gone)


def _records(found: dict[bytes, list[int]]) -> Records:
    return tuple((fragment, tuple(rows)) for fragment, rows in found.items())


def first_of(records: Records) -> str:
    """One of these records and how many there are, for people."""
    count = sum(len(rows) for _, rows in records)
    fragment, rows = records[0]
    return f"record {rows[0]} of fragment {fragment.hex()}{f' and {count - 1} more' if count > 1 else ''}"
