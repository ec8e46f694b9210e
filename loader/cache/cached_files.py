"""Files of a cache under the kernel's locks, which a killed process lets go of, and waiting for space on its disk.

Space may come where a process has shards open that a cache could evict otherwise: it lets go of them as it moves on.
Where all was evicted and a shard still does not fit, the disk is too small or others have filled it, and nobody here
changes that; but a shard that was evicted leaves its bytes once the last batch is made that reads from its mapping,
so a moment is waited all the same.
"""

import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import xxhash

from headrace.loader.order import LoaderError

#: overrides where the cache lies; the user's own directory is made below it
DIRECTORY_VARIABLE: Final = "HEADRACE_CACHE"
#: between two looks at a lock that somebody else holds
POLL_S: Final = 0.01
#: how much of a file is held at once while its checksum is taken
CHUNK_BYTES: Final = 1 << 20
CHECKSUM_KIND: Final = "xxh3-128:"


@contextmanager
def told(what: str) -> Iterator[None]:
    """Say `what` the system refuses, and what to do. Raises LoaderError instead of OSError."""
    try:
        yield
    except OSError as error:
        raise LoaderError(
            f"{what}: {error.strerror or error}; name a folder that user {os.getuid()} may write to in "
            f"{DIRECTORY_VARIABLE}, or by ShardCache(directory)"
        ) from error


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


#: how long to wait for space that others use
SPACE_S_MAX: Final = 120.0
#: how long to wait where nothing is in use: for the mappings of what was evicted
EVICTED_S_MAX: Final = 0.5
#: after so long a wait is said on the log, and so long is it said by no other thread
SAID_AFTER_S: Final = 3.0
#: between two looks, at first and at last
LOOK_S_MIN: Final = 0.01
LOOK_S_MAX: Final = 0.25

logger = logging.getLogger("headrace.loader")


class CacheFull(LoaderError):  # noqa: N818 - named after what is so
    """No space for a shard: all that is cached is in use, or the disk is too small."""

    def __init__(self, message: str, needed: int = 0, *, in_use: bool = True) -> None:
        super().__init__(message)
        #: bytes that the shard takes in the cache
        self.needed = needed
        #: whether some of what is cached is in use, so that waiting may help
        self.in_use = in_use


class Said:
    """When a wait for space was last logged, for all threads that wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: float | None = None

    def say(self, message: object, waited_s: float) -> None:
        """Put it on the log, unless that was done a short time ago."""
        with self._lock:
            now = time.monotonic()
            is_due = self._at is None or now - self._at > SPACE_S_MAX
            if is_due:
                self._at = now
        if is_due:
            logger.warning(
                "the loader has waited %.0f s for space in its cache, and waits up to %.0f s: %s",
                waited_s, SPACE_S_MAX, message,
            )  # fmt: skip


class SpaceWait:
    """One thread's wait for the space of one shard."""

    def __init__(self, said: Said, stopped: Callable[[], bool]) -> None:
        self._said = said
        self._stopped = stopped
        self._began = time.monotonic()
        self._stuck: float | None = None
        self._look_s = LOOK_S_MIN

    def go_on(self, full: CacheFull) -> None:
        """Wait some time until another look.

        Raises `full` where that would not help, has taken too long, or nobody wants the shard any more.
        """
        now = time.monotonic()
        self._stuck = None if full.in_use else self._stuck or now
        is_vain = self._stuck is not None and now - self._stuck >= EVICTED_S_MAX
        if is_vain or now - self._began > SPACE_S_MAX or self._stopped():
            raise full
        if now - self._began > SAID_AFTER_S:
            self._said.say(full, now - self._began)
        time.sleep(self._look_s)
        self._look_s = min(self._look_s * 2, LOOK_S_MAX)


def users_of(files: Iterable[Path]) -> list[int]:
    """The processes that hold locks on these files, where the kernel tells: of this host and namespace."""
    wanted: set[str] = set()
    for file in files:
        with suppress(FileNotFoundError):
            status = file.stat()
            wanted.add(f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}")
    found: set[int] = set()
    with suppress(OSError):
        # 1: FLOCK  ADVISORY  READ 4711 08:01:131 0 EOF; who waits has an arrow before
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            words = line.split()
            if len(words) == 8 and words[1] == "FLOCK" and words[5] in wanted:
                found.add(int(words[4]))
    return sorted(found)
