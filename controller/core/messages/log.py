"""What a log says to the core, and what the core asks of it."""

from __future__ import annotations

from msgspec import Struct

from headrace.store.ledger import Entry, LogState


class LogRead(Struct, frozen=True):
    """The entries behind `after`, to the log's end: the answer to ReadLog.

    `leader_alive` is what this host can prove of the process named by the last Led: None where it cannot. Where the log
    was truncated behind what was asked for, `snapshot` is the fold that the entries follow.
    """

    log: str
    entries: tuple[tuple[int, Entry], ...]
    after: int
    leader_alive: bool | None = None
    snapshot: LogState | None = None


class LogUnreadable(Struct, frozen=True):
    """The log could not be read now."""

    log: str
    error: str


class EntryWritten(Struct, frozen=True):
    """Entry `number` is durable with the bytes that were asked for."""

    log: str
    number: int


class EntryRefused(Struct, frozen=True):
    """Another entry stands at `number`."""

    log: str
    number: int
    entry: Entry


class EntryUnresolved(Struct, frozen=True):
    """Nobody knows whether entry `number` was written.

    `stalled`: the store is full, or was there and is silent. `refused`: it will not do it, until somebody mends that.
    """

    log: str
    number: int
    error: str
    stalled: bool = False
    refused: bool = False


class EntryFailed(Struct, frozen=True):
    """Asking for entry `number` again cannot help: it has no bytes, or what stands there cannot be read."""

    log: str
    number: int
    error: str


class EntryOvertaken(Struct, frozen=True):
    """A `Led` stands below a snapshot: others have led since, and it leads nothing."""

    log: str
    number: int


class SnapshotWritten(Struct, frozen=True):
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


class ReadLog(Struct, frozen=True):
    """Read a log's entries behind `after`."""

    log: str
    after: int


class WriteEntry(Struct, frozen=True):
    """Create entry `number` of a log. The bytes of one number never change."""

    log: str
    number: int
    entry: Entry


class WriteSnapshot(Struct, frozen=True):
    """Put this fold beside the log's entries. It goes on changing: take its bytes before anything else happens."""

    log: str
    number: int
    state: LogState


class TruncateLog(Struct, frozen=True):
    """Delete the entries up to `upto`, which a snapshot covers, but for those that begin a term."""

    log: str
    upto: int
    keep: frozenset[int]


LogCommand = ReadLog | WriteEntry | WriteSnapshot | TruncateLog
