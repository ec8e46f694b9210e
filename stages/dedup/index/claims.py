"""The index of kept records' keys, whole or a share of them: in memory, or on local disk behind a filter.

In memory a record with 20 bands takes 194 to 199 bytes. On disk it takes about 24 of memory and 206 of disk: its keys
are entered in the filter and in a table in memory, which is written as a sorted run when it is full; the filter
answers for nearly every key that was never held, and the table and the runs are asked for the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from headrace.stages.dedup import partitions as core
from headrace.stages.dedup.index.filters import PARTS, Filters, enter_all
from headrace.stages.dedup.index.lookups import (
    CANDIDATES_MAX,
    EXACT_WORDS,
    count_single,
    fetch_single,
    find_all,
    hash_keys,
    hash_of,
    holder_of,
    load_keys,
)
from headrace.stages.dedup.index.records import (
    FILTERS,
    HASHES,
    HELD,
    RUN_COUNT,
    RUNS,
    SLOTS,
    SORTED,
    WORDS,
    Records,
    add_record,
    word_of,
)
from headrace.stages.dedup.index.runs import Levels, seal
from headrace.stages.dedup.index.saved import open_saved, save
from headrace.stages.dedup.index.slots import NOBODY, SECTION_BITS, SECTIONS, USED, FixedSlots, Slots, collect
from headrace.stages.text.machine import entry, pointer
from headrace.store import FormatError
from headrace.store.shards import KeptKeys, RecordName

logger = logging.getLogger("headrace.dedup")

#: An index is saved where more than this share of its records was loaded.
SAVED_SHARE = 0.2
#: Records whose keys are in memory before they are written as a run: at least so many, and one in so many of all.
SEALED_MIN = 1 << 15
SEALED_SHARE = 160
SEALED_GROWTH = 1.1
#: Slots of each level that are merged for each key that may be entered.
MERGED_A_KEY = 8
#: Keys that are loaded at once.
LOADED_KEYS = 1 << 16

Numbers = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class KeySource:
    """A file of keys: its checksum, how it is read, and of how many records it is."""

    checksum: str
    keys: Callable[[], KeptKeys]
    records: int = 0


@dataclass(frozen=True, slots=True)
class LoadedKeys:
    """What a source became: the number of its first record, how many there are, and how many keys others held."""

    first: int
    count: int
    twice: int


class Claims:
    """Claims and keeps keys, record by record, in the order in which it is asked. Its methods raise OSError."""

    def __init__(self, words: int, identity: str, folder: str | None = None) -> None:
        #: 64-bit words of a record's keys, and what names their scheme
        self.words = words
        self.identity = identity
        self.folder = folder
        if folder is not None:
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._empty()
        self._more = np.zeros(SECTIONS, np.int64)
        self._held = np.zeros((3, self.words), np.int64)
        #: of the keys of a batch
        self._hashes = np.empty((0, self.words), np.uint64)
        self._found, self._shared = (np.empty(CANDIDATES_MAX, np.int64) for _ in range(2))

    def _empty(self) -> None:
        self.levels, self.table = Levels(self.folder), Records(self.folder)
        self._slots: Slots | FixedSlots = Slots()
        #: Of an index on disk.
        self.filters: Filters | None = None
        if self.folder is not None:
            self._slots, self.filters = FixedSlots(SEALED_MIN * (self.words - 1)), Filters()

    @property
    def records(self) -> int:
        """Records that were kept, those that were released later among them."""
        return self.table.count

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the index takes."""
        parts = (self._slots, self.levels, self.table, self.filters)
        return sum(part.nbytes for part in parts if part is not None)

    def seal(self) -> None:
        """Write what is gathered in memory as a run."""
        if isinstance(self._slots, FixedSlots):
            self._more[:] = 0
            self._seal(self._slots)

    def prepare(self, keys: Keys) -> Numbers:
        """The row of numbers that the loops take, with room for records with the keys `[n, words]`."""
        if keys.ndim != 2 or keys.shape[1] != self.words:
            raise ValueError(f"keys of shape {keys.shape}; this index takes {self.words} words a record")
        self._more[:] = 0
        if len(keys) > len(self._hashes):
            self._hashes = np.empty(keys.shape, np.uint64)
        hash_keys(keys, self._hashes, self._more)
        self._make_room(len(keys))
        return self._state()

    def find(self, keys: Keys) -> tuple[Numbers, Numbers]:
        """Who holds keys `[n, words]`: `[n, CANDIDATES_MAX]` numbers, NOBODY behind the last, and shared bands.

        First the record with an equal text, which shares as many as there are words; then by shared bands, then by
        number.
        """
        found, shared = (np.empty((len(keys), CANDIDATES_MAX), np.int64) for _ in range(2))
        find_all(self.prepare(keys), keys, found, shared)
        self.table.check()
        return found, shared

    def begin(self, sources: Sequence[KeySource]) -> list[LoadedKeys]:
        """Load the keys of sources into an empty index.

        Where the folder has what was saved of the first of them, that is opened in their place; where much had to be
        loaded, all is saved. Raises what reading a source raises.
        """
        names, place = [source.checksum for source in sources], Path(self.folder or ".")
        found: list[LoadedKeys] = []
        for count in open_saved(self, place, names) if self.folder is not None else ():
            found.append(LoadedKeys(found[-1].first + found[-1].count if found else 0, count, 0))
        opened = self.records
        self._opened(sources[: len(found)])
        found += self.follow(sources[len(found) :])
        if self.folder is not None and self.records - opened > SAVED_SHARE * self.records:
            try:
                self._save(place, names, [loaded.count for loaded in found])
            except OSError as error:
                logger.warning("the dedup index is not saved in %s: %s; the next one loads its keys", place, error)
        return found

    def follow(self, sources: Sequence[KeySource]) -> list[LoadedKeys]:
        """Load the keys of sources behind those that are loaded. Raises what reading a source raises."""
        found: list[LoadedKeys] = []
        for source in sources:
            first = self.records
            twice = self.load(self._read(source))
            found.append(LoadedKeys(first, self.records - first, twice))
        return found

    def _opened(self, sources: Sequence[KeySource]) -> None:
        """What was saved of these was opened."""

    def _read(self, source: KeySource) -> KeptKeys:
        return source.keys()

    def _save(self, place: Path, names: Sequence[str], counts: list[int]) -> None:
        """Save all, and go on with what was saved in place of the runs."""
        save(self, place, names, counts)
        again = Claims(self.words, self.identity, self.folder)
        if open_saved(again, place, names) == counts:
            self.levels, self.table, self.filters, self._slots = again.levels, again.table, again.filters, again._slots

    def load(self, kept: KeptKeys) -> int:
        """Give keys to records that are kept; how many of them another record held, which should be none."""
        return self._load_keys(self.load_records(kept), kept.keys, kept.words, kept.holders)

    def load_records(self, kept: KeptKeys) -> int:
        """Number records that are kept, without their keys; the number of the first."""
        names = np.empty(len(kept.records), np.int64)
        for place, fragment in enumerate(kept.fragments):
            mine = kept.places == place
            names[mine] = self.table.names(fragment, kept.records[mine])
        return self._load_records(names, kept.keys, kept.words, kept.holders)

    def _load_records(self, names: Numbers, keys: Keys, words: Numbers, holders: Numbers) -> int:
        checks, exact = np.zeros((len(names), EXACT_WORDS), np.uint64), words == 0
        checks[holders[exact]] = keys[exact]
        return self._put(names, checks)

    def _put(self, names: Numbers, checks: Keys) -> int:
        """Number records, of whose keys the second is a check; the number of the first."""
        first = self.records
        self.table.make_room(len(names))
        add_all(self._state(), names, checks)
        self.table.note_spans(first)
        return first

    def _load_keys(self, first: int, keys: Keys, words: Numbers, holders: Numbers) -> int:
        """Give keys to the holders behind `first`; how many of them another record held."""
        twice = 0
        for at in range(0, len(keys), LOADED_KEYS):
            here = slice(at, at + LOADED_KEYS)
            some = np.ascontiguousarray(keys[here])
            self._more[:] = 0
            count_single(some, words[here], self._more)
            self._make_room(0)
            twice += int(load_keys(self._state(), some, words[here], holders[here] + first))
        self.table.check()
        return twice

    def release(self, name: RecordName) -> bool:
        """Let go of the keys of a record that is not kept after all; whether it held any."""
        number = self.number(name)
        if number != NOBODY:
            self.table.release(number)
        return number != NOBODY

    def number(self, name: RecordName) -> int:
        """The number of a record that was not released; NOBODY where there is none."""
        return self.table.number(name.fragment, name.row)

    def names(self, numbers: Numbers) -> list[RecordName]:
        """The records of numbers `[n]`."""
        return [RecordName(*self.table.split(word)) for word in self.table.names_of(numbers).tolist()]

    def name(self, number: int) -> RecordName:
        """The record of a number."""
        return self.names(np.array([number]))[0]

    def _state(self) -> Numbers:
        row = self.table.row
        row[SLOTS], row[HELD], row[WORDS] = self._slots.table.ctypes.data, self._held.ctypes.data, self.words
        row[HASHES] = self._hashes.ctypes.data
        row[SORTED] = self._slots.sorted.ctypes.data if isinstance(self._slots, Slots) else 0
        row[FILTERS] = self.filters.table.ctypes.data if self.filters is not None else 0
        row[RUNS], row[RUN_COUNT] = self.levels.table.ctypes.data, len(self.levels.table)
        return row

    def _make_room(self, records: int) -> None:
        """Have room for so many records more, and for `_more` keys of each section."""
        self.table.make_room(records)
        if isinstance(self._slots, Slots):
            self._slots.make_room(self._more)
        elif not self._slots.has_room(self._more):
            self._seal(self._slots)
        if self.filters is not None:
            self._make_filters(self.filters)
            self.levels.advance(MERGED_A_KEY * int(self._more.sum()), self.table.row)

    def _seal(self, slots: FixedSlots) -> None:
        """Write the table in memory as a run, and have an empty one with room for `_more`."""
        if slots.table[:, USED].any():
            self.levels.add(seal(slots.table, self.folder))
        self.table.seal()
        keys = max(SEALED_MIN, self.records // SEALED_SHARE) * (self.words - 1)
        self._slots = slots.with_room(keys if keys > slots.keys * SEALED_GROWTH else 0, self._more)

    def _make_filters(self, filters: Filters) -> None:
        more = self._more.reshape(PARTS, -1)
        for part in filters.full(more.sum(axis=1)):
            filters.begin_anew(part, int(more[part].sum()))
            each = SECTIONS // PARTS
            for section in range(part * each, (part + 1) * each):
                for count, slots in self._of_section(section):
                    enter_all(filters.table, section, slots, count)

    def _of_section(self, section: int) -> Iterator[tuple[int, Any]]:
        """The slots of a section, table by table: how many, and they."""
        room = np.empty(max(1, int(self._slots.table[section, USED])), np.uint64)
        yield collect(self._slots.table, section, room), room
        for run in self.levels.runs:
            count = run.count_range(section, SECTION_BITS)
            if count > len(room):
                room = np.empty(count, np.uint64)
            yield run.read_range(section, SECTION_BITS, room), room


@entry("(i64[], i64[], u64[,])")
def add_all(row: Any, names: Any, keys: Any) -> None:
    """Number records."""
    for place in range(len(names)):
        add_record(pointer(row, 0), names[place], keys[place, 1])


class Partition(Claims):
    """Keys `[n, 2]`, each of a word `[n]` (0: the whole text), and the decider's numbers of the records that hold them.

    A partition numbers the records of which it has keys anew; the decider's number is the name of each. Its methods
    raise OSError.
    """

    def __init__(self, words: int, identity: str, share: int, shares: int, folder: str | None = None) -> None:
        mine = xxhash.xxh3_64_hexdigest(f"{identity} {share} of {shares}".encode())
        super().__init__(words, mine, folder)
        self.share, self.shares = share, shares
        #: The decider's number of the next record that is loaded.
        self._numbered = 0

    def ask(self, keys: Keys, words: Numbers) -> Numbers:
        """The decider's numbers of the records that hold keys; NOBODY for those that nobody holds."""
        found = np.empty(len(keys), np.int64)
        self._more[:] = 0
        self._make_room(0)
        find_names(self._state(), keys, words, found)
        self.table.check()
        return found

    def give(self, numbers: Numbers, keys: Keys, words: Numbers) -> int:
        """Give keys to records, each to the one of its number `[n]`; numbers rise. How many another record held."""
        mine, holders = np.unique(numbers, return_inverse=True)
        return self._load_keys(self._load_records(mine, keys, words, holders), keys, words, holders)

    def let_go(self, number: int) -> None:
        """Let go of all keys of a record."""
        mine = self.table.number_of(number)
        if mine != NOBODY:
            self.table.release(mine)

    def load(self, kept: KeptKeys) -> int:
        """Give the keys of this range to records that are kept, which the decider numbers as they are read."""
        mine = np.flatnonzero(core.partitions_of(kept.keys[:, 0], self.shares) == self.share)
        order = mine[np.argsort(kept.holders[mine], kind="stable")]
        first, self._numbered = self._numbered, self._numbered + len(kept.records)
        return self.give(kept.holders[order] + first, kept.keys[order], kept.words[order])

    def _opened(self, sources: Sequence[KeySource]) -> None:
        self._numbered = sum(source.records for source in sources)

    def _read(self, source: KeySource) -> KeptKeys:
        kept = source.keys()
        if len(kept.records) != source.records:
            raise FormatError(f"a file of the keys of {len(kept.records)} records lies beside {source.records}")
        return kept


@entry("(i64[], u64[,], i64[], i64[])")
def find_names(row: Any, keys: Any, words: Any, found: Any) -> None:
    """The names of the records that hold single keys `[n, 2]`, each of a word `[n]`."""
    state = pointer(row, 0)
    for place in range(len(keys)):
        fetch_single(state, keys, words, place)
        holder = holder_of(state, hash_of(keys[place, 0], words[place]), words[place] == 0, keys[place, 1])
        found[place] = NOBODY if holder == NOBODY else np.int64(word_of(state, holder, 0))
