"""A share of the keys of a partitioned index: asked and claimed key by key, for records that the decider numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

from headrace.stages.dedup import partitions as core
from headrace.stages.dedup.index.claims import LOADED_KEYS, Claims, Keys, KeySource, Numbers, add_all
from headrace.stages.dedup.index.lookups import EXACT_WORDS, count_single, fetch_single, hash_of, holder_of, load_keys
from headrace.stages.dedup.index.records import word_of
from headrace.stages.dedup.index.slots import NOBODY
from headrace.stages.text.machine import entry, pointer
from headrace.store import FormatError
from headrace.store.shards import KeptKeys


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
        checks, exact = np.zeros((len(mine), EXACT_WORDS), np.uint64), words == 0
        checks[holders[exact]] = keys[exact]
        first, twice = self.records, 0
        self.table.make_room(len(mine))
        add_all(self._state(), mine, checks)
        self.table.note_spans(first)
        for at in range(0, len(keys), LOADED_KEYS):
            here = slice(at, at + LOADED_KEYS)
            some = np.ascontiguousarray(keys[here])
            self._more[:] = 0
            count_single(some, words[here], self._more)
            self._make_room(0)
            twice += int(load_keys(self._state(), some, words[here], holders[here] + first))
        self.table.check()
        return twice

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
