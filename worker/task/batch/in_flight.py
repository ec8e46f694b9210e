"""What a task has in hand, in a page of memory that outlives it: its worker reads there what it died of.

A task says what it gives to a stage before it does so. The page is made by the worker (memfd) and has a slot for each
thread that runs a stage. A slot is a sequence number, odd while it is being written, a length, and msgpack.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgpack

from headrace.store.ledger import UNBOUNDED, Range
from headrace.worker.core import Held, StageInHand

#: Slots: the task's thread, and its sink's writer.
STAGES, WRITER = 0, 1
#: Bytes of a slot. A shard of more ranges than fit is cut off there, and a culprit behind it stays unknown.
SLOT_BYTES = 64 << 10
RANGES_MAX = 700
#: Seconds of a clock that a task may name: thirty thousand years.
CLOCK_S_MAX = 1e12
_HEAD_BYTES = 16


class InFlightPage:
    """One page; the task writes, the worker reads."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, 2 * SLOT_BYTES)
        #: Aligned stores of 8 bytes: never torn on x86-64. ARM would need a barrier before the last of `take`.
        self._words = memoryview(self._map).cast("Q")

    @staticmethod
    def private() -> InFlightPage:
        """A page that nobody else reads."""
        descriptor = InFlightPage.create()
        try:
            return InFlightPage(descriptor)
        finally:
            os.close(descriptor)

    @staticmethod
    def create() -> int:
        """A descriptor of an empty page."""
        descriptor = os.memfd_create("headrace-in-flight")
        os.ftruncate(descriptor, 2 * SLOT_BYTES)
        return descriptor

    def take(self, slot: int, stage: str, ranges: Sequence[Range], *, timed: bool = False) -> None:
        """A stage is given these records now."""
        items = [(item.fragment, item.first, item.count, item.offset, item.length) for item in ranges[:RANGES_MAX]]
        begun = (time.monotonic(), threading.get_native_id(), time.thread_time())
        data = msgpack.packb([*begun, timed, stage, items])
        start, word = slot * SLOT_BYTES, slot * SLOT_BYTES // 8
        sequence = self._words[word] | 1
        self._words[word] = sequence
        self._map[start + _HEAD_BYTES : start + _HEAD_BYTES + len(data)] = data
        self._words[word + 1] = len(data)
        self._words[word] = sequence + 1

    def clear(self, slot: int) -> None:
        """The stage has given them back."""
        self._words[slot * SLOT_BYTES // 8 + 1] = 0

    def read(self) -> list[Held]:
        """What is in hand. A slot that is being written holds nothing that a stage was given."""
        return [held for slot in (STAGES, WRITER) if (held := self.of(slot)) is not None]

    def of(self, slot: int) -> Held | None:
        """What one thread has in hand; None for nothing."""
        start, word = slot * SLOT_BYTES, slot * SLOT_BYTES // 8
        before, length = self._words[word], self._words[word + 1]
        data = bytes(self._map[start + _HEAD_BYTES : start + _HEAD_BYTES + length])
        if not length or before & 1 or self._words[word] != before:
            return None
        return _held(data)

    def close(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._map.close()


def _held(data: bytes) -> Held | None:
    """What `InFlightPage.take` wrote; None for anything else: a task that is broken may have written anywhere."""
    try:
        since, thread, spent_s, timed, stage, items = msgpack.unpackb(data, raw=False)
        ranges = tuple(_range(*item) for item in items)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    kinds = (type(since), type(thread), type(spent_s), type(timed), type(stage))
    if kinds != (float, int, float, bool, str) or len(ranges) > RANGES_MAX or not 0 <= thread <= UNBOUNDED:
        return None
    if not (0 <= since <= CLOCK_S_MAX and 0 <= spent_s <= CLOCK_S_MAX):
        return None
    return Held(since, timed, tuple(StageInHand(stage, item) for item in ranges), thread, spent_s)


def _range(fragment: Any, first: Any, count: Any, offset: Any, length: Any) -> Range:
    """The range of these. Raises ValueError for what is none."""
    numbers = first, count, offset, length
    if type(fragment) is not bytes or any(type(number) is not int or abs(number) > UNBOUNDED for number in numbers):
        raise ValueError("what is in hand is no range")
    return Range(fragment, first, count, offset, length)
