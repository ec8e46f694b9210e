"""The keys of the kept, in memory: which record holds a key.

Exact keys and bands have a table each. A record takes 13 bytes beside its keys, an exact key 20 bytes and a band 20, at
most 60 % of the slots in use: about 70 bytes a record without bands, and 700 with 14 of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.stages.dedup.core.scheme import Scheme
from headrace.stages.dedup.minhash import Keys
from headrace.stages.dedup.table import NOBODY, decide, load, move_all
from headrace.stages.text import prepared
from headrace.store.shards import KeptKeys, RecordName, decode_keys, encode_keys

#: The share of slots that may be in use, and the slots that a table begins with, as a power of two.
FULL = 0.6
BITS_MIN = 12
#: Records that an index may hold.
RECORDS_MAX = (1 << 32) - 2

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Match:
    """The record that holds a key of another; `near` where it is not the key of the whole text."""

    name: RecordName
    near: bool


class _Table:
    """Slots that grow before they fill up."""

    def __init__(self) -> None:
        self.bits = BITS_MIN
        self.used = 0
        self.slots = _slots(self.bits)

    def make_room(self, more: int) -> None:
        bits = self.bits
        while self.used + more > FULL * (1 << bits):
            bits += 1
        if bits > self.bits:
            slots = _slots(bits)
            move_all(self.slots, slots, bits)
            self.slots, self.bits = slots, bits


def _slots(bits: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    size = 1 << bits
    return np.zeros(size, np.uint64), np.zeros(size, np.uint64), np.zeros(size, np.uint32)


class KeyIndex:
    """Claims and keeps keys, record by record, in the order in which it is asked."""

    def __init__(self, scheme: Scheme) -> None:
        self.scheme = scheme
        self._numbers: dict[bytes, int] = {}
        self._known: list[bytes] = []
        self._fragments = np.zeros(1024, np.int32)
        self._rows = np.zeros(1024, np.int64)
        self._released = np.zeros(1024, np.bool_)
        self._texts, self._bands = _Table(), _Table()
        self.records = 0

    @property
    def nbytes(self) -> int:
        """Bytes that the index takes."""
        arrays = (*self._texts.slots, *self._bands.slots, self._fragments, self._rows, self._released)
        return sum(int(array.nbytes) for array in arrays)

    def decide(self, fragment: bytes, rows: Numbers, keys: Keys) -> list[Match | None]:
        """For each record, in order: None where it is kept and holds its keys now, else what it is a duplicate of.

        A record that holds its keys already is kept again, so that one that is read again has the fate that it had.
        """
        self._check(keys)
        count = len(rows)
        self._make_room(count)
        self._texts.make_room(count)
        self._bands.make_room(count * self.scheme.bands)
        answers, near = np.empty(count, np.int64), np.empty(count, np.bool_)
        records = (self._fragments, self._rows, self._released, self.records)
        tables = self._texts.slots, self._bands.slots, (self._texts.bits, self._bands.bits)
        made = decide(keys, self._number(fragment), np.ascontiguousarray(rows), *tables, records, answers, near)
        self.records = int(made[0])
        self._texts.used += int(made[1])
        self._bands.used += int(made[2])
        found = zip(answers.tolist(), near.tolist(), strict=True)
        return [None if number == NOBODY else Match(self._name(number), alike) for number, alike in found]

    def load(self, kept: KeptKeys) -> int:
        """Give keys to records that are kept; how many of them another record held, which should be none."""
        first, count = self.records, len(kept.records)
        self._make_room(count)
        numbers = np.array([self._number(fragment) for fragment in kept.fragments], np.int32)
        end = first + count
        self._fragments[first:end] = numbers[kept.places]
        self._rows[first:end], self._released[first:end] = kept.records, False
        self.records = end
        twice = 0
        for table, mine in ((self._texts, kept.words == 0), (self._bands, kept.words != 0)):
            pairs = np.ascontiguousarray(kept.keys[mine])
            if table is self._bands:
                pairs[:, 1] = kept.words[mine]
            table.make_room(len(pairs))
            fresh, held = load(pairs, kept.holders[mine] + first, table.slots, table.bits, self._released)
            table.used += int(fresh)
            twice += int(held)
        return twice

    def release(self, name: RecordName) -> bool:
        """Let go of the keys of a record that is not kept after all; whether it held any."""
        found = self._places(name)
        self._released[found] = True
        return bool(len(found))

    def holds(self, name: RecordName) -> bool:
        """Whether a record holds its keys."""
        return bool(len(self._places(name)))

    def _places(self, name: RecordName) -> Numbers:
        known = slice(0, self.records)
        mine = self._fragments[known] == self._numbers.get(name.fragment, NOBODY)
        return np.flatnonzero(mine & (self._rows[known] == name.row) & ~self._released[known])

    def _check(self, keys: Keys) -> None:
        if keys.ndim != 2 or keys.shape[1] != self.scheme.words:
            raise ValueError(f"keys of shape {keys.shape}; this index takes {self.scheme.words} words a record")

    def _number(self, fragment: bytes) -> int:
        number = self._numbers.get(fragment)
        if number is None:
            number = self._numbers[fragment] = len(self._known)
            self._known.append(fragment)
        return number

    def _name(self, number: int) -> RecordName:
        return RecordName(self._known[int(self._fragments[number])], int(self._rows[number]))

    def _make_room(self, more: int) -> None:
        if self.records + more > RECORDS_MAX:
            raise MemoryError(f"an index of {self.records} records; the limit is {RECORDS_MAX}")
        size = len(self._rows)
        if self.records + more <= size:
            return
        wanted = max(self.records + more, 2 * size)
        self._fragments = _grown(self._fragments, wanted)
        self._rows, self._released = _grown(self._rows, wanted), _grown(self._released, wanted)


def _grown(column: Any, size: int) -> Any:
    larger = np.zeros(size, column.dtype)
    larger[: len(column)] = column
    return larger


def compile_index() -> None:
    """Compile what is not in the cache."""
    with prepared("index"):
        index = KeyIndex(Scheme(bands=1))
        index.decide(bytes(16), np.arange(1, dtype=np.int64), np.ones((1, 3), np.uint64))
        index.load(decode_keys(encode_keys((), ""), "", "nothing"))
        index._texts.make_room(1 << BITS_MIN)
