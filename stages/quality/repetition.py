"""Gopher's repetition rules: Rae et al. 2021, "Scaling Language Models", table A1; the definitions are datatrove's.

A paragraph is what stands between runs of two and more line feeds, a line what stands between runs of them; the first
of equal ones is no duplicate. Of the top n-gram, the occurrences (overlaps too) count with the spaces between their
words. Duplicate n-grams are found from left to right, and one that was seen counts without spaces and is passed over.

An n-gram can only repeat where both (n-1)-grams in it do. So each length looks only at what the one before left: one
look into a hash table a word for pairs, and a few hundredths of that for all the longer ones. Equal means equal 64-bit
hashes of the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from headrace.stages.runtime import Batch, Transform, text_of
from headrace.stages.text import (
    LENGTH,
    ONE_WORD,
    WORDS_TYPE,
    Numbers,
    Rule,
    compile_words,
    drop,
    find_words,
    longest,
    pointers_to,
    room_for,
    room_size,
    share,
    space_width,
    tag,
    text_bytes,
)
from headrace.stages.text.machine import FOLD, MULTIPLIER, compiled, entry, hash_span, pointer, prepared

TOP_LENGTHS = (2, 3, 4)
DUPLICATE_LENGTHS = (5, 6, 7, 8, 9, 10)
_LONGEST = 10
#: Columns of what is counted: characters; paragraphs and lines: how many, duplicates, characters in duplicates; and
#: from _GRAMS on the characters in top 2- to 4-grams and in duplicate 5- to 10-grams.
_CHARACTERS, _PARAGRAPHS, _LINES, _GRAMS = 0, 1, 4, 7
_COLUMNS = _GRAMS + 9
_LIMITS_OF_PARTS = 4
_LIMITS = _LIMITS_OF_PARTS + 9
_LINE_FEED = 0x0A


def compile_loops() -> None:
    """Compile what is not in the cache."""
    compile_words()
    with prepared("repetition"):
        repetition_shares(ONE_WORD)


class GopherRepetition(Transform):
    """Filters texts that repeat themselves; limits are shares, and a share above its limit is filtered."""

    merges = True
    judges = True

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
        compile_loops()

    def process(self, batch: Batch) -> Batch:
        """The batch less the texts that repeat too much; or all of it, tagged."""
        column = text_of(batch, self.name)
        if self.tag:
            return tag(batch, self.name, repetition_shares(column))
        shares = repetition_shares(column, list(self.limits.values()))
        return drop(batch, self.name, self.rules(shares))

    def rules(self, scores: dict[str, Any]) -> list[Rule]:
        """Each reason, and which texts with these scores it holds for."""
        return [(f"too many {what}", scores[what] > limit) for what, limit in self.limits.items()]


def repetition_shares(column: Any, enough: Sequence[float] | None = None) -> dict[str, Numbers]:
    """For `n` texts the shares `[n]` that the rules limit, in the order in which the rules are applied.

    Where one is above its limit in `enough` (one for each of them), what comes behind it is not looked at and is 0;
    the first four are looked at together.
    """
    limits = np.full(_LIMITS, np.inf) if enough is None else np.array(enough, np.float64)
    data, offsets = text_bytes(column)
    found = np.zeros((len(column), _COLUMNS), np.int64)
    size = longest(offsets)
    if len(data):
        _measure(data, offsets, found, room_for(size), *_room(room_size(size)), limits)
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
    numbers = (np.empty(size, np.int32) for _ in range(4))
    return table, (np.empty(size, np.uint64), *numbers, np.empty(16 * size, np.uint8))


@entry(f"(u8[], i64[], i64[,], {WORDS_TYPE}, (u64[], i32[]), (u64[], i32[], i32[], i32[], i32[], u8[]), f64[])")
def _measure(data: Any, offsets: Any, found: Any, words: Any, table: Any, grams: Any, enough: Any) -> None:
    room = pointers_to(words)
    content, limits = pointer(data, 0), pointer(enough, 0)
    keys, numbers = table
    places = pointer(keys, 0), pointer(numbers, 0)
    hashes, sums, first_words, ids, counts, marks = grams
    scratch = (pointer(hashes, 0), pointer(sums, 0), pointer(first_words, 0), pointer(ids, 0), pointer(counts, 0))
    for text in range(len(offsets) - 1):
        start, end = offsets[text], offsets[text + 1]
        row = pointer(found, text * _COLUMNS)
        row[_CHARACTERS] = count_characters(content, start, end)
        _duplicate_parts(content, start, end, 1, row, _LINES, places[0])
        first, last = stripped(content, start, end)
        # Equal paragraphs are made of equal lines, unless white space was stripped off the first or the last.
        whole = _is_fed(content, start, first) and _is_fed(content, last, end)
        if row[_LINES + 1] or not whole:
            _duplicate_parts(content, first, last, 2, row, _PARAGRAPHS, places[0])
        if _is_broken(row, limits):
            continue
        count = find_words(content, start, end, room)
        _grams(count, room, row, places, scratch, pointer(marks, 0), limits)


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
    for place, limit in ((_PARAGRAPHS, 0), (_LINES, 2)):
        # Divided as `share` divides, so that both say the same on the limit itself.
        if row[place + 1] and (
            row[place + 1] / row[place] > enough[limit] or row[place + 2] / size > enough[limit + 1]
        ):
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
def _duplicate_parts(data: Any, start: int, end: int, feeds_min: int, row: Any, place: int, keys: Any) -> None:
    """Count the parts between runs of at least so many line feeds, and those that are equal to an earlier one."""
    parts = 1
    for at in range(start, end):
        parts += data[at] == _LINE_FEED
    slots = slots_for(parts)
    for slot in range(slots):
        keys[slot] = 0
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
    value = (left ^ (right >> FOLD)) * MULTIPLIER + right
    return value ^ (value >> FOLD)


@compiled
def _grams(count: int, room: Any, row: Any, table: Any, grams: Any, marks: Any, enough: Any) -> None:
    """The characters in top 2- to 4-grams and in duplicate 5- to 10-grams of `count` words, up to a broken limit."""
    rows, word_hashes, _, _, _ = room
    hashes, sums, places, ids, counts = grams
    sums[0] = 0
    for index in range(count):
        sums[index + 1] = sums[index] + rows[index, LENGTH]
    # `places` are where the n-gram may repeat, `hashes` the n-grams there; each length thins both out.
    left = _pairs(count, word_hashes, hashes, places)
    for length in range(2, _LONGEST + 1):
        if length > 2:
            left = _lengthen(left, length, word_hashes, hashes, places)
        left = _drop_single(left, hashes, places, marks)
        different = _number(left, hashes, ids, counts, table)
        if length <= 4:
            row[_GRAMS + length - 2] = _top(left, different, length, count, sums, places, ids, counts)
        left = _keep_repeated(left, hashes, places, ids, counts)
        if length >= 5:
            row[_GRAMS + length - 2] = _duplicates(left, different, length, sums, places, ids, counts)
        # Divided as `share` divides, so that both say the same on the limit itself.
        broken = (
            row[_CHARACTERS] and row[_GRAMS + length - 2] / row[_CHARACTERS] > enough[_LIMITS_OF_PARTS + length - 2]
        )
        if broken or (left == 0 and length >= 4):
            break


@compiled
def _pairs(count: int, word_hashes: Any, hashes: Any, places: Any) -> int:
    for index in range(count - 1):
        hashes[index] = _mixed(word_hashes[index], word_hashes[index + 1])
        places[index] = index
    return max(count - 1, 0)


@compiled
def _lengthen(left: int, length: int, word_hashes: Any, hashes: Any, places: Any) -> int:
    """Make n-grams of the (n-1)-grams that repeat and have one that does behind them; returns how many."""
    kept = 0
    for index in range(left - 1):
        place = places[index]
        longer = _mixed(hashes[index], word_hashes[place + length - 1])
        # Written in any case and overwritten where it does not count: cheaper than a branch that nobody can foretell.
        follows = places[index + 1] == place + 1
        hashes[kept], places[kept] = longer, place
        kept += follows
    return kept


@compiled
def _drop_single(left: int, hashes: Any, places: Any, marks: Any) -> int:
    """Drop most n-grams that are there once: those that share the lowest bits of their hash with no other."""
    slots = slots_for(left) * 4
    for slot in range(slots):
        marks[slot] = 0
    mask = np.uint64(slots - 1)
    for index in range(left):
        slot = hashes[index] & mask
        # 0, 1, 3, 7, ... 255
        marks[slot] = marks[slot] << 1 | 1
    kept = 0
    for index in range(left):
        value = hashes[index]
        hashes[kept], places[kept] = value, places[index]
        kept += marks[value & mask] >> 1 & 1
    return kept


@compiled
def _number(left: int, hashes: Any, ids: Any, counts: Any, table: Any) -> int:
    """Number the different n-grams in the order in which they first occur, and count each; returns how many."""
    keys, numbers = table
    slots = slots_for(left)
    for slot in range(slots):
        keys[slot] = 0
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
        number = ids[index]
        hashes[kept], places[kept], ids[kept] = hashes[index], places[index], number
        kept += counts[number] >= 2
    return kept


@compiled
def _duplicates(left: int, different: int, length: int, sums: Any, places: Any, ids: Any, counts: Any) -> int:
    """The characters in n-grams that were seen before, from left to right, none counted twice."""
    for number in range(different):
        counts[number] = 0
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
