"""What workers say that is not believed: counted, and told in the log at a bounded rate."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from headrace.daemon import about

logger = logging.getLogger("headrace.controller")

#: Lines for one worker within WINDOW_S seconds; what is more is counted, and told with the next line.
LINES_MAX = 10
WINDOW_S = 10.0


class Doubts:
    """One controller's; those of a worker are forgotten with its session."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: By worker: when the window began, the lines told in it, and the words since that were not told.
        self._told: dict[str, tuple[float, int, int]] = {}

    def tell(self, worker: str, why: str) -> None:
        """Something was not believed."""
        now = self._clock()
        since, lines, left_out = self._told.get(worker, (now, 0, 0))
        if now >= since + WINDOW_S:
            since, lines = now, 0
        if lines >= LINES_MAX:
            self._told[worker] = since, lines, left_out + 1
            return
        more = f"; {left_out} more were not told" if left_out else ""
        logger.warning("not believed: %s%s", why, more, extra=about(worker=worker))
        self._told[worker] = since, lines + 1, 0

    def forget(self, worker: str) -> None:
        """Its session is over."""
        self._told.pop(worker, None)
