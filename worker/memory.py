"""Free memory that the allocators of this process keep, given back to the system."""

from __future__ import annotations

import ctypes

import pyarrow as pa

#: Of glibc; other C libraries keep less, and have no such call.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    """Give back what is free, which takes a few milliseconds.

    malloc keeps up to twice the largest block that was ever freed, which is tens of MiB where a table has grown.
    """
    pa.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)
