"""A spool: records that are pushed at Headrace, on disk before they are acknowledged, in files that a source reads.

A folder with segments. `<number>.jsonl.open` is the one that grows; sealed, it is called `<number>.jsonl` and never
changes again, so it is a fragment like any file (`read_jsonl("<folder>/*.jsonl")`). Beside each stands a journal
`<number>.commits`: a line for each push, with the byte of the segment behind it and the key of the push.

A push is appended, synced, entered in the journal, synced, and then acknowledged. What a crash leaves in a segment
behind the last entry of its journal was acknowledged to nobody and is cut off. A push whose key is known is
acknowledged and not written again. So a client that repeats what was not acknowledged, under the same key, has it
here once.

What a full spool does not take, where it is told to shed: a line for each push, durable before it is answered. A
segment of such lines, `<number>.shed`, is a fragment like any other: it gives each record that was shed its verdict
(`headrace.stages.sources.spool`). Of the records it holds the number alone.

The number of a segment is never given again, and its pushes stay known when it is released: its journal stays, and a
segment of what was shed becomes a journal itself, `<number>.shed.commits`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from headrace.stages.sources import CLOSED, PUSH_RECORDS_MAX, shed_entry
from headrace.store import StoreError
from headrace.store.files import disk

_JOURNAL = ".commits"
_SHED_OPEN, _SHED_SEALED = ".shed.open", ".shed"
_NAME = re.compile(r"[0-9]{12,18}\.shed(?:\.open|\.commits)?")


def name_anew(source: Path, target: Path) -> None:
    """Give a segment its last name, durably. After an OSError it may have either, and another call goes on with it."""
    if source.exists():
        disk.rename(source, target)
    else:
        disk.sync_folder(target.parent)


def _cut(segment: Path, end: int) -> None:
    """Cut an open segment to what was written down, and seal it; one of nothing is taken away, nobody has seen it."""
    with open(segment, "r+b") as file:
        file.truncate(end)
        disk.sync(file.fileno())
    if end:
        disk.rename(segment, segment.with_suffix(""))
    else:
        segment.unlink()


class ShedLog:
    """The segments of one folder. Called by its Spool, under its lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._segment = -1
        self._name = ""
        self._end = 0
        #: Whether the name of the open segment is durable.
        self._named = False
        self.born_at = 0.0

    @property
    def open(self) -> bool:
        """Whether a segment grows."""
        return self._segment >= 0

    def note(self, number: int, records: int, size: int, key: str) -> None:
        """Write down that a push was shed; in segment `number` if none is open. OSError: nothing was written down."""
        if not self.open:
            self._name = f"{number:012d}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._segment = os.open(self._folder / (self._name + _SHED_OPEN), flags, 0o644)
            self._end, self.born_at = 0, time.monotonic()
            self._named = False
        line = orjson.dumps({"records": records, "bytes": size, "key": key}, option=orjson.OPT_APPEND_NEWLINE)
        try:
            if os.write(self._segment, line) < len(line):
                raise OSError(28, "the disk is full")
            disk.sync_data(self._segment)
            if not self._named:
                disk.sync_folder(self._folder)
                self._named = True
        except OSError:
            os.ftruncate(self._segment, self._end)
            raise
        self._end += len(line)

    def seal(self) -> None:
        """End the open segment, if there is one. After an OSError it is open, and another call tries again.

        One without a push is taken away: its name may not be durable, and nobody has seen it.
        """
        if self.open:
            path = self._folder / (self._name + _SHED_OPEN)
            if self._end:
                name_anew(path, path.with_suffix(""))
            else:
                path.unlink()
            os.close(self._segment)
            self._segment = -1

    def release(self, name: str) -> None:
        """Let a sealed segment go. It is kept as a journal, for its number and its keys."""
        disk.rename(self._folder / name, self._folder / (name + _JOURNAL))

    def recover(self) -> Iterator[tuple[int, list[tuple[int, str]]]]:
        """Of each segment its number, and the records and key of its pushes; one left open is mended and sealed.

        Raises StoreError for a line that is no push.
        """
        for path in sorted(self._folder.glob("*.shed*")):
            if not _NAME.fullmatch(path.name):
                continue
            number, data = int(path.name.split(".", 1)[0]), path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if path.name.endswith(_SHED_OPEN):
                _cut(path, len(whole))
            try:
                pushes = [shed_entry(line) for line in whole.splitlines()]
            except ValueError as error:
                raise StoreError(f"spool {self._folder}: {path.name} is damaged ({error}); take it away") from error
            yield number, pushes


#: Keys of pushes that are remembered; one that comes again later than that is written again.
KEYS_MAX = 1 << 20
SEGMENT_BYTES = 64 << 20
#: Seconds after its first push at which a segment is sealed.
SEGMENT_AGE_S = 30.0
#: Journals of segments that are gone which are kept: after a restart, keys of earlier ones are not known.
JOURNALS_KEPT = 1_000
_SEGMENT = re.compile(r"[0-9]{12,18}\.(?:jsonl|shed)")
_JOURNAL_NAME = re.compile(r"[0-9]{12,18}\.commits")
_JOURNAL_OF_ANY = re.compile(r"([0-9]{12,18})(?:\.shed)?\.commits")
#: Bytes of a segment, at which its journal would be a lie.
_END_MAX = 1 << 53
#: Bytes of a push that are in lines at a time.
_SPLIT_BYTES = 256 << 10
_OPEN, _SEALED = ".jsonl.open", ".jsonl"


class SpoolFullError(Exception):
    """The spool holds as much as it may; try again when segments are gone."""


class SpoolClosedError(Exception):
    """The spool is closed: nothing comes behind what it holds."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The answer to a push: records that are durable, and records of which it is durable that they were shed."""

    records: int
    shed: int = 0


class Spool:
    """One folder of segments, owned by one process. Its verbs may be called from any thread.

    `limit_bytes` bounds all segments together; `segment_bytes` and `age_s` say when one is sealed. With `sheds`, what a
    full spool does not take is shed, and written down as that. Raises StoreError where the folder cannot be used, or
    another process has it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        limit_bytes: int,
        segment_bytes: int = SEGMENT_BYTES,
        age_s: float = SEGMENT_AGE_S,
        sheds: bool = False,
    ) -> None:
        self._folder = folder
        self.limit_bytes, self._segment_bytes, self._age_s = limit_bytes, segment_bytes, age_s
        self._lock = threading.Lock()
        self._keys: OrderedDict[str, Taken] = OrderedDict()
        self._shed, self._sheds = ShedLog(folder), sheds
        self._segment = self._journal = -1
        self._number = self._end = 0
        self._name = ""
        self._born_at = 0.0
        #: Whether what the disk holds of the open segment is not known any more.
        self._broken = False
        #: Whether a seal of the open segment has begun and was not ended: it may have its last name already.
        self._sealing = False
        try:
            disk.make_folder(folder)
            self._guard = os.open(folder / "owner", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._recover()
            except BaseException:
                os.close(self._guard)  # and with it the lock: nobody has this folder
                raise
        except BlockingIOError as error:
            raise StoreError(f"spool {folder}: another process has it; give each its own folder") from error
        except OSError as error:
            raise StoreError(
                f"spool {folder}: {error.strerror}; it must be a folder that this user can write"
            ) from error

    def push(self, data: bytes, key: str = "") -> Taken:
        """Append lines, and return how many records they are once they are durable; blank lines are none.

        Raises SpoolFullError, SpoolClosedError, and OSError where the disk does not take them: nothing was taken then.
        """
        body, records = _records(data)
        with self._lock:
            if key and key in self._keys:
                return self._keys[key]
            self._check_whole()
            if self.closed:
                raise SpoolClosedError("the spool is closed")
            if not records:
                return Taken(0)
            if self._sealing:
                self._seal()
            if self._used_bytes() + len(body) > self.limit_bytes:
                return self._refuse(records, len(body), key)
            taken = Taken(records)
            self._append(body, key, taken)
            if self._end >= self._segment_bytes:
                # What was taken is durable, whatever becomes of the name of its segment: the next push tries again.
                with contextlib.suppress(OSError):
                    self._seal()
            return taken

    def tick(self) -> None:
        """Seal a segment that has reached its age; to be called every second or so.

        Raises OSError where the disk does not take it: the next call tries again.
        """
        with self._lock:
            now = time.monotonic()
            if self._segment >= 0 and not self._broken and now >= self._born_at + self._age_s:
                self._seal()
            if self._shed.open and now >= self._shed.born_at + self._age_s:
                self._shed.seal()

    @property
    def closed(self) -> bool:
        """Whether nothing more comes, now and after a restart."""
        return (self._folder / CLOSED).exists()

    def finish(self) -> None:
        """Take nothing more, for good: a source that reads this spool ends behind what it holds.

        Raises OSError where the disk does not take that, or what was acknowledged cannot be sealed.
        """
        with self._lock:
            self._check_whole()
            self._seal_all()
            os.close(os.open(self._folder / CLOSED, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
            disk.sync_folder(self._folder)

    def release(self, segments: Collection[str]) -> int:
        """Delete sealed segments by their files' names: what they held is closed elsewhere. How many there were."""
        with self._lock:
            # The names come out of a ledger: what is no segment of ours is nothing to delete.
            ours = [name for name in segments if _SEGMENT.fullmatch(name)]
            gone = [name for name in ours if (self._folder / name).exists()]
            for name in gone:
                if name.endswith(_SHED_SEALED):
                    self._shed.release(name)
                else:
                    (self._folder / name).unlink()
            for journal in self._journals_of_gone()[:-JOURNALS_KEPT]:
                (self._folder / journal).unlink()
            return len(gone)

    def close(self) -> None:
        """Seal what there is, and let the folder go."""
        with self._lock:
            self._seal_all()
            os.close(self._guard)

    def used_bytes(self) -> int:
        """Bytes of all segments."""
        with self._lock:
            return self._used_bytes()

    def _journals_of_gone(self) -> list[str]:
        """The journals of segments that are gone, the oldest first."""
        names = set(os.listdir(self._folder))
        found = sorted((match for name in names if (match := _JOURNAL_OF_ANY.fullmatch(name))), key=lambda m: int(m[1]))
        return [match[0] for match in found if names.isdisjoint((match[1] + _OPEN, match[1] + _SEALED))]

    def _check_whole(self) -> None:
        if self._broken:
            raise OSError(errno.EIO, "an earlier push could be neither written nor taken back; start the spool anew")

    def _seal_all(self) -> None:
        if self._segment >= 0 and not self._broken:
            self._seal()
        self._shed.seal()

    def _refuse(self, records: int, size: int, key: str) -> Taken:
        """There is no room: shed, or have the client hold it."""
        if not self._sheds:
            raise SpoolFullError(f"the spool holds its {self.limit_bytes} bytes")
        if not self._shed.open:
            self._number += 1
        self._shed.note(self._number, records, size, key)
        taken = Taken(0, records)
        self._remember(key, taken)
        return taken

    def _append(self, body: bytearray, key: str, taken: Taken) -> None:
        if self._segment < 0:
            self._begin()
        entry = {"end": self._end + len(body), "records": taken.records, "key": key}
        journal_end = os.fstat(self._journal).st_size
        try:
            _write(self._segment, body)
            disk.sync_data(self._segment)
            _write(self._journal, orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))
            disk.sync_data(self._journal)
        except OSError:
            # Nothing was acknowledged. The journal goes first: a segment is cut to what its journal says.
            self._broken = True
            for descriptor, end in ((self._journal, journal_end), (self._segment, self._end)):
                os.ftruncate(descriptor, end)
                disk.sync_data(descriptor)
            self._broken = False
            raise
        self._end += len(body)
        self._remember(key, taken)

    def _begin(self) -> None:
        self._number += 1
        name = f"{self._number:012d}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with contextlib.ExitStack() as undo:
            journal = os.open(self._folder / (name + _JOURNAL), flags, 0o644)
            undo.callback(os.close, journal)
            segment = os.open(self._folder / (name + _OPEN), flags, 0o644)
            undo.callback(os.close, segment)
            disk.sync_folder(self._folder)
            undo.pop_all()
        self._journal, self._segment, self._name = journal, segment, name
        self._end, self._born_at = 0, time.monotonic()

    def _seal(self) -> None:
        """Seal the open segment. After an OSError nothing is appended to it until another call has come through."""
        self._sealing = True
        name_anew(self._folder / (self._name + _OPEN), self._folder / (self._name + _SEALED))
        os.close(self._segment)
        os.close(self._journal)
        self._segment = self._journal = -1
        self._sealing = False

    def _recover(self) -> None:
        for journal in sorted(self._folder.glob("*" + _JOURNAL)):
            if not _JOURNAL_NAME.fullmatch(journal.name):
                continue
            name = journal.name.removesuffix(_JOURNAL)
            self._number = max(self._number, int(name))
            pushes = list(self._pushes(journal))
            end = pushes[-1][0] if pushes else 0
            for _, key, taken in pushes:
                self._remember(key, taken)
            segment = self._folder / (name + _OPEN)
            if segment.exists():
                # Who died before its sync answered nobody; from now on a client that asks again is answered by it.
                with open(journal, "rb") as file:
                    disk.sync(file.fileno())
                self._mend(segment, end)
        for number, pushes_shed in self._shed.recover():
            self._number = max(self._number, number)
            for records, key in pushes_shed:
                self._remember(key, Taken(0, records))

    def _pushes(self, journal: Path) -> Iterator[tuple[int, str, Taken]]:
        """The byte behind each push of a journal, its key, and what was taken. Raises StoreError for a damaged one."""
        end, *lines = 0, *journal.read_bytes().split(b"\n")[:-1]
        for number, line in enumerate(lines):
            try:
                entry = _push_of(line, end)
            except ValueError as error:
                if number == len(lines) - 1:
                    return  # what a power failure leaves of the last one, which was answered to nobody
                raise StoreError(
                    f"spool {self._folder}: {journal.name} is damaged in line {number + 1} ({error}): what it held was "
                    "acknowledged, so nothing is cut off; restore the folder, or start the spool in another"
                ) from error
            end = entry[0]
            yield entry

    def _mend(self, segment: Path, end: int) -> None:
        """Cut an open segment of an earlier process to what was committed, and seal it. Raises StoreError."""
        if segment.stat().st_size < end:
            raise StoreError(
                f"spool {self._folder}: {segment.name} has less than the {end} bytes that were acknowledged: "
                "restore it, or start the spool in another folder"
            )
        _cut(segment, end)

    def _remember(self, key: str, taken: Taken) -> None:
        if key:
            self._keys[key] = taken
            if len(self._keys) > KEYS_MAX:
                self._keys.popitem(last=False)

    def _used_bytes(self) -> int:
        with os.scandir(self._folder) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.name.endswith((_OPEN, _SEALED)))


def _records(data: bytes) -> tuple[bytearray, int]:
    """The lines of a push that are not blank, and how many; some at a time, since a short one takes twenty times it."""
    body, count, start = bytearray(), 0, 0
    while start < len(data):
        end = data.find(b"\n", start + _SPLIT_BYTES) + 1 or len(data)
        lines = [line for line in data[start:end].split(b"\n") if line.strip()]
        if lines:
            body += b"\n".join(lines) + b"\n"
        count, start = count + len(lines), end
    return body, count


def _push_of(line: bytes, before: int) -> tuple[int, str, Taken]:
    """What a line of a journal says of a push behind byte `before`. Raises ValueError for anything else."""
    entry = orjson.loads(line)
    if not isinstance(entry, dict):
        raise ValueError(f"{line[:80]!r} is no push")
    end, records, key = (entry.get(name) for name in ("end", "records", "key"))
    if type(end) is not int or type(records) is not int or not isinstance(key, str):
        raise ValueError(f"{line[:80]!r} is no push")
    if not before < end <= _END_MAX or not 0 < records <= PUSH_RECORDS_MAX:
        raise ValueError(f"a push of {records} records to byte {end} behind byte {before}")
    return end, key, Taken(records)


def _write(descriptor: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
