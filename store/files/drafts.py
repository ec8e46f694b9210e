"""An object that is written before its name is known: shards are named by their bytes.

A store that can does it where the object will stand. For the others it is a scratch file that is then handed over as
any object is.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import xxhash

from headrace.store.contract import Buffer, ObjectDraft, ObjectStore, StoreStalled
from headrace.store.files.scratch import PIECE_BYTES, Scratch, near

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
