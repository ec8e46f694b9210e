"""The judge: whether a record says what a kept record says already, from the sketches of both.

Bands nominate generously; this decides strictly. It asks what would be lost with the record, by rule 1:

1. At most ADDED_MAX of its words stand in runs that the kept record lacks.
2. At most EDITS_MAX of its words are single edits; a text of fewer than some 20 words may have none.
3. Where both have a run of their own at the same place, text was replaced: at most REPLACED_MAX of what they share.
4. A place of the kept record where its relatives (records that were compared with it) differ each in its own way is a
   slot of a form. A record that fills a slot otherwise is no duplicate, however little that is, unless it has as many
   edits elsewhere.

A sketch holds each word of a text as 16 bits, in order; of a text of more than WORDS_MAX words, 3-grams of words as 32
bits, of which the share 2^-level is sampled by their hash, so that two texts sample alike. So the two are aligned as
their texts would be, and no text is read. Prior art for comparing candidates of MinHash: Broder 1997 (containment),
Manber 1994 (sampling by hash).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.stages.text.machine import compiled, entry

#: Words that a sketch holds one by one, and sampled 3-grams that it holds of a longer text.
WORDS_MAX = 1024
SAMPLES_MAX = 512
#: Samples from which on a judgement rests.
SAMPLES_MIN = 16
#: The highest level: a byte of a sketch says it.
LEVEL_MAX = 31
#: Bytes of a sketch: its level, and two a word or four a sample.
SKETCH_BYTES_MAX = 1 + max(2 * WORDS_MAX, 4 * SAMPLES_MAX)
#: What a record may add in runs, have edited, and have replaced, each as a share.
ADDED_MAX = 0.5
EDITS_MAX = 0.17
REPLACED_MAX = 0.05
#: What of EDITS_MAX a short text lacks, in words: one of SHORT_WORDS / EDITS_MAX words may have no edit.
SHORT_WORDS = 1.0
#: The share of the shorter of both that both must have.
SHARED_MIN = 0.75
#: A run is at least so many words, or samples, that the other lacks.
RUN_WORDS = 4
RUN_SAMPLES = 8
#: A gap of at most so many words is aligned word by word.
GAP_WORDS = 8
#: Relatives from which on two words, and one, show a slot; and what of the relatives may agree at a slot.
RELATIVES_MIN = 3
RELATIVES_ONE = 6
SLOT_SHARE = 8
#: Slots must be filled otherwise so many times as often as other places are edited: else the record is a noisy copy.
NOISE_TIMES = 3
#: The share of a record that must fill slots which the kept record leaves empty.
FILLED_MIN = 0.1
#: Kept records of those that share a band which are looked at.
HOLDERS_MAX = 64
#: Relatives at which counts are halved.
RELATIVES_MAX = 60_000
#: Slots of the hash table of 3-grams: a power of two, twice as many as a sketch has words.
_TABLE = 2048

_PRIME = np.uint64(0x9E3779B97F4A7C15)
_OTHER = np.uint64(0xC2B2AE3D27D4EB4F)

#: Kept records whose relatives are remembered, a power of two; of two that share a place the one asked for more stays.
STATES = 1 << 12
_CREDIT_MAX = 64
#: What `kept` of `weigh` holds of each place of a kept record.
_HAD, _LAST, _AGREED, _BEFORE = 0, 1, 2, 3


#: What `make_room` gives, in the signature of a loop.
ROOM_TYPE = "(u32[], u32[], i64[], i64[], i64[], i64[], i64[,], i64[], i64[,], u16[,,], i64[], i64[])"


def make_room(states: int = STATES) -> tuple[Any, ...]:
    """What the loops write into: two records, where each stands in the other, what relatives showed, candidates."""
    return (
        np.zeros(WORDS_MAX, np.uint32),
        np.zeros(WORDS_MAX, np.uint32),
        np.zeros(WORDS_MAX, np.int64),
        np.zeros(WORDS_MAX, np.int64),
        np.zeros(_TABLE, np.int64),
        np.zeros(WORDS_MAX, np.int64),
        np.zeros((GAP_WORDS + 1, GAP_WORDS + 1), np.int64),
        np.full(states, -1, np.int64),
        np.zeros((states, 2), np.int64),
        np.zeros((states, 4, WORDS_MAX + 1), np.uint16),
        np.zeros(HOLDERS_MAX, np.int64),
        np.zeros(HOLDERS_MAX, np.int64),
    )


@compiled
def gram_of(one: Any, two: Any, three: Any) -> Any:
    """32 bits of three words in a row, each of 16 bits."""
    value = (np.uint64(one) | np.uint64(two) << np.uint64(16) | np.uint64(three) << np.uint64(32)) + _OTHER
    value = (value ^ (value >> np.uint64(29))) * _PRIME
    value = (value ^ (value >> np.uint64(32))) * _OTHER
    return np.uint32(value >> np.uint64(32))


@compiled
def sample(words: Any, count: int, level: int, out: Any) -> int:
    """Put the 3-grams of `count` words that are sampled at a level into `out`, which may be `words`; how many."""
    mask = np.uint32((1 << level) - 1)
    made = 0
    for at in range(count - 2):
        gram = gram_of(words[at], words[at + 1], words[at + 2])
        if not gram & mask:
            out[made] = gram
            made += 1
    return made


@compiled
def _read(data: Any, start: int, end: int, level: int, room: Any) -> int:
    """Put a sketch, at a level at least its own, into `room`; how many entries it has then, or -1: more than room."""
    mine = int(data[start])
    mask = np.uint32((1 << level) - 1)
    made = 0
    if mine == 0:
        for at in range(start + 1, end - 1, 2):
            room[made] = np.uint32(data[at]) | np.uint32(data[at + 1]) << np.uint32(8)
            made += 1
        return sample(room, made, level, room) if level else made
    for at in range(start + 1, end - 3, 4):
        gram = np.uint32(data[at]) | np.uint32(data[at + 1]) << np.uint32(8)
        gram |= np.uint32(data[at + 2]) << np.uint32(16) | np.uint32(data[at + 3]) << np.uint32(24)
        if not gram & mask:
            room[made] = gram
            made += 1
    return made


@compiled
def write(data: Any, at: int, words: Any, count: int, room: Any) -> int:
    """Put the sketch of a text of `count` words, hashes of 64 bits, into `data`; where it ends.

    The first byte is the level. Words are two bytes each, sampled 3-grams four, the lowest byte first.
    """
    if count <= WORDS_MAX:
        data[at] = 0
        at += 1
        for place in range(count):
            word = np.uint32(words[place] >> np.uint64(48))
            data[at], data[at + 1] = word & np.uint32(0xFF), word >> np.uint32(8)
            at += 2
        return at
    made, level = _samples(words, count, room)
    data[at] = level
    at += 1
    for place in range(made):
        for shift in range(0, 32, 8):
            data[at] = (room[place] >> np.uint32(shift)) & np.uint32(0xFF)
            at += 1
    return at


@compiled
def _samples(words: Any, count: int, out: Any) -> Any:
    """As `sample`, of hashes of 64 bits, of which a word is the highest 16, at the least level that gives SAMPLES_MAX.

    Returns how many there are, and that level.
    """
    level = 1
    while count >> level > SAMPLES_MAX:
        level += 1
    shift = np.uint64(48)
    made = 0
    for at in range(count - 2):
        gram = gram_of(words[at] >> shift, words[at + 1] >> shift, words[at + 2] >> shift)
        if gram & np.uint32((1 << level) - 1):
            continue
        out[made] = gram
        made += 1
        while made > SAMPLES_MAX:
            if level == LEVEL_MAX:
                return 0, level
            level += 1
            made = _thinned(out, made, level)
    return made, level


@compiled
def _thinned(samples: Any, count: int, level: int) -> int:
    """Leave those of a level; how many."""
    made = 0
    for place in range(count):
        if not samples[place] & np.uint32((1 << level) - 1):
            samples[made] = samples[place]
            made += 1
    return made


@compiled
def _slot_of(value: Any) -> int:
    return int((np.uint64(value) * _PRIME) >> np.uint64(53))


@compiled
def _key_at(values: Any, at: int, words: bool) -> Any:
    return gram_of(values[at], values[at + 1], values[at + 2]) if words else values[at]


@compiled
def align(one: Any, n: int, two: Any, m: int, words: bool, places: Any, chains: Any, costs: Any) -> None:
    """Put into `places[0]` `[n]` the place in `two` of each entry of `one`, and into `places[1]` the inverse; -1: none.

    Blocks begin where three words in a row, or one sample, stand in both; of several places the one nearest to where
    the last block ended. Gaps of at most GAP_WORDS words between two blocks are aligned word by word.
    """
    to_two, to_one = places
    heads, nexts = chains
    for place in range(n):
        to_two[place] = -1
    for place in range(m):
        to_one[place] = -1
    for place in range(len(heads)):
        heads[place] = -1
    width = 3 if words else 1
    for at in range(m - width, -1, -1):
        slot = _slot_of(_key_at(two, at, words))
        nexts[at] = heads[slot]
        heads[slot] = at
    at, expected = 0, 0
    while at <= n - width:
        best, far = -1, 1 << 30
        place = heads[_slot_of(_key_at(one, at, words))]
        steps = 0
        while place >= 0 and steps < 64:
            same = to_one[place] < 0
            for step in range(width):
                same = same and two[place + step] == one[at + step]
            distance = place - expected if place >= expected else 2 * (expected - place)
            if same and distance < far:
                best, far = place, distance
            place = nexts[place]
            steps += 1
        if best < 0:
            at += 1
            continue
        while at < n and best < m and one[at] == two[best] and to_one[best] < 0:
            to_two[at], to_one[best] = best, at
            at += 1
            best += 1
        expected = best
    if words:
        _fill_gaps(one, n, two, m, to_two, to_one, costs)


@compiled
def _fill_gaps(one: Any, n: int, two: Any, m: int, to_two: Any, to_one: Any, costs: Any) -> None:
    """Align what stands between neighbouring blocks, where it is short."""
    begin, at = 0, 0
    while at <= n:
        if at < n and to_two[at] < 0:
            at += 1
            continue
        low = to_two[begin - 1] + 1 if begin else 0
        a, b = at - begin, 0
        while low + b < m and to_one[low + b] < 0:
            b += 1
        if 0 < a <= GAP_WORDS and 0 < b <= GAP_WORDS:
            _longest_common(one, begin, a, two, low, b, costs, to_two, to_one)
        at += 1
        begin = at


@compiled
def _longest_common(one: Any, i: int, a: int, two: Any, j: int, b: int, costs: Any, to_two: Any, to_one: Any) -> None:
    for x in range(a - 1, -1, -1):
        for y in range(b - 1, -1, -1):
            if one[i + x] == two[j + y]:
                costs[x, y] = 1 + (costs[x + 1, y + 1] if x + 1 < a and y + 1 < b else 0)
            else:
                down = costs[x + 1, y] if x + 1 < a else 0
                right = costs[x, y + 1] if y + 1 < b else 0
                costs[x, y] = max(down, right)
    x, y = 0, 0
    while x < a and y < b:
        if one[i + x] == two[j + y]:
            to_two[i + x], to_one[j + y] = j + y, i + x
            x, y = x + 1, y + 1
        elif (costs[x + 1, y] if x + 1 < a else 0) >= (costs[x, y + 1] if y + 1 < b else 0):
            x += 1
        else:
            y += 1


@compiled
def weigh(
    one: Any, n: int, m: int, words: bool, to_two: Any, to_one: Any, relatives: int, kept: Any, learn: bool
) -> Any:
    """Judge an aligned record of `n` entries against a kept one of `m`: (duplicate, score, relative).

    `kept` is what relatives of the kept record showed of its places, `[4, m + 1]`: how many had the entry, a hash of
    what the last of the others had there, how many of those agreed, and how many had a run of their own before it. A
    `relative` shares most of the shorter of both; with `learn` it is counted.
    """
    run = RUN_WORDS if words else RUN_SAMPLES
    shared = 0
    for place in range(n):
        shared += to_two[place] >= 0
    relative = shared >= SHARED_MIN * min(n, m) and (words or min(n, m) >= SAMPLES_MIN)
    added, edits, replaced, slots, filled, cut = 0, 0, 0, 0, 0, False
    for at in range(-1, n):
        if at >= 0 and to_two[at] < 0:
            continue
        low = to_two[at] + 1 if at >= 0 else 0
        mine, theirs = 0, 0
        while at + 1 + mine < n and to_two[at + 1 + mine] < 0:
            mine += 1
        while low + theirs < m and to_one[low + theirs] < 0:
            theirs += 1
        if mine >= run:
            added += mine
            replaced += min(mine, theirs) if theirs >= run else 0
            filled += mine if theirs < run and kept[_BEFORE, low] * 2 >= relatives else 0
        else:
            edits += mine
        filler = _filler(one, at + 1, mine)
        slots += _slots_open(filler, low, theirs, relatives, kept)
        cut = mine == 1 and at + 1 + mine == n
        if learn and relative:
            _learn_gap(filler, low, theirs, kept)
            kept[_BEFORE, low] += mine >= run > theirs
    if learn and relative:
        for place in range(m):
            kept[_HAD, place] += to_one[place] >= 0
    score = shared / n if n else 1.0
    edited = edits / max(1, shared + edits)
    if not words:
        edited = 1.0 - (1.0 - edited) ** (1.0 / 3.0)
    allowed = max(0.0, EDITS_MAX - (SHORT_WORDS / max(1, n) if words else 0.0))
    duplicate = relative and added <= ADDED_MAX * n and edited <= allowed and replaced <= REPLACED_MAX * shared
    if relatives >= RELATIVES_MIN:
        # A last word that was cut off fills nothing.
        slots = min(slots, added + edits - cut)
        empty = 0
        for place in range(m):
            empty += _is_slot(place, relatives, kept)
        noise = max(0, edits - slots) / max(1, m - empty)
        other = slots >= (1 if relatives >= RELATIVES_ONE else 2) and slots > NOISE_TIMES * noise * empty
        duplicate = duplicate and not other and filled < FILLED_MIN * n
    return duplicate, score, relative


@compiled
def _filler(one: Any, first: int, mine: int) -> Any:
    """A hash of what a record has in a gap."""
    value = _OTHER
    for place in range(first, first + mine):
        value = (value ^ np.uint64(one[place])) * _PRIME
    return np.uint16(value >> np.uint64(48))


@compiled
def _slots_open(filler: Any, low: int, theirs: int, relatives: int, kept: Any) -> int:
    """Slots of the kept record in a gap, where the last relative had something else than this record."""
    found = 0
    for place in range(low, low + theirs):
        found += _is_slot(place, relatives, kept) and kept[_LAST, place] != filler
    return found


@compiled
def _is_slot(place: int, relatives: int, kept: Any) -> bool:
    """Whether few relatives have what stands in a place, and few of the others agree on what else does."""
    return bool(kept[_HAD, place] * SLOT_SHARE <= relatives and kept[_AGREED, place] * SLOT_SHARE <= relatives)


@compiled
def _learn_gap(filler: Any, low: int, theirs: int, kept: Any) -> None:
    """Count what a relative has, or has not, in a gap of the kept record."""
    for place in range(low, low + theirs):
        kept[_AGREED, place] += kept[_LAST, place] == filler
        kept[_LAST, place] = filler


@compiled
def compare(mine: Any, theirs: Any, heads: Any, number: int, head: int, room: Any) -> Any:
    """Judge the sketch `mine` against `theirs`, that of kept record `number`: (duplicate, score, relative).

    A sketch is (bytes, start, end). `heads` is the sketch of record `head`, of whose form `number` is known to be; it
    is empty where there is none. What the relatives of the head showed then holds for `number` too.
    """
    one, two, to_two, to_one, firsts, nexts, costs, tags, counts, states, _, _ = room
    place = number & (STATES - 1)
    known = tags[place] == number
    if not known:
        counts[place, 0] -= 1
        known = counts[place, 0] < 0
        if known:
            _begin(place, theirs, heads, number, head, room)
    data, start, end = mine
    other, begin, stop = theirs
    level = max(int(data[start]), int(other[begin]))
    words, learn = level == 0, known and level == int(other[begin])
    n, m = _read(data, start, end, level, one), _read(other, begin, stop, level, two)
    align(one, n, two, m, words, (to_two, to_one), (firsts, nexts), costs)
    relatives = counts[place, 1] if learn else 0
    found = weigh(one, n, m, words, to_two, to_one, relatives, states[place], learn)
    if learn and found[2]:
        counts[place, 0] = min(counts[place, 0] + 2, _CREDIT_MAX)
        counts[place, 1] += 1
        if counts[place, 1] == RELATIVES_MAX:
            counts[place, 1] //= 2
            for column in range(m + 1):
                for row in (_HAD, _AGREED, _BEFORE):
                    states[place, row, column] //= np.uint16(2)
    return found


@entry(f"((u8[], i64, i64), (u8[], i64, i64), {ROOM_TYPE}) -> bool")
def is_near(one: Any, two: Any, room: Any) -> bool:
    """Whether either of two sketches, (bytes, start, end), is a duplicate of the other by parts 1 to 3 of the rule.

    So it is wherever `compare` calls one a duplicate of the other, in whichever order, and whatever relatives show.
    """
    mine, theirs, to_two, to_one, firsts, nexts, costs, _, _, states, _, _ = room
    data, start, end = one
    other, begin, stop = two
    level = max(int(data[start]), int(other[begin]))
    words = level == 0
    n, m = _read(data, start, end, level, mine), _read(other, begin, stop, level, theirs)
    align(mine, n, theirs, m, words, (to_two, to_one), (firsts, nexts), costs)
    if weigh(mine, n, m, words, to_two, to_one, 0, states[0], False)[0]:
        return True
    align(theirs, m, mine, n, words, (to_two, to_one), (firsts, nexts), costs)
    return bool(weigh(theirs, m, n, words, to_two, to_one, 0, states[0], False)[0])


@compiled
def _begin(place: int, theirs: Any, heads: Any, number: int, head: int, room: Any) -> None:
    """Begin to remember the relatives of a kept record, with what those of its head showed."""
    one, two, to_two, to_one, firsts, nexts, costs, tags, counts, states, _, _ = room
    data, start, end = theirs
    other, begin, stop = heads
    counts[place, 0], counts[place, 1], tags[place] = 0, 0, number
    for row in range(4):
        for column in range(WORDS_MAX + 1):
            states[place, row, column] = 0
    above = head & (STATES - 1)
    if begin == stop or above == place or tags[above] != head or data[start] != other[begin]:
        return
    level = int(data[start])
    n, m = _read(data, start, end, level, one), _read(other, begin, stop, level, two)
    align(one, n, two, m, level == 0, (to_two, to_one), (firsts, nexts), costs)
    counts[place, 1] = counts[above, 1]
    for at in range(n):
        for row in range(4 if to_two[at] >= 0 else 0):
            states[place, row, at] = states[above, row, to_two[at]]
