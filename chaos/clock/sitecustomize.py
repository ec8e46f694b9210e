"""Python imports this at its start where PYTHONPATH names the folder: from then on the process has another time.

`HEADRACE_CHAOS_CLOCK=OFFSET_S,RATE`: the wall clock is OFFSET_S seconds ahead (behind, if negative), and the monotonic
clock besides runs RATE times as fast. Bent is what asks the module `time`: every deadline of ours, and the door of the
wall clock (cluster/clock.py). The event loop's timer, which is only told how long to wait, and TLS inside gRPC keep
the kernel's time.
"""

from __future__ import annotations

import os
import time

VARIABLE = "HEADRACE_CHAOS_CLOCK"
_NS = 1_000_000_000


def _bend(offset_s: float, rate: float) -> None:
    wall, monotonic = time.time, time.monotonic
    time.time = lambda: wall() + offset_s
    time.time_ns = lambda: int((wall() + offset_s) * _NS)
    time.monotonic = lambda: monotonic() * rate + offset_s
    time.monotonic_ns = lambda: int((monotonic() * rate + offset_s) * _NS)


if VARIABLE in os.environ:
    _bend(*map(float, os.environ[VARIABLE].split(",")))
