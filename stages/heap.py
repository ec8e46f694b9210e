"""What malloc has given to this process and not got back, and what the allocators keep of what is free."""

from __future__ import annotations

import ctypes

import pyarrow as pa


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
    pa.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)
