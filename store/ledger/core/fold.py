"""The fold of a dataset's ledger: what a reader knows after entry n, and nothing that it learned elsewhere.

Controller, loader, `dataset verify` and the simulator use this one class. `apply` refuses an entry that breaks an
invariant of the ledger (docs/design/ledger.md numbers them), because every reader will fold what was
written: a bad entry is worse than a stopped pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from headrace.store import Moment, misfit
from headrace.store.ledger.core.entries import (
    CHECKSUM_BYTES,
    Change,
    ClaimsReleased,
    Closed,
    EpochRaised,
    FragmentDropped,
    FragmentEnded,
    FragmentsListed,
    PipelineApplied,
    PrefixRead,
    Removed,
    Retracted,
    VersionHeld,
    VersionPublished,
    VersionSeen,
)
from headrace.store.ledger.core.fragments import NAME_BYTES, Counts, Fragment, Range, StoredObject
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap, IntervalSet
from headrace.store.ledger.core.log_state import FoldError, ForeignLog, LogState
from headrace.store.ledger.core.totals import Totals
from headrace.store.shards import epoch_of

_NOTHING = Counts()
#: Rollbacks of which each restores a version that holds those before it. Each version remembers all of its own.
ROLLBACKS_MAX = 1000
#: The reasons of versions that hide records which nobody asked to be gone for good: a rollback shows them again.
DEDUPLICATION, HELD_OUT_SPLIT = "deduplication", "held-out split"


@dataclass(slots=True)
class FragmentState:
    """A fragment and what of it each sink has closed."""

    fragment: Fragment
    #: The number of records, once the fragment was read to its end, and the checksum of its bytes, if one was taken.
    count: int | None = None
    checksum: bytes = b""
    #: What is known of its first bytes, until it has a checksum.
    prefix: PrefixRead | None = None
    #: Set where what is open was given up: nothing more of it is closed.
    dropped: FragmentDropped | None = None
    closed: dict[str, IntervalSet] = field(default_factory=dict[str, IntervalSet])
    #: Records that dedup let through to a sink and that were not kept: nothing may lean on them.
    released: dict[str, set[int]] = field(default_factory=dict[str, set[int]])

    def of(self, sink: str) -> IntervalSet:
        """The closed intervals of one sink."""
        held = self.closed.get(sink)
        if held is None:
            held = self.closed[sink] = IntervalSet()
        return held

    def stored_bytes(self, sink: str) -> int:
        """About how many bytes of the object, as it is stored, one sink has closed; all of them where it is done."""
        whole = self.dropped is None and self.done((sink,))
        return self.fragment.size if whole else min(self.of(sink).bytes, self.fragment.size)

    def records_due(self, sink: str) -> int:
        """How many records a sink has to close, as far as that is known: of what was given up only what is closed."""
        return self.of(sink).size if self.count is None or self.dropped is not None else self.count

    def open_gaps(self, sink: str) -> list[Gap]:
        """What a sink has not closed, and may close still."""
        if self.dropped is not None:
            return []
        return self.of(sink).gaps(UNBOUNDED if self.count is None else self.count)

    def done(self, sinks: tuple[str, ...]) -> bool:
        """Whether nothing is open: the closed intervals of each of these sinks tile it, or the rest is given up."""
        return self.dropped is not None or (
            self.count is not None and all(self.of(sink).tiles(self.count) for sink in sinks)
        )


@dataclass(slots=True)
class ClosedShard:
    """A shard that the ledger names, and the number of the entry that does; keys are relative to the dataset."""

    number: int
    closed: Closed

    def object(self, role: str) -> StoredObject | None:
        """The object of that role, or None where the sink wrote none."""
        return next((item for item in self.closed.objects if item.role == role), None)


class Published(NamedTuple):
    """What a published version shows."""

    #: The entry that published it.
    number: int
    #: The last entry whose shards it shows.
    shows: int
    #: Whether its input was read to the end, and all of it closed or given up.
    complete: bool
    #: What made it, and when, in Unix seconds; 0 where no entry says.
    reason: str = ""
    at: Moment = 0
    #: The rollbacks in force: (shows, number, restored version, own version) of each. It shows no shard of the entries
    #: behind `shows` up to `number`, and nothing of the versions between the two holds in it.
    rollbacks: tuple[tuple[int, int, int, int], ...] = ()

    def shows_entry(self, number: int) -> bool:
        """Whether it shows the shards of an entry."""
        return number <= self.shows and not self.hides_entry(number)

    def hides_entry(self, number: int) -> bool:
        """Whether a rollback hides the shards of an entry."""
        return any(after < number <= upto for after, upto, _, _ in self.rollbacks)

    def restores(self, version: int) -> int:
        """Which earlier version it shows again, if `version` is its own number; 0 where it is no rollback."""
        return self.rollbacks[-1][2] if self.rollbacks and self.rollbacks[-1][3] == version else 0

    def continues(self, version: int) -> bool:
        """Whether what an earlier version (or one of this number) did still holds: no rollback has undone it."""
        return not any(restored < version < own for _, _, restored, own in self.rollbacks)


@dataclass(slots=True)
class LedgerState(LogState):
    """All that the ledger of one dataset says up to entry `number` (-1: nothing yet)."""

    pipeline: Mapping[str, Any] = field(default_factory=dict[str, Any])
    pipeline_version: str = ""
    pipeline_number: int = -1
    #: Every pipeline that made a part of the dataset, by version.
    pipelines: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    epoch: int = 0
    fragments: dict[bytes, FragmentState] = field(default_factory=dict[bytes, FragmentState])
    #: By stage and URI, the version in which an object was seen last that is not read for it.
    seen: dict[tuple[str, str], VersionSeen] = field(default_factory=dict[tuple[str, str], VersionSeen])
    shards: list[ClosedShard] = field(default_factory=list[ClosedShard])
    accepted: dict[bytes, int] = field(default_factory=dict[bytes, int])
    counts: dict[str, Counts] = field(default_factory=dict[str, Counts])
    version: int = 0
    #: What each version shows.
    published: dict[int, Published] = field(default_factory=dict[int, Published])
    #: Documents that are shown no more: since which version, the key of the shard's tokens, rows of its documents.
    retracted: list[list[Any]] = field(default_factory=list[list[Any]])
    #: Rows whose text is deleted, by the key of the shard's tokens (its documents where it holds text): the checksum
    #: that these tokens had at first, by which positions are known, and the rows.
    erased: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    #: The last entry that retracted something, -1 where none has.
    retracted_at: int = -1
    #: The entry that held a version back which no later one shows, -1 where none is, and why.
    held_at: int = -1
    held: tuple[str, ...] = ()
    #: The dataset was removed, and no pipeline has begun another in its place.
    removed: bool = False
    #: What the fragments above come to; it follows from them.
    totals: Totals = field(default_factory=Totals, compare=False)

    @property
    def newest(self) -> Published | None:
        """What the newest version shows; None where none was published."""
        return self.published.get(self.version)

    @property
    def unshown(self) -> int:
        """How many shards are closed that no version shows yet."""
        newest = self.newest
        if newest is None:
            return len(self.shards)
        return sum(shard.number > newest.shows and not newest.hides_entry(shard.number) for shard in self.shards)

    @property
    def rolled_back(self) -> int:
        """How many closed shards a rollback hides."""
        newest = self.newest
        return 0 if newest is None else sum(newest.hides_entry(shard.number) for shard in self.shards)

    def hides(self, since: int, version: int) -> bool:
        """Whether a version hides what was retracted from version `since` on.

        A takedown holds for every version, earlier ones too. A deduplication or a split holds from its own version on,
        until a rollback undoes it.
        """
        shown = self.published.get(version)
        return self.is_takedown(since) or shown is None or (since <= version and shown.continues(since))

    def is_takedown(self, since: int) -> bool:
        """Whether what was retracted from version `since` on is gone for good."""
        made = self.published.get(since)
        return made is None or made.reason not in (DEDUPLICATION, HELD_OUT_SPLIT)

    def erased_rows(self, key: str) -> tuple[int, ...]:
        """Rows whose text is deleted, of the shard whose tokens (documents where it holds text) have this key."""
        return tuple(self.erased[key][1]) if key in self.erased else ()

    def as_it_stands(self, fragment: Fragment) -> Fragment:
        """A fragment under the version in which its object stands now, where that holds the bytes that were listed."""
        seen = self.seen.get((fragment.stage, fragment.uri))
        return replace(fragment, version=seen.version) if seen is not None and seen.same else fragment

    def conflicts(self, closed: Closed) -> list[Range]:
        """The parts of a proposal's ranges that its sink has closed already, or that were given up."""
        found: list[Range] = []
        for item in closed.ranges:
            state = self.fragments.get(item.fragment)
            if state is not None and state.dropped is not None:
                found.append(Range(item.fragment, item.first, item.count))
            elif state is not None:
                for first, end in state.of(closed.sink).overlap(item.first, item.end):
                    found.append(Range(item.fragment, first, end - first))
        return found

    def _change(self, number: int, change: Change) -> None:
        match change:
            case PipelineApplied():
                self.pipeline, self.pipeline_version = change.pipeline, change.version
                self.pipeline_number = number
                self.pipelines[change.version] = change.pipeline
                self.removed = False
            case EpochRaised():
                self._epoch_raised(number, change)
            case FragmentsListed():
                self._listed(number, change)
            case FragmentEnded():
                self._ended(number, change)
            case PrefixRead():
                self._prefix_read(number, change)
            case FragmentDropped():
                self._dropped(number, change)
            case VersionSeen():
                self.seen[change.stage, change.uri] = change
            case Closed():
                self._closed(number, change)
            case ClaimsReleased():
                for fragment, rows in change.records:
                    self._known(number, fragment).released.setdefault(change.sink, set()).update(rows)
            case VersionPublished() | VersionHeld():
                self._published(number, change)
            case Retracted():
                self._retracted(number, change)
            case Removed():
                self._removed(number)
            case _:
                raise ForeignLog(f"entry {number}: {type(change).__name__} does not belong into a dataset's ledger")

    def _epoch_raised(self, number: int, change: EpochRaised) -> None:
        if change.number and not self.epoch < change.number <= number:
            raise FoldError(f"entry {number} raises the epoch from {self.epoch} to {change.number}")
        self.epoch = change.number or number

    def _listed(self, number: int, change: FragmentsListed) -> None:
        for fragment in change.fragments:
            if fragment.id in self.fragments:
                raise FoldError(f"entry {number} lists {fragment.uri} again: a fragment is never cut anew")
            if len(fragment.id) != NAME_BYTES:
                raise FoldError(f"entry {number} lists {fragment.uri} by a name of {len(fragment.id)} bytes")
            self.fragments[fragment.id] = FragmentState(fragment)
            self.totals.listed(1)
            seen = self.seen.get((fragment.stage, fragment.uri))
            if seen is not None and seen.version != fragment.version:
                # of bytes that stood there before: those of this fragment are others
                del self.seen[fragment.stage, fragment.uri]

    def _ended(self, number: int, change: FragmentEnded) -> None:
        state = self._known(number, change.fragment)
        if state.count is not None and state.count != change.count:
            raise FoldError(f"entry {number}: {state.fragment.uri} ended at {state.count}, now at {change.count}")
        for intervals in state.closed.values():
            if intervals.overlap(change.count, UNBOUNDED):
                raise FoldError(f"entry {number}: {state.fragment.uri} ends at {change.count}, closed beyond it")
        if state.count is None and state.dropped is None:
            self.totals.ended(state.closed, change.count)
        if len(change.checksum) not in (0, CHECKSUM_BYTES):
            raise FoldError(f"entry {number}: {state.fragment.uri} has a checksum of {len(change.checksum)} bytes")
        state.count = change.count
        state.checksum = state.checksum or change.checksum
        if state.checksum:
            state.prefix = None

    def _prefix_read(self, number: int, change: PrefixRead) -> None:
        state = self._known(number, change.fragment)
        if len(change.checksum) != CHECKSUM_BYTES or change.count < 1 or not 0 < change.size <= state.fragment.size:
            raise FoldError(f"entry {number}: {state.fragment.uri} has a prefix of {change.size} bytes that is none")
        if not state.checksum and (state.prefix is None or state.prefix.count < change.count):
            state.prefix = change

    def _dropped(self, number: int, change: FragmentDropped) -> None:
        state = self._known(number, change.fragment)
        if state.dropped is not None:
            raise FoldError(f"entry {number} gives up {state.fragment.uri} a second time")
        state.dropped = change
        self.totals.dropped(state)

    def _closed(self, number: int, change: Closed) -> None:
        if sum(item.count for item in change.ranges) != change.counts.records:
            raise FoldError(f"entry {number}: a shard of {change.counts.records} verdicts closes another number")
        if change.epoch < self.epoch:
            raise FoldError(f"entry {number} closes what was made in epoch {change.epoch}, fenced off by {self.epoch}")
        for item in change.ranges:
            state = self._known(number, item.fragment)
            if state.dropped is not None:
                raise FoldError(f"entry {number} closes records of {state.fragment.uri}, which was given up")
            if state.count is not None and item.end > state.count:
                raise FoldError(f"entry {number} closes {state.fragment.uri} up to {item.end}, it has {state.count}")
            closed = state.of(change.sink)
            held = closed.overlap(item.first, item.end)
            if held:
                raise FoldError(f"entry {number} closes records {held[:4]} of {state.fragment.uri} a second time")
            closed.add(item.first, item.end, item.offset, item.stop)
            self.totals.closed(change.sink, closed, item.count, state.count)
        for stored in change.objects:
            if (epoch_of(stored.key) or self.epoch) < self.epoch:
                raise FoldError(f"entry {number} names {stored.key}, which a collection may have deleted")
        self.shards.append(ClosedShard(number, change))
        self.accepted[change.identity()] = number
        counts = self.counts.get(change.sink, _NOTHING) + change.counts
        if wrong := misfit(counts):
            raise FoldError(f"entry {number}: what sink {change.sink!r:.80} has closed adds up to no number: {wrong}")
        self.counts[change.sink] = counts

    def _published(self, number: int, change: VersionPublished | VersionHeld) -> None:
        """A newer version lists the shards of the older one, and then its own: who reads may rely on it."""
        if change.version <= self.version:
            raise FoldError(f"entry {number} publishes version {change.version} behind version {self.version}")
        if isinstance(change, VersionHeld):
            self.held_at, self.held = number, change.reasons
            return
        shows, before = change.shows if change.shows >= 0 else number, self.newest
        restored = self.published.get(change.restores) if change.restores else None
        if change.restores and (restored is None or shows != restored.shows):
            raise FoldError(f"entry {number} restores version {change.restores} otherwise than it was published")
        if shows > number or (restored is None and before is not None and shows < before.shows):
            raise FoldError(f"entry {number} publishes a version that shows entries up to {shows}: none can")
        complete = change.complete and (change.shows >= 0 or self._closed_all())
        rollbacks = () if before is None else before.rollbacks
        if restored is not None:
            if len(restored.rollbacks) >= ROLLBACKS_MAX:
                raise FoldError(f"entry {number} restores version {change.restores}, {ROLLBACKS_MAX:,} rollbacks deep")
            rollbacks = (*restored.rollbacks, (shows, number, change.restores, change.version))
        if restored is not None or shows >= self.held_at:
            self.held_at, self.held = -1, ()
        self.version = change.version
        self.published[change.version] = Published(number, shows, complete, change.reason, change.at, rollbacks)

    def _closed_all(self) -> bool:
        sinks = tuple(self.counts)
        return all(fragment.done(sinks) for fragment in self.fragments.values())

    def _retracted(self, number: int, change: Retracted) -> None:
        named = {item.key: item.checksum for shard in self.shards for item in shard.closed.objects}
        fresh = dict(change.replaced)
        unknown = sorted({*(key for key, _ in change.documents), *fresh} - named.keys())
        if unknown:
            raise FoldError(f"entry {number} retracts from {unknown[0]}, which no shard has")
        if change.version <= self.version:
            raise FoldError(f"entry {number} retracts from version {change.version} on, {self.version} is published")
        self.retracted_at = number
        self.retracted += [[change.version, key, list(rows)] for key, rows in change.documents]
        self._erased(fresh, named)
        for index, shard in enumerate(self.shards):
            if any(item.key in fresh for item in shard.closed.objects):
                objects = tuple(fresh.get(item.key, item) for item in shard.closed.objects)
                self.shards[index] = ClosedShard(shard.number, replace(shard.closed, objects=objects))

    def _erased(self, fresh: Mapping[str, StoredObject], checksums: Mapping[str, str]) -> None:
        """Tokens or documents that take the place of others are without the text of what was taken down."""
        gone: dict[str, set[int]] = {}
        for since, key, rows in self.retracted:
            if key in fresh and self.is_takedown(since):
                gone.setdefault(key, set()).update(rows)
        new = {old: stored.key for old, stored in fresh.items() if gone.get(old)}
        for old, key in new.items():
            origin = self.erased.pop(old, (checksums[old],))[0]
            self.erased[key] = [origin, sorted(gone[old])]
        if new:
            self.retracted = [[since, new.get(key, key), rows] for since, key, rows in self.retracted]

    def _removed(self, number: int) -> None:
        """Begin anew, in an epoch in which nobody who wrote before may propose: its raising is part of the entry."""
        if self.epoch != number:
            raise FoldError(f"entry {number} removes the dataset and does not raise the epoch first")
        fresh = LedgerState()
        for name in LedgerState.__slots__:
            if name != "epoch":
                setattr(self, name, getattr(fresh, name))
        self.removed = True

    def _known(self, number: int, fragment: bytes) -> FragmentState:
        state = self.fragments.get(fragment)
        if state is None:
            raise FoldError(f"entry {number} speaks of fragment {fragment.hex()}, which was never listed")
        return state
