"""Waiting for space in a cache of shards: only where it may help, and not in silence.

Space may come where a process has shards open that a cache could evict otherwise: it lets go of them as it moves on.
Where all was evicted and a shard still does not fit, the disk is too small or others have filled it, and nobody here
changes that; but a shard that was evicted leaves its bytes once the last batch is made that reads from its mapping, so
a moment is waited all the same.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.loader.order import LoaderError

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
