"""One direction of waking between two threads: a wish to be woken, and the descriptor to sleep on."""

import os
import weakref
from contextlib import suppress


class Wake:
    """A flag of the end that sleeps, and its eventfd. To be used under the lock of what the two threads share."""

    def __init__(self) -> None:
        self.waiting = False
        #: How often it was written to.
        self.count = 0
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self.descriptor)

    def ring(self) -> None:
        """Wake the end, if it wishes to be woken."""
        if self.waiting:
            self.count += 1
            os.eventfd_write(self.descriptor, 1)

    def drain(self) -> None:
        """Take the wish back and empty the descriptor."""
        self.waiting = False
        with suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)
