"""The body of an upload: buffers of the caller that are sent, hashed and cut without being joined."""

from __future__ import annotations

import base64
import hashlib
import mmap
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import xxhash

from headrace.store import Buffer

#: One send on the socket. A socket's timeout covers a whole send, so this must go through even on a slow line.
SEND_BYTES = 256 << 10


class Body:
    """Bytes to upload, as views of the caller's buffers."""

    __slots__ = ("_gate", "_views", "size")

    def __init__(self, parts: Sequence[Buffer], gate: Callable[[], None] | None = None) -> None:
        #: what is called when the headers are sent, and the bytes are to be
        self._gate = gate
        views = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
        #: bytes
        self.size = sum(view.nbytes for view in views)
        self._views = _coalesce(views)

    def slice(self, start: int, stop: int) -> Body:
        """The bytes from `start` up to `stop`, without a copy."""
        found: list[Buffer] = []
        position = 0
        for view in self._views:
            first, last = max(start - position, 0), min(stop - position, view.nbytes)
            if first < last:
                found.append(view[first:last])
            position += view.nbytes
        return Body(found)

    def blocks(self) -> Iterator[memoryview]:
        """The bytes in pieces that one send takes."""
        if self._gate is not None:
            self._gate()
        for view in self._passed():
            for start in range(0, view.nbytes, SEND_BYTES):
                yield view[start : start + SEND_BYTES]

    def sha256(self) -> str:
        """SHA-256 in hexadecimal, as signatures have it."""
        return str(self._taken_by(hashlib.sha256()).hexdigest())

    def md5(self) -> str:
        """MD5 in base64, as `Content-MD5` has it."""
        return base64.b64encode(self._taken_by(hashlib.md5(usedforsecurity=False)).digest()).decode()

    def crc32(self) -> str:
        """CRC-32 (big-endian) in base64, as `x-amz-checksum-crc32` has it."""
        value = 0
        for view in self._passed():
            value = zlib.crc32(view, value)
        return base64.b64encode(value.to_bytes(4, "big")).decode()

    def xxh3(self) -> str:
        """xxh3-64 in hexadecimal."""
        return str(self._taken_by(xxhash.xxh3_64()).hexdigest())

    def _taken_by(self, digest: Any) -> Any:
        for view in self._passed():
            digest.update(view)
        return digest

    def _passed(self) -> Iterator[memoryview]:
        """The views, one after the other; of those of a mapped file no more than one is in memory."""
        for view in self._views:
            yield view
            if isinstance(view.obj, mmap.mmap):
                view.obj.madvise(mmap.MADV_DONTNEED)


def _coalesce(views: list[memoryview]) -> list[memoryview]:
    """Join runs of small views: thousands of tiny sends cost more than one copy."""
    found: list[memoryview] = []
    run: list[memoryview] = []
    held = 0
    for view in views:
        if held and held + view.nbytes > SEND_BYTES:
            found.append(memoryview(b"".join(run)) if len(run) > 1 else run[0])
            run, held = [], 0
        run.append(view)
        held += view.nbytes
    if run:
        found.append(memoryview(b"".join(run)) if len(run) > 1 else run[0])
    return found
