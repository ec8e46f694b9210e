"""Python imports this at its start where PYTHONPATH names the folder: from then on the process has another time.

`HEADRACE_CHAOS_CLOCK=OFFSET_S,RATE`: the wall clock is OFFSET_S seconds ahead (behind, if negative), and the monotonic
clock besides runs RATE times as fast. What is written in C, such as TLS inside gRPC, keeps the kernel's time; so does
the event loop's own timer, which is only told how long to wait.
"""

from __future__ import annotations

import datetime as dt
import os
import time

VARIABLE = "HEADRACE_CHAOS_CLOCK"
_NS = 1_000_000_000


def _bend(offset_s: float, rate: float) -> None:
    wall, monotonic, real = time.time, time.monotonic, dt.datetime
    ahead = dt.timedelta(seconds=offset_s)

    class _Bent(real):  # type: ignore[valid-type,misc]
        """A datetime whose `now` is the bent wall clock's."""

        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:
            return real.now(tz) + ahead

        @classmethod
        def utcnow(cls) -> dt.datetime:
            return real.now(dt.UTC).replace(tzinfo=None) + ahead

    time.time = lambda: wall() + offset_s
    time.time_ns = lambda: int((wall() + offset_s) * _NS)
    time.monotonic = lambda: monotonic() * rate + offset_s
    time.monotonic_ns = lambda: int((monotonic() * rate + offset_s) * _NS)
    dt.datetime = _Bent  # type: ignore[misc]


if VARIABLE in os.environ:
    _bend(*map(float, os.environ[VARIABLE].split(",")))
