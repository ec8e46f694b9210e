"""The loops that find the holders of a record's keys and give it those that are free.

The key of the whole text is as good as its 106 bits: 42 of the hash in the slot, 64 beside the record's name. Two
different texts of 10^8 share them with a probability of 10^-16. A band is known by 42 bits: with 10^8 records of 16
bands one absent band in 2,600 meets a false holder. That is a nomination, which the judge refuses.

The loops take `state`, a pointer to the row of numbers of the index, and `keys`, one to the words of a record.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.stages.dedup.index.filters import enter, line_of, may_hold
from headrace.stages.dedup.index.memory import numbers_at, prefetch, words_at
from headrace.stages.dedup.index.records import (
    ANSWERED,
    ASKED,
    CLAIMED,
    COUNT,
    FAILED,
    FILTERS,
    HASHES,
    HELD,
    RUN_COUNT,
    RUNS,
    SLOTS,
    SORTED,
    WORDS,
    is_released,
    word_of,
)
from headrace.stages.dedup.index.runs import ADDRESS as RUN_ADDRESS, COLUMNS as RUN_COLUMNS, place_in
from headrace.stages.dedup.index.slots import (
    ADDRESS,
    COLUMNS,
    FENCES,
    HASH_BITS,
    HOMES,
    NOBODY,
    RANGES,
    SLOT_BITS,
    USED,
    home_of,
    put_at,
    sorted_place,
)
from headrace.stages.text.machine import compiled, entry, pointer

#: Holders that are named for a record at most.
CANDIDATES_MAX = 16
#: Words of the key of the whole text, before the bands.
EXACT_WORDS = 2
LINE_BYTES = 64
#: Single keys for which the processor fetches, before they are looked up.
KEYS_AHEAD = 16

_ODD, _PRIME = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_THIRTY_TWO, _TWENTY_NINE = np.uint64(32), np.uint64(29)
_BELOW, _SLOT_BITS = np.uint64(64 - HASH_BITS), np.uint64(SLOT_BITS)
_LOW, _NOTHING = np.uint64(0xFFFFFFFF), np.uint64(0)


@compiled
def hash_of(key: Any, word: int) -> Any:
    """The hash of a record's key `word`, 0 for the whole text; its highest bit is the 42nd."""
    value = key ^ (np.uint64(word) * _ODD)
    value = (value ^ (value >> _THIRTY_TWO)) * _PRIME
    return (value ^ (value >> _TWENTY_NINE)) >> _BELOW


@compiled
def has_no_key(word: Any, low: Any) -> Any:
    """Whether a word 0, by its second half, stands for a record without a key, which nobody holds."""
    return word == 0 and low == _NOTHING


@entry("(u64[,], u64[,], i64[])")
def hash_keys(keys: Any, hashes: Any, more: Any) -> None:
    """The hashes of the keys of records `[n, words]`, and how many of them each section would take `[SECTIONS]`.

    Where a record has no key, and beside the first word, they say nothing.
    """
    for place in range(len(keys)):
        hashed = hash_of(keys[place, 0], 0)
        hashes[place, 0] = hashed
        if not has_no_key(0, keys[place, 1]):
            more[np.int64(hashed >> _SLOT_BITS)] += 1
        for word in range(EXACT_WORDS, keys.shape[1]):
            hashed = hash_of(keys[place, word], word)
            hashes[place, word] = hashed
            if keys[place, word] != _NOTHING:
                more[np.int64(hashed >> _SLOT_BITS)] += 1


@compiled
def hashes_of(state: Any, place: int) -> Any:
    """The hashes of the keys of the record at a place of its batch."""
    return words_at(state[HASHES] + 8 * state[WORDS] * place)


@compiled
def fetch(state: Any, hashes: Any) -> None:
    """Have the processor fetch what a record's keys are looked up in, while it does something else."""
    for word in range(EXACT_WORDS - 1, state[WORDS]):
        fetch_key(state, hashes[word if word >= EXACT_WORDS else 0])


@compiled
def fetch_key(state: Any, hashed: Any) -> None:
    """Have the processor fetch what a key is looked up in; of the sorted arrays, where to look."""
    table, arrays = numbers_at(state[SLOTS]), numbers_at(state[SORTED])
    section, low = np.int64(hashed >> _SLOT_BITS) * COLUMNS, hashed & _LOW
    home = table[section + ADDRESS] + 8 * home_of(low, table[section + HOMES])
    prefetch(home)
    prefetch(home + LINE_BYTES)
    if state[SORTED]:
        prefetch(arrays[section + FENCES] + 4 * home_of(low, arrays[section + RANGES]))
    if state[FILTERS]:
        prefetch(line_of(numbers_at(state[FILTERS]), hashed))


@compiled
def fetch_sorted(state: Any, hashed: Any) -> None:
    """Have the processor fetch where in the sorted arrays a key would be."""
    if state[SORTED]:
        row = numbers_at(state[SORTED] + 8 * COLUMNS * np.int64(hashed >> _SLOT_BITS))
        if row[USED]:
            place = row[ADDRESS] + 8 * sorted_place(row, hashed & _LOW)[2]
            prefetch(place - LINE_BYTES // 2)
            prefetch(place + LINE_BYTES // 2)


@compiled
def fetch_ahead(state: Any, place: int, count: int) -> None:
    """Have the processor fetch what the records after one of a batch of `count` need; before the first, its own too."""
    for more in range(0 if place == 0 else 2, min(3, count - place)):
        fetch(state, hashes_of(state, place + more))
    for more in range(0 if place == 0 else 1, min(2, count - place)):
        hashes = hashes_of(state, place + more)
        for word in range(EXACT_WORDS - 1, state[WORDS]):
            fetch_sorted(state, hashes[word if word >= EXACT_WORDS else 0])


@compiled
def fetch_single(state: Any, keys: Any, words: Any, place: int) -> None:
    """Have the processor fetch what the single keys after one need."""
    near, far = place + KEYS_AHEAD, place + 2 * KEYS_AHEAD
    if far < len(keys):
        fetch_key(state, hash_of(keys[far, 0], words[far]))
    if near < len(keys):
        fetch_sorted(state, hash_of(keys[near, 0], words[near]))


@compiled
def _is_held(state: Any, slot: Any, is_exact: Any, check: Any) -> Any:
    """Whether the record in a slot holds the key."""
    number = np.int64(slot & _LOW) - 1
    if number < 0 or number >= state[COUNT]:
        state[FAILED] = 1
        return False
    return not is_released(state, number) and (not is_exact or word_of(state, number, 1) == check)


@compiled
def _find_slot(state: Any, hashed: Any, is_exact: Any, check: Any) -> Any:
    """The holder of a key among those in the table."""
    table, section = numbers_at(state[SLOTS]), np.int64(hashed >> _SLOT_BITS) * COLUMNS
    found, low = words_at(table[section + ADDRESS]), hashed & _LOW
    at = home_of(low, table[section + HOMES])
    slot = found[at]
    while slot != _NOTHING and slot >> _THIRTY_TWO <= low:
        if slot >> _THIRTY_TWO == low and _is_held(state, slot, is_exact, check):
            return np.int64(slot & _LOW) - 1
        at += 1
        slot = found[at]
    return NOBODY


@compiled
def _find_sorted(state: Any, hashed: Any, is_exact: Any, check: Any) -> Any:
    """The holder of a key in the sorted arrays."""
    row = numbers_at(state[SORTED] + 8 * COLUMNS * np.int64(hashed >> _SLOT_BITS))
    if not row[USED]:
        return NOBODY
    return _find_between(state, row[ADDRESS], sorted_place(row, hashed & _LOW), hashed, is_exact, check)


@compiled
def _find_in_run(state: Any, row: Any, hashed: Any, is_exact: Any, check: Any) -> Any:
    """The holder of a key in a run."""
    return _find_between(state, row[RUN_ADDRESS], place_in(row, hashed), hashed, is_exact, check)


@compiled
def _find_between(state: Any, address: Any, places: Any, hashed: Any, is_exact: Any, check: Any) -> Any:
    """The holder of a key among sorted slots: between which it would be, and where it is looked for first."""
    found, low = words_at(address), hashed & _LOW
    begin, end, at = places
    while at > begin and found[at - 1] >> _THIRTY_TWO >= low:
        at -= 1
    while at < end and found[at] >> _THIRTY_TWO <= low:
        if found[at] >> _THIRTY_TWO == low and _is_held(state, found[at], is_exact, check):
            return np.int64(found[at] & _LOW) - 1
        at += 1
    return NOBODY


@compiled
def holder_of(state: Any, hashed: Any, is_exact: Any, check: Any) -> Any:
    """The record that holds a key and was not released; NOBODY where there is none."""
    if state[FILTERS]:
        if not may_hold(numbers_at(state[FILTERS]), hashed):
            return NOBODY
        state[ASKED] += 1
    for run in range(state[RUN_COUNT]):
        row = numbers_at(state[RUNS] + 8 * RUN_COLUMNS * run)
        prefetch(row[RUN_ADDRESS] + 8 * place_in(row, hashed)[2])
    holder = _find_sorted(state, hashed, is_exact, check) if state[SORTED] else NOBODY
    if holder == NOBODY:
        holder = _find_slot(state, hashed, is_exact, check)
    run = 0
    while holder == NOBODY and run < state[RUN_COUNT]:
        holder = _find_in_run(state, numbers_at(state[RUNS] + 8 * RUN_COLUMNS * run), hashed, is_exact, check)
        run += 1
    return holder


@compiled
def _held_by(state: Any, word: int, hashed: Any, check: Any) -> Any:
    """The record that holds a key by the word of a partition, or by this index."""
    if state[ANSWERED]:
        known = numbers_at(state[ANSWERED])[word]
        if known >= 0 and not is_released(state, known) and (word != 0 or word_of(state, known, 1) == check):
            return known
    return holder_of(state, hashed, word == 0, check)


@compiled
def take(state: Any, hashed: Any, number: Any) -> None:
    """Give a key that nobody holds to a record."""
    table, section = numbers_at(state[SLOTS]), np.int64(hashed >> _SLOT_BITS) * COLUMNS
    found, low = words_at(table[section + ADDRESS]), hashed & _LOW
    at = home_of(low, table[section + HOMES])
    slot = found[at]
    while slot != _NOTHING and slot >> _THIRTY_TWO <= low:
        if slot >> _THIRTY_TWO == low and is_released(state, np.int64(slot & _LOW) - 1):
            found[at] = (low << _THIRTY_TWO) | np.uint64(number + 1)
            return
        at += 1
        slot = found[at]
    put_at(table, section, at, (low << _THIRTY_TWO) | np.uint64(number + 1))
    if state[FILTERS]:
        enter(numbers_at(state[FILTERS]), hashed)


@compiled
def find_equal(state: Any, keys: Any, hashes: Any) -> Any:
    """The record that holds the key of a record's whole text; NOBODY where there is none."""
    return _held_by(state, 0, hashes[0], keys[1])


@compiled
def find_holders(state: Any, keys: Any, hashes: Any, exact: Any, found: Any, shared: Any, most: int) -> int:
    """The records that hold keys of a record, at most `most`, in `found`; how many. `shared` says how many bands.

    First `exact`, which `find_equal` found and which shares as many as there are words; then by the number of shared
    bands, then by number. `claim` needs who holds which key, which stays in the index.
    """
    words, distinct = state[WORDS], 0
    holders = numbers_at(state[HELD])
    numbers, counts = numbers_at(state[HELD] + 8 * words), numbers_at(state[HELD] + 16 * words)
    holders[0], holders[1] = exact, NOBODY
    for word in range(EXACT_WORDS, words):
        holder = NOBODY
        if keys[word] != _NOTHING:
            holder = _held_by(state, word, hashes[word], _NOTHING)
        holders[word] = holder
        if holder != NOBODY and holder != exact:
            at = 0
            while at < distinct and numbers[at] != holder:
                at += 1
            if at == distinct:
                numbers[at], counts[at] = holder, 0
                distinct += 1
            counts[at] += 1
    count = 0
    if exact != NOBODY:
        found[0], shared[0] = exact, words
        count = 1
    while count < most and distinct > 0:
        best = 0
        for at in range(1, distinct):
            more, alike = counts[at] > counts[best], counts[at] == counts[best]
            if more or (alike and numbers[at] < numbers[best]):
                best = at
        found[count], shared[count] = numbers[best], counts[best]
        distinct -= 1
        numbers[best], counts[best] = numbers[distinct], counts[distinct]
        count += 1
    return count


@compiled
def first_holder(state: Any) -> Any:
    """Of the records that share a band with the one of the last `find_holders`, the one that was kept first."""
    holders, first = numbers_at(state[HELD]), NOBODY
    for word in range(EXACT_WORDS, state[WORDS]):
        if holders[word] >= 0 and (first < 0 or holders[word] < first):
            first = holders[word]
    return first


@compiled
def claim(state: Any, keys: Any, hashes: Any, number: Any) -> None:
    """Give a record the keys that nobody holds, as the `find_holders` right before it found them."""
    holders, claimed = numbers_at(state[HELD]), numbers_at(state[CLAIMED])
    if holders[0] == NOBODY and not has_no_key(0, keys[1]):
        take(state, hashes[0], number)
        if state[CLAIMED]:
            claimed[0] = number
    for word in range(EXACT_WORDS, state[WORDS]):
        if keys[word] != _NOTHING and holders[word] == NOBODY:
            take(state, hashes[word], number)
            if state[CLAIMED]:
                claimed[word] = number


@entry("(i64[], u64[,], i64[,], i64[,])")
def find_all(row: Any, keys: Any, found: Any, shared: Any) -> None:
    """The holders of the keys of records `[n, words]`: `found` `[n, most]` their numbers, `shared` how many bands."""
    state, words, most = pointer(row, 0), keys.shape[1], found.shape[1]
    for place in range(len(keys)):
        own, hashes = pointer(keys, place * words), hashes_of(state, place)
        fetch_ahead(state, place, len(keys))
        names, bands = pointer(found, place * most), pointer(shared, place * most)
        count = find_holders(state, own, hashes, find_equal(state, own, hashes), names, bands, most)
        for at in range(count, most):
            found[place, at], shared[place, at] = NOBODY, 0


@entry("(i64[], u64[,], i64[], i64[]) -> i64")
def load_keys(row: Any, keys: Any, words: Any, numbers: Any) -> int:
    """Give single keys `[n, 2]`, each of a word `[n]`, to records `[n]`; how many another record held already."""
    state, twice = pointer(row, 0), 0
    for place in range(len(keys)):
        fetch_single(state, keys, words, place)
        if has_no_key(words[place], keys[place, 1]):
            continue
        hashed = hash_of(keys[place, 0], words[place])
        holder = holder_of(state, hashed, words[place] == 0, keys[place, 1])
        if holder == NOBODY:
            take(state, hashed, numbers[place])
        elif holder != numbers[place]:
            twice += 1
    return twice


@entry("(u64[,], i64[], i64[])")
def count_single(keys: Any, words: Any, more: Any) -> None:
    """How many of single keys each section would take."""
    for place in range(len(keys)):
        if not has_no_key(words[place], keys[place, 1]):
            more[np.int64(hash_of(keys[place, 0], words[place]) >> _SLOT_BITS)] += 1
