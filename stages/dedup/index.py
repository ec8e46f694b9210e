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
from headrace.stages.text import compiled, prepared
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


#: Nobody's number.
NOBODY = -1
_SIXTY_FOUR = np.uint64(64)


@compiled
def _find(high: Any, low: Any, holders: Any, bits: int, key_high: Any, key_low: Any) -> Any:
    """The slot that holds a key, or the empty one where it belongs."""
    last = len(holders) - 1
    at = np.int64(key_high >> (_SIXTY_FOUR - np.uint64(bits)))
    while holders[at] != 0 and (high[at] != key_high or low[at] != key_low):
        at = (at + 1) & last
    return at


@compiled
def _holder(table: Any, bits: int, key_high: Any, key_low: Any, released: Any) -> Any:
    """The record that holds a key and was not released."""
    high, low, holders = table
    number = np.int64(holders[_find(high, low, holders, bits, key_high, key_low)]) - 1
    return NOBODY if number >= 0 and released[number] else number


@compiled
def _take(table: Any, bits: int, key_high: Any, key_low: Any, number: Any) -> int:
    """Give a key to a record; 1 if nobody ever held it, else 0."""
    high, low, holders = table
    at = _find(high, low, holders, bits, key_high, key_low)
    fresh = 1 if holders[at] == 0 else 0
    high[at], low[at], holders[at] = key_high, key_low, number + 1
    return fresh


@compiled
def move_all(old: Any, new: Any, bits: int) -> None:
    """Put what one table holds into a larger one."""
    high, low, holders = old
    for at in range(len(holders)):
        if holders[at] != 0:
            _take(new, bits, high[at], low[at], np.int64(holders[at]) - 1)


@compiled
def decide(
    keys: Any, fragment: int, rows: Any, texts: Any, bands: Any, bits: Any, records: Any, answers: Any, near: Any
) -> Any:
    """For each record in order: NOBODY where it is kept, else the number of the one that it is a duplicate of.

    `near` is set where it shares no more than a band with it.

    `records` is (fragments, rows, released, how many there are); what is kept claims its keys. Returns how many records
    there are then, and how many keys were taken in both tables.
    """
    fragments, ordinals, released, count = records
    taken_texts, taken_bands = 0, 0
    for place in range(len(rows)):
        near[place] = False
        holder = _holder(texts, bits[0], keys[place, 0], keys[place, 1], released)
        if holder >= 0:
            mine = fragments[holder] == fragment and ordinals[holder] == rows[place]
            answers[place] = NOBODY if mine else holder
            continue
        answers[place] = _first_holder(keys, place, bands, bits[1], released)
        if answers[place] >= 0:
            near[place] = True
            continue
        fragments[count], ordinals[count], released[count] = fragment, rows[place], False
        taken_texts += _take(texts, bits[0], keys[place, 0], keys[place, 1], count)
        for word in range(2, keys.shape[1]):
            if keys[place, word] != 0:
                taken_bands += _take(bands, bits[1], keys[place, word], np.uint64(word), count)
        count += 1
    return count, taken_texts, taken_bands


@compiled
def _first_holder(keys: Any, place: int, bands: Any, bits: int, released: Any) -> int:
    """Of the records that share a band, the one that was kept first."""
    first = NOBODY
    for word in range(2, keys.shape[1]):
        if keys[place, word] != 0:
            holder = _holder(bands, bits, keys[place, word], np.uint64(word), released)
            if holder >= 0 and (first < 0 or holder < first):
                first = holder
    return first


@compiled
def load(keys: Any, holders: Any, table: Any, bits: int, released: Any) -> Any:
    """Give keys `[n, 2]` to the records `[n]`; how many keys are new, and how many another record held already."""
    fresh, held = 0, 0
    for place in range(len(keys)):
        holder = _holder(table, bits, keys[place, 0], keys[place, 1], released)
        if holder >= 0:
            held += holder != holders[place]
            continue
        fresh += _take(table, bits, keys[place, 0], keys[place, 1], holders[place])
    return fresh, held
