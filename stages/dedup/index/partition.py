"""A share of the keys of a partitioned index: asked and claimed key by key, for records that the decider numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.stages.dedup.index.claims import Claims, Keys, Numbers, add_all
from headrace.stages.dedup.index.lookups import EXACT_WORDS, count_single, hash_of, holder_of, load_keys
from headrace.stages.dedup.index.records import word_of
from headrace.stages.dedup.index.slots import NOBODY
from headrace.stages.text import compiled, pointer


class Partition(Claims):
    """Keys `[n, 2]`, each of a word `[n]` (0: the whole text), and the decider's numbers of the records that hold them.

    A partition numbers the records of which it has keys anew; the decider's number is the name of each. Its methods
    raise OSError.
    """

    def ask(self, keys: Keys, words: Numbers) -> Numbers:
        """The decider's numbers of the records that hold keys; NOBODY for those that nobody holds."""
        found = np.empty(len(keys), np.int64)
        find_names(self._ready(keys, words, 0), keys, words, found)
        self.table.check()
        return found

    def give(self, number: int, keys: Keys, words: Numbers) -> None:
        """Give keys that nobody holds to a record. Numbers come in rising order."""
        check = np.zeros((1, EXACT_WORDS), np.uint64)
        check[0, 1] = keys[words == 0, 1].sum()
        first, row = self.records, self._ready(keys, words, 1)
        add_all(row, np.array([number]), check)
        self.table.note_spans(first)
        load_keys(row, keys, words, np.full(len(keys), first))
        self.table.check()

    def let_go(self, number: int) -> None:
        """Let go of all keys of a record."""
        mine = self.table.number_of(number)
        if mine != NOBODY:
            self.table.release(mine)

    def _ready(self, keys: Keys, words: Numbers, records: int) -> Numbers:
        self._more[:] = 0
        count_single(keys, words, self._more)
        self._make_room(records)
        return self._state()


@compiled
def find_names(row: Any, keys: Any, words: Any, found: Any) -> None:
    """The names of the records that hold single keys `[n, 2]`, each of a word `[n]`."""
    state = pointer(row, 0)
    for place in range(len(keys)):
        holder = holder_of(state, hash_of(keys[place, 0], words[place]), words[place] == 0, keys[place, 1])
        found[place] = NOBODY if holder == NOBODY else np.int64(word_of(state, holder, 0))
