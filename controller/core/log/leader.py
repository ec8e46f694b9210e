"""Leadership of one log: who may write, and what is written next.

Theory. A log is a row of numbered objects that can be created once. Whoever creates entry n as `Led(term)` leads that
term, because every reader folds the same entries in the same order; nobody needs a lease or a clock that others trust.
A leader that was frozen and wakes finds the next number taken, folds it, and steps down.

Rules.
1. The bytes of entry n are fixed at the first attempt. After an unresolved write the same bytes are tried again, so
   the only answers are "mine" and "another's".
2. Entry n + 1 is not tried before n is known.
3. Nothing is done in a term before its `Led` is durable.
4. A standby waits for silence by its own monotonic clock (TAKEOVER_S), unless the last leader resigned, or its death is
   proved on this host, or the log is empty, or it led for a cluster that this process leads by now. Waiting is
   courtesy; safety comes from rules 1, 2 and 5. What another run of the same cluster leads is nobody's to inherit.
5. A truncated log lacks entries, and a number that lacks its entry can be created a second time. `Led` entries are
   kept, so whoever led finds the first number behind its last one taken. A candidate may have slept through more: its
   `Led` counts only when no snapshot stands at or behind its number (`EntryOvertaken`), and is deleted unless that
   snapshot counts it as part of the log; and a snapshot is durable before anything that it covers is deleted.

Known weakness: a leader cut off from the store for TAKEOVER_S loses its term, and what sinks propose meanwhile waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, TypeVar, assert_never

from headrace.controller.core.messages import (
    Command,
    EntryFailed,
    EntryOvertaken,
    EntryRefused,
    EntryUnresolved,
    EntryWritten,
    LogEvent,
    LogRead,
    LogUnreadable,
    ReadLog,
    SnapshotWritten,
    TimePassed,
    TruncateLog,
    WriteEntry,
    WriteSnapshot,
)
from headrace.store.ledger import Beat, Change, Entry, Led, LogState, Resigned, VersionHeld, VersionPublished

#: Seconds of silence after which a standby takes over: two beats may be late or lost in a slow store.
TAKEOVER_S = 5.0
#: Seconds without an entry after which a leader writes a Beat.
BEAT_S = 2.0
#: Seconds between two looks at a log that another leads.
WATCH_S = 0.5
#: Seconds before a log that could not be read is read again.
UNREADABLE_S = 1.0
#: Seconds before an unresolved write is tried again, doubled each time up to RETRY_S_MAX.
RETRY_S = 0.2
RETRY_S_MAX = 5.0
#: Entries behind a snapshot after which the leader writes the next one; then those before the last are deleted.
SNAPSHOT_ENTRIES = 1024
#: Changes in one entry, unless one atom holds more; a page of a listing counts as one.
CHANGES_MAX = 1024


@dataclass(frozen=True, slots=True)
class LogLimits:
    """When a log's leader begins another entry, and another snapshot."""

    snapshot_entries: int = SNAPSHOT_ENTRIES
    changes_max: int = CHANGES_MAX


LOG_LIMITS = LogLimits()


class LeaderState(Enum):
    """Where a would-be leader stands."""

    READING = "reading"
    WATCHING = "watching"
    CAMPAIGNING = "campaigning"
    WITHDRAWING = "withdrawing"
    LEADING = "leading"
    RESIGNING = "resigning"
    RESIGNED = "resigned"
    DEPOSED = "deposed"
    DENIED = "denied"
    BROKEN = "broken"


class Turn(Enum):
    """What moves it."""

    LOG_IS_FREE = "log is free"
    LOG_IS_LED = "log is led"
    LEADER_IS_ALIVE = "leader is alive"
    LED_WRITTEN = "Led written"
    LED_REFUSED = "Led refused"
    LED_OVERTAKEN = "Led overtaken"
    WRITE_REFUSED = "write refused"
    WRITE_FAILED = "write failed"
    RESIGN_ASKED = "resign asked"
    CAMPAIGN_DROPPED = "campaign dropped"
    RESIGNATION_WRITTEN = "resignation written"


TRANSITIONS: dict[tuple[LeaderState, Turn], LeaderState] = {
    (LeaderState.READING, Turn.LOG_IS_FREE): LeaderState.CAMPAIGNING,
    (LeaderState.READING, Turn.LOG_IS_LED): LeaderState.WATCHING,
    (LeaderState.READING, Turn.LEADER_IS_ALIVE): LeaderState.DENIED,
    (LeaderState.WATCHING, Turn.LOG_IS_FREE): LeaderState.CAMPAIGNING,
    (LeaderState.WATCHING, Turn.LOG_IS_LED): LeaderState.WATCHING,
    (LeaderState.WATCHING, Turn.LEADER_IS_ALIVE): LeaderState.DENIED,
    (LeaderState.CAMPAIGNING, Turn.LED_WRITTEN): LeaderState.LEADING,
    (LeaderState.CAMPAIGNING, Turn.LED_REFUSED): LeaderState.WATCHING,
    (LeaderState.CAMPAIGNING, Turn.LED_OVERTAKEN): LeaderState.READING,
    (LeaderState.READING, Turn.RESIGN_ASKED): LeaderState.RESIGNED,
    (LeaderState.WATCHING, Turn.RESIGN_ASKED): LeaderState.RESIGNED,
    (LeaderState.CAMPAIGNING, Turn.RESIGN_ASKED): LeaderState.WITHDRAWING,
    (LeaderState.CAMPAIGNING, Turn.CAMPAIGN_DROPPED): LeaderState.RESIGNED,
    (LeaderState.WITHDRAWING, Turn.LED_WRITTEN): LeaderState.RESIGNING,
    (LeaderState.WITHDRAWING, Turn.LED_REFUSED): LeaderState.RESIGNED,
    (LeaderState.WITHDRAWING, Turn.LED_OVERTAKEN): LeaderState.RESIGNED,
    (LeaderState.LEADING, Turn.WRITE_REFUSED): LeaderState.DEPOSED,
    (LeaderState.LEADING, Turn.RESIGN_ASKED): LeaderState.RESIGNING,
    (LeaderState.RESIGNING, Turn.RESIGNATION_WRITTEN): LeaderState.RESIGNED,
    (LeaderState.RESIGNING, Turn.WRITE_REFUSED): LeaderState.DEPOSED,
    (LeaderState.CAMPAIGNING, Turn.WRITE_FAILED): LeaderState.BROKEN,
    (LeaderState.WITHDRAWING, Turn.WRITE_FAILED): LeaderState.BROKEN,
    (LeaderState.LEADING, Turn.WRITE_FAILED): LeaderState.BROKEN,
    (LeaderState.RESIGNING, Turn.WRITE_FAILED): LeaderState.BROKEN,
}


_LOOKING = (LeaderState.READING, LeaderState.WATCHING)
#: Somebody else writes this log, or nobody can: who wished to lead it has to give up.
LOST = (LeaderState.DENIED, LeaderState.DEPOSED, LeaderState.BROKEN)
#: Nothing more will be written by this process.
OVER = (LeaderState.RESIGNED, *LOST)


class InvalidTransitionError(RuntimeError):
    """A turn that the state does not know: a defect of ours, with the history that led here."""


@dataclass(slots=True)
class Write:
    """The one entry on its way to the store."""

    number: int
    entry: Entry
    resolved: bool = True
    attempts: int = 1
    retry_at: float = 0.0
    #: When the store was first asked, and what it said last.
    begun_at: float = 0.0
    error: str = ""
    stalled: bool = False


S = TypeVar("S", bound=LogState)


class Leadership(Generic[S]):
    """The state machine of one log. `handle` is its door; `committed` drains what became durable.

    `ledger` is the fold to go on from. Where `cluster` names the cluster that this process leads, what an earlier
    leader of the same cluster led for the same run is free for it. The run is the one that `identity` names; without
    one, as for the cluster's own log, any is the same.
    """

    def __init__(
        self,
        log: str,
        identity: Mapping[str, Any],
        ledger: S,
        *,
        standby: bool = False,
        cluster: str = "",
        limits: LogLimits = LOG_LIMITS,
    ) -> None:
        self.log = log
        self.identity = dict(identity)
        self.standby = standby
        self.cluster = cluster
        self._limits = limits
        self._run = self.identity.get("run", "")
        #: The newest durable snapshot that is known here, and the number of the one that is being written.
        self._snapshot = -1
        self._snapshotting: int | None = None
        self.state = LeaderState.READING
        self.ledger = ledger
        #: The term that this process leads, 0 while it leads none.
        self.term = 0
        #: Atoms: changes that belong together, and are in one entry or in none.
        self._queue: list[tuple[Change, ...]] = []
        self._write: Write | None = None
        self._committed: list[tuple[int, Entry]] = []
        self._heard_at = 0.0
        self._wrote_at = 0.0
        self._watch_at: float | None = None
        #: Why the log could not be read last, or cannot be written any more.
        self._trouble = ""
        self._history: list[str] = []

    # -- what others ask --

    def open(self) -> list[Command]:
        """Begin: read the log."""
        return [ReadLog(self.log, self.ledger.number)]

    def open_at(self, time: float) -> None:
        """Begin later."""
        self._watch_at = time

    def submit(self, *changes: Change) -> None:
        """Queue changes that belong together: one entry holds them all, durable when `committed` gives them back."""
        if changes:
            self._queue.append(changes)

    def resign(self) -> None:
        """Write what is queued, then hand the log over; who does not lead yet gives up the request to."""
        if (self.state, Turn.RESIGN_ASKED) in TRANSITIONS:
            self._turn(Turn.RESIGN_ASKED)
        if self.state is LeaderState.RESIGNING:
            self._resign_last()

    def drop_campaign(self) -> None:
        """Give up a campaign whose `Led` was not handed to the store: nobody will ever see it."""
        if self.state is LeaderState.CAMPAIGNING:
            self._write = None
            self._turn(Turn.CAMPAIGN_DROPPED)
        else:
            self.resign()

    def why_not_leading(self) -> str:
        """For people: who writes this log instead, or why nobody can."""
        if self.state is LeaderState.BROKEN:
            return f"the log of {self.log} cannot be written: {self._trouble}"
        leader = self.ledger.leader
        run = f"pipeline {leader['run']!r}, by " if leader.get("run", self._run) != self._run else ""
        who = f"{run}process {leader.get('pid', '?')} on host {leader.get('host', '?')} (term {self.ledger.term})"
        if self.state is LeaderState.DENIED:
            return f"dataset {self.log} is being written by {who}: stop it, or write to another dataset"
        return f"dataset {self.log} has been taken over by {who}; this run has stepped down"

    def committed(self) -> list[tuple[int, Entry]]:
        """Entries that became durable since the last call, in order."""
        done, self._committed = self._committed, []
        return done

    @property
    def _of_this_cluster(self) -> bool:
        return bool(self.cluster) and self.ledger.leader.get("cluster") == self.cluster

    @property
    def is_heir(self) -> bool:
        """Whether it was led last for this run of this cluster, by whomever."""
        return self._of_this_cluster and self.ledger.leader.get("run", self._run) == self._run

    @property
    def _has_rival(self) -> bool:
        """Whether another run of this cluster led it last: while that lives there is nothing to wait for."""
        return self._of_this_cluster and not self.is_heir

    @property
    def quiet(self) -> bool:
        """Nothing is queued or on its way."""
        return not self._queue and self._write is None

    def trouble(self, now: float) -> tuple[float, str]:
        """For how many seconds the entry on its way is unresolved, and what the store says; 0 and "" if none is.

        While the log is looked at, why it could not be read last.
        """
        if self.state in _LOOKING:
            return 0.0, self._trouble
        if self._write is None or not self._write.error:
            return 0.0, ""
        return now - self._write.begun_at, self._write.error

    @property
    def stalled(self) -> bool:
        """Whether the entry on its way waits for a store that is full or silent, which passes by itself."""
        return self._write is not None and self._write.stalled

    def wake_at(self) -> float | None:
        """When `handle(TimePassed())` is wanted next."""
        if self.state in _LOOKING:
            return self._watch_at
        if self._write is not None:
            return None if self._write.resolved else self._write.retry_at
        if self.state is LeaderState.LEADING:
            return self._wrote_at + BEAT_S
        # A resignation that was asked for between two events is queued and not on its way yet.
        return self._wrote_at if self.state is LeaderState.RESIGNING else None

    def story(self) -> list[str]:
        """The last transitions, oldest first."""
        return list(self._history)

    # -- the door --

    def handle(self, event: LogEvent | TimePassed, now: float) -> list[Command]:
        """Take one event; give the commands that follow from it."""
        match event:
            case LogRead():
                return self._on_read(event, now)
            case LogUnreadable():
                self._watch_at, self._trouble = now + UNREADABLE_S, event.error
                return []
            case EntryWritten():
                return self._on_written(event, now)
            case EntryRefused():
                return self._on_refused(event, now)
            case EntryUnresolved():
                return self._on_unresolved(event, now)
            case EntryFailed():
                return self._on_failed(event)
            case EntryOvertaken():
                return self._on_overtaken(event)
            case SnapshotWritten():
                return self._on_snapshot(event)
            case TimePassed():
                return self._on_time(now)
            case _:
                assert_never(event)

    def flush(self, now: float) -> list[Command]:
        """Group commit: one entry of all that is queued and fits, unless one is on its way. No atom is cut."""
        if self._write is not None or self.state not in (LeaderState.LEADING, LeaderState.RESIGNING):
            return []
        if not self._queue:
            return []
        count = self._fitting()
        batch, self._queue = self._queue[:count], self._queue[count:]
        return self._begin(Entry(self.term, tuple(self._dated(change, now) for atom in batch for change in atom)), now)

    # -- inside --

    def _dated(self, change: Change, now: float) -> Change:
        """A version with its time, where this process knows the time at which its clock was 0."""
        clock = self.identity.get("clock", 0)
        if clock and isinstance(change, VersionPublished | VersionHeld):
            return replace(change, at=int(clock + now))
        return change

    def _fitting(self) -> int:
        """How many of the queued atoms the next entry takes: at least one, however many changes that is."""
        changes = 0
        for count, atom in enumerate(self._queue):
            changes += len(atom)
            if count and changes > self._limits.changes_max:
                return count
        return len(self._queue)

    def _on_read(self, event: LogRead, now: float) -> list[Command]:
        if self.state not in (LeaderState.READING, LeaderState.WATCHING) or event.after != self.ledger.number:
            # It may be the answer to an earlier run's question about the same log.
            return []
        self._trouble = ""
        before = self.ledger.number
        if event.snapshot is not None and event.snapshot.number > before:
            self.ledger.restore(event.snapshot)
            self._snapshot = event.snapshot.number
        for number, entry in event.entries:
            if number > self.ledger.number:
                self.ledger.apply(number, entry)
        first_look = self.state is LeaderState.READING
        if self.ledger.number > before or first_look:
            self._heard_at = now
        free = self.ledger.number < 0 or self.ledger.resigned or event.leader_alive is False or self.is_heir
        if free or now >= self._heard_at + TAKEOVER_S:
            return self._campaign(now)
        if event.leader_alive and (not self.standby or self._has_rival):
            self._turn(Turn.LEADER_IS_ALIVE)
            return []
        self._turn(Turn.LOG_IS_LED)
        self._watch_at = now + WATCH_S
        return []

    def _campaign(self, now: float) -> list[Command]:
        self._turn(Turn.LOG_IS_FREE)
        term = self.ledger.term + 1
        return self._begin(Entry(term, (Led(term, self.identity),)), now)

    def _begin(self, entry: Entry, now: float) -> list[Command]:
        number = self.ledger.number + 1
        self._write = Write(number, entry, begun_at=now)
        self._wrote_at = now
        return [WriteEntry(self.log, number, entry)]

    def _on_written(self, event: EntryWritten, now: float) -> list[Command]:
        write = self._write
        if write is None or write.number != event.number:
            return []
        self._write = None
        self.ledger.apply(write.number, write.entry)
        self._committed.append((write.number, write.entry))
        if self.state in (LeaderState.CAMPAIGNING, LeaderState.WITHDRAWING):
            self.term = write.entry.term
            withdrawn = self.state is LeaderState.WITHDRAWING
            self._turn(Turn.LED_WRITTEN)
            if withdrawn:
                self._resign_last()
        elif any(isinstance(change, Resigned) for change in write.entry.changes):
            self._turn(Turn.RESIGNATION_WRITTEN)
        self._wrote_at = now
        return [*self._snapshot_if_due(), *self.flush(now)]

    def _snapshot_if_due(self) -> list[Command]:
        number = self.ledger.number
        leads = self.state is LeaderState.LEADING and self._snapshotting is None
        if not leads or number < self._snapshot + self._limits.snapshot_entries:
            return []
        self._snapshotting = number
        return [WriteSnapshot(self.log, number, self.ledger)]

    def _on_snapshot(self, event: SnapshotWritten) -> list[Command]:
        """Two snapshots stay, so that a slow reader finds the entries behind the older one."""
        if event.number != self._snapshotting:
            return []
        self._snapshotting = None
        if event.error:
            return []
        before, self._snapshot = self._snapshot, event.number
        keep = frozenset(self.ledger.led_at)
        return [TruncateLog(self.log, before, keep)] if before >= 0 else []

    def _on_refused(self, event: EntryRefused, now: float) -> list[Command]:
        write = self._write
        if write is None or write.number != event.number:
            return []
        self._write = None
        self.ledger.apply(event.number, event.entry)
        if self.state in (LeaderState.CAMPAIGNING, LeaderState.WITHDRAWING):
            self._turn(Turn.LED_REFUSED)
            self._heard_at, self._watch_at = now, now + WATCH_S
        else:
            self._turn(Turn.WRITE_REFUSED)
            self._queue.clear()
        return []

    def _on_overtaken(self, event: EntryOvertaken) -> list[Command]:
        """The number lies below a snapshot: others have led since, and the log is read again."""
        write = self._write
        if write is None or write.number != event.number:
            return []
        self._write = None
        self._turn(Turn.LED_OVERTAKEN)
        return [ReadLog(self.log, self.ledger.number)] if self.state is LeaderState.READING else []

    def _on_failed(self, event: EntryFailed) -> list[Command]:
        """What was queued is lost with the term: none of it was promised to anybody."""
        write = self._write
        if write is None or write.number != event.number:
            return []
        self._write, self._trouble = None, event.error
        self._turn(Turn.WRITE_FAILED)
        self._queue.clear()
        return []

    def _on_unresolved(self, event: EntryUnresolved, now: float) -> list[Command]:
        write = self._write
        if write is not None and write.number == event.number:
            write.resolved = False
            write.error, write.stalled = event.error, event.stalled
            write.retry_at = now + min(RETRY_S_MAX, RETRY_S * 2 ** (write.attempts - 1))
        return []

    def _on_time(self, now: float) -> list[Command]:
        write = self._write
        if write is not None:
            if write.resolved or now < write.retry_at:
                return []
            write.resolved, write.attempts = True, write.attempts + 1
            return [WriteEntry(self.log, write.number, write.entry)]
        if self.state in _LOOKING and self._watch_at is not None and now >= self._watch_at:
            self._watch_at = None
            return [ReadLog(self.log, self.ledger.number)]
        if self.state is LeaderState.LEADING and now >= self._wrote_at + BEAT_S and not self._queue:
            self.submit(Beat(self.term))
        return self.flush(now)

    def _resign_last(self) -> None:
        if (Resigned(self.term),) not in self._queue:
            self.submit(Resigned(self.term))

    def _turn(self, turn: Turn) -> None:
        target = TRANSITIONS.get((self.state, turn))
        if target is None:
            raise InvalidTransitionError(f"{self.log}: {self.state.value} on {turn.value!r} after {self._history[-8:]}")
        self._history = [*self._history[-31:], f"{self.state.value} --{turn.value}--> {target.value}"]
        self.state = target
