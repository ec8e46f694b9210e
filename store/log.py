"""The numbered log: objects that are created once, in order, and never changed.

Entry *n* is an object of its own, so create-if-absent decides who writes it. The log checks only
that numbers are contiguous; what entries mean is the business of `entries` and `fold`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from headrace.store.errors import FormatError, ObjectMissing, StoreUnavailable
from headrace.store.objects import ObjectStore

NUMBER_DIGITS = 20
NUMBER_MAX = 2**63 - 1


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

    __slots__ = ("_pattern", "_prefix", "_store")

    def __init__(self, store: ObjectStore, prefix: str = "ledger") -> None:
        self._store = store
        self._prefix = prefix.strip("/")
        self._pattern = re.compile(re.escape(self._prefix) + rf"/([0-9]{{{NUMBER_DIGITS}}})\.msgpack")

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
        expected = after + 1
        start = self.key(after) if after >= 0 else ""
        for info in self._store.list(self._prefix + "/", after=start):
            match = self._pattern.fullmatch(info.key)
            if match is None:
                continue
            number = int(match[1])
            while expected < number:
                # A listing may show a younger entry and miss an older one that was made while it went on.
                yield expected, self._read_in_gap(expected, number)
                expected += 1
            yield number, self._store.get(info.key)
            expected = number + 1

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

    def _read_in_gap(self, number: int, found: int) -> bytes:
        try:
            return self._store.get(self.key(number))
        except ObjectMissing as error:
            raise FormatError(
                f"{self._store.uri}: log {self._prefix!r} has entry {found} but not entry {number}; "
                "entries are never deleted one by one, restore the missing one from a copy"
            ) from error
