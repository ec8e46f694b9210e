"""The keys of the kept, in memory: which record holds a key.

Exact keys and bands have a table each. A record takes 13 bytes beside its keys, an exact key 20 bytes and a band 20, at
most 60 % of the slots in use: about 70 bytes a record without bands, and 700 with 14 of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stages.dedup.core.scheme import RULE, Scheme
from headrace.stages.dedup.judge import LEVEL_MAX, SKETCH_BYTES_MAX, compare, make_room
from headrace.stages.dedup.minhash import Keys
from headrace.stages.dedup.sketches import ELSEWHERE, Reader, Sketches, offsets_of
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
    """The record that holds a key of another; `near` where it is not the key of the whole text.

    `score` is what of the other record it has, in thousandths, where a judge compared them; else -1.
    """

    name: RecordName
    near: bool
    score: int = -1


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
        #: What the judge compares; None: a shared band decides.
        self.sketches = Sketches() if scheme.judged else None

    @property
    def nbytes(self) -> int:
        """Bytes that the index takes."""
        arrays = (*self._texts.slots, *self._bands.slots, self._fragments, self._rows, self._released)
        own = self.sketches.nbytes if self.sketches is not None else 0
        return own + sum(int(array.nbytes) for array in arrays)

    def decide(self, fragment: bytes, rows: Numbers, keys: Keys, sketches: Any = None) -> list[Match | None]:
        """For each record, in order: None where it is kept and holds its keys now, else what it is a duplicate of.

        A record that holds its keys already is kept again, so that one that is read again has the fate that it had.
        With a judge, `sketches` is a binary column of the records' sketches. Raises FormatError, StoreError where the
        sketch of a kept record cannot be read.
        """
        self._check(keys)
        count = len(rows)
        self._make_room(count)
        self._texts.make_room(count)
        self._bands.make_room(count * self.scheme.bands)
        answers, scores = np.empty(count, np.int64), np.empty(count, np.int64)
        mine = (keys, self._number(fragment), np.ascontiguousarray(rows), *self._offsets(sketches, count))
        tables = self._texts.slots, self._bands.slots
        at = 0
        while at < count:
            bits = self._texts.bits, self._bands.bits
            records = (self._fragments, self._rows, self._released, self.records)
            made = decide(at, mine, tables, bits, records, self._judging(), answers, scores)
            at, self.records = int(made[0]), int(made[1])
            self._texts.used += int(made[2])
            self._bands.used += int(made[3])
            if self.sketches is not None:
                self.sketches.used = int(made[5])
                if at < count:
                    self.sketches.fetch(int(made[4]), self._numbers_between)
        found = zip(answers.tolist(), scores.tolist(), strict=True)
        return [None if number == NOBODY else self._match(number, score) for number, score in found]

    def _match(self, number: int, score: int) -> Match:
        return Match(self._name(number), score != EQUAL_TEXT, max(-1, score))

    def _offsets(self, sketches: Any, count: int) -> tuple[Any, Any]:
        """The records' sketches, and room for them. ValueError where they are none."""
        if self.sketches is None:
            return _NO_SKETCHES, _NO_OFFSETS
        data, offsets = offsets_of(sketches)
        sizes = np.diff(offsets)
        if len(sizes) != count or (count and (int(sizes.min()) < 1 or int(sizes.max()) > SKETCH_BYTES_MAX)):
            raise ValueError(f"{len(sizes)} sketches of {count} records, or one that is too short or too long")
        levels = data[offsets[:-1]]
        if (levels > LEVEL_MAX).any() or ((sizes - 1) % np.where(levels, 4, 2)).any():
            raise ValueError("a record whose sketch is none")
        self.sketches.make_room(self.records + count, int(offsets[-1] - offsets[0]))
        return data, offsets

    def _judging(self) -> tuple[Any, ...]:
        """What the loop needs to compare sketches."""
        held = self.sketches
        if held is None:
            return False, _NO_BYTES, _NO_OFFSETS, _NO_OFFSETS, _NO_HEADS, 0, _NO_ROOM
        return True, held.arena, held.begins, held.ends, held.heads, held.used, held.room

    def _numbers_between(self, first: int, end: int) -> dict[tuple[str, int], int]:
        """The numbers of records by fragment, in hex, and ordinal."""
        fragments, rows = self._fragments[first:end].tolist(), self._rows[first:end].tolist()
        names = [fragment.hex() for fragment in self._known]
        return {(names[code], row): first + at for at, (code, row) in enumerate(zip(fragments, rows, strict=True))}

    def load(self, kept: KeptKeys, reader: Reader | None = None) -> int:
        """Give keys to records that are kept; how many of them another record held, which should be none.

        `reader` reads their sketches, where there is a judge.
        """
        first, count = self.records, len(kept.records)
        if self.sketches is not None and reader is not None:
            self.sketches.expect(first, count, reader)
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
        one = np.arange(1, dtype=np.int64)
        sketches = pa.array([bytes(1)], pa.binary())
        index = KeyIndex(Scheme(bands=1, rule=RULE))
        index.decide(bytes(16), one, np.ones((1, 3), np.uint64), sketches)
        index.load(decode_keys(encode_keys((), ""), "", "nothing"))
        index._texts.make_room(1 << BITS_MIN)


#: Nobody's number.
NOBODY = -1
#: In place of a score: the whole text is the same, and: a shared band decided.
EQUAL_TEXT, UNJUDGED = -2, -1
#: Records that one is compared with.
CANDIDATES_MAX = 16
_NO_BYTES = np.zeros(1, np.uint8)
#: Which cannot be written, as what comes from Arrow: the loops are compiled once.
_NO_SKETCHES = np.frombuffer(bytes(1), np.uint8)
_NO_OFFSETS = np.zeros(1, np.int64)
_NO_HEADS = np.zeros(1, np.int32)
_NO_ROOM = make_room(1)
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
def decide(at: int, mine: Any, tables: Any, bits: Any, records: Any, judging: Any, answers: Any, scores: Any) -> Any:
    """For each record from `at` on, in order: NOBODY where it is kept, else the number of the one it is a duplicate of.

    `mine` is (keys, fragment, rows, sketches, offsets), `records` (fragments, rows, released, how many there are), and
    `judging` what the judge needs. `scores` is EQUAL_TEXT where the whole text is the same, UNJUDGED where a shared
    band decided, else what of the record the other has, in thousandths. What is kept claims its free keys.

    Returns where it ended, how many records there are then, how many keys were taken in both tables, the record whose
    sketch must be fetched before it can go on, and how many bytes of sketches there are.
    """
    keys, fragment, rows, sketches, offsets = mine
    texts, bands = tables
    fragments, ordinals, released, count = records
    judged, arena, begins, ends, heads, used, _ = judging
    taken_texts, taken_bands = 0, 0
    while at < len(rows):
        scores[at] = EQUAL_TEXT
        holder = _holder(texts, bits[0], keys[at, 0], keys[at, 1], released)
        if holder >= 0:
            own = fragments[holder] == fragment and ordinals[holder] == rows[at]
            answers[at] = NOBODY if own else holder
            at += 1
            continue
        head = NOBODY
        if judged:
            found, score, head, missing = _judge(at, mine, bands, bits[1], released, judging)
            if missing >= 0:
                return at, count, taken_texts, taken_bands, missing, used
        else:
            found, score = _first_holder(keys, at, bands, bits[1], released), UNJUDGED
        answers[at], scores[at] = found, score
        if found < 0:
            fragments[count], ordinals[count], released[count] = fragment, rows[at], False
            taken_texts += _take(texts, bits[0], keys[at, 0], keys[at, 1], count)
            for word in range(2, keys.shape[1]):
                if keys[at, word] == 0 or (
                    judged and _holder(bands, bits[1], keys[at, word], np.uint64(word), released) >= 0
                ):
                    continue
                taken_bands += _take(bands, bits[1], keys[at, word], np.uint64(word), count)
            if judged:
                begins[count], heads[count] = used, head
                for place in range(offsets[at], offsets[at + 1]):
                    arena[used] = sketches[place]
                    used += 1
                ends[count] = used
            count += 1
        at += 1
    return at, count, taken_texts, taken_bands, NOBODY, used


@compiled
def _judge(at: int, mine: Any, bands: Any, bits: int, released: Any, judging: Any) -> Any:
    """Compare a record with those that share most bands with it, of equals the first kept, at most CANDIDATES_MAX.

    Returns the one that it is a duplicate of, or NOBODY; what of it that one has, in thousandths; the head of those of
    whose form it is, or NOBODY; and the record whose sketch is missing, or NOBODY.
    """
    keys, _, _, sketches, offsets = mine
    _, arena, begins, ends, heads, _, room = judging
    head = NOBODY
    holders, times = room[10], room[11]
    found = _count_holders(keys, at, bands, bits, released, holders, times)
    for _ in range(min(found, CANDIDATES_MAX)):
        best = 0
        for place in range(1, found):
            more = times[place] - times[best]
            if more > 0 or (more == 0 and holders[place] < holders[best]):
                best = place
        holder, times[best] = holders[best], -1
        if ends[holder] == ELSEWHERE:
            return NOBODY, 0, NOBODY, holder
        form = int(heads[holder])
        known = form >= 0 and ends[form] != ELSEWHERE
        above = (arena, begins[form], ends[form]) if known else (arena, np.int64(0), np.int64(0))
        alike, score, relative = compare(
            (sketches, offsets[at], offsets[at + 1]), (arena, begins[holder], ends[holder]), above, holder, form, room
        )
        if alike:
            return holder, np.int64(1000 * score), NOBODY, NOBODY
        if relative and head < 0:
            head = int(form if form >= 0 else holder)
    return NOBODY, 0, head, NOBODY


@compiled
def _count_holders(keys: Any, at: int, bands: Any, bits: int, released: Any, holders: Any, times: Any) -> int:
    """Put the records that share a band into `holders`, and how many each shares into `times`; how many there are."""
    found = 0
    for word in range(2, keys.shape[1]):
        holder = NOBODY
        if keys[at, word] != 0:
            holder = _holder(bands, bits, keys[at, word], np.uint64(word), released)
        place = 0
        while place < found and holders[place] != holder:
            place += 1
        if holder < 0 or (place == found and found == len(holders)):
            continue
        if place == found:
            holders[found], times[found] = holder, 0
            found += 1
        times[place] += 1
    return found


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
