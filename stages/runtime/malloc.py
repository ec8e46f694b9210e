"""What malloc has given to this process and not got back, and what the allocators keep of what is free."""

from __future__ import annotations

import ctypes
import sys

#: Seconds between two times that a task gives back what is free.
GIVE_BACK_S = 1.0
#: Bytes of rows from which a batch is large.
LARGE_BATCH_BYTES = 5 << 18
#: Seconds between two times where batches are large.
LARGE_BATCH_S = 0.1


class _Mallinfo2(ctypes.Structure):
    """Of malloc.h, all in bytes or blocks."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    ]  # fmt: skip


_mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
#: Of glibc; other C libraries keep less, and have no such call.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
if _mallinfo2 is not None:
    _mallinfo2.restype = _Mallinfo2


def heap_bytes() -> int | None:
    """Bytes in use; None where the C library cannot tell (it is glibc 2.33 or later that can).

    It looks at each free block, which takes up to a millisecond.
    """
    if _mallinfo2 is None:
        return None
    found = _mallinfo2()
    return int(found.uordblks) + int(found.hblkhd)


def give_back() -> None:
    """Give what is free back to the system, which takes about a millisecond.

    malloc keeps up to twice the largest block that was ever freed, which is tens of MiB where a table has grown.
    """
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)


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


#: Of this process, whose allocators all its threads share.
giving_back = GivingBack()
