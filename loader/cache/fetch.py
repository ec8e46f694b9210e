"""One object from a store by parallel ranged reads, of which the slowest are hedged.

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
from functools import partial
from typing import Final, Generic, TypeVar

from headrace.loader.order import LoaderClosed, LoaderError
from headrace.store import ObjectStore, StoreError, StoreStalled, StoreUnavailable

PART_BYTES: Final = 8 << 20
#: threads that read parts, over all objects that one cache fetches at once
THREADS_DEFAULT: Final = 16
#: how long a thread waits for another job before it ends
IDLE_S_MAX: Final = 10.0
#: a request is hedged when it takes this many times the median one, and no sooner than this
HEDGE_FACTOR: Final = 3.0
HEDGE_S_MIN: Final = 0.25
#: of the requests of a cache, at most one in so many is hedged (and at least one)
HEDGE_EVERY: Final = 8
#: attempts at a request that fails or is late
ATTEMPTS_MAX: Final = 3
FETCH_S_MAX: Final = 600.0
#: between two looks at whether anybody still wants what is asked for
LOOK_S: Final = 0.05

T = TypeVar("T")


def never() -> bool:
    """Never stop."""
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
    #: requests, and how many of them were made a second time
    requests: int = 0
    hedges: int = 0
    retries: int = 0
    #: when a part of an object is late, and when the head of a shard is
    parts: "Hedge" = field(init=False)
    heads: "Hedge" = field(init=False)
    #: notified when blocks arrived that somebody waits for
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.parts, self.heads = Hedge(self), Hedge(self)

    def came(self, size: int) -> None:
        """Count bytes that were read from a store; any thread may."""
        with self.changed:
            self.bytes += size


class Hedge:
    """When a request of one kind is late, and made a second time: after a multiple of what such requests take.

    Of all requests of a cache at most one in `HEDGE_EVERY` is made twice, and at least one.
    """

    __slots__ = ("_counts", "_took_s")

    def __init__(self, counts: FetchCounts) -> None:
        self._counts = counts
        #: newest last
        self._took_s: deque[float] = deque(maxlen=256)

    def took(self, seconds: float) -> None:
        """Learn how long a request took, or a piece of its answer."""
        self._took_s.append(seconds)

    def limit_s(self) -> float:
        """Seconds after which a request is late."""
        if not self._took_s:
            return HEDGE_S_MIN * 4
        return max(HEDGE_S_MIN, HEDGE_FACTOR * statistics.median(list(self._took_s)))

    def begin(self) -> bool:
        """Whether a late request may be made again now; it counts as made."""
        if self._counts.hedges > self._counts.requests // HEDGE_EVERY:
            return False
        self._counts.hedges += 1
        return True


def not_wanted(key: str) -> LoaderClosed:
    """What a wait for something of an object raises once the loop that needs it has ended."""
    return LoaderClosed(f"{key!r}: the iteration that needs it was ended; iterate the loader anew")


@dataclass(slots=True, eq=False)
class _Request(Generic[T]):
    ask: Callable[[], T]
    #: is given the first answer
    take: Callable[[T], None]
    attempts: int = 0
    running: int = 0
    failures: int = 0
    is_done: bool = False
    #: when a thread began the newest attempt
    began: float | None = None


class HedgedRequests(Generic[T]):
    """Requests for one object: each is made again where it is late or fails, and its first answer is taken.

    They run on threads of `pool`, so that the caller can stop waiting. `drop` is given each answer that is not taken.
    """

    def __init__(
        self, key: str, pool: Pool, counts: FetchCounts, hedge: Hedge, drop: Callable[[T], None] | None = None
    ) -> None:
        self._key, self._pool, self._counts, self._hedge, self._drop = key, pool, counts, hedge, drop
        self._requests: list[_Request[T]] = []
        self._changed = threading.Condition()
        self._error: Exception | None = None

    def add(self, ask: Callable[[], T], take: Callable[[T], None], *, first: bool = False) -> None:
        """Make a request; `first`, before those that wait for a thread. `take` may raise OSError."""
        self._counts.requests += 1
        request = _Request(ask, take)
        self._requests.append(request)
        self._submit(request, first=first)

    def wait(self, timeout_s: float = FETCH_S_MAX, stopped: Callable[[], bool] = never) -> None:
        """Return when all answers were taken.

        Raises the store's errors, LoaderError, and LoaderClosed once `stopped`; no answer is taken after that.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            try:
                while self._error is None and not all(one.is_done for one in self._requests):
                    now = time.monotonic()
                    if stopped():
                        raise not_wanted(self._key)
                    if now > deadline:
                        raise LoaderError(f"{self._key!r} did not arrive within {timeout_s:.0f} s")
                    self._changed.wait(min(self._hedge_late(now), deadline - now, LOOK_S))
            except BaseException as error:
                # what `take` writes to belongs to the caller, who will close it
                self._error = error if isinstance(error, Exception) else not_wanted(self._key)
                raise
        if self._error is not None:
            raise self._error

    def _hedge_late(self, now: float) -> float:
        """Make late requests a second time; seconds until the next may be late."""
        wait_s = limit_s = self._hedge.limit_s()
        for one in self._requests:
            if one.is_done or one.began is None or one.running != 1 or one.attempts >= ATTEMPTS_MAX:
                continue
            left_s = one.began + limit_s - now
            if left_s > 0:
                wait_s = min(wait_s, left_s)
            elif self._hedge.begin():
                self._submit(one, first=True)
        return wait_s

    def _submit(self, request: _Request[T], *, first: bool) -> None:
        request.attempts += 1
        request.running += 1
        self._pool.submit(lambda: self._run(request), first=first)

    def _run(self, request: _Request[T]) -> None:
        if request.is_done or self._error is not None:
            return
        began = request.began = time.monotonic()
        try:
            answer = request.ask()
        except Exception as error:  # noqa: BLE001 - it belongs to the thread that waits
            with self._changed:
                self._failed(request, error)
                self._changed.notify_all()
            return
        with self._changed:
            request.running -= 1
            is_taken = not request.is_done and self._error is None
            if is_taken:
                self._take(request, answer, time.monotonic() - began)
            self._changed.notify_all()
        if not is_taken and self._drop is not None:
            self._drop(answer)

    def _take(self, request: _Request[T], answer: T, took_s: float) -> None:
        try:
            request.take(answer)
        except OSError as error:
            self._error = error
            return
        request.is_done = True
        self._hedge.took(took_s)

    def _failed(self, request: _Request[T], error: Exception) -> None:
        request.running -= 1
        request.failures += 1
        if request.is_done or request.running:
            return
        # a store that has stalled was asked many times, for as long as it is given to start again
        is_final = not isinstance(error, StoreUnavailable) or isinstance(error, StoreStalled)
        if is_final or request.failures >= ATTEMPTS_MAX:
            self._error = error if isinstance(error, StoreError) else LoaderError(f"{self._key!r}: {error!r}")
            return
        self._counts.retries += 1
        request.began = None
        self._submit(request, first=True)


def fetch_object(
    store: ObjectStore,
    key: str,
    size: int,
    write: Callable[[int, bytes], None],
    pool: Pool,
    counts: FetchCounts,
    *,
    stopped: Callable[[], bool] = never,
    timeout_s: float = FETCH_S_MAX,
) -> None:
    """Read an object of `size` bytes in parts of PART_BYTES; each is passed to `write(offset, data)` once.

    Raises the store's errors, LoaderError, and LoaderClosed once `stopped`.
    """

    def read(offset: int, length: int) -> bytes:
        data = store.get(key, offset, length)
        if len(data) != length:
            raise StoreUnavailable(
                f"{store.uri}: {key!r} gave {len(data)} of {length} bytes at {offset}; the object was cut short, "
                "restore it"
            )
        return data

    requests: HedgedRequests[bytes] = HedgedRequests(key, pool, counts, counts.parts)
    for at in range(0, size, PART_BYTES):
        requests.add(partial(read, at, min(PART_BYTES, size - at)), partial(write, at))
    requests.wait(timeout_s, stopped)
    counts.came(size)


def first_answer(
    ask: Callable[[], T],
    key: str,
    pool: Pool,
    counts: FetchCounts,
    *,
    drop: Callable[[T], None],
    stopped: Callable[[], bool] = never,
) -> T:
    """The first answer to one request, of those that come for the head of a shard; `drop` is given any other.

    Raises the store's errors, and LoaderClosed once `stopped`.
    """
    answers: list[T] = []
    requests = HedgedRequests(key, pool, counts, counts.heads, drop)
    requests.add(ask, answers.append, first=True)
    requests.wait(stopped=stopped)
    return answers[0]
