"""The checksum of a fragment's bytes as they are stored, taken while they are read, or by reading them for it alone.

It stands in the ledger beside the fragment's end (`FragmentEnded`), so that an object which has another version later
can be told from one that holds other bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import xxhash

from headrace.store.entries import Fragment

#: Bytes that are read at a time where they are read for the checksum alone.
STEP_BYTES = 1 << 20


class Stored(Protocol):
    """An object that is open."""

    def seek(self, position: int, /) -> int:
        """Go to a byte."""
        ...

    def read(self, size: int, /) -> bytes | None:
        """Up to `size` bytes; none only at the end."""
        ...


class Content:
    """The bytes `start` to `start + size` of an object, as they pass; in order, some of them perhaps twice."""

    def __init__(self, fragment: Fragment) -> None:
        self._hash = xxhash.xxh3_128()
        self._at, self._end = fragment.start, fragment.start + fragment.size
        #: The last byte that counted.
        self._last = b""

    def passed(self, at: int, data: bytes | memoryview) -> None:
        """These bytes of the object were read, from byte `at` on; what is not the next in order does not count."""
        view = memoryview(data).cast("B")
        if at <= self._at < self._end and self._at < at + len(view):
            part = view[self._at - at : self._end - at]
            self._hash.update(part)
            self._at += len(part)
            self._last = bytes(part[-1:])

    @property
    def whole(self) -> bool:
        """Whether all of it has passed."""
        return self._at >= self._end

    def rest(self, raw: Stored) -> Iterator[None]:
        """Read what has not passed, some at a time. What is there ends before it: it stays less than whole."""
        raw.seek(self._at)
        while not self.whole:
            at = self._at
            data = raw.read(min(STEP_BYTES, self._end - at))
            if not data:
                return
            self.passed(at, data)
            yield

    def checksum(self) -> bytes:
        """The xxh3-128 of all of it; empty where some has not passed."""
        return self._hash.digest() if self.whole else b""

    @property
    def ends_a_line(self) -> bool:
        """Whether what lies behind it, if anything does, begins a line."""
        return self._last in (b"", b"\n")
