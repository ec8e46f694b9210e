"""The index of a dedup stage: who holds which key, and what of those the judge compares a record with."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stages.dedup.core.scheme import EXACT_WORDS, RULE, Scheme
from headrace.stages.dedup.index import (
    ANSWERED,
    CANDIDATES_MAX,
    CLAIMED,
    NOBODY,
    Claims,
    add_record,
    claim,
    fetch_ahead,
    find_equal,
    find_holders,
    first_holder,
    has_no_key,
    hashes_of,
    word_of,
)
from headrace.stages.dedup.judge import ROOM_TYPE, compare, make_room
from headrace.stages.dedup.minhash import Keys
from headrace.stages.dedup.sketches import ELSEWHERE, Reader, Sketches, hold_sketches, offsets_of
from headrace.stages.text.machine import compiled, entry, is_prepared, pointer, prepared
from headrace.store.shards import KeptKeys, RecordName

Numbers = npt.NDArray[np.int64]

# In the signature of the loop: the records that are asked about, and what judges them.
_MINE_TYPE = "(u64[,], i64[], u8[], i64[], i64[,], i64[,])"
_JUDGING_TYPE = f"(bool, u8[], i64[], i64[], u32[], i64, {ROOM_TYPE})"


@dataclass(frozen=True, slots=True)
class Match:
    """The record that holds a key of another; `near` where it is not the key of the whole text.

    `score` is what of the other record it has, in thousandths, where a judge compared them; else -1. `settled`: that
    record was kept before the index began.
    """

    name: RecordName
    near: bool
    score: int = -1
    settled: bool = False


class KeyIndex(Claims):
    """Claims and keeps keys, record by record, in the order in which it is asked. Its methods raise OSError."""

    def __init__(self, scheme: Scheme, folder: str | None = None) -> None:
        super().__init__(scheme.words, scheme.identity(), folder)
        self.scheme = scheme
        #: Records below this number were kept before.
        self.settled = 0
        #: What the judge compares; None: a shared band decides.
        self.sketches = Sketches(folder) if scheme.judged else None

    def decide(self, fragment: bytes, rows: Numbers, keys: Keys, sketches: Any = None) -> list[Match | None]:
        """For each record, in order: None where it is kept and holds its keys now, else what it is a duplicate of.

        A record that holds its keys already is kept again, so that one that is read again has the fate that it had.
        With a judge, `sketches` is a binary column of the records' sketches. Raises FormatError, StoreError where the
        sketch of a kept record cannot be read.
        """
        first, count, state = self.records, len(rows), self.prepare(keys)
        answers, scores = np.empty(count, np.int64), np.empty(count, np.int64)
        names = self.table.names(fragment, np.ascontiguousarray(rows))
        mine = (keys, names, *self._offsets(sketches, count), *self._elsewhere(count))
        room = self._found, self._shared
        at = 0
        while at < count:
            at, missing, used = decide(at, state, mine, self._judging(), room, answers, scores)
            self.table.check()
            if self.sketches is not None:
                self.sketches.used = int(used)
                if at < count:
                    self.sketches.fetch(int(missing), self._numbers_between)
        self.table.note_spans(first)
        return self._matches(answers, scores)

    def _elsewhere(self, count: int) -> tuple[Numbers, Numbers]:
        """Who holds the keys of the next records by the word of partitions, and room for what they claim."""
        del count
        return _NO_NUMBERS, _NO_NUMBERS

    def _matches(self, answers: Numbers, scores: Numbers) -> list[Match | None]:
        found, matches = np.flatnonzero(answers != NOBODY), list[Match | None]([None] * len(answers))
        numbers, judged = answers[found], scores[found].tolist()
        for place, name, score, number in zip(
            found.tolist(), self.names(numbers), judged, numbers.tolist(), strict=True
        ):
            matches[place] = Match(name, score != EQUAL_TEXT, max(-1, score), settled=number < self.settled)
        return matches

    def _offsets(self, sketches: Any, count: int) -> tuple[Any, Any]:
        """The records' sketches, and room for them. ValueError where they are none."""
        if self.sketches is None:
            return _NO_SKETCHES, _NO_OFFSETS
        data, offsets = offsets_of(sketches)
        # As what comes from a channel: the loops are compiled once.
        data.setflags(write=False)
        if len(offsets) != count + 1 or not hold_sketches(data, offsets):
            raise ValueError(f"{len(offsets) - 1} sketches of {count} records, or one that is none")
        self.sketches.make_room(self.records + count, int(offsets[-1] - offsets[0]))
        return data, offsets

    def _judging(self) -> tuple[Any, ...]:
        """What the loop needs to compare sketches."""
        held = self.sketches
        if held is None:
            return False, _NO_BYTES, _NO_OFFSETS, _NO_OFFSETS, _NO_HEADS, 0, _NO_ROOM
        columns = (held.arena, held.begins, held.ends, held.heads)
        return True, *(column.values for column in columns), held.used, held.room

    def _numbers_between(self, first: int, end: int) -> dict[tuple[str, int], int]:
        """The numbers of records by fragment, in hex, and ordinal."""
        return {
            (name.fragment.hex(), name.row): first + at for at, name in enumerate(self.names(np.arange(first, end)))
        }

    def expect(self, first: int, count: int, reader: Reader) -> None:
        """The sketches of records that are loaded are in a file that `reader` reads."""
        if self.sketches is not None:
            self.sketches.expect(first, count, reader)


@cache
def compile_index() -> None:
    """Compile what is not in the cache. A process does it once, and tasks that are forked have done it."""
    # Where the machine code is kept, one call takes what a run calls; what an index on disk has besides comes with it.
    folders = (None,) if is_prepared("index") else (None, tempfile.gettempdir())
    with prepared("index"):
        one, sketches = np.arange(1, dtype=np.int64), pa.array([bytes(1)], pa.binary())
        none = np.zeros(0, np.int64)
        nothing = KeptKeys((), none, none, np.zeros((0, EXACT_WORDS), np.uint64), none, none)
        for folder in folders:
            index, keys = KeyIndex(Scheme(bands=1, rule=RULE), folder), np.ones((1, 3), np.uint64)
            index.decide(bytes(16), one, keys, sketches)
            index.load(nothing)


#: In place of a score: the whole text is the same, and: a shared band decided.
EQUAL_TEXT, UNJUDGED = -2, -1
_NO_BYTES = np.zeros(1, np.uint8)
#: Which cannot be written, as what comes from a channel.
_NO_SKETCHES = np.frombuffer(bytes(1), np.uint8)
_NO_OFFSETS = np.zeros(1, np.int64)
_NO_NUMBERS = np.zeros((0, 1), np.int64)
_NO_HEADS = np.zeros(1, np.uint32)
_NO_ROOM = make_room(1)


@entry(f"(i64, i64[], {_MINE_TYPE}, {_JUDGING_TYPE}, (i64[], i64[]), i64[], i64[]) -> (i64, i64, i64)")
def decide(at: int, row: Any, mine: Any, judging: Any, room: Any, answers: Any, scores: Any) -> Any:
    """For each record from `at` on, in order: NOBODY where it is kept, else the number of the one it is a duplicate of.

    `mine` is (keys, names, sketches, offsets, answered, claimed), and `judging` what the judge needs. `answered`
    `[n, words]` are holders by the word of partitions, and `claimed` takes who claims which key; both are empty
    where there are no partitions. `scores` is EQUAL_TEXT where the
    whole text is the same, UNJUDGED where a shared band decided, else what of the record the other has, in thousandths.
    What is kept claims its free keys.

    Returns where it ended, the record whose sketch must be fetched before it can go on, and how many bytes of sketches
    there are.
    """
    keys, names, sketches, offsets, answered, claimed = mine
    judged, arena, begins, ends, heads, used, _ = judging
    state, words = pointer(row, 0), keys.shape[1]
    found, shared = pointer(room[0], 0), pointer(room[1], 0)
    while at < len(names):
        own, hashes = pointer(keys, at * words), hashes_of(state, at)
        fetch_ahead(state, at, len(names))
        if len(answered):
            state[ANSWERED] = answered.ctypes.data + 8 * words * at
            state[CLAIMED] = claimed.ctypes.data + 8 * words * at
        if has_no_key(0, own[1]):
            # It is kept, holds nothing, and is not remembered.
            answers[at], scores[at] = NOBODY, UNJUDGED
            at += 1
            continue
        equal, scores[at] = find_equal(state, own, hashes), EQUAL_TEXT
        if equal != NOBODY:
            answers[at] = NOBODY if np.int64(word_of(state, equal, 0)) == names[at] else equal
            at += 1
            continue
        count = find_holders(state, own, hashes, NOBODY, found, shared, CANDIDATES_MAX)
        head = NOBODY
        if judged:
            holder, score, head, missing = _judge(at, mine, found, count, judging)
            if missing >= 0:
                return at, missing, used
        else:
            holder, score = first_holder(state), UNJUDGED
        answers[at], scores[at] = holder, score
        if holder < 0:
            number = add_record(state, names[at], own[1])
            claim(state, own, hashes, number)
            if judged:
                begins[number], heads[number] = used, head + 1
                for place in range(offsets[at], offsets[at + 1]):
                    arena[used] = sketches[place]
                    used += 1
                ends[number] = used
        at += 1
    return at, NOBODY, used


@compiled
def _judge(at: int, mine: Any, found: Any, count: int, judging: Any) -> Any:
    """Compare a record with `count` others that share a band.

    Returns the one that it is a duplicate of, or NOBODY; what of it that one has, in thousandths; the head of those of
    whose form it is, or NOBODY; and the record whose sketch is missing, or NOBODY.
    """
    _, _, sketches, offsets, _, _ = mine
    _, arena, begins, ends, heads, _, room = judging
    head = NOBODY
    for candidate in range(count):
        holder = found[candidate]
        if ends[holder] == ELSEWHERE:
            return NOBODY, 0, NOBODY, holder
        form = int(heads[holder]) - 1
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
