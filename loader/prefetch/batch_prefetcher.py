"""A bounded queue between a thread that makes items and the one that uses them, which helps where it would wait.

A thread that makes items may be in native code, such as torch's, when the interpreter ends. Where it came back from
there to an interpreter that is gone, the process would abort; so what still runs is closed before that, at exit.
"""

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from headrace.loader.cache import never
from headrace.loader.order import LoaderClosed, LoaderError

T = TypeVar("T")

#: how long the consumer waits for one item before it says that nothing comes
STALL_S_MAX: Final = 300.0
#: how long one wait of the consumer lasts: an interrupt that comes just before it is seen behind it
SIGNAL_S_MAX: Final = 0.5
#: how long `close` waits for the item being made. A thread that a store keeps waiting longer ends by itself, or with
#: the process, since it is a daemon
CLOSE_S_MAX: Final = 0.5
#: the same where the interpreter ends: what its thread is at then is one batch, since waits for a store end with it
EXIT_S_MAX: Final = 10.0
#: with fewer ready jobs waiting the source is asked for more, which the consumer may run meanwhile
READY_JOBS_MIN: Final = 8


class Job(NamedTuple, Generic[T]):
    """Some items that follow each other, not made yet."""

    run: Callable[[], Iterable[T]]
    #: whether it would run without waiting for anything, so that whoever waits for the items before it may run it
    is_ready: Callable[[], bool] = never


class _Begun(Generic[T]):
    """A job that somebody runs, and those of its items that nobody took yet."""

    __slots__ = ("error", "is_ahead", "is_over", "items", "job")

    def __init__(self, job: Job[T], *, is_ahead: bool) -> None:
        self.job = job
        #: whether the thread runs it, and not the consumer
        self.is_ahead = is_ahead
        self.items: deque[T] = deque()
        self.is_over = False
        self.error: BaseException | None = None


class BatchPrefetcher(Generic[T]):
    """Runs the jobs of `source` on a thread of its own, at most `depth` ahead, in items or as `weight` counts each.

    `source` gives some jobs at a time, and items come in their order. Where no item is there, the thread that takes
    runs the next job that is ready, instead of waiting for the one that the other thread is at. An error of the
    source or of a job comes out of `take`, after the items made before it. One thread takes; any may close.
    """

    def __init__(
        self,
        source: Iterator[Sequence[Job[T]]],
        depth: int,
        weight: Callable[[T], int] = lambda _: 1,
        *,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        if depth < 1:
            raise ValueError(f"a prefetcher needs a depth of at least 1 item, got {depth}")
        self._source = source
        self._depth = depth
        self._weight = weight
        self._on_close = on_close
        self._changed = threading.Condition()
        self._waiting: deque[Job[T]] = deque()
        self._begun: deque[_Begun[T]] = deque()
        #: of the items that the thread made, and of those that the consumer made and did not take yet
        self._held = 0
        self._helped = 0
        self._closed = False
        self._failed = False
        self._ended = False
        #: of the source
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="headrace loader", daemon=True)
        self._thread.start()
        _RUNNING.add(self)

    def take(self, stall_s: float = STALL_S_MAX) -> T:
        """The next item; raises StopIteration at the end, the source's error, or LoaderError after `stall_s`."""
        deadline = time.monotonic() + stall_s
        while True:
            with self._changed:
                begun = self._first()
                if begun is not None and begun.items:
                    item = begun.items.popleft()
                    self._count(begun, -self._weight(item))
                    self._changed.notify_all()
                    return item
                if self._closed:
                    raise LoaderClosed("this iteration was closed; iterate the loader anew")
                if begun is None and self._ended and not self._waiting:
                    raise self._error or StopIteration
                if begun is not None and begun.error is not None:
                    raise begun.error
                mine = self._begin(is_ahead=False) if self._may_help() else None
                if mine is None:
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        raise LoaderError(f"no batch came for {stall_s:.0f} s; the dataset's storage does not answer")
                    self._changed.wait(min(left_s, SIGNAL_S_MAX))
            if mine is not None:
                self._carry_out(mine)

    def close(self, wait_s: float = CLOSE_S_MAX) -> None:
        """End the thread, for which this waits up to `wait_s`, and drop what it made; a second call does nothing.

        What the source waits for has to end by `on_close`, which is called first.
        """
        self._on_close()
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._begun.clear()
            self._held = self._helped = 0
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(wait_s)

    def _may_help(self) -> bool:
        """Whether who takes runs the next job; not without end, where the other thread is long at the first."""
        return self._helped < self._depth and bool(self._waiting) and self._waiting[0].is_ready()

    def _count(self, begun: _Begun[T], weight: int) -> None:
        if begun.is_ahead:
            self._held += weight
        else:
            self._helped += weight

    def _first(self) -> _Begun[T] | None:
        """The first job of which something may still be taken."""
        while self._begun:
            first = self._begun[0]
            if first.items or first.error is not None or not first.is_over:
                return first
            self._begun.popleft()
        return None

    def _begin(self, *, is_ahead: bool) -> _Begun[T] | None:
        if not self._waiting or self._closed or self._failed:
            return None
        begun = _Begun(self._waiting.popleft(), is_ahead=is_ahead)
        self._begun.append(begun)
        return begun

    def _run(self) -> None:
        try:
            for jobs in self._source:
                with self._changed:
                    self._waiting.extend(jobs)
                    self._changed.notify_all()
                while self._run_next() and not self._is_short():
                    pass
                if self._closed or self._failed:
                    break
        except BaseException as caught:  # noqa: BLE001 - whatever it is, it belongs to the thread that takes
            self._error = caught
        while self._run_next():
            pass
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _run_next(self) -> bool:
        with self._changed:
            begun = self._begin(is_ahead=True)
            if self._waiting:
                self._changed.notify_all()  # the consumer may run the one behind it
        if begun is not None:
            self._carry_out(begun)
        return begun is not None

    def _is_short(self) -> bool:
        """Whether few jobs wait, all of which might be run while the source is asked for more."""
        with self._changed:
            return len(self._waiting) < READY_JOBS_MIN and all(job.is_ready() for job in self._waiting)

    def _carry_out(self, begun: _Begun[T]) -> None:
        error: BaseException | None = None
        try:
            for item in begun.job.run():
                if not self._put(begun, item):
                    break
                # what was given away must not be held here, or its memory could not be used again
                del item
        except BaseException as caught:  # noqa: BLE001 - it comes out of `take` behind the items before it
            error = caught
        with self._changed:
            begun.error, begun.is_over = error, True
            if error is not None:
                self._failed = True
                self._waiting.clear()
            self._changed.notify_all()
        if error is not None and not begun.is_ahead and not isinstance(error, Exception):
            raise error  # the user's own interrupt, who is not to wait for items

    def _put(self, begun: _Begun[T], item: T) -> bool:
        weight = self._weight(item) * begun.is_ahead
        with self._changed:
            # without a deadline on purpose: a training step may take any time, and close ends the wait
            self._changed.wait_for(
                lambda: self._closed or not weight or not self._held or self._held + weight <= self._depth
            )
            if self._closed:
                return False
            begun.items.append(item)
            self._count(begun, self._weight(item))
            self._changed.notify_all()
            return True


#: those of this process whose threads may run
_RUNNING: "weakref.WeakSet[BatchPrefetcher[Any]]" = weakref.WeakSet()
_OWNER: Final = os.getpid()


@atexit.register
def _close_all() -> None:
    # in a forked process the threads are not there, and what they held locked is locked for ever
    if os.getpid() == _OWNER:
        for running in list(_RUNNING):
            running.close(EXIT_S_MAX)
