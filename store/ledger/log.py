"""The numbered log: objects that are created once, in order, and never changed; and its fold from the store.

Entry *n* is an object of its own, so create-if-absent decides who writes it. The log checks only
that numbers are contiguous; what entries mean is the business of `entries` and `fold`.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from headrace.store import FormatError, ObjectMissing, ObjectStore, StoreUnavailable
from headrace.store.ledger.core.entries import decode_entry
from headrace.store.ledger.core.log_state import LogState

NUMBER_DIGITS = 20
NUMBER_MAX = 2**63 - 1
#: Times that a log is listed again because what was listed was truncated meanwhile.
READ_AGAIN_MAX = 3
#: Entries that are asked for at once of a store that is not on this machine: each takes a round trip.
AHEAD = 16


@dataclass(frozen=True, slots=True)
class Appended:
    """The entry stands with the caller's bytes, whether by this attempt or an earlier one."""

    number: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Another writer's entry has the number: fold it and step down."""

    number: int
    existing: bytes


AppendResult: TypeAlias = Appended | Refused


class Log:
    """The log under `prefix` of a store, e.g. `ledger/00000000000000000042.msgpack`."""

    __slots__ = ("_pattern", "_prefix", "_snapshot_pattern", "_store")

    def __init__(self, store: ObjectStore, prefix: str = "ledger") -> None:
        self._store = store
        self._prefix = prefix.strip("/")
        self._pattern = re.compile(re.escape(self._prefix) + rf"/([0-9]{{{NUMBER_DIGITS}}})\.msgpack")
        self._snapshot_pattern = re.compile(re.escape(self._prefix) + rf"/([0-9]{{{NUMBER_DIGITS}}})\.snapshot")

    @property
    def uri(self) -> str:
        """The URI of the store that holds it."""
        return self._store.uri

    def key(self, number: int) -> str:
        """Return the key of entry `number` (numbers start at 0)."""
        if not 0 <= number <= NUMBER_MAX:
            raise ValueError(f"log number {number} is outside 0..{NUMBER_MAX}")
        return f"{self._prefix}/{number:0{NUMBER_DIGITS}d}.msgpack"

    def read(self, after: int = -1) -> Iterator[tuple[int, bytes]]:
        """Yield `(number, bytes)` of the entries behind number `after`, in order.

        Raises `FormatError` where a number is missing before one that is there. Entries appended while
        this reads may or may not be yielded. Other objects beside the entries are passed over.
        """
        start = self.key(after) if after >= 0 else ""
        found = (_number(self._pattern, info.key) for info in self._store.list(self._prefix + "/", after=start))
        return self._entries(after, (number for number in found if number is not None))

    def read_from(
        self, after: int = -1, below: int | None = None
    ) -> tuple[tuple[int, bytes] | None, list[tuple[int, bytes]]]:
        """What a reader that knows everything up to `after` needs: a snapshot or None, and the entries behind it.

        A snapshot is given to whoever begins, and where entries behind `after` were truncated: the newest, of those
        before number `below` if that is given. Raises `FormatError` where an entry is missing that no snapshot covers.
        """
        for _ in range(READ_AGAIN_MAX):
            try:
                return self._read_once(after, below)
            except (FormatError, ObjectMissing):
                continue  # what was listed may have been truncated since, behind a newer snapshot
        return self._read_once(after, below)

    def write_snapshot(self, number: int, data: bytes) -> None:
        """Put a fold of all entries up to `number` beside them, in the place of one with other bytes.

        Another leader's says the same, and one that was cut must not stand when the entries that it covers go.
        """
        key = self.snapshot_key(number)
        if not self._store.create(key, [data]) and self._store.get(key) != data:
            self._store.replace(key, [data])

    def read_snapshot(self, number: int) -> bytes:
        """The bytes of a snapshot. Raises ObjectMissing."""
        return self._store.get(self.snapshot_key(number))

    def snapshots(self, after: int = -1) -> list[int]:
        """The numbers of the snapshots behind `after`, in order."""
        return self._numbers(after)[1]

    def overtaken(self, number: int) -> bool:
        """Whether a snapshot covers entry `number`: what is created there now is read by nobody."""
        return bool(self.snapshots(number - 1))

    def truncate(self, upto: int, keep: Collection[int]) -> int:
        """Delete entries and older snapshots up to number `upto`, which a durable snapshot covers; how many objects.

        `keep` are the entries that begin a term: a writer that wakes late is to find the number behind its last one
        taken. Raises ValueError where no snapshot covers them.
        """
        snapshots = self.snapshots()
        if not any(number >= upto for number in snapshots):
            raise ValueError(f"{self._store.uri}: no snapshot covers entry {upto}, nothing may be deleted")
        numbers, _ = self._numbers(-1)
        doomed = [self.key(number) for number in numbers if number <= upto and number not in keep]
        doomed += [self.snapshot_key(number) for number in snapshots if number < upto]
        for key in doomed:
            self._store.delete(key)
        return len(doomed)

    def discard(self, number: int) -> None:
        """Delete an entry that was created below a snapshot. Raises ValueError where no snapshot covers it."""
        if not self.overtaken(number):
            raise ValueError(f"{self._store.uri}: entry {number} is not covered by a snapshot")
        self._store.delete(self.key(number))

    def append(self, number: int, data: bytes) -> AppendResult:
        """Create entry `number`; on a refusal read it back, and take it as ours if the bytes are equal.

        After `StoreUnavailable` the outcome is unknown: ask again with the same number and the same bytes,
        and try no other number before the answer.
        """
        key = self.key(number)
        if self._store.create(key, [data]):
            return Appended(number)
        try:
            existing = self._store.get(key)
        except ObjectMissing as error:
            raise StoreUnavailable(
                f"{self._store.uri}: {key!r} was refused as existing and then not found; "
                "something deletes ledger entries or the store is inconsistent, stop it before going on"
            ) from error
        return Appended(number) if existing == data else Refused(number, existing)

    def _read_once(self, after: int, below: int | None) -> tuple[tuple[int, bytes] | None, list[tuple[int, bytes]]]:
        numbers, snapshots = self._numbers(after)
        covered = max((number for number in snapshots if below is None or number < below), default=-1)
        # How many there should be is what a name says, and no measure of memory.
        whole = len({number for number in numbers if number <= covered}) == covered - after
        if covered > after and (after < 0 or not whole):
            newest = covered, self._store.get(self.snapshot_key(covered))
            return newest, list(self._entries(covered, [number for number in numbers if number > covered]))
        return None, list(self._entries(after, numbers))

    def snapshot_key(self, number: int) -> str:
        """Return the key of the snapshot of all entries up to `number`."""
        return self.key(number).removesuffix(".msgpack") + ".snapshot"

    def _numbers(self, after: int) -> tuple[list[int], list[int]]:
        """The numbers of entries and of snapshots behind `after`, from one listing."""
        numbers: list[int] = []
        snapshots: list[int] = []
        for info in self._store.list(self._prefix + "/", after=self.key(after) if after >= 0 else ""):
            if (entry := _number(self._pattern, info.key)) is not None:
                numbers.append(entry)
                continue
            snapshot = _number(self._snapshot_pattern, info.key)
            if snapshot is not None and snapshot > after:
                snapshots.append(snapshot)
        return numbers, snapshots

    def _entries(self, after: int, numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        expected = after + 1
        for number, data in self._fetched(numbers):
            while expected < number:
                # A listing may show a younger entry and miss an older one that was made while it went on.
                yield expected, self._read_in_gap(expected, number)
                expected += 1
            yield number, data
            expected = number + 1

    def _fetched(self, numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """The entries of these numbers, in their order."""
        if not self._store.is_remote:
            yield from ((number, self._store.get(self.key(number))) for number in numbers)
            return
        coming: deque[tuple[int, Future[bytes]]] = deque()
        with ThreadPoolExecutor(AHEAD, "log-reader") as pool:
            try:
                for number in numbers:
                    coming.append((number, pool.submit(self._store.get, self.key(number))))
                    if len(coming) == AHEAD:
                        first, data = coming.popleft()
                        yield first, data.result()
                while coming:
                    first, data = coming.popleft()
                    yield first, data.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _read_in_gap(self, number: int, found: int) -> bytes:
        try:
            return self._store.get(self.key(number))
        except ObjectMissing as error:
            raise FormatError(
                f"{self._store.uri}: log {self._prefix!r} has entry {found} but not entry {number}; "
                "entries are never deleted one by one, restore the missing one from a copy"
            ) from error


def _number(pattern: re.Pattern[str], key: str) -> int | None:
    """The number in a key; None for another object's, and for a number that no entry has."""
    found = pattern.fullmatch(key)
    return int(found[1]) if found is not None and int(found[1]) <= NUMBER_MAX else None


logger = logging.getLogger("headrace.store")

#: What is done with a snapshot that cannot be read.
_MENDS = "restore it from a copy, or delete it while what stands before it is there"

S = TypeVar("S", bound=LogState)


def fold_log(log: Log, state: S) -> S:
    """Fold what stands behind `state` into it, and return it. Raises StoreError, FormatError, EntryError, FoldError."""
    snapshot, entries = read_behind(log, state.number)
    if snapshot is not None:
        state.restore(snapshot[1])
    for number, data in entries:
        state.apply(number, decode_entry(data, f"entry {number} of {log.uri}"))
    return state


def read_behind(log: Log, after: int) -> tuple[tuple[int, LogState] | None, list[tuple[int, bytes]]]:
    """What a reader that knows everything up to `after` needs: the fold of a snapshot or None, and the entries behind.

    A snapshot that cannot be read, as one that was cut, stops nobody while what it stands for is there: the one before
    it is taken, or the entries themselves, and a warning says so. Raises StoreError, and FormatError where neither is.
    """
    below: int | None = None
    wrong: FormatError | None = None
    while True:
        try:
            found, entries = log.read_from(after, below)
        except (FormatError, ObjectMissing) as error:
            raise wrong or error from error
        if found is None:
            return None, entries
        number, data = found
        try:
            return (number, _decoded(log, number, data)), entries
        except FormatError as error:
            logger.warning("%s; what stands before it is read in its place", error)
            wrong = wrong or FormatError(f"{error}; restore it from a copy: the entries that it stands for are gone")
            below = number


def _decoded(log: Log, number: int, data: bytes) -> LogState:
    """The fold of a snapshot. Raises FormatError, which names it."""
    from headrace.store.ledger.snapshot import decode_snapshot  # numpy, which a log without a snapshot need not import

    try:
        state = decode_snapshot(data)
        if state.number != number:
            raise FormatError(f"it is that of entry {state.number}")
    except FormatError as error:
        raise FormatError(f"{log.uri}: {log.snapshot_key(number)} cannot be read: {error}") from error
    return state


def begins_a_term(log: Log, number: int) -> bool:
    """Whether the newest snapshot behind entry `number` counts it among those that begin a term. Raises StoreError.

    Such an entry is part of the log and stays: in its place an older leader could write. One that the snapshot does not
    know was created where a truncation had left a hole.
    """
    for newest in log.snapshots(number - 1)[-1:]:
        try:
            return number in _decoded(log, newest, log.read_snapshot(newest)).led_at
        except FormatError as error:
            raise FormatError(f"{error}; {_MENDS}") from error
    return False


def snapshot_problems(log: Log) -> list[str]:
    """What is wrong with the snapshots of a log, a line each."""
    problems: list[str] = []
    for number in log.snapshots():
        try:
            _decoded(log, number, log.read_snapshot(number))
        except ObjectMissing:
            continue  # truncated meanwhile, behind a newer one
        except FormatError as error:
            problems.append(f"{error}; readers take what stands before it: {_MENDS}")
    return problems
