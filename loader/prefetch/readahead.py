"""Having the kernel read what comes next from local shards, where these are larger than the page cache.

Shards are mapped, and a row that is in no page cache is read by a page fault: the thread that makes batches waits for
the disk, and the kernel, which takes a fault for the beginning of a scan, reads as much around it as the disk's
read-ahead says (`/sys/class/block/*/queue/read_ahead_kb`, on some systems 8 MiB). The order of samples is known, so
here a thread says instead which runs of rows come, a window at a time and `LEAD_POSITIONS` before the reader
(`headrace.loader.dataset.shard`).

Where the page cache has everything this would be wasted, so nothing begins before the process reads from a disk
(`getrusage(2)`: major faults and blocks read), and nothing goes on once it does not any more.
"""

import resource
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from headrace.loader.cache import ON_DISK, Arriving
from headrace.loader.dataset import Sources
from headrace.loader.order import BLOCK_ROWS_DEFAULT, WINDOW_BLOCKS_DEFAULT, Hosted, Mixture
from headrace.loader.prefetch.shard_prefetcher import needed_by

#: asked for together: a window of the default order, within which every row of a block is read
WINDOW_POSITIONS: Final = BLOCK_ROWS_DEFAULT * WINDOW_BLOCKS_DEFAULT
#: how long before the reader comes to it
LEAD_POSITIONS: Final = WINDOW_POSITIONS // 2
#: between two looks
LOOK_POSITIONS: Final = WINDOW_POSITIONS // 4
#: between the first looks, which are few batches apart; then twice as far each time
FIRST_POSITIONS: Final = 64
#: how long a reader waits until what it is about to read was asked for; then its faults read it
ASK_S_MAX: Final = 2.0
CLOSE_S_MAX: Final = 10.0


def disk_reads() -> int:
    """A number that grows when this process reads from a disk: its major page faults and blocks read so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_majflt + usage.ru_inblock


class Readahead:
    """Follows a reader through the sequence, and asks for what it reads next while the disk is read at all.

    What is asked for is what the ranks of this host read. `reads` tells whether a disk was read (`disk_reads`).
    """

    def __init__(
        self, sources: Sources, mixture: Mixture, hosted: Hosted, reads: Callable[[], int] = disk_reads
    ) -> None:
        self._sources = sources
        self._mixture = mixture
        self._hosted = hosted
        self._reads = reads
        self._seen = reads()
        self._changed = threading.Condition()
        self._position = -1
        #: the position of the next look, and how far it is from the last
        self._due, self._stride = -1, FIRST_POSITIONS
        #: up to which position all was asked for, and is to be
        self._asked = self._wanted = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def moved(self, position: int) -> None:
        """The reader is about to read from this absolute position on; any number of threads may tell it."""
        if self._position <= position < self._due:
            return
        with self._changed:
            if self._closed or self._position <= position < self._due:
                return
            is_near = 0 <= position - self._position <= LOOK_POSITIONS
            self._stride = min(self._stride * 2, LOOK_POSITIONS) if is_near else FIRST_POSITIONS
            self._position, self._due = position, position + self._stride
            seen, self._seen = self._seen, self._reads()
            if self._seen == seen:
                return
            # or else the reader is somewhere else; a window may be on its way
            if not self._asked - 2 * WINDOW_POSITIONS <= position <= self._asked + WINDOW_POSITIONS:
                self._asked = position
            self._wanted = position + LEAD_POSITIONS
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headrace readahead", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or self._asked > position, ASK_S_MAX)

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S_MAX)

    def _run(self) -> None:
        while True:
            with self._changed:
                # without a deadline on purpose: the reader may take any time between two steps
                self._changed.wait_for(lambda: self._closed or self._asked < self._wanted)
                if self._closed:
                    return
                first = self._asked
                begin = first - first % self._mixture.samples
                end = first + WINDOW_POSITIONS - (first - begin) % WINDOW_POSITIONS
                end = min(end, begin + self._mixture.samples)
            with suppress(Exception):  # the reader meets the same where it reads the shard
                self._ask(first, end)
            with self._changed:
                if self._asked == first:
                    self._asked = end
                self._changed.notify_all()

    def _ask(self, first: int, end: int) -> None:
        coalescings = [ON_DISK] * len(self._sources.datasets)
        for needed in needed_by(self._mixture, self._hosted.positions(first, end), coalescings):
            if self._closed:
                return
            shard = self._sources.at_hand(needed.shard)
            if shard is not None and shard.mapped is not None and not isinstance(shard.arriving, Arriving):
                shard.mapped.read_ahead(needed.rows, needed.coalescing)
