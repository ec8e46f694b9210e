"""The log's I/O: reading entries and creating them, one thread a log, so that no write passes another."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import socket
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from headrace.controller.core.messages import (
    EntryOvertaken,
    EntryRefused,
    EntryUnresolved,
    EntryWritten,
    LogRead,
    ReadLog,
    SnapshotWritten,
    TruncateLog,
    WriteEntry,
    WriteSnapshot,
)
from headrace.daemon import OneThread, apart
from headrace.store import ObjectStore, StoreError, StoreRefused, StoreStalled, open_store
from headrace.store.ledger import (
    Appended,
    Beat,
    Entry,
    EpochRaised,
    FragmentEnded,
    FragmentsListed,
    Led,
    Log,
    PipelineApplied,
    begins_a_term,
    decode_entry,
    encode_entry,
    read_behind,
)
from headrace.store.s3 import begin_race

LogAnswer = EntryWritten | EntryRefused | EntryUnresolved | EntryOvertaken
#: What a new log may say while the race about its store goes on: nothing is closed by it, and nothing lost with it.
_BEFORE_THE_RACE = (Led, Beat, PipelineApplied, EpochRaised, FragmentsListed, FragmentEnded)


@dataclass(slots=True)
class _OpenLog:
    store: ObjectStore
    log: Log
    thread: OneThread
    leader: Led | None = None
    #: Whether its store has been seen to let exactly one create an object.
    probed: bool = False
    race: Future[None] | None = None
    #: Whether all its entries are ours: it was empty when this process first read it.
    is_new: bool | None = None
    #: Reads and writes that are under way.
    at_work: int = 0


class Logs:
    """The logs that this controller has open, by dataset URI.

    Where two can create one object, two can lead: better no leader than two. So each store is probed by a race, which
    takes seconds on some, before anything is added to a log that says something already, to that of the `cluster`,
    whose leader acts beyond it, or to any that would close a batch. The first entries of a new log need not wait for
    it (docs/decisions/0022-a-run-begins-while-its-store-is-probed).
    """

    def __init__(self, opener: Callable[[str], ObjectStore] = open_store, cluster: str = "") -> None:
        self._opener, self._cluster = opener, cluster
        self._logs: dict[str, _OpenLog] = {}

    async def read(self, command: ReadLog) -> LogRead:
        """Entries behind the last known one. Raises StoreError, and EntryError for one that cannot be read."""
        with self._at_work(command.log) as opened:
            return await asyncio.get_running_loop().run_in_executor(opened.thread.pool, self._read, opened, command)

    async def write(self, command: WriteEntry) -> LogAnswer:
        """Create one entry, and say what stands there now.

        Raises where asking again cannot help: StoreRefused, and EntryError for an entry that has no bytes, or where
        what stands there cannot be read.
        """
        with self._at_work(command.log) as opened:
            return await asyncio.get_running_loop().run_in_executor(opened.thread.pool, self._write, opened, command)

    def snapshot(self, command: WriteSnapshot) -> Coroutine[Any, Any, SnapshotWritten]:
        """Take the bytes of a fold now; what is returned writes them, on another thread than the entries'.

        That raises StoreError.
        """
        from headrace.store.ledger import encode_snapshot

        return self._write_snapshot(command, encode_snapshot(command.state))

    async def _write_snapshot(self, command: WriteSnapshot, data: bytes) -> SnapshotWritten:
        log = self._open(command.log).log
        await apart(f"a snapshot of {command.log}", lambda: log.write_snapshot(command.number, data))
        return SnapshotWritten(command.log, command.number)

    async def truncate(self, command: TruncateLog) -> None:
        """Delete what a snapshot covers. Raises StoreError."""
        log = self._open(command.log).log
        await apart(f"the truncation of {command.log}", lambda: log.truncate(command.upto, command.keep))

    def store(self, dataset: str) -> ObjectStore:
        """The dataset's store. Raises StoreError for a URI that cannot be opened."""
        return self._open(dataset).store

    def keep(self, wanted: Collection[str]) -> None:
        """Let go of the logs that nobody wants and no read or write is under way on; with each goes its thread."""
        for name in [name for name, opened in self._logs.items() if name not in wanted and not opened.at_work]:
            self._logs.pop(name).thread.close(wait=False)

    def close(self) -> None:
        """Begin no more. Whoever calls it has waited for what is being written, for as long as it would."""
        for opened in self._logs.values():
            opened.thread.close(wait=False)

    @contextlib.contextmanager
    def _at_work(self, dataset: str) -> Iterator[_OpenLog]:
        opened = self._open(dataset)
        opened.at_work += 1
        try:
            yield opened
        finally:
            opened.at_work -= 1

    def _open(self, dataset: str) -> _OpenLog:
        opened = self._logs.get(dataset)
        if opened is None:
            store = self._opener(dataset)
            opened = _OpenLog(store, Log(store), OneThread("log"))
            self._logs[dataset] = opened
        return opened

    def _read(self, opened: _OpenLog, command: ReadLog) -> LogRead:
        entries: list[tuple[int, Entry]] = []
        found, behind = read_behind(opened.log, command.after)
        snapshot = None
        if found is not None:
            _, snapshot = found
            opened.leader = Led(snapshot.term, snapshot.leader)
        for number, data in behind:
            entry = decode_entry(data, f"entry {number} of {command.log}")
            entries.append((number, entry))
            for change in entry.changes:
                if isinstance(change, Led):
                    opened.leader = change
        if opened.is_new is None:
            opened.is_new = command.after < 0 and not entries and snapshot is None and command.log != self._cluster
            if opened.is_new:
                opened.race = begin_race(opened.store)
        alive = is_alive(opened.leader.leader) if opened.leader else None
        return LogRead(command.log, tuple(entries), command.after, alive, snapshot)

    def _written(self, opened: _OpenLog, command: WriteEntry) -> EntryWritten | EntryOvertaken | EntryUnresolved:
        """An entry stands with our bytes. One that begins a term must not stand below a snapshot that lacks it."""
        begins = bool(command.entry.changes) and isinstance(command.entry.changes[0], Led)
        try:
            if not begins or not opened.log.overtaken(command.number):
                return EntryWritten(command.log, command.number)
            if not begins_a_term(opened.log, command.number):
                opened.log.discard(command.number)
        except StoreError as error:
            return EntryUnresolved(command.log, command.number, str(error), isinstance(error, StoreStalled))
        return EntryOvertaken(command.log, command.number)

    def _probe(self, opened: _OpenLog, entry: Entry) -> None:
        """Wait for the race, unless the entry may come before its end. Raises StoreError."""
        race, opened.race = opened.race or begin_race(opened.store), None
        if race is not None:
            if opened.is_new and not race.done() and all(isinstance(item, _BEFORE_THE_RACE) for item in entry.changes):
                opened.race = race
                return
            race.result()
        opened.probed = True

    def _write(self, opened: _OpenLog, command: WriteEntry) -> LogAnswer:
        try:
            if not opened.probed:
                self._probe(opened, command.entry)
            result = opened.log.append(command.number, encode_entry(command.entry))
        except StoreRefused:
            raise
        except StoreError as error:
            return EntryUnresolved(command.log, command.number, str(error), isinstance(error, StoreStalled))
        if isinstance(result, Appended):
            return self._written(opened, command)
        opened.is_new = False
        entry = decode_entry(result.existing, f"entry {command.number} of {command.log}")
        for change in entry.changes:
            if isinstance(change, Led):
                opened.leader = change
        return EntryRefused(command.log, command.number, entry)


_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")
#: The field of /proc/<pid>/stat that holds the start in clock ticks since boot, counted behind the name (proc(5)).
_START_FIELD = 19


def identity() -> dict[str, Any]:
    """Host, boot, pid and start of this process: no two processes share all four.

    `clock` is the Unix time, in seconds, at which its monotonic clock was 0.
    """
    pid = os.getpid()
    clock = round(time.time() - time.monotonic())
    return {"host": socket.gethostname(), "boot": _boot(), "pid": pid, "start": _start(pid) or 0, "clock": clock}


def is_alive(other: Mapping[str, Any]) -> bool | None:
    """Whether that process lives; None where this host cannot know."""
    if not other.get("boot") or other["boot"] != _boot():
        return None
    if not _sees_all_processes():
        return None
    pid, start = other.get("pid"), other.get("start")
    # A ledger is written by whoever may write the dataset.
    if type(pid) is not int or type(start) is not int:
        return None
    return _start(pid) == start


def _boot() -> str:
    try:
        namespace = os.readlink("/proc/self/ns/pid")
        return f"{_BOOT_ID.read_text().strip()} {namespace}"
    except OSError:
        return ""


def _sees_all_processes() -> bool:
    """With /proc mounted hidepid, another user's process looks dead; then nothing is proved."""
    return pathlib.Path("/proc/1/stat").exists()


def _start(pid: int) -> int | None:
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in ("Z", "X") else int(fields[_START_FIELD])
