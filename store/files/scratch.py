"""Bytes on their way into an object, in a file without a name instead of in memory.

The file is gone when nobody holds it any more, whichever way its process ends. What it holds costs this process no
memory: the kernel keeps as much of it as it likes, and gives that to whoever needs it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from collections.abc import Iterator

from headrace.store.contract import Buffer, ObjectStore

#: What `pieces` reads at once: small enough to stay in a processor's cache.
PIECE_BYTES = 1 << 20
#: What a scratch file leaves free of a disk when it is made: where there is less, objects need it more.
FREE_BYTES_MIN = 1 << 30


class Scratch:
    """A file that grows at its end. Any thread may read what was appended; one at a time may write.

    The methods raise OSError.
    """

    __slots__ = ("__weakref__", "_descriptor", "is_memory", "size")

    def __init__(self, descriptor: int, *, is_memory: bool = False) -> None:
        #: bytes
        self.size = 0
        #: whether no disk holds it
        self.is_memory = is_memory
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def on_disk(cls, folder: str | None = None) -> Scratch:
        """A file in `folder`, which must be there; in the folder for temporary files where it is None."""
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            return cls(os.dup(file.fileno()))

    @classmethod
    def in_memory(cls) -> Scratch:
        """A file that no disk holds: for when the disk is full."""
        return cls(os.memfd_create("headrace scratch"), is_memory=True)

    def append(self, data: Buffer) -> int:
        """Write at the end; where these bytes begin. After an error nothing of them counts."""
        at = self.size
        self._write(data, at)
        self.size = at + memoryview(data).nbytes
        return at

    def patch(self, data: Buffer, offset: int) -> None:
        """Write over what stands at `offset`."""
        if offset + memoryview(data).nbytes > self.size:
            raise ValueError(f"a patch of {memoryview(data).nbytes} bytes at {offset} reaches past {self.size}")
        self._write(data, offset)

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill `target` with the bytes from `offset` on. Raises ValueError where there are fewer."""
        while target.nbytes:
            count = os.preadv(self._descriptor, [target], offset)
            if not count:
                raise ValueError(f"{target.nbytes} bytes at {offset} of a scratch file of {self.size} are not there")
            target, offset = target[count:], offset + count

    def pieces(self) -> Iterator[memoryview]:
        """All bytes, in pieces that each lie where the one before it lay."""
        held = memoryview(bytearray(min(PIECE_BYTES, self.size)))
        for at in range(0, self.size, PIECE_BYTES):
            piece = held[: min(PIECE_BYTES, self.size - at)]
            self.read_into(piece, at)
            yield piece

    def fileno(self) -> int:
        """The file's descriptor, which lives as long as this object."""
        return self._descriptor

    def _write(self, data: Buffer, offset: int) -> None:
        view = memoryview(data).cast("B")
        while view.nbytes:
            count = os.pwrite(self._descriptor, view, offset)
            view, offset = view[count:], offset + count


def near(store: ObjectStore | None) -> Scratch:
    """A scratch file on the disk of a store that has one, else among temporary files; without room, in memory."""
    with contextlib.suppress(OSError):
        folder = store.capabilities.scratch_folder if store is not None else None
        scratch = Scratch.on_disk(folder() if folder is not None else None)
        disk = os.fstatvfs(scratch.fileno())
        if disk.f_bavail * disk.f_frsize >= FREE_BYTES_MIN:
            return scratch
    return Scratch.in_memory()
