"""Hash tables from keys to numbers of records, as compiled loops: open addressing, linear probing, in key order.

A slot holds a key's words and the record's number plus one; 0 is an empty slot. A key's home is given by its highest
bits, so the table lies in the order of keys, and each of the 256 virtual partitions, which are a key's highest eight
bits, lies in one piece.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.stages.text import compiled

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
