"""Parts of an object that are read in turn: the same bytes, each fetched once, in bounded memory."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from headrace.stages.sources.objects import prefetch
from headrace.stages.sources.objects.prefetch import spans_of

OBJECT = random.Random(3).randbytes(10_000)


def fetching(asked: list[tuple[int, int]]) -> Callable[[int, int], Future[bytes]]:
    def fetch(at: int, size: int) -> Future[bytes]:
        asked.append((at, size))
        coming: Future[bytes] = Future()
        coming.set_result(OBJECT[at : at + size])
        return coming

    return fetch


def test_parts_read_in_turn_are_fetched_once_a_block_ahead() -> None:
    parts = [(100, 3_000), (3_100, 950), (5_000, 4_444)]
    asked: list[tuple[int, int]] = []
    spans = spans_of(parts, 1_000, fetching(asked))
    assert asked == [(100, 1_000), (3_100, 950), (5_000, 1_000)], "the first of each is under way"
    chance = random.Random(5)
    at = {span.start: span.start for span in spans}
    while open_spans := [span for span in spans if at[span.start] < span.end]:
        span = chance.choice(open_spans)
        begin = at[span.start]
        size = min(chance.randrange(1, 1_500), span.end - begin)
        assert span.holds(begin, size)
        assert span.read(begin, size) == OBJECT[begin : begin + size]
        at[span.start] = begin + size
        fetched = sum(size for start, size in asked if span.start <= start < span.end)
        assert fetched <= begin + size - span.start + 2 * 1_000
    every = sorted(itertools.chain(*(range(start, start + size) for start, size in asked)))
    assert every == sorted(itertools.chain(*(range(start, start + size) for start, size in parts)))


def test_a_part_ending_behind_the_object_is_read_so_far() -> None:
    (span,) = spans_of([(9_000, 5_000)], 700, fetching([]))
    assert span.read(9_000, 5_000) == OBJECT[9_000:]
    assert span.read(12_000, 10) == b""


def test_a_jump_is_read_from_where_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "AHEAD_BYTES", 8_000)
    monkeypatch.setattr(prefetch, "AHEAD_BLOCK_BYTES_MIN", 1_000)
    spans = spans_of([(size * 10, size) for size in range(1, 9)], 5_000, fetching([]))
    assert [span.end - span.start for span in spans] == [5, 6, 7, 8], "the largest, as many as there is room for"
    (span,) = spans_of([(0, 9_000)], 1_000, fetching([]))
    assert span.read(4_321, 10) == OBJECT[4_321:4_331]
    assert span.read(10, 2_000) == OBJECT[10:2_010]
    assert not span.holds(8_995, 10)
