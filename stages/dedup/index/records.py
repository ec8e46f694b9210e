"""The table of records: of each number its name, the second half of its exact key, and whether it was released.

A name is one word: the number of its fragment and its ordinal there. With the index on disk the newest records are in
memory and the others in a file. `spans` finds a number by its name: a span begins where a record does not follow the
one before it in the same fragment, so it costs 12 bytes a batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.stages.dedup.index.memory import Block, FixedBlock, read_at, words_at
from headrace.stages.dedup.index.slots import NOBODY
from headrace.stages.text.machine import compiled, entry, pointer
from headrace.store.files import Scratch

#: Bits of a name that are the ordinal of the record; the others are the number of its fragment.
ROW_BITS = 36
FRAGMENTS_MAX = 1 << (63 - ROW_BITS)
#: Records that an index may hold.
RECORDS_MAX = (1 << 32) - 2
#: Bytes of a record: its name and the second half of its exact key.
RECORD_BYTES = 16

#: Places in the row of numbers that the loops share: how many records there are; where the newest lie, and the first
#: of those; the bits of the released; of the records in a saved index how many, its file and where in it; the file of
#: those after; room to read into; whether a file could not be read; and keys that the filter let through.
COUNT, RECENT, FIRST, RELEASED, SAVED, SAVED_FILE, SAVED_AT, FILE, ROOM, FAILED, ASKED = range(11)
#: And of the index: where the tables of slots, filters (0: there is none) and runs lie, how many runs there are; of a
#: record that is looked up its words, the room for who holds them, and for their hashes; who holds its keys by the
#: word of partitions, and where it is written down which of them it claimed (0: there are no partitions); and where the
#: table of sorted arrays lies (0: there is none).
SLOTS, FILTERS, RUNS, RUN_COUNT, WORDS, HELD, HASHES, ANSWERED, CLAIMED, SORTED = range(11, 21)
COLUMNS = 21

_ONE = np.uint64(1)
_SPANS_MIN = 1024

Numbers = npt.NDArray[np.int64]


class Records:
    """Who has which number."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        #: `[COLUMNS]`, for the loops
        self.row = np.zeros(COLUMNS, np.int64)
        self._recent, self._released, self._room = Block(), Block(), FixedBlock(RECORD_BYTES)
        self._file: Scratch | None = None
        self._saved: Scratch | None = None
        self._fragments: dict[bytes, int] = {}
        self.known: list[bytes] = []
        #: of each span the first number; `_names` their first names
        self._firsts, self._names, self._spans, self._last = np.zeros(0, np.uint32), np.zeros(0, np.uint64), 0, -2
        self.row[ROOM] = self._room.address
        self._settle()

    @property
    def count(self) -> int:
        """Records that were added, released ones among them."""
        return int(self.row[COUNT])

    @property
    def unsealed(self) -> int:
        """Records that are in memory and in no file."""
        return self.count - int(self.row[FIRST])

    @property
    def nbytes(self) -> int:
        """Bytes that the table takes in memory."""
        spans = self._firsts.nbytes + self._names.nbytes
        return self._recent.nbytes + self._released.nbytes + self._room.nbytes + spans

    def fragment(self, name: bytes) -> int:
        """The number of a fragment, a new one where it has none."""
        number = self._fragments.get(name)
        if number is None:
            if len(self.known) == FRAGMENTS_MAX:
                raise MemoryError(f"an index of {len(self.known)} fragments; the limit is {FRAGMENTS_MAX}")
            number = self._fragments[name] = len(self.known)
            self.known.append(name)
        return number

    def names(self, fragment: bytes, rows: Numbers) -> Numbers:
        """The names of records of a fragment as words."""
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < 1 << ROW_BITS:
            raise ValueError(f"record {int(rows.max())} of a fragment; the limit is {1 << ROW_BITS}")
        return (self.fragment(fragment) << ROW_BITS) | rows

    def make_room(self, more: int) -> None:
        """Have room for so many more records."""
        count = self.count + more
        if count > RECORDS_MAX:
            raise MemoryError(f"an index of {self.count} records; the limit is {RECORDS_MAX}")
        self._recent.grow(_grown(self._recent.nbytes, RECORD_BYTES * (count - int(self.row[FIRST]))))
        self._released.grow(_grown(self._released.nbytes, count // 8 + 8))
        self._settle()

    def seal(self) -> None:
        """Write the newest records to the file. Raises OSError."""
        if self._file is None:
            self._file = Scratch.on_disk(self._folder)
            self.row[FILE] = self._file.fileno()
        first, count = int(self.row[FIRST]), self.count
        self._file.append(self._recent.words(2 * (count - first)).data)
        self.row[FIRST] = count

    def note_spans(self, first: int) -> None:
        """Take in where among the records from `first` on one does not follow the one before it."""
        names = self.names_of(np.arange(first, self.count))
        if not len(names):
            return
        before = np.concatenate([[self._last], names[:-1]])
        breaks = np.flatnonzero((names <= before) | (names >> ROW_BITS != before >> ROW_BITS))
        self._last = int(names[-1])
        end = self._spans + len(breaks)
        if end > len(self._firsts):
            size = max(_SPANS_MIN, end, len(self._firsts) * 5 // 4)
            self._firsts, self._names = _larger(self._firsts, size), _larger(self._names, size)
        self._firsts[self._spans : end], self._names[self._spans : end] = first + breaks, names[breaks]
        self._spans = end

    @property
    def spans(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
        """Of each span the number and the name of its first record."""
        return self._firsts[: self._spans], self._names[: self._spans]

    def released_words(self) -> npt.NDArray[np.uint64]:
        """A bit a record: whether it was released."""
        return self._released.words(self.count // 64 + 1)

    def pieces(self, count: int) -> Iterator[npt.NDArray[np.uint64]]:
        """All names and second halves of keys, of so many records at once. All records were sealed. Raises OSError."""
        saved = int(self.row[SAVED])
        parts = (self._saved, int(self.row[SAVED_AT]), 0, saved), (self._file, 0, saved, self.count)
        for file, at, first, end in parts:
            for begin in range(first, end, count):
                assert file is not None
                found = np.empty((min(count, end - begin), 2), np.uint64)
                read_words(file.fileno(), at + RECORD_BYTES * (begin - first), found)
                yield found

    def restore(
        self, file: Scratch, at: int, count: int, known: list[bytes], spans: tuple[Any, Any], released: Any
    ) -> None:
        """Begin with records that lie at a place of a file, `[count, 2]`."""
        self._saved, self.known = file, known
        self._fragments = {name: number for number, name in enumerate(known)}
        self._firsts, self._names, self._spans = spans[0].astype(np.uint32), spans[1].astype(np.uint64), len(spans[0])
        self.row[COUNT] = self.row[FIRST] = self.row[SAVED] = count
        self.row[SAVED_FILE], self.row[SAVED_AT] = file.fileno(), at
        self.make_room(0)
        self._released.words(len(released))[:] = released
        if count:
            self._last = int(self.names_of(np.array([count - 1]))[0])

    def split(self, word: int) -> tuple[bytes, int]:
        """The fragment and the ordinal in a name."""
        return self.known[word >> ROW_BITS], word & ((1 << ROW_BITS) - 1)

    def names_of(self, numbers: Numbers) -> Numbers:
        """The names of records as words. Raises OSError."""
        found = np.empty(len(numbers), np.int64)
        names_at(self.row, np.ascontiguousarray(numbers, np.int64), found)
        self.check()
        return found

    def number(self, fragment: bytes, row: int) -> int:
        """The number of a record that was not released; NOBODY where there is none."""
        known = self._fragments.get(fragment)
        if known is None or not 0 <= row < 1 << ROW_BITS:
            return NOBODY
        return self.number_of((known << ROW_BITS) | row)

    def number_of(self, wanted: int) -> int:
        """The number of a record that was not released, by its name as a word; NOBODY where there is none."""
        firsts, names = self._firsts[: self._spans], self._names[: self._spans]
        first = np.uint64(wanted >> ROW_BITS << ROW_BITS)
        mine = np.flatnonzero((names >= first) & (names <= np.uint64(wanted)))
        for place in mine[::-1].tolist():
            begin = int(firsts[place])
            end = int(firsts[place + 1]) if place + 1 < len(firsts) else self.count
            number = int(search(self.row, begin, end, wanted))
            if number >= 0 and not self.is_released(number):
                return number
        self.check()
        return NOBODY

    def release(self, number: int) -> None:
        """Let go of a record's keys."""
        self._bits()[number >> 6] |= _ONE << np.uint64(number & 63)

    def is_released(self, number: int) -> bool:
        """Whether a record's keys were let go."""
        return bool(self._bits()[number >> 6] >> np.uint64(number & 63) & _ONE)

    def check(self) -> None:
        """OSError if a loop could not read a file."""
        if self.row[FAILED]:
            raise OSError("a file of the dedup index could not be read: the disk or the file system fails")

    def _bits(self) -> npt.NDArray[np.uint64]:
        return self._released.words(self._released.nbytes // 8)

    def _settle(self) -> None:
        self.row[RECENT], self.row[RELEASED] = self._recent.address, self._released.address


def read_words(descriptor: int, offset: int, target: npt.NDArray[np.uint64]) -> None:
    """Fill an array from a file. Raises OSError, also where the file ends before."""
    view = target.data.cast("B")
    while view.nbytes:
        count = os.preadv(descriptor, [view], offset)
        if not count:
            raise OSError(f"a file of the dedup index ends {view.nbytes} bytes too early")
        view, offset = view[count:], offset + count


def _grown(have: int, wanted: int) -> int:
    return have if wanted <= have else max(wanted, have + have // 4)


def _larger(column: Any, size: int) -> Any:
    larger = np.zeros(size, column.dtype)
    larger[: len(column)] = column
    return larger


@compiled
def is_released(row: Any, number: Any) -> Any:
    """Whether a record's keys were let go."""
    word = words_at(row[RELEASED])[number >> 6]
    return (word >> np.uint64(number & 63)) & _ONE != np.uint64(0)


@compiled
def word_of(row: Any, number: Any, word: int) -> Any:
    """Of a record its name (0), or the second half of its exact key (1)."""
    if number >= row[FIRST]:
        return words_at(row[RECENT])[2 * (number - row[FIRST]) + word]
    room = row[ROOM]
    if number < row[SAVED]:
        got = read_at(row[SAVED_FILE], room, RECORD_BYTES, row[SAVED_AT] + RECORD_BYTES * number)
    else:
        got = read_at(row[FILE], room, RECORD_BYTES, RECORD_BYTES * (number - row[SAVED]))
    if got != RECORD_BYTES:
        row[FAILED] = 1
    return words_at(room)[word]


@compiled
def add_record(row: Any, name: Any, check: Any) -> Any:
    """Give a record the next number. There must be room."""
    number = row[COUNT]
    words = words_at(row[RECENT])
    words[2 * (number - row[FIRST])] = np.uint64(name)
    words[2 * (number - row[FIRST]) + 1] = check
    row[COUNT] = number + 1
    return number


@entry("(i64[], i64[], i64[])")
def names_at(row: Any, numbers: Any, found: Any) -> None:
    """The names of records `[n]`."""
    state = pointer(row, 0)
    for place in range(len(numbers)):
        found[place] = np.int64(word_of(state, numbers[place], 0))


@entry("(i64[], i64, i64, i64) -> i64")
def search(row: Any, begin: int, end: int, name: int) -> int:
    """The number of a record by its name, among those of a span; NOBODY where it is none of them."""
    last, state = end, pointer(row, 0)
    while begin < end:
        middle = (begin + end) // 2
        if np.int64(word_of(state, middle, 0)) < name:
            begin = middle + 1
        else:
            end = middle
    return begin if begin < last and np.int64(word_of(state, begin, 0)) == name else NOBODY
