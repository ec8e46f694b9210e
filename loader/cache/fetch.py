"""One object from a store by parallel ranged reads, where the slowest range is asked for a second time.

A large object over one connection moves at that connection's rate, and now and then one request out of many takes
ten times as long as the rest. So an object is cut into parts, several are read at once, and a part that takes much
longer than parts usually do is *hedged*: asked for again, and whichever answer comes first is taken (Dean and Barroso,
"The tail at scale", 2013). Answers that come too late are dropped.
"""

import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from headrace.loader import LoaderClosed, LoaderError
from headrace.store import ObjectStore, StoreError, StoreStalled, StoreUnavailable

PART_BYTES: Final = 8 << 20
#: threads that read parts, over all objects that one cache fetches at once
THREADS_DEFAULT: Final = 16
#: how long a thread waits for another job before it ends
IDLE_S_MAX: Final = 10.0
#: a part is hedged when it takes this many times the median part, and no sooner than this
HEDGE_FACTOR: Final = 3.0
HEDGE_S_MIN: Final = 0.25
#: of the parts of one object, at most one in so many is hedged (and at least one)
HEDGE_EVERY: Final = 8
#: attempts a part whose store does not answer
ATTEMPTS_MAX: Final = 3
FETCH_S_MAX: Final = 600.0
#: between two looks at whether anybody still wants what is asked for
LOOK_S: Final = 0.05

T = TypeVar("T")


def never() -> bool:
    """What says whether to stop, where nobody does."""
    return False


class Pool:
    """Up to `threads` daemon threads that run jobs, and end when there were none for `IDLE_S_MAX`.

    So a process may end while a store hangs, which those of `concurrent.futures` would wait for.
    """

    def __init__(self, threads: int = THREADS_DEFAULT, *, name: str = "headrace fetch") -> None:
        self._threads_max = threads
        self._name = name
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._threads = 0
        self._idle = 0
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()

    def submit(self, job: Callable[[], None], *, first: bool = False) -> None:
        """Run `job`, which must not raise, on one of the threads; `first` puts it before those that wait."""
        if self._process != os.getpid():
            # no thread came along into a forked process, and a lock may have come along locked
            self._begin()
        with self._changed:
            self._jobs.appendleft(job) if first else self._jobs.append(job)
            if self._idle < len(self._jobs) and self._threads < self._threads_max:
                self._threads += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                has_job = self._changed.wait_for(lambda: self._jobs, IDLE_S_MAX)
                self._idle -= 1
                if not has_job:
                    self._threads -= 1
                    return
                job = self._jobs.popleft()
            job()
            # what it holds must not wait for the next job: an open shard is not evicted
            del job


@dataclass(slots=True)
class FetchCounts:
    """What fetching did since it began; shared by all fetches of one cache."""

    bytes: int = 0
    hedges: int = 0
    retries: int = 0
    #: seconds of the parts, newest last; the median decides when to hedge
    part_s: deque[float] = field(default_factory=lambda: deque(maxlen=256))
    #: the same of what `Asked` asked for
    asked_s: deque[float] = field(default_factory=lambda: deque(maxlen=256))
    #: requests that may be hedged
    asked: int = 0
    #: notified when blocks arrived that somebody waits for
    changed: threading.Condition = field(default_factory=threading.Condition)

    def came(self, size: int) -> None:
        """Count bytes that were read from a store; any thread may."""
        with self.changed:
            self.bytes += size


def not_wanted(key: str) -> LoaderClosed:
    """What a wait for something of an object raises once the loop that needs it has ended."""
    return LoaderClosed(f"{key!r}: the iteration that needs it was ended; iterate the loader anew")


class Asked(Generic[T]):
    """One answer of a store, asked for again where it is late or breaks off; `first` returns what comes first.

    `ask` runs on threads of `pool`, so that who waits can stop waiting, and `drop` is given an answer that comes when
    there is one already, or when nobody waits any more.
    """

    def __init__(self, pool: Pool, counts: FetchCounts, ask: Callable[[], T], drop: Callable[[T], None]) -> None:
        self._pool, self._counts, self._ask, self._drop = pool, counts, ask, drop
        self._changed = threading.Condition()
        self._answers: list[T] = []
        self._errors: list[Exception] = []
        self._is_over = False
        self._began: list[float] = []

    def first(self, key: str, stopped: Callable[[], bool] = never) -> T:
        """The answer. Raises what the last attempt met, and LoaderClosed once `stopped`."""
        self._counts.asked += 1
        with self._changed:
            try:
                self._submit()
                while not self._answers:
                    self._look(key, stopped)
                return self._answers[0]
            finally:
                self._is_over = True

    def _look(self, key: str, stopped: Callable[[], bool]) -> None:
        if stopped():
            raise not_wanted(key)
        failed, asked = len(self._errors), len(self._began)
        if failed == asked:
            error = self._errors[-1]
            # a store that has stalled was asked many times, for as long as it is given to start again
            is_final = not isinstance(error, StoreUnavailable) or isinstance(error, StoreStalled)
            if is_final or failed >= ATTEMPTS_MAX:
                raise error
            self._counts.retries += 1
            self._submit()
        elif asked - failed == 1 and asked < ATTEMPTS_MAX and self._is_late():
            self._counts.hedges += 1
            self._submit()
        self._changed.wait(LOOK_S)

    def _is_late(self) -> bool:
        times = list(self._counts.asked_s)
        limit = max(HEDGE_S_MIN, HEDGE_FACTOR * statistics.median(times)) if times else HEDGE_S_MIN * 4
        may = self._counts.hedges <= self._counts.asked // HEDGE_EVERY
        return may and time.monotonic() - self._began[-1] > limit

    def _submit(self) -> None:
        self._began.append(time.monotonic())
        self._pool.submit(self._run, first=True)

    def _run(self) -> None:
        if self._is_over:
            return
        began = time.monotonic()
        try:
            answer = self._ask()
        except Exception as error:  # noqa: BLE001 - it belongs to the thread that waits in first
            with self._changed:
                self._errors.append(error)
                self._changed.notify_all()
            return
        with self._changed:
            is_late = self._is_over or bool(self._answers)
            if not is_late:
                self._answers.append(answer)
                self._counts.asked_s.append(time.monotonic() - began)
                self._changed.notify_all()
        if is_late:
            self._drop(answer)


@dataclass(slots=True)
class _Part:
    offset: int
    length: int
    done: bool = False
    hedged: bool = False
    running: int = 0
    failures: int = 0
    began: float | None = None


class Fetch:
    """One object on its way: `run` returns when all of its parts were written."""

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        size: int,
        write: Callable[[int, bytes], None],
        pool: Pool,
        counts: FetchCounts,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._store, self._key, self._size, self._write = store, key, size, write
        self._pool, self._counts = pool, counts
        self._parts = [_Part(at, min(part_bytes, size - at)) for at in range(0, size, part_bytes)]
        self._hedges_left = max(1, len(self._parts) // HEDGE_EVERY)
        self._open = len(self._parts)
        self._error: Exception | None = None
        self._changed = threading.Condition()

    def run(self, timeout_s: float = FETCH_S_MAX, stopped: Callable[[], bool] = never) -> None:
        """Read all parts; each is passed to `write(offset, data)` once.

        Raises the store's errors, LoaderError, and LoaderClosed once `stopped`.
        """
        try:
            for part in self._parts:
                self._submit(part)
            self._await(timeout_s, stopped)
        except BaseException:
            # what `write` writes to is its caller's, and will be closed
            with self._changed:
                self._error = self._error or LoaderError(f"{self._key!r}: nobody waits for it any more")
            raise
        self._counts.came(self._size)

    def _await(self, timeout_s: float, stopped: Callable[[], bool]) -> None:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._open and self._error is None:
                now = time.monotonic()
                if stopped():
                    self._error = not_wanted(self._key)
                    break
                if now > deadline:
                    self._error = LoaderError(
                        f"{self._store.uri}: {self._key!r} ({self._size} bytes) did not arrive within {timeout_s:.0f} s"
                    )
                    break
                self._changed.wait(min(self._hedge(now), deadline - now, LOOK_S))
        if self._error is not None:
            raise self._error

    def _hedge(self, now: float) -> float:
        """Ask again for parts that take too long; how long until the next may."""
        times = self._counts.part_s
        limit = max(HEDGE_S_MIN, HEDGE_FACTOR * statistics.median(times)) if times else HEDGE_S_MIN * 4
        wait_s = limit
        for part in self._parts:
            if part.done or part.hedged or part.began is None:
                continue
            left = part.began + limit - now
            if left <= 0 and self._hedges_left:
                part.hedged = True
                self._hedges_left -= 1
                self._counts.hedges += 1
                self._submit(part, first=True)
            elif left > 0:
                wait_s = min(wait_s, left)
        return wait_s

    def _submit(self, part: _Part, *, first: bool = False) -> None:
        part.running += 1
        self._pool.submit(lambda: self._read(part), first=first)

    def _read(self, part: _Part) -> None:
        if part.done or self._error is not None:
            return
        began = time.monotonic()
        part.began = part.began or began
        data, error = b"", None
        try:
            data = self._store.get(self._key, part.offset, part.length)
            if len(data) != part.length:
                raise StoreUnavailable(
                    f"{self._store.uri}: {self._key!r} gave {len(data)} of {part.length} bytes at {part.offset}; "
                    "the object was cut short, restore it"
                )
        except Exception as caught:  # noqa: BLE001 - it belongs to the thread that waits in run
            error = caught
        with self._changed:
            part.running -= 1
            if error is not None:
                self._failed(part, error)
            elif not part.done and self._error is None:
                self._arrived(part, data, time.monotonic() - began)
            self._changed.notify_all()

    def _arrived(self, part: _Part, data: bytes, took_s: float) -> None:
        try:
            self._write(part.offset, data)
        except OSError as error:
            self._error = error
            return
        part.done = True
        self._open -= 1
        self._counts.part_s.append(took_s)

    def _failed(self, part: _Part, error: Exception) -> None:
        part.failures += 1
        if part.done or part.running:
            return
        if isinstance(error, StoreUnavailable) and part.failures < ATTEMPTS_MAX:
            self._counts.retries += 1
            self._submit(part, first=True)
        else:
            self._error = error if isinstance(error, StoreError) else LoaderError(f"{self._key!r}: {error!r}")
