"""A simulated log: the real `store/ledger/log.py`, over a store in memory whose answers are late, lost or wrong.

A write takes effect some time after it was asked for and is answered some time after that. In between anything may
have died, others may have led, and what stood at its number may have been truncated. What was written first at each
number is kept beside the store, for the checker: that, and not what a truncation has left, is the log's history.
"""

from __future__ import annotations

import bisect
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import TypeVar

from headrace.chaos.sim.world import ViolationError, World
from headrace.controller.core.messages import (
    EntryOvertaken,
    EntryRefused,
    EntryUnresolved,
    EntryWritten,
    LogEvent,
    LogRead,
    ReadLog,
    SnapshotWritten,
    TruncateLog,
    WriteEntry,
    WriteSnapshot,
)
from headrace.store import Buffer, Capabilities, Decide, FormatError, ObjectInfo, ObjectMissing
from headrace.store.ledger import (
    Appended,
    ClusterState,
    Entry,
    Led,
    LedgerState,
    Log,
    LogState,
    begins_a_term,
    decode_entry,
    decode_snapshot,
    encode_snapshot,
)

#: Shares of writes that end in an error before or after they took effect: on a good day, and in trouble.
CALM, TROUBLE = 0.01, 0.35

S = TypeVar("S", bound=LogState)
Answer = EntryWritten | EntryRefused | EntryUnresolved | EntryOvertaken


class MemoryStore:
    """As much of an `ObjectStore` as a log needs."""

    is_remote = False
    capabilities = Capabilities()

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._keys: list[str] = []
        self._bytes: dict[str, bytes] = {}
        self._infos: dict[str, ObjectInfo] = {}

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        """See `ObjectStore.create`."""
        if key in self._bytes:
            return False
        data = self._bytes[key] = b"".join(bytes(part) for part in parts)
        self._infos[key] = ObjectInfo(key, len(data), "")
        bisect.insort(self._keys, key)
        return True

    def replace(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `ObjectStore.replace`; nothing of a log is ever replaced."""
        raise NotImplementedError(key)

    def update(self, key: str, decide: Decide) -> bool:
        """See `ObjectStore.update`; nothing of a log is ever replaced, a manifest is."""
        parts = decide(self._bytes.get(key))
        if parts is not None:
            self.delete(key)
            self.create(key, parts)
        return parts is not None

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `ObjectStore.get`."""
        if key not in self._bytes:
            raise ObjectMissing(key, self.uri)
        return self._bytes[key][offset : None if length is None else offset + length]

    def head(self, key: str) -> ObjectInfo | None:
        """See `ObjectStore.head`."""
        return self._infos.get(key)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        for key in self._keys[bisect.bisect_right(self._keys, after) :]:
            if key.startswith(prefix):
                yield self._infos[key]

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        if self._bytes.pop(key, None) is not None:
            del self._infos[key]
            self._keys.remove(key)

    def open_local(self, key: str) -> None:
        """See `ObjectStore.open_local`: nothing here is a file."""


class SimulatedLog:
    """One log: the ledger of a dataset, or a cluster's own."""

    def __init__(self, world: World, uri: str) -> None:
        self._world = world
        self.uri = uri
        #: The entries as they stand, and whatever else lies beside them.
        self.store = MemoryStore(uri)
        self._log = Log(self.store)
        #: What was written first at each number, whether it still stands or not.
        self.entries: list[bytes] = []
        self.decoded: list[Entry] = []
        self._snapshots: dict[bytes, LogState] = {}
        self.error_share = CALM
        #: Entries that truncations have deleted.
        self.truncated = 0
        #: Told of each entry that has become durable: its number, its content and who wrote it.
        self.durable: Callable[[int, Entry, str], None] = lambda _number, _entry, _writer: None

    def write(self, command: WriteEntry, data: bytes, writer: str, answer: Callable[[LogEvent], None]) -> None:
        """Create an entry of these bytes, and answer what is known of it afterwards."""
        slow = self._world.chance(self.error_share)
        delay = self._world.between(0.5, 3.0) if slow else self._world.between(0.004, 0.04)
        self._world.after(delay, self._create, command, data, writer, answer)

    def read(self, command: ReadLog, leader_alive: bool | None) -> LogRead:
        """What a reader that knows everything up to a number is given."""
        try:
            found, behind = self._log.read_from(command.after)
        except (FormatError, ObjectMissing) as error:
            raise ViolationError(1, f"the log cannot be read behind entry {command.after}: {error}") from error
        snapshot = self._restored(found[1]) if found is not None else None
        entries = tuple((number, self._decoded(number, data)) for number, data in behind)
        return LogRead(command.log, entries, command.after, leader_alive, snapshot)

    def snapshot(self, command: WriteSnapshot, answer: Callable[[LogEvent], None]) -> None:
        """Put a fold beside the entries; its bytes are taken now."""
        self._world.after(self._world.between(0.05, 1.5), self._put, command, encode_snapshot(command.state), answer)

    def truncate(self, command: TruncateLog) -> None:
        """Delete what a snapshot covers, some time from now."""
        self._world.after(self._world.between(0.01, 1.0), self._truncate, command)

    def behind(self, after: int) -> tuple[tuple[int, Entry], ...]:
        """The history behind number `after`."""
        return tuple(enumerate(self.decoded[after + 1 :], start=after + 1))

    def _restored(self, data: bytes) -> LogState:
        """A fold of its own from a snapshot's bytes; the same bytes are decoded once."""
        if data not in self._snapshots:
            self._snapshots[data] = decode_snapshot(data)
        return twin(self._snapshots[data])

    def _decoded(self, number: int, data: bytes) -> Entry:
        known = number < len(self.entries) and self.entries[number] == data
        return self.decoded[number] if known else decode_entry(data)

    def _put(self, command: WriteSnapshot, data: bytes, answer: Callable[[LogEvent], None]) -> None:
        if self._world.chance(self.error_share):
            answer(SnapshotWritten(command.log, command.number, "simulated: not written"))
            return
        self._log.write_snapshot(command.number, data)
        self._world.note(self.uri, f"snapshot {command.number} is durable")
        answer(SnapshotWritten(command.log, command.number))

    def _truncate(self, command: TruncateLog) -> None:
        self.truncated += self._log.truncate(command.upto, command.keep)
        self._world.note(self.uri, f"is truncated up to {command.upto}, but for", sorted(command.keep))

    def _create(self, command: WriteEntry, data: bytes, writer: str, answer: Callable[[LogEvent], None]) -> None:
        world, number = self._world, command.number
        if world.chance(self.error_share):
            world.note(self.uri, "an error before the write", number)
            result: Answer = EntryUnresolved(command.log, number, "simulated: not written")
            return world.after(world.between(0.01, 0.5), answer, result)
        if number > len(self.entries):
            raise ViolationError(1, f"{writer} writes entry {number} where {len(self.entries)} is the next")
        appended = self._log.append(number, data)
        if isinstance(appended, Appended) and number == len(self.entries):
            self.entries.append(data)
            self.decoded.append(decode_entry(data))
            world.note(self.uri, f"entry {number} is durable, by {writer}:", self.decoded[number])
            self.durable(number, self.decoded[number], writer)
        if world.chance(self.error_share):
            world.note(self.uri, "an error after the write", number)
            result = EntryUnresolved(command.log, number, "simulated: the answer was lost")
        elif not isinstance(appended, Appended):
            result = EntryRefused(command.log, number, self._decoded(number, appended.existing))
        elif isinstance(command.entry.changes[0], Led):
            return world.after(world.between(0.002, 0.2), self._look_whether_overtaken, command, answer)
        else:
            result = EntryWritten(command.log, number)
        return world.after(world.between(0.002, 0.02), answer, result)

    def _look_whether_overtaken(self, command: WriteEntry, answer: Callable[[LogEvent], None]) -> None:
        """A term that begins below a snapshot leads nothing."""
        if self._log.overtaken(command.number):
            if not begins_a_term(self._log, command.number):
                self._log.discard(command.number)
                self._world.note(self.uri, f"entry {command.number} was created below a snapshot, and is deleted")
            answer(EntryOvertaken(command.log, command.number))
        else:
            answer(EntryWritten(command.log, command.number))


def twin(state: S) -> S:
    """A fold that says the same and shares nothing that folding changes: lists, tables, records and intervals."""
    made = copy.copy(state)
    for item in fields(state):
        value = getattr(state, item.name)
        if isinstance(value, (list, dict, set)):
            setattr(made, item.name, value.copy())
    if isinstance(made, LedgerState):
        made.fragments = {
            name: replace(
                item,
                closed={sink: held.copy() for sink, held in item.closed.items()},
                released={sink: set(rows) for sink, rows in item.released.items()},
            )
            for name, item in made.fragments.items()
        }
    elif isinstance(made, ClusterState):
        made.runs = {name: replace(run, waiting=list(run.waiting)) for name, run in made.runs.items()}
    return made
