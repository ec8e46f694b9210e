"""The wall clock, by which certificates and tokens are judged: one door, so that a process can be given another time.

Everything else goes by `time.monotonic`, and no two hosts' clocks are ever compared (chaos/clock bends both).
"""

import time
from datetime import UTC, datetime


def utc_now() -> datetime:
    """Return the time of day, with its zone."""
    return datetime.fromtimestamp(time.time(), UTC)
