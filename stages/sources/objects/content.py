"""The checksum of a fragment's bytes as they are stored, taken while they are read, or by reading them for it alone.

It stands in the ledger beside the fragment's end (`FragmentEnded`), so that an object which has another version later
can be told from one that holds other bytes.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from typing import IO, Protocol

import xxhash

from headrace.store.ledger import UNBOUNDED, Fragment, IntervalSet

#: Bytes that are read at a time where they are read for the checksum alone.
STEP_BYTES = 1 << 20
#: Bytes of a fragment at most, of which some may wait for their turn.
ASIDE_BYTES_MAX = 1 << 30


class StoredBytes(Protocol):
    """An object that is open."""

    def seek(self, position: int, /) -> int:
        """Go to a byte."""
        ...

    def read(self, size: int, /) -> bytes | None:
        """Up to `size` bytes; none only at the end."""
        ...


class Content:
    """The bytes `start` to `start + size` of an object, as they pass; in order, some of them perhaps twice.

    `scattered`: what passes before its turn waits in a file without a name, up to ASIDE_BYTES_MAX of it.
    """

    def __init__(self, fragment: Fragment, *, scattered: bool = False) -> None:
        self._hash = xxhash.xxh3_128()
        self._start, self._at, self._end = fragment.start, fragment.start, fragment.start + fragment.size
        #: Behind the last byte that has passed.
        self._behind = 0
        self._aside = _Aside() if scattered and fragment.size <= ASIDE_BYTES_MAX else None

    def passed(self, at: int, data: bytes | memoryview) -> None:
        """These bytes of the object were read, from byte `at` on."""
        view = memoryview(data).cast("B")
        self._behind = max(self._behind, at + len(view))
        if at <= self._at < self._end and self._at < at + len(view):
            self._count(view[self._at - at : self._end - at])
            while self._aside is not None and (part := self._aside.held_at(self._at)):
                self._count(memoryview(part))
        elif self._aside is not None and self._at < at < self._end:
            self._aside.put(at, view[: self._end - at])

    @property
    def whole(self) -> bool:
        """Whether all of it has passed."""
        return self._at >= self._end

    @property
    def at(self) -> int:
        """The first byte that has not passed."""
        return self._at

    @property
    def missing(self) -> int:
        """How many bytes have not passed."""
        return self._end - self._at - (self._aside.size if self._aside is not None else 0)

    def prefix(self) -> tuple[int, bytes] | None:
        """How many bytes have passed, and their checksum; None where some before them have not."""
        size = self._at - self._start
        return (size, self._hash.digest()) if size and self._at >= min(self._behind, self._end) else None

    def rest(self, raw: StoredBytes) -> Iterator[None]:
        """Read what has not passed, some at a time. What is there ends before it: it stays less than whole."""
        while not self.whole:
            at, end = self._at, self._end
            if self._aside is not None:
                end = min(end, self._aside.first_behind(at))
            raw.seek(at)
            data = raw.read(min(STEP_BYTES, end - at))
            if not data:
                return
            self.passed(at, data)
            yield

    def checksum(self) -> bytes:
        """The xxh3-128 of all of it; empty where some has not passed."""
        return self._hash.digest() if self.whole else b""

    def _count(self, part: memoryview) -> None:
        self._hash.update(part)
        self._at += len(part)


class _Aside:
    """Bytes of an object whose turn has not come. Where the disk takes no more of them, they are forgotten."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._held = IntervalSet()

    @property
    def size(self) -> int:
        """Bytes that are held."""
        return self._held.size

    def put(self, at: int, data: memoryview) -> None:
        """Hold these bytes of the object, from byte `at` on."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed with what it belongs to)
                weakref.finalize(self, self._file.close)
            os.pwrite(self._file.fileno(), data, at)
        except OSError:
            return
        self._held.cover(at, at + len(data))

    def held_at(self, at: int) -> bytes:
        """Some of the bytes from `at` on, which are let go of; none where they are not held."""
        found = self._held.overlap(at, at + STEP_BYTES)
        if not found or found[0][0] != at or self._file is None:
            return b""
        data = os.pread(self._file.fileno(), found[0][1] - at, at)
        left = IntervalSet()
        for first, end in self._held:
            if end > at + len(data):
                left.add(max(first, at + len(data)), end)
        self._held = left
        return data

    def first_behind(self, at: int) -> int:
        """The first byte behind `at` that is held."""
        return min((first for first, end in self._held if end > at), default=UNBOUNDED)
