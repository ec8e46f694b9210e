"""The filter and the tables of slots by themselves: their memory, their order, and keys that crowd one place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.stages.dedup.index.filters import KEYS, PARTS, Filters
from headrace.stages.dedup.index.memory import words_at, words_in
from headrace.stages.dedup.index.slots import (
    ADDRESS,
    COLUMNS,
    HOMES,
    SECTIONS,
    SIZE,
    SLOT_BITS,
    USED,
    FixedSlots,
    Slots,
    collect,
    home_of,
    put_at,
)
from headrace.stages.text.machine import compiled, pointer


def test_the_filter_takes_as_many_bits_a_key_at_all_sizes() -> None:
    filters, keys, bits = Filters(), 1 << 23, []
    while keys < 1 << 31:
        more = keys // PARTS - filters.table[:, KEYS]
        for part in filters.full(more):
            filters.begin_anew(part, int(more[part]))
        filters.table[:, KEYS] = keys // PARTS
        bits.append(8 * filters.nbytes / keys)
        keys += keys // 50
    assert max(bits) < 1.03 * min(bits)
    assert max(bits) < 8.4


@pytest.mark.parametrize("many", [0, 1, 30_000])
def test_a_table_of_slots_is_read_in_order_however_it_grew(many: int) -> None:
    """Of hashes that are spread evenly, and of hashes that all want the last homes of one section."""
    chance = np.random.default_rng(4)
    even = chance.integers(0, 1 << 42, many, dtype=np.uint64)
    crowded = np.uint64((1 << 42) - 1) - chance.integers(0, 3000, many, dtype=np.uint64)
    for hashes in (even, crowded):
        table = Slots()
        for first in range(0, many, 1000):
            part = hashes[first : first + 1000]
            table.make_room(np.bincount((part >> np.uint64(32)).astype(np.int64), minlength=SECTIONS))
            put_all(table.table, part, first)
        read, room = [], np.empty(max(1, many), np.uint64)
        for section in range(SECTIONS):
            new = room[: collect(table.table, section, room)]
            old = words_in(int(table.sorted[section, ADDRESS]), int(table.sorted[section, USED]))
            assert (new[1:] > new[:-1]).all()
            assert (old[1:] > old[:-1]).all()
            both = np.sort(np.concatenate([old, new]))
            read.append((both >> np.uint64(32)) | np.uint64(section << 32))
        assert (np.concatenate(read) == np.sort(hashes)).all()
        assert table.nbytes >= 8 * many


@compiled
def put_all(table: Any, hashes: Any, first: int) -> None:
    for place in range(len(hashes)):
        put_slot(pointer(table, 0), hashes[place], first + place)


@compiled
def put_slot(table: Any, hashed: Any, number: int) -> None:
    """Give a key to a record, behind what holds an equal hash. There must be room."""
    section, low = np.int64(hashed >> np.uint64(SLOT_BITS)) * COLUMNS, hashed & np.uint64(0xFFFFFFFF)
    slots = words_at(table[section + ADDRESS])
    at = home_of(low, table[section + HOMES])
    while slots[at] != np.uint64(0) and slots[at] >> np.uint64(32) <= low:
        at += 1
    put_at(table, section, at, (low << np.uint64(32)) | np.uint64(number + 1))


def test_keys_that_crowd_one_section_make_a_larger_table() -> None:
    slots = FixedSlots(1 << 20)
    more = np.zeros(SECTIONS, np.int64)
    assert slots.has_room(more)
    # All of them may want the last home.
    more[7] = 1
    while slots.has_room(more):
        more[7] += 1
    assert more[7] <= int(slots.table[7, SIZE] - slots.table[7, HOMES])
    for many in (300, 5000):
        more[7] = many
        assert not slots.has_room(more)
        assert slots.with_room(0, more).has_room(more)
