"""Files of a cache under the kernel's locks, which a killed process lets go of, and on a disk that may be full."""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import xxhash

#: between two looks at a lock that somebody else holds
POLL_S: Final = 0.01
#: a mode that gives group and others nothing
_PRIVATE: Final = 0o700
#: how much of a file is held at once while its checksum is taken
CHUNK_BYTES: Final = 1 << 20
CHECKSUM_KIND: Final = "xxh3-128:"


def lock_file(path: Path, deadline: float, stopped: Callable[[], bool] = lambda: False) -> int | None:
    """A descriptor of `path`, made if it is not there, under an exclusive lock; None when that was not to be had.

    `deadline` is in seconds of the monotonic clock; `stopped` ends the wait before it.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        is_mine = False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # whoever had it before may have renamed or removed it: then the lock is on a file of the past
            is_mine = _is_at(descriptor, path)
            if is_mine:
                return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline or stopped():
                return None
            time.sleep(POLL_S)
        finally:
            if not is_mine:
                os.close(descriptor)


def hold_file(path: Path) -> int | None:
    """A descriptor of the file under a shared lock, or None where it is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    is_there = False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # an exclusive lock here lasts only as long as an unlink
        is_there = os.fstat(descriptor).st_nlink > 0
    finally:
        if not is_there:
            os.close(descriptor)
    return descriptor if is_there else None


def evict_file(path: Path) -> bool:
    """Remove the file unless somebody uses it; whether it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(FileNotFoundError):
            # a part that its writer gave up is removed by that one, and the next writes another under its name
            if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return False
            path.unlink()
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def allocate(descriptor: int, size: int) -> bool:
    """Take `size` bytes from the disk now, so that a fetch does not fail half-way; False where it has fewer."""
    if not size:
        return True
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # where the kernel cannot take them at once, some were written
        os.ftruncate(descriptor, 0)
        return False
    return True


def write_at(descriptor: int, parts: Sequence[memoryview], offset: int) -> None:
    """Write all of these parts, one behind the other, from the byte `offset` of the file on."""
    left = list(parts)
    while left:
        written = os.pwritev(descriptor, left, offset)
        offset += written
        while left and written >= left[0].nbytes:
            written -= left.pop(0).nbytes
        if written:
            left[0] = left[0][written:]


def file_checksum(
    path: str, stopped: Callable[[], bool] = lambda: False, size_max: int | None = None
) -> tuple[str, int]:
    """(`xxh3-128:<hex>`, bytes) of a file or of its beginning, through one buffer that stays in a processor's cache."""
    state = xxhash.xxh3_128()
    buffer = bytearray(CHUNK_BYTES)
    size = 0
    with open(path, "rb", buffering=0) as file:
        while not stopped() and (count := file.readinto(buffer)):
            if size_max is not None:
                count = min(count, size_max - size)
            state.update(memoryview(buffer)[:count])
            size += count
    return CHECKSUM_KIND + state.hexdigest(), size
