"""What this leader has queued for a dataset's log: as good as written, since no reader folds what contradicts it.

The fold refuses an entry that cannot follow those before it, and a log that holds such an entry is lost. So whatever a
task's word becomes is held against what is durable and against what is queued before it is queued itself.
"""

from __future__ import annotations

from headrace.store import misfit
from headrace.store.ledger import CHECKSUM_BYTES, UNBOUNDED, Closed, Counts, FragmentEnded, LedgerState


class Queued:
    """Ends of fragments and shards of one leader. What became durable stays here: it says the same as the ledger."""

    def __init__(self, ledger: LedgerState) -> None:
        self._ledger = ledger
        #: By fragment, how many records it holds, and how far shards reach in it.
        self._ends: dict[bytes, int] = {}
        self._reach: dict[bytes, int] = {}
        #: Records of all fragments whose end is known; None before one is queued.
        self._records: int | None = None
        #: By sink, what it has closed, with all that is queued.
        self._counts: dict[str, Counts] = {}

    def end_of(self, fragment: bytes) -> int | None:
        """How many records a fragment holds, once somebody has said so."""
        state = self._ledger.fragments.get(fragment)
        return self._ends.get(fragment) if state is None or state.count is None else state.count

    def end_fault(self, change: FragmentEnded) -> str:
        """Why a fragment of the ledger cannot end so; empty if it can."""
        state = self._ledger.fragments[change.fragment]
        uri, reach = state.fragment.uri, self._reach.get(change.fragment, 0)
        for intervals in state.closed.values():
            _, ends, _, _ = intervals.columns()
            reach = max((reach, *ends[-1:]))
        if change.count < reach:
            return f"{uri} ends at {change.count} records, and {reach} of it are closed"
        if self.end_of(change.fragment) is None and self._ended + change.count > UNBOUNDED:
            return f"{uri} ends at {change.count} records, and there are {self._ended} before: no sum holds that"
        if len(change.checksum) not in (0, CHECKSUM_BYTES):
            return f"{uri} has a checksum of {len(change.checksum)} bytes"
        return ""

    def end(self, change: FragmentEnded) -> None:
        """The end of a fragment is queued."""
        self._records = self._ended + change.count
        self._ends[change.fragment] = change.count

    @property
    def _ended(self) -> int:
        return self._ledger.totals.records_of_ended if self._records is None else self._records

    def take(self, change: Closed) -> str:
        """Why no log can hold a shard, or none with what its sink has closed; empty if it can, and is queued."""
        if wrong := misfit(change):
            return f"a shard whose {wrong}"
        records = sum(item.count for item in change.ranges)
        if records != change.counts.records:
            return f"{change.counts.records} verdicts for {records} records"
        before = self._counts.get(change.sink) or self._ledger.counts.get(change.sink) or Counts()
        counts = before + change.counts
        if wrong := misfit(counts):
            return f"what sink {change.sink} has closed adds up to no number: {wrong}"
        self._counts[change.sink] = counts
        for item in change.ranges:
            self._reach[item.fragment] = max(item.end, self._reach.get(item.fragment, 0))
        return ""
