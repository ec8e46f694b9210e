"""Checking whole shards against their checksums, without making a reader wait for it.

The manifest has one checksum a shard, and it covers the whole object. To check it before a row is given would mean to
read 64 MiB for a row of 8 KiB, hundreds of times at the start of a windowed pass. So what is promised is this:

- a shard of up to `FIRST_BYTES_MAX`, and every shard that comes through the cache, is checked before its first row;
- in a worker process of a `DataLoader` a larger shard is checked by the blocks of its rows, before these
  (`headrace.loader.cache.rowblocks`);
- any other shard is opened at once and read through by a thread behind the reader, in the order of first use; the
  next batch after a mismatch is refused by ChecksumMismatch, and so is the end of the pass;
- `Verifier.wait` returns when everything that was used has been checked: call it before a checkpoint is written, and
  no checkpoint holds what an unchecked row taught.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from headrace.loader.cache import CHECKSUM_KIND, file_checksum
from headrace.loader.order import LoaderError
from headrace.store import ChecksumMismatch, ObjectMissing, ObjectStore, StoreUnavailable
from headrace.store.shards import verify_object

#: about a millisecond of reading: a shard up to this size is checked before its first row is given
FIRST_BYTES_MAX: Final = 8 << 20
#: how long `wait` waits by default
WAIT_S_MAX: Final = 600.0
#: how long `close` waits for the chunk being read
CLOSE_S_MAX: Final = 5.0


def check_shard(store: ObjectStore, key: str, expected: str, stopped: Callable[[], bool] = lambda: False) -> int:
    """Read a shard and compare; the bytes read. `stopped` ends it early. Raises ChecksumMismatch, ObjectMissing."""
    path = store.open_local(key) if expected.startswith(CHECKSUM_KIND) else None
    if path is None:
        return verify_object(store, key, expected)
    found, size = file_checksum(str(path), stopped)
    if found != expected and not stopped():
        raise ChecksumMismatch(key, store.uri, expected, found)
    return size


class Verifier:
    """Checks shards on a thread of its own, which lives only while there is something to check."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._queue: deque[tuple[int, str, str]] = deque()
        self._busy = False
        #: the shard that the thread is at
        self._checking: int | None = None
        #: how often it was closed: a check that began before that is not gone on with
        self._closings = 0
        self._paused = False
        self.error: Exception | None = None
        self.shards = 0
        #: bytes that were read to check checksums
        self.bytes = 0
        self._asked: set[int | None] = set()

    def first(self, number: int, key: str, expected: str) -> None:
        """Check a shard before its first row: now where it is small, else behind the reader."""
        if number in self._asked:
            return
        info = self._store.head(key)
        if info is None:
            raise ObjectMissing(key, self._store.uri)
        if info.size <= FIRST_BYTES_MAX:
            self.count(number, check_shard(self._store, key, expected))
        else:
            self._behind(number, key, expected)

    def count(self, number: int, size: int) -> None:
        """A shard was checked by someone else, such as the cache that fetched it."""
        with self._changed:
            if number not in self._asked:
                self._asked.add(number)
                self.shards += 1
                self.bytes += size

    def count_part(self, size: int, *, is_last: bool) -> None:
        """Bytes of a shard were checked by whoever reads them, and with the last of them all of it."""
        with self._changed:
            self.bytes += size
            self.shards += is_last

    def pause(self) -> None:
        """Let shards queue up, since a reader waits for its first batch."""
        with self._changed:
            self._paused = True

    def go_on(self) -> None:
        """Check what queued up."""
        with self._changed:
            self._paused = False
            self._start()

    def wait(self, timeout_s: float = WAIT_S_MAX) -> None:
        """Return when all that was asked is checked; raises what the check found, or LoaderError after `timeout_s`."""
        self.go_on()
        with self._changed:
            if not self._changed.wait_for(lambda: self.error or not (self._queue or self._busy), timeout_s):
                raise LoaderError(
                    f"{len(self._queue) + 1} shards of {self._store.uri} are unchecked after {timeout_s:.0f} s; "
                    "wait longer, or see why the storage is slow"
                )
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Stop checking."""
        with self._changed:
            self._closings += 1
            # they are asked again when they are opened again, also the one that is half read
            self._asked.difference_update([number for number, _, _ in self._queue], {self._checking})
            self._queue.clear()
            self._changed.notify_all()
            deadline = time.monotonic() + CLOSE_S_MAX
            self._changed.wait_for(lambda: not self._busy, deadline - time.monotonic())

    def _behind(self, number: int, key: str, expected: str) -> None:
        with self._changed:
            if number not in self._asked:
                # together: who closes between the two would forget to check it ever again
                self._asked.add(number)
                self._queue.append((number, key, expected))
                self._start()

    def _start(self) -> None:
        if self._queue and not self._busy and not self._paused and self.error is None:
            self._busy = True
            threading.Thread(target=self._run, name="headrace verify", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._checking = None
                if self.error is not None or not self._queue:
                    self._busy = False
                    self._changed.notify_all()
                    return
                number, key, expected = self._queue.popleft()
                self._checking, closings = number, self._closings
            try:
                size = check_shard(self._store, key, expected, lambda: self._closings != closings)  # noqa: B023
                with self._changed:
                    self.bytes += size
                    self.shards += self._closings == closings
            except OSError as error:
                self.error = StoreUnavailable(f"{self._store.uri}: cannot read {key!r}: {error.strerror or error}")
            except Exception as error:  # noqa: BLE001 - it belongs to the thread that reads on or waits
                self.error = error
