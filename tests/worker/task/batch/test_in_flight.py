"""What a task has in hand is read by its worker, which believes nothing of the page that a task may have spoilt."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import replace

import msgpack
import pytest

from headrace.store.ledger.core.fragments import Range
from headrace.store.ledger.core.intervals import UNBOUNDED
from headrace.worker.core.watchdog import StageInHand
from headrace.worker.task.batch.in_flight import CLOCK_S_MAX, RANGES_MAX, STAGES, InFlightPage

HELD = Range(b"f" * 16, 3, 4, 10, 20)
GOOD = [1.0, 7, 0.5, True, "keep", [[b"f" * 16, 3, 4, 10, 20]]]


@pytest.fixture
def page() -> Iterator[int]:
    descriptor = InFlightPage.create()
    yield descriptor
    os.close(descriptor)


def test_what_was_taken_is_read(page: int) -> None:
    in_flight = InFlightPage(page)
    in_flight.take(STAGES, "keep", (HELD, replace(HELD, first=9)), timed=True)
    (held,) = in_flight.read()
    assert held.items == (StageInHand("keep", HELD), StageInHand("keep", replace(HELD, first=9)))
    in_flight.clear(STAGES)
    assert in_flight.read() == []


@pytest.mark.parametrize(
    "spoilt",
    [
        b"\xc1",
        b"\x91" * 1000,
        b"x" * 1000,
        *map(
            msgpack.packb,
            [
                None,
                GOOD[:5],
                ["1", *GOOD[1:]],
                [float("nan"), *GOOD[1:]],
                [*GOOD[:2], float("inf"), *GOOD[3:]],
                *([value, *GOOD[1:]] for value in (-1.0, 2 * CLOCK_S_MAX)),
                *([*GOOD[:2], value, *GOOD[3:]] for value in (-1.0, 2 * CLOCK_S_MAX)),
                [*GOOD[:1], -1, *GOOD[2:]],
                [*GOOD[:3], 1, *GOOD[4:]],
                [*GOOD[:4], b"keep", *GOOD[5:]],
                [*GOOD[:5], 7],
                [*GOOD[:5], [7]],
                [*GOOD[:5], [["f", 3, 4, 10, 20]]],
                [*GOOD[:5], [[b"f", 3, 4, 10]]],
                [*GOOD[:5], [[b"f", 3, 4.0, 10, 20]]],
                [*GOOD[:5], [[b"f", 3, UNBOUNDED + 1, 10, 20]]],
                [*GOOD[:5], GOOD[5] * (RANGES_MAX + 1)],
            ],
        ),
    ],
)
def test_a_page_that_is_spoilt_holds_nothing(page: int, spoilt: bytes) -> None:
    os.pwrite(page, struct.pack("<QQ", 2, len(spoilt)) + spoilt, 0)
    assert InFlightPage(page).read() == []


@pytest.mark.parametrize("length", [1 << 16, 1 << 62, (1 << 64) - 1])
def test_a_length_that_reaches_behind_the_page_holds_nothing(page: int, length: int) -> None:
    os.pwrite(page, struct.pack("<QQ", 2, length) + msgpack.packb(GOOD), 0)
    assert InFlightPage(page).read() == []
