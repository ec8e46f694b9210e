"""A held-out split by clusters of duplicates, from keys and sketches alone (docs/guide/dedup.md).

Two records are near where they have the same key, or share a band and the judge calls either a duplicate of the other,
however few relatives show a slot: wherever the judge of a run may have called them duplicates, they are near. A cluster
is what pairs of near records tie together. A bucket, the records that share a band, may be large, so that each of its
records is compared with COMPARED_MAX others; a pair that this misses is found when all pairs across the border are
compared, and what is near to a held-out record leaves training.

The order of everything is that of the keys of whole texts, so that the same records give the same answer, whatever
their names, their files and the layout of their shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from headrace.stages.dedup.core.scheme import EXACT_WORDS, Scheme
from headrace.stages.dedup.judge import ROOM_TYPE, is_near, make_room
from headrace.stages.dedup.offline import OfflineRecords, Room
from headrace.stages.text.machine import compiled, entry

#: Records of a bucket that each of them is compared with before clusters are chosen, as many as a decider asks.
COMPARED_MAX = 16
#: Pairs of near records across the border that are remembered: more are not a border.
PAIRS_MAX = 1 << 24

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_PRIMES = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)

#: What the loops are asked about, in their signatures.
_ASKED_TYPE = f"(i64, bool, u64[,], i64[], u8[], i64[], i64[], {ROOM_TYPE})"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A choice among records `[n]`: which are held out, and which leave training since they are near to one.

    `records` are to choose among; `clusters` are held out, and `refused` came first and were too large or near to a
    reference. `compared` pairs of a held-out record and a shown one share a key; `leaks` of them are near, which is 0.
    """

    held: Mask
    dropped: Mask
    records: int
    clusters: int
    refused: int
    compared: int
    leaks: int


class Clusters:
    """The records of datasets by content, and which of them are near."""

    def __init__(self, records: OfflineRecords, room: Room, scheme: Scheme) -> None:
        self._room, self._scheme = room, scheme
        exact = np.array(room.keys[:, :EXACT_WORDS])
        for place in np.flatnonzero(exact[:, 1] == 0).tolist():
            value = xxhash.xxh3_128_intdigest(str(records.table.column("id")[place].as_py()).encode())
            exact[place] = value >> 64, value & 0xFFFFFFFFFFFFFFFE
        #: The records by content, and the two words of each one's key in that order; the loops number them so.
        self._order: Numbers = np.lexsort((exact[:, 1], exact[:, 0]))
        self._exact = np.ascontiguousarray(exact[self._order])
        arena, begins, ends = room.arena()
        self._sketches = arena, begins[self._order], ends[self._order]
        self._judging = make_room(1)

    def choose(self, share: float, references: Mask) -> HeldOut:
        """Hold out clusters by the hash of their first record, until this share of all but `references` is met.

        A cluster with a reference, or a record near to one, is refused, as is one that is larger than what is left.
        """
        barred = references[self._order]
        numbers = self._numbers()
        sizes = np.bincount(numbers)
        first = np.unique(numbers, return_index=True)[1]
        hashes = (self._exact[first, 0] ^ (self._exact[first, 1] * _PRIMES[0])) * _PRIMES[1]
        hashes ^= hashes >> np.uint64(29)
        count = int((~barred).sum())
        left = round(share * count)
        closed = np.bincount(numbers, weights=barred) > 0
        taken, refused = np.zeros(len(sizes), np.bool_), 0
        for cluster in np.lexsort((first, hashes * _PRIMES[0])).tolist():
            if not left:
                break
            if closed[cluster] or sizes[cluster] > left:
                refused += 1
                continue
            taken[cluster] = True
            left -= int(sizes[cluster])
        while True:
            held = taken[numbers]
            _, mine, others = self._border(held, ~held)
            near = np.unique(numbers[mine[barred[others]]])
            if not len(near):
                break
            # They are of training now, and another cluster that is held out may be near to them.
            taken[near] = False
            refused += len(near)
        dropped = np.zeros(len(held), np.bool_)
        dropped[others] = True
        compared, leaks, _ = self._border(held, ~held & ~dropped)
        back = np.empty_like(self._order)
        back[self._order] = np.arange(len(back))
        return HeldOut(held[back], dropped[back], count, int(taken.sum()), refused, compared, len(leaks))

    def _numbers(self) -> Numbers:
        """`[n]`: the cluster of each record, counted by their first records."""
        parents = np.arange(len(self._order))
        for word, values, order in self._words():
            tie(values, order, self._asked(word), parents)
        for place in range(len(parents)):
            root_of(parents, place)
        return np.unique(parents, return_inverse=True)[1]

    def _border(self, held: Mask, others: Mask) -> tuple[int, Numbers, Numbers]:
        """Compare each held-out record with each other one that shares a key with it: how many, and the near pairs."""
        compared, pairs = 0, [np.empty((0, 2), np.int64)]
        for word, values, order in self._words():
            room = np.empty((1024, 2), np.int64)
            many, found = cross(values, order, self._asked(word), held, others, room)
            if found > PAIRS_MAX:
                raise ValueError(f"{found} pairs of near records across the border; the limit is {PAIRS_MAX}")
            if found > len(room):
                room = np.empty((found, 2), np.int64)
                cross(values, order, self._asked(word), held, others, room)
            compared += int(many)
            pairs.append(room[:found])
        both = np.concatenate(pairs)
        return compared, both[:, 0], both[:, 1]

    def _words(self) -> Iterator[tuple[int, Any, Numbers]]:
        """Each word of the keys: the value of each record, 0 for none, and the records by it, those of one by content.

        The key of the whole text comes first, as word 1.
        """
        fresh = np.ones(len(self._order), np.bool_)
        fresh[1:] = (self._exact[1:] != self._exact[:-1]).any(axis=1)
        yield EXACT_WORDS - 1, np.cumsum(fresh).astype(np.uint64), np.arange(len(self._order))
        for word in range(EXACT_WORDS, self._scheme.words):
            values = self._room.keys[:, word][self._order]
            yield word, values, np.argsort(values, kind="stable")

    def _asked(self, word: int) -> tuple[Any, ...]:
        """What the loops need to know of a pair that shares a word."""
        judged = self._scheme.judged and word >= EXACT_WORDS
        return word, judged, self._room.keys, self._order, *self._sketches, self._judging


@entry("(i64[], i64) -> i64")
def root_of(parents: Any, record: Any) -> Any:
    """The first record of a cluster, as far as it is known."""
    root = record
    while parents[root] != root:
        root = parents[root]
    while parents[record] != root:
        above = parents[record]
        parents[record] = root
        record = above
    return root


@compiled
def _shared_before(asked: Any, one: Any, two: Any) -> bool:
    """Whether two records share the key of their texts, or a band before this one."""
    word, _, keys, content, _, _, _, _ = asked
    mine, theirs = content[one], content[two]
    if keys[mine, 0] == keys[theirs, 0] and keys[mine, 1] == keys[theirs, 1]:
        return True
    shared = False
    for band in range(EXACT_WORDS, word):
        shared = shared or (keys[mine, band] != 0 and keys[mine, band] == keys[theirs, band])
    return shared


@compiled
def _are_near(asked: Any, one: Any, two: Any) -> bool:
    """Whether two records that share a word are near."""
    _, judged, _, _, arena, begins, ends, room = asked
    return not judged or is_near((arena, begins[one], ends[one]), (arena, begins[two], ends[two]), room)


@compiled
def _bucket_end(values: Any, order: Any, at: int) -> int:
    end = at + 1
    while end < len(order) and values[order[end]] == values[order[at]]:
        end += 1
    return end


@entry(f"(u64[], i64[], {_ASKED_TYPE}, i64[])")
def tie(values: Any, order: Any, asked: Any, parents: Any) -> None:
    """Tie near records of each bucket together, each compared with the COMPARED_MAX before it."""
    at = 0
    while at < len(order):
        end = _bucket_end(values, order, at)
        large = end - at > COMPARED_MAX
        for place in range(at + 1, end if values[order[at]] else at):
            for other in range(max(at, place - COMPARED_MAX), place):
                one, two = root_of(parents, order[other]), root_of(parents, order[place])
                if one == two or (large and asked[1] and _shared_before(asked, order[other], order[place])):
                    continue
                if _are_near(asked, order[other], order[place]):
                    parents[max(one, two)] = min(one, two)
        at = end


@entry(f"(u64[], i64[], {_ASKED_TYPE}, bool[], bool[], i64[,]) -> (i64, i64)")
def cross(values: Any, order: Any, asked: Any, held: Any, others: Any, found: Any) -> Any:
    """Compare each held-out record of a bucket with each of the others that it shares nothing earlier with.

    Returns how many pairs were compared, and how many are near; as many as have room are in `found` `[room, 2]`.
    """
    at, compared, near = 0, 0, 0
    while at < len(order):
        end = _bucket_end(values, order, at)
        for place in range(at, end if values[order[at]] else at):
            for other in range(at, end if held[order[place]] else at):
                one, two = order[place], order[other]
                if not others[two] or (asked[0] >= EXACT_WORDS and _shared_before(asked, one, two)):
                    continue
                compared += 1
                if _are_near(asked, one, two):
                    if near < len(found):
                        found[near, 0], found[near, 1] = one, two
                    near += 1
        at = end
    return compared, near


def rows_of(records: OfflineRecords, chosen: Mask, dataset: int) -> dict[str, list[int]]:
    """The rows of the documents tables of a dataset that are chosen, by the key of the shard's tokens."""
    columns = {name: np.asarray(records.table.column(name), np.int64) for name in ("dataset", "object", "place")}
    chosen = chosen & (columns["dataset"] == dataset)
    found: dict[str, list[int]] = {}
    for number, place in zip(columns["object"][chosen].tolist(), columns["place"][chosen].tolist(), strict=True):
        found.setdefault(records.objects[number][1], []).append(place)
    return {key: sorted(rows) for key, rows in sorted(found.items())}
