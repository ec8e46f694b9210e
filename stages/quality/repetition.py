"""Gopher's repetition rules: Rae et al. 2021, "Scaling Language Models", table A1; the definitions are datatrove's.

A paragraph is what stands between runs of two and more line feeds, a line what stands between runs of them; the first
of equal ones is no duplicate. Of the top n-gram, the occurrences (overlaps too) count with the spaces between their
words. Duplicate n-grams are found from left to right, and one that was seen counts without spaces and is passed over.

An n-gram can only repeat where both (n-1)-grams in it do. So each length looks only at what the one before left: one
look into a hash table a word for pairs, and a few hundredths of that for all the longer ones. Equal means equal 64-bit
hashes of the words.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from headrace.stages.batch import Batch
from headrace.stages.quality.kernels import compiled
from headrace.stages.quality.texts import ONE_WORD, Numbers, Rule, drop, longest, share, tag, text_bytes, text_of
from headrace.stages.quality.words import LENGTH, MULTIPLIER, SEED, find_words, room_for, space_width

TOP_LENGTHS = (2, 3, 4)
DUPLICATE_LENGTHS = (5, 6, 7, 8, 9, 10)
_LONGEST = 10
#: Columns of what is counted: characters; paragraphs and lines: how many, duplicates, characters in duplicates; and
#: from _GRAMS on the characters in top 2- to 4-grams and in duplicate 5- to 10-grams.
_CHARACTERS, _PARAGRAPHS, _LINES, _GRAMS = 0, 1, 4, 7
_COLUMNS = _GRAMS + 9
_FOLD = np.uint64(29)
_LINE_FEED = 0x0A


class GopherRepetition:
    """Filters texts that repeat themselves; limits are shares, and a share above its limit is filtered."""

    def __init__(
        self,
        name: str,
        lines_max: float,
        line_characters_max: float,
        paragraphs_max: float,
        paragraph_characters_max: float,
        top_ngrams_max: list[float],
        duplicate_ngrams_max: list[float],
        tag: bool = False,
    ) -> None:
        self.name = name
        self.tag = tag
        self.limits = {
            "duplicate paragraphs": paragraphs_max,
            "characters in duplicate paragraphs": paragraph_characters_max,
            "duplicate lines": lines_max,
            "characters in duplicate lines": line_characters_max,
        }
        for length, limit in zip(TOP_LENGTHS, top_ngrams_max, strict=True):
            self.limits[f"characters in the top {length}-gram"] = limit
        for length, limit in zip(DUPLICATE_LENGTHS, duplicate_ngrams_max, strict=True):
            self.limits[f"characters in duplicate {length}-grams"] = limit
        # So that what is not compiled yet is compiled before there is a batch to wait for.
        repetition_shares(ONE_WORD)

    def process(self, batch: Batch) -> Batch:
        """The batch less the texts that repeat too much; or all of it, tagged."""
        column = text_of(batch, self.name)
        if self.tag:
            return tag(batch, self.name, repetition_shares(column))
        shares = repetition_shares(column, tuple(list(self.limits.values())[:4]))
        return drop(batch, self.name, self.rules(shares))

    def rules(self, scores: dict[str, Any]) -> list[Rule]:
        """Each reason, and which texts with these scores it holds for."""
        return [(f"too many {what}", scores[what] > limit) for what, limit in self.limits.items()]


def repetition_shares(column: Any, enough: tuple[float, ...] = (np.inf, np.inf, np.inf, np.inf)) -> dict[str, Numbers]:
    """For `n` texts the shares `[n]` that the rules limit, in the order in which the rules are applied.

    Where one of the first four is above its limit in `enough`, the n-grams are not looked at and their shares are 0.
    """
    data, offsets = text_bytes(column)
    found = np.zeros((len(column), _COLUMNS), np.int64)
    size = longest(offsets)
    if len(data):
        _measure(data, offsets, found, room_for(size), *_room(1 << (size + 2).bit_length()), enough)
    characters = found[:, _CHARACTERS]
    shares = {
        "duplicate paragraphs": share(found[:, _PARAGRAPHS + 1], found[:, _PARAGRAPHS]),
        "characters in duplicate paragraphs": share(found[:, _PARAGRAPHS + 2], characters),
        "duplicate lines": share(found[:, _LINES + 1], found[:, _LINES]),
        "characters in duplicate lines": share(found[:, _LINES + 2], characters),
    }
    for place, length in enumerate(TOP_LENGTHS):
        shares[f"characters in the top {length}-gram"] = share(found[:, _GRAMS + place], characters)
    for place, length in enumerate(DUPLICATE_LENGTHS, len(TOP_LENGTHS)):
        shares[f"characters in duplicate {length}-grams"] = share(found[:, _GRAMS + place], characters)
    return shares


@lru_cache(maxsize=1)
def _room(size: int) -> tuple[Any, Any]:
    """A hash table and scratch for the n-grams of `size` words."""
    table = (np.empty(4 * size, np.uint64), np.empty(4 * size, np.int32))
    return table, (np.empty(size, np.uint64), *(np.empty(size, np.int32) for _ in range(4)))


@compiled
def _measure(data: Any, offsets: Any, found: Any, words: Any, table: Any, grams: Any, enough: Any) -> None:
    rows, hashes, piece, known_cuts, known_hashes = words
    for text in range(len(offsets) - 1):
        start, end = offsets[text], offsets[text + 1]
        row = found[text]
        row[_CHARACTERS] = count_characters(data, start, end)
        _duplicate_parts(data, start, end, 1, row, _LINES, table)
        first, last = stripped(data, start, end)
        # Equal paragraphs are made of equal lines, unless white space was stripped off the first or the last.
        whole = _is_fed(data, start, first) and _is_fed(data, last, end)
        if row[_LINES + 1] or not whole:
            _duplicate_parts(data, first, last, 2, row, _PARAGRAPHS, table)
        if _is_broken(row, enough):
            continue
        count = find_words(data, start, end, rows, hashes, piece, known_cuts, known_hashes)
        _grams(count, rows, hashes, row, table, grams)


@compiled
def _is_fed(data: Any, start: int, end: int) -> bool:
    """Whether there is nothing but line feeds."""
    while start < end and data[start] == _LINE_FEED:
        start += 1
    return start >= end


@compiled
def _is_broken(row: Any, enough: Any) -> bool:
    """Whether a share of duplicate paragraphs or lines is above its limit."""
    size = row[_CHARACTERS]
    for place, limits in ((_PARAGRAPHS, enough[:2]), (_LINES, enough[2:])):
        # Divided as `share` divides, so that both say the same on the limit itself.
        if row[place + 1] and (row[place + 1] / row[place] > limits[0] or row[place + 2] / size > limits[1]):
            return True
    return False


@compiled
def count_characters(data: Any, start: int, end: int) -> int:
    """The code points of valid UTF-8."""
    count = 0
    for at in range(start, end):
        count += (data[at] & 0xC0) != 0x80
    return count


@compiled
def stripped(data: Any, start: int, end: int) -> tuple[int, int]:
    """The span without white space at its ends."""
    while start < end:
        width = space_width(data, start)
        if width == 0:
            break
        start += width
    while end > start:
        at = end - 1
        while at > start and (data[at] & 0xC0) == 0x80:
            at -= 1
        if space_width(data, at) == 0:
            break
        end = at
    return start, end


@compiled
def slots_for(count: int) -> int:
    """Slots of a table for so many keys."""
    slots = 16
    while slots < 2 * count:
        slots *= 2
    return slots


@compiled
def add_key(keys: Any, slots: int, key: Any) -> tuple[Any, bool]:
    """The slot of a key in the first `slots` of an open-addressing table, and whether it is new there."""
    if key == 0:
        key = MULTIPLIER
    mask = np.uint64(slots - 1)
    slot = (key ^ (key >> np.uint64(32))) & mask
    while True:
        held = keys[slot]
        if held == key:
            return np.int64(slot), False
        if held == 0:
            keys[slot] = key
            return np.int64(slot), True
        slot = (slot + np.uint64(1)) & mask


@compiled
def hash_span(data: Any, begin: int, end: int) -> Any:
    """A hash of `data[begin:end]`, eight bytes a step (LLVM makes one load of the eight)."""
    value = SEED ^ np.uint64(end - begin)
    at = begin
    while at + 8 <= end:
        low = np.uint64(data[at]) | np.uint64(data[at + 1]) << np.uint64(8)
        low |= np.uint64(data[at + 2]) << np.uint64(16) | np.uint64(data[at + 3]) << np.uint64(24)
        high = np.uint64(data[at + 4]) << np.uint64(32) | np.uint64(data[at + 5]) << np.uint64(40)
        high |= np.uint64(data[at + 6]) << np.uint64(48) | np.uint64(data[at + 7]) << np.uint64(56)
        value = (value ^ (low | high)) * MULTIPLIER
        value ^= value >> _FOLD
        at += 8
    while at < end:
        value = (value ^ np.uint64(data[at])) * MULTIPLIER
        at += 1
    return value ^ (value >> _FOLD)


@compiled
def _duplicate_parts(data: Any, start: int, end: int, feeds_min: int, row: Any, place: int, table: Any) -> None:
    """Count the parts between runs of at least so many line feeds, and those that are equal to an earlier one."""
    keys = table[0]
    parts = 1
    for at in range(start, end):
        parts += data[at] == _LINE_FEED
    slots = slots_for(parts)
    keys[:slots] = 0
    count, duplicates, characters_found = 0, 0, 0
    begin, at = start, start
    while True:
        while at < end and data[at] != _LINE_FEED:
            at += 1
        behind = at
        while behind < end and data[behind] == _LINE_FEED:
            behind += 1
        if at < end and behind - at < feeds_min:
            at = behind
            continue
        count += 1
        _, is_new = add_key(keys, slots, hash_span(data, begin, at))
        if not is_new:
            duplicates += 1
            characters_found += count_characters(data, begin, at)
        if at == end:
            break
        begin, at = behind, behind
    row[place], row[place + 1], row[place + 2] = count, duplicates, characters_found


@compiled
def _mixed(left: Any, right: Any) -> Any:
    value = (left ^ (right >> _FOLD)) * MULTIPLIER + right
    return value ^ (value >> _FOLD)


@compiled
def _grams(count: int, rows: Any, word_hashes: Any, row: Any, table: Any, grams: Any) -> None:
    """The characters in top 2- to 4-grams and in duplicate 5- to 10-grams of `count` words."""
    hashes, sums, places, ids, counts = grams
    sums[0] = 0
    for index in range(count):
        sums[index + 1] = sums[index] + rows[index, LENGTH]
        hashes[index] = word_hashes[index]
        places[index] = index
    # `places` are where the n-gram may repeat, `hashes` the n-grams there; each length thins both out.
    left = count
    for length in range(2, _LONGEST + 1):
        left = _lengthen(left, length, word_hashes, hashes, places)
        different = _number(left, hashes, ids, counts, table)
        if length <= 4:
            row[_GRAMS + length - 2] = _top(left, different, length, count, sums, places, ids, counts)
        left = _keep_repeated(left, hashes, places, ids, counts)
        if length >= 5:
            row[_GRAMS + length - 2] = _duplicates(left, different, length, sums, places, ids, counts)
        if left == 0 and length >= 4:
            break


@compiled
def _lengthen(left: int, length: int, word_hashes: Any, hashes: Any, places: Any) -> int:
    """Make n-grams of the (n-1)-grams that repeat and have one that does behind them; returns how many."""
    kept = 0
    for index in range(left - 1):
        place = places[index]
        if places[index + 1] == place + 1:
            hashes[kept] = _mixed(hashes[index], word_hashes[place + length - 1])
            places[kept] = place
            kept += 1
    return kept


@compiled
def _number(left: int, hashes: Any, ids: Any, counts: Any, table: Any) -> int:
    """Number the different n-grams in the order in which they first occur, and count each; returns how many."""
    keys, numbers = table
    slots = slots_for(left)
    keys[:slots] = 0
    different = 0
    for index in range(left):
        slot, is_new = add_key(keys, slots, hashes[index])
        if is_new:
            numbers[slot] = different
            counts[different] = 0
            different += 1
        number = numbers[slot]
        ids[index] = number
        counts[number] += 1
    return different


@compiled
def _top(left: int, different: int, length: int, count: int, sums: Any, places: Any, ids: Any, counts: Any) -> Any:
    """The characters, spaces within it counted, in all occurrences of the most frequent n-gram, the first of equals."""
    if count < length:
        return 0
    most, chosen = 1, -1
    for number in range(different):
        if counts[number] > most:
            most, chosen = counts[number], number
    place = 0
    for index in range(left):
        if ids[index] == chosen:
            place = places[index]
            break
    return most * (sums[place + length] - sums[place] + length - 1)


@compiled
def _keep_repeated(left: int, hashes: Any, places: Any, ids: Any, counts: Any) -> int:
    kept = 0
    for index in range(left):
        if counts[ids[index]] >= 2:
            hashes[kept], places[kept], ids[kept] = hashes[index], places[index], ids[index]
            kept += 1
    return kept


@compiled
def _duplicates(left: int, different: int, length: int, sums: Any, places: Any, ids: Any, counts: Any) -> int:
    """The characters in n-grams that were seen before, from left to right, none counted twice."""
    counts[:different] = 0
    characters_found, free = 0, 0
    for index in range(left):
        place = places[index]
        if place < free:
            continue
        if counts[ids[index]]:
            characters_found += sums[place + length] - sums[place]
            free = place + length
        counts[ids[index]] = 1
    return characters_found
