"""A bounded queue between a thread that makes items and the one that uses them."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from headrace.loader.errors import LoaderClosed, LoaderError

T = TypeVar("T")

#: how long the consumer waits for one item before it says that nothing comes
STALL_S_MAX: Final = 300.0
#: how long `close` waits for the item being made; the thread is a daemon, so a process can end sooner
CLOSE_S_MAX: Final = 10.0


class Prefetcher(Generic[T]):
    """Runs `source` on a thread of its own, at most `depth` ahead, in items or as `weight` counts each of them.

    An error of the source comes out of `take`, after the items made before it. One thread takes; any may close.
    """

    def __init__(
        self,
        source: Iterator[T],
        depth: int,
        weight: Callable[[T], int] = lambda _: 1,
        *,
        name: str = "headrace loader",
    ) -> None:
        if depth < 1:
            raise ValueError(f"a prefetcher needs a depth of at least 1 item, got {depth}")
        self._depth = depth
        self._weight = weight
        self._items: deque[T] = deque()
        self._held = 0
        self._changed = threading.Condition()
        self._closed = False
        self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(source,), name=name, daemon=True)
        self._thread.start()

    def take(self, stall_s: float = STALL_S_MAX) -> T:
        """The next item; raises StopIteration at the end, the source's error, or LoaderError after `stall_s`."""
        with self._changed:
            deadline = time.monotonic() + stall_s
            while not self._items:
                if self._closed:
                    raise LoaderClosed("this iteration was closed; iterate the loader anew")
                if self._error is not None:
                    raise self._error
                if self._ended:
                    raise StopIteration
                if not self._changed.wait(deadline - time.monotonic()):
                    raise LoaderError(f"no batch came for {stall_s:.0f} s; the dataset's storage does not answer")
            item = self._items.popleft()
            self._held -= self._weight(item)
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """End the thread and drop what it made; a second call does nothing."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._held = 0
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S_MAX)

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def _run(self, source: Iterator[T]) -> None:
        error: BaseException | None = None
        try:
            for item in source:
                if not self._put(item):
                    break
        except BaseException as caught:  # noqa: BLE001 - whatever it is, it belongs to the thread that takes
            error = caught
        with self._changed:
            self._error = error
            self._ended = True
            self._changed.notify_all()

    def _put(self, item: T) -> bool:
        weight = self._weight(item)
        with self._changed:
            # without a deadline on purpose: a training step may take any time, and close ends the wait
            self._changed.wait_for(lambda: self._closed or not self._held or self._held + weight <= self._depth)
            if self._closed:
                return False
            self._items.append(item)
            self._held += weight
            self._changed.notify_all()
            return True
