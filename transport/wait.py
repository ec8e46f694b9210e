"""Sleeping on one or more ends of links until there is news, or a deadline passes."""

import select
import time
from collections.abc import Iterable

from headrace.transport.contract import LinkEnd


def wait_any(ends: Iterable[LinkEnd], timeout_s: float, descriptors: Iterable[int] = ()) -> bool:
    """Sleep until one of `ends` has news or one of `descriptors` is readable; False after `timeout_s` seconds.

    Call it on the thread that the ends belong to, after each of them had nothing to do. True promises news and not
    success: look again.
    """
    deadline = time.monotonic() + timeout_s
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
        remaining_ms = max(0.0, deadline - time.monotonic()) * 1000
        return bool(poll.poll(remaining_ms))
    finally:
        for end in armed:
            end.disarm()
