"""When a task gives back to the system what is free."""

from __future__ import annotations

from headrace.stages.heap import give_back

#: Seconds between two times that a task gives back what is free.
GIVE_BACK_S = 1.0
#: Bytes of rows from which a batch is large.
LARGE_BATCH_BYTES = 5 << 18
#: Seconds between two times where batches are large.
LARGE_BATCH_S = 0.1


class GivingBack:
    """Gives back what is free when it is time. Times are of one monotonic clock, in seconds.

    Before a large batch is worked on it is time, so that what it takes does not come on top of what those before it
    have left; and soon after.
    """

    def __init__(self) -> None:
        self._last = self._due = -GIVE_BACK_S

    def meets(self, size: int, now: float) -> None:
        """A batch with `size` bytes of rows is to be worked on."""
        if size >= LARGE_BATCH_BYTES:
            self._due = min(self._due, self._last + LARGE_BATCH_S)
            self.tick(now)
            self._due = min(self._due, self._last + LARGE_BATCH_S)

    def tick(self, now: float) -> None:
        """Time has passed."""
        if now >= self._due:
            give_back()
            self._last, self._due = now, now + GIVE_BACK_S
