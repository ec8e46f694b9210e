"""Bytes on their way into an object, in a file without a name, and objects that are written before their name is known.

The file is gone when nobody holds it any more, whichever way its process ends. What it holds costs this process no
memory: the kernel keeps as much of it as it likes, and gives that to whoever needs it.

A store that can does it where the object will stand. For the others it is a scratch file that is then handed over as
any object is.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import xxhash

from headrace.store import Buffer, ObjectDraft, ObjectStore, StoreStalled

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


#: Bytes of a draft on disk behind which the disk is asked to begin with them: the end waits for what is left of it.
AHEAD_BYTES = 4 << 20
_SYNC_FILE_RANGE_WRITE = 2


class ScratchDraft:
    """A draft in a scratch file: see `ObjectDraft`."""

    __slots__ = ("_begun", "_complain", "_create", "_scratch", "_stays")

    def __init__(
        self,
        scratch: Scratch,
        create: Callable[[str], bool],
        complain: Callable[[OSError], Exception],
        *,
        stays: bool = False,
    ) -> None:
        self._scratch = scratch
        self._create = create
        self._complain = complain
        #: Whether the scratch file becomes the object, and how much of it the disk was asked to write.
        self._stays = stays
        self._begun = 0

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._scratch.size

    def append(self, data: Buffer) -> None:
        """Write at the end."""
        try:
            self._scratch.append(data)
        except OSError as error:
            raise self._complain(error) from error
        if self._stays and self.size - self._begun >= AHEAD_BYTES:
            begin_writing(self._scratch.fileno(), self._begun, self.size - self._begun)
            self._begun = self.size

    def patch(self, data: Buffer, offset: int) -> None:
        """Write over what stands at `offset`."""
        try:
            self._scratch.patch(data, offset)
        except OSError as error:
            raise self._complain(error) from error

    def pieces(self) -> Iterator[memoryview]:
        """All bytes, in pieces that each lie where the one before it lay."""
        try:
            yield from self._scratch.pieces()
        except OSError as error:
            raise self._complain(error) from error

    def create(self, key: str) -> bool:
        """Make it an object, if none stands under the key: see `ObjectStore.create`."""
        return self._create(key)


class DraftFile:
    """A draft that is written from front to back, as a file is, with the digest of its bytes: Arrow writes into it."""

    closed = False

    def __init__(self, draft: ObjectDraft) -> None:
        self._draft: ObjectDraft | None = draft
        self._state = xxhash.xxh3_128()
        #: bytes so far
        self.size = 0

    @property
    def digest(self) -> str:
        """The xxh3-128 of all bytes so far, in hex."""
        return str(self._state.hexdigest())

    def write(self, data: Buffer) -> int:
        """Write at the end; the number of bytes. Raises StoreError."""
        if self._draft is not None:
            self._draft.append(data)
            self._state.update(data)
        count = memoryview(data).nbytes
        self.size += count
        return count

    def abandon(self) -> None:
        """Take no more: a writer that failed may want to end its file when it is forgotten."""
        self._draft = None

    def flush(self) -> None:
        """Nothing: what is written is in the draft."""

    def close(self) -> None:
        """Nothing: whoever opened the draft closes it."""


def open_draft(store: ObjectStore) -> AbstractContextManager[ObjectDraft]:
    """A draft of an object of this store; what is not made an object is gone behind the `with`."""
    own = store.capabilities.draft
    return own() if own is not None else _apart(store)


@contextlib.contextmanager
def _apart(store: ObjectStore) -> Iterator[ObjectDraft]:
    """A draft among temporary files, or in memory."""
    scratch = near(None)

    def create(key: str) -> bool:
        # Closed when the last view of it is gone, which an error's traceback may keep a while.
        mapped = mmap.mmap(scratch.fileno(), scratch.size, access=mmap.ACCESS_READ)
        whole = memoryview(mapped)
        return store.create(key, [whole[at : at + PIECE_BYTES] for at in range(0, scratch.size, PIECE_BYTES)])

    def complain(error: OSError) -> Exception:
        return StoreStalled(
            f"{store.uri}: cannot prepare an object of {scratch.size} bytes and more among temporary files: "
            f"{error.strerror}; free space there, or name another folder in TMPDIR"
        )

    yield ScratchDraft(scratch, create, complain)


def begin_writing(descriptor: int, offset: int, size: int) -> None:
    """Have the kernel begin writing these bytes to its disk, where it can, without waiting: sync_file_range(2).

    It makes nothing durable, but leaves `fsync` less to wait for: 3 ms in place of 24 for a shard of 31 MB, where two
    were written at once. `fsync` reports what fails here.
    """
    with contextlib.suppress(AttributeError):  # a system without it
        call = ctypes.CDLL(None).sync_file_range
        call(descriptor, ctypes.c_int64(offset), ctypes.c_int64(size), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE))
