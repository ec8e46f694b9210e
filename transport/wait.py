"""Sleeping on one or more ends of links until there is news, or a deadline passes."""

import os
import select
import time
from collections.abc import Iterable

from headrace.transport.contract import LinkEnd

#: How long a waiter looks before it sleeps, in seconds: about what a sleep and a wake cost both ends together. Two
#: stages of the same speed then never sleep (1 MiB batches through a ring: 0.96 of memcpy, 0.87 without).
SPIN_S = 50e-6
_SPINS = len(os.sched_getaffinity(0)) > 1


def wait_any(ends: Iterable[LinkEnd], timeout_s: float, descriptors: Iterable[int] = ()) -> bool:
    """Sleep until one of `ends` has news or one of `descriptors` is readable; False after `timeout_s` seconds.

    Call it on the thread that the ends belong to, after each of them had nothing to do. It looks for SPIN_S first.
    True promises news and not success: look again.
    """
    start = time.monotonic()
    ends = tuple(ends)
    if _SPINS and _spin(ends, start + min(SPIN_S, timeout_s)):
        return True
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    armed: list[LinkEnd] = []
    try:
        for end in ends:
            if not end.arm():
                return True
            armed.append(end)
            poll.register(end.fileno(), select.POLLIN)
        remaining_ms = max(0.0, start + timeout_s - time.monotonic()) * 1000
        return bool(poll.poll(remaining_ms))
    finally:
        for end in armed:
            end.disarm()


def _spin(ends: tuple[LinkEnd, ...], until: float) -> bool:
    while time.monotonic() < until:
        for end in ends:
            if end.has_news():
                return True
        # Where the peer shares this core, it is the peer that should run.
        os.sched_yield()
    return False
