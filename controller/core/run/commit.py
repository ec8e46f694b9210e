"""Proposals on their way into the ledger: each is checked before it is queued, and answered when it is durable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.controller.core.messages import Coverage, Outcome, ShardProposed
from headrace.controller.core.run.needs import first_of, unmet
from headrace.store.ledger import Closed, IntervalSet, LedgerState, Range
from headrace.store.shards import epoch_of, is_checksum, is_key


@dataclass(frozen=True, slots=True)
class Waiter:
    """Who asked, to be answered."""

    task: str
    attempt: int
    proposal: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """What to do with a proposal: queue `closed`, or answer at once with `outcome`, or neither (its twin is queued)."""

    closed: Closed | None = None
    outcome: Outcome | None = None
    overlaps: tuple[Range, ...] = ()
    reason: str = ""


class Committer:
    """Proposals that were queued and are not durable yet."""

    def __init__(self, ledger: LedgerState) -> None:
        self._ledger = ledger
        self._waiting: dict[bytes, list[Waiter]] = {}
        self._reserved: dict[bytes, Closed] = {}

    def judge(self, event: ShardProposed, version: str, epoch: int) -> Judgement:
        """Check version, epoch, conservation and overlap of one proposal."""
        if event.version != version or event.epoch != epoch:
            reason = (
                f"made by version {event.version} in epoch {event.epoch}; here run version {version}, epoch {epoch}"
            )
            return Judgement(outcome=Outcome.REFUSED, reason=reason)
        closed = Closed(event.sink, event.version, event.epoch, event.ranges, event.objects, event.counts)
        identity = closed.identity()
        if identity in self._ledger.accepted:
            return Judgement(outcome=Outcome.ACCEPTED)
        waiter = Waiter(event.task, event.attempt, event.proposal)
        if identity in self._waiting:
            self._waiting[identity].append(waiter)
            return Judgement()
        fault = self._fault(event)
        if fault:
            return Judgement(outcome=Outcome.REFUSED, reason=fault)
        overlaps = self._overlaps(closed)
        if overlaps:
            return Judgement(outcome=Outcome.OVERLAPS, overlaps=tuple(overlaps))
        self._waiting[identity] = [waiter]
        self._reserved[identity] = closed
        return Judgement(closed=closed)

    def durable(self, closed: Closed) -> list[Waiter]:
        """The entry that names a shard is durable: who is to be told."""
        self._reserved.pop(closed.identity(), None)
        return self._waiting.pop(closed.identity(), [])

    @property
    def empty(self) -> bool:
        """Nothing waits for the log."""
        return not self._waiting

    def _fault(self, event: ShardProposed) -> str:
        if not event.ranges:
            return "a shard that closes no records"
        for stored in event.objects:
            if not is_key(stored.key) or not is_checksum(stored.checksum):
                return f"{stored.key[:200]!r} with checksum {stored.checksum[:80]!r} is no object that sinks write"
            if epoch_of(stored.key) != event.epoch:
                return f"{stored.key} lies outside of epoch {event.epoch}: a collection may delete it"
        if len(event.ranges) != len(event.coverage):
            return f"{len(event.ranges)} ranges with {len(event.coverage)} coverages"
        kept = 0
        seen: dict[bytes, IntervalSet] = {}
        for item, cover in zip(event.ranges, event.coverage, strict=True):
            state = self._ledger.fragments.get(item.fragment)
            if state is None:
                return f"fragment {item.fragment.hex()} was never listed"
            if item.count < 1:
                return f"a range of {item.count} records of {state.fragment.uri}"
            if state.count is not None and item.end > state.count:
                return f"records {item.first}..{item.end - 1} are beyond the end of {state.fragment.uri}"
            mine = seen.setdefault(item.fragment, IntervalSet())
            if mine.overlap(item.first, item.end):
                return f"records {item.first}..{item.end - 1} of {state.fragment.uri} stand in the proposal twice"
            mine.add(item.first, item.end)
            fault = conservation_fault(item, cover)
            if fault:
                return f"{state.fragment.uri}: {fault}"
            kept += int.from_bytes(cover.kept, "little").bit_count()
        if kept != event.counts.kept:
            return f"{kept} records are marked kept, {event.counts.kept} are counted"
        return self._needs_fault(event)

    def _needs_fault(self, event: ShardProposed) -> str:
        """A duplicate leans on a record that the ledger keeps by now, or on one of its own shard, or is none."""
        still_open, gone = unmet(self._ledger, event.sink, event.needs)
        if still_open or gone:
            return f"its duplicates name {first_of(still_open or gone)}, which is not kept"
        return ""

    def _overlaps(self, closed: Closed) -> list[Range]:
        found = self._ledger.conflicts(closed)
        mine = {item.fragment for item in closed.ranges}
        for other in self._reserved.values():
            if other.sink != closed.sink:
                continue
            for theirs in other.ranges:
                if theirs.fragment in mine:
                    found.extend(_common(closed.ranges, theirs))
        return found


def _common(ranges: Sequence[Range], other: Range) -> list[Range]:
    """The parts of `other` that one of `ranges` holds too."""
    found: list[Range] = []
    for item in ranges:
        first, end = max(item.first, other.first), min(item.end, other.end)
        if item.fragment == other.fragment and first < end:
            found.append(Range(item.fragment, first, end - first))
    return found


def conservation_fault(item: Range, cover: Coverage) -> str:
    """What is wrong with the claim that each record of a range has exactly one verdict; empty if nothing is."""
    bits = 8 * max(len(cover.kept), len(cover.verdicts))
    if item.count > bits:
        # Before anything of this size is made.
        return f"record {item.first + bits} has no verdict"
    kept, other = int.from_bytes(cover.kept, "little"), int.from_bytes(cover.verdicts, "little")
    everyone = (1 << item.count) - 1
    twice, nobody = kept & other, everyone & ~(kept | other)
    if (kept | other) > everyone:
        return f"a verdict for a record beyond {item.end - 1}"
    if twice:
        return f"record {item.first + (twice & -twice).bit_length() - 1} is kept and has another verdict"
    if nobody:
        return f"record {item.first + (nobody & -nobody).bit_length() - 1} has no verdict"
    return ""
