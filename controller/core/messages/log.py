"""What a log says to the core, and what the core asks of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.store.ledger import Entry, LogState


@dataclass(frozen=True, slots=True)
class LogRead:
    """The entries behind `after`, to the log's end: the answer to ReadLog.

    `leader_alive` is what this host can prove of the process named by the last Led: None where it cannot. Where the log
    was truncated behind what was asked for, `snapshot` is the fold that the entries follow.
    """

    log: str
    entries: tuple[tuple[int, Entry], ...]
    leader_alive: bool | None = None
    snapshot: LogState | None = None
    after: int = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class LogUnreadable:
    """The log could not be read now."""

    log: str
    error: str


@dataclass(frozen=True, slots=True)
class EntryWritten:
    """Entry `number` is durable with the bytes that were asked for."""

    log: str
    number: int


@dataclass(frozen=True, slots=True)
class EntryRefused:
    """Another entry stands at `number`."""

    log: str
    number: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class EntryUnresolved:
    """Nobody knows whether entry `number` was written.

    `stalled`: the store is full, or was there and is silent. `refused`: it will not do it, until somebody mends that.
    """

    log: str
    number: int
    error: str
    stalled: bool = False
    refused: bool = False


@dataclass(frozen=True, slots=True)
class EntryFailed:
    """Asking for entry `number` again cannot help: it has no bytes, or what stands there cannot be read."""

    log: str
    number: int
    error: str


@dataclass(frozen=True, slots=True)
class EntryOvertaken:
    """A `Led` stands below a snapshot: others have led since, and it leads nothing."""

    log: str
    number: int


@dataclass(frozen=True, slots=True)
class SnapshotWritten:
    """A snapshot of everything up to `number` is durable; or, with `error`, it could not be written."""

    log: str
    number: int
    error: str = ""


LogEvent = (
    LogRead
    | LogUnreadable
    | EntryWritten
    | EntryRefused
    | EntryUnresolved
    | EntryFailed
    | EntryOvertaken
    | SnapshotWritten
)


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read a log's entries behind `after`."""

    log: str
    after: int


@dataclass(frozen=True, slots=True)
class WriteEntry:
    """Create entry `number` of a log. The bytes of one number never change."""

    log: str
    number: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """Put this fold beside the log's entries. It goes on changing: take its bytes before anything else happens."""

    log: str
    number: int
    state: LogState


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Delete the entries up to `upto`, which a snapshot covers, but for those that begin a term."""

    log: str
    upto: int
    keep: frozenset[int]


LogCommand = ReadLog | WriteEntry | WriteSnapshot | TruncateLog
