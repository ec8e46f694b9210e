"""Making the batches of one rank, or one worker's part of them, from a place in the sequence to the end of its pass."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from headrace.loader.batch.assemble import Assembly
from headrace.loader.batch.buffers import Buffers
from headrace.loader.batch.compiled import KERNELS, CompiledAssembly
from headrace.loader.batch.fields import NOTHING, Batch, Placed
from headrace.loader.dataset import Sources
from headrace.loader.order import I64, Cut, Hosted, LoaderError, Mixture, Offered, distinct
from headrace.loader.prefetch import BatchPrefetcher, Job, Readahead, ShardPrefetcher
from headrace.store import StoreError

T = TypeVar("T")

#: rows whose places are computed at once: enough that the cost a row stays near 0.1 us whatever the batch size
PLAN_ROWS: Final = 4096
#: bytes of wide fields assembled at once. Less stays in a processor's cache; but a job costs a turn of threads, which
#: on a virtual machine takes as long as a batch. 2^18 tokens with every field
CHUNK_BYTES: Final = 13 << 18
#: batches made ahead of the one in use, unless one says otherwise; fewer where they would pass these bytes of wide
#: fields. More than some jobs of `CHUNK_BYTES` spare no turns, and a rank holds twice as many at worst
PREFETCH_DEFAULT: Final = 8
PREFETCH_BYTES: Final = PREFETCH_DEFAULT * CHUNK_BYTES
#: one in the making while another waits; also for a worker process, whose `DataLoader` asks for two ahead by itself
PREFETCH_MIN: Final = 2
#: tokens after which the compiled loops are loaded: a job of a few batches does without
KERNEL_TOKENS: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class Share:
    """Which steps to make: of every `of` steps the `first`-th, and so on. All of them is (0, 1)."""

    first: int
    of: int


class Made(NamedTuple, Generic[T]):
    """One batch and where the state stands once the caller has it; made in a third of a dataclass's time."""

    item: T
    #: rows that are no padding
    samples: int
    #: absolute
    position: int
    step: int
    assemble_s: float


@dataclass(frozen=True, slots=True)
class BatchTask:
    """All that a producing thread knows; it must not keep an abandoned loader alive."""

    sources: Sources
    mixture: Mixture
    cut: Cut
    rank: int
    offered: Offered
    #: of the first step that `offered` offers
    step: int
    pass_: int
    share: Share
    #: batches assembled at once, at most
    batches_max: int
    #: of the fields that are made
    buffers: Buffers


def prefetch_of(batch_bytes: int, *, by_worker: bool) -> int:
    """How many batches are made ahead where nobody says; `batch_bytes` are those of a batch's wide fields."""
    if by_worker:
        return PREFETCH_MIN
    return max(PREFETCH_MIN, min(PREFETCH_DEFAULT, PREFETCH_BYTES // batch_bytes))


def produce(
    task: BatchTask, transform: Callable[[Batch], T], moved: Callable[[int], None] = lambda _: None
) -> Iterator[list[Job[list[Made[T]]]]]:
    """Jobs that make the batches to the end of the pass, planned some at a time; the first alone, so it comes soon.

    `moved` is told an absolute position before it is read, in rising order but where two threads tell it at once: two
    may each run a job.
    """
    cut, share = task.cut, task.share
    # a range and no array: a pass may have 10^9 steps
    steps = range(share.first, cut.steps(task.offered.count), share.of)
    mine = np.arange(cut.batch_size, dtype=np.int64) + task.rank * cut.batch_size
    batch_bytes = cut.batch_size * task.sources.seq_len * task.buffers.fields.token_bytes
    together_max = max(1, min(task.batches_max, CHUNK_BYTES // batch_bytes))
    steps_at_once = max(together_max, PLAN_ROWS // cut.batch_size)
    maker = _Maker(task, transform, moved)
    together, planned = 1, 1
    at = 0
    while at < len(steps):
        part = np.array(steps[at : at + planned], dtype=np.int64)
        numbers = (part[:, None] * cut.stride + mine).reshape(-1)
        positions = task.offered.at(numbers[numbers < task.offered.count])
        yield maker.jobs(part, positions, together)
        at += planned
        if at * cut.batch_size * task.sources.seq_len >= KERNEL_TOKENS:
            KERNELS.request()
        together = min(together * 2, together_max)
        planned = min(planned * 4, steps_at_once)


@dataclass(slots=True)
class _Maker(Generic[T]):
    """What all jobs of a task share."""

    task: BatchTask
    transform: Callable[[Batch], T]
    moved: Callable[[int], None]
    #: the highest position that `moved` was told
    told: int = -1

    def jobs(self, steps: I64, positions: I64, together: int) -> list[Job[list[Made[T]]]]:
        """Jobs for the batches of these steps, so many a job."""
        # the plan opens shards; jobs that wait meanwhile have theirs
        self._tell(positions, 0)
        try:
            planned = _Planned(self.task, steps, positions)
        except (StoreError, LoaderError):
            if steps.size == 1:
                raise
            return [Job(partial(self._singly, steps, positions, at, at + 1)) for at in range(steps.size)]
        return [
            Job(
                partial(self._make, planned, steps, positions, first, min(first + together, steps.size)),
                planned.is_ready,
            )
            for first in range(0, steps.size, together)
        ]

    def _make(self, planned: "_Planned", steps: I64, positions: I64, first: int, end: int) -> Iterator[list[Made[T]]]:
        # steps lie far apart where there are many ranks
        self._tell(positions, first)
        try:
            yield planned.make(first, end - first, self.transform)
        except (StoreError, LoaderError):
            if steps.size == 1:
                raise
            yield from self._singly(steps, positions, first, end)

    def _singly(self, steps: I64, positions: I64, first: int, end: int) -> Iterator[list[Made[T]]]:
        """One bad shard must not take the good batches before it along."""
        size = self.task.cut.batch_size
        for number in range(first, end):
            self._tell(positions, number)
            part = positions[number * size : (number + 1) * size]
            planned = _Planned(self.task, steps[number : number + 1], part)
            yield planned.make(0, 1, self.transform)

    def _tell(self, positions: I64, number: int) -> None:
        """Say that the batch of this number is about to be read; one of padding alone lies behind all positions."""
        at = number * self.task.cut.batch_size
        position = int(positions[at]) if at < positions.size else self.task.offered.end
        if position > self.told:
            self.told = position
            self.moved(position)


class _Planned:
    """Some steps' batches, of which all is computed but the fields with a value a token."""

    def __init__(self, task: BatchTask, steps: I64, positions: I64) -> None:
        began = time.perf_counter()
        size = task.cut.batch_size
        kernels = KERNELS.get()
        if kernels is not None:
            task.mixture.compute_by(KERNELS.loops)
        shards, rows = task.mixture.locate(positions)
        after = task.offered.after((steps + 1) * task.cut.stride)
        self._after: list[int] = after.tolist()
        self._first_step = task.step + 1
        self._steps: list[int] = (steps + self._first_step).tolist()
        placed = Placed(
            np.full(size * steps.size, NOTHING, dtype=np.int64),
            np.full(size * steps.size, NOTHING, dtype=np.int32),
            np.empty((steps.size, 3), dtype=np.int64),
        )
        placed.positions[: positions.size] = positions - task.pass_ * task.mixture.samples
        placed.sources[: shards.size] = task.mixture.source_of(shards)
        placed.states[:, 0] = task.pass_
        placed.states[:, 1] = after - task.pass_ * task.mixture.samples
        placed.states[:, 2] = self._steps
        self._assembly: Assembly | CompiledAssembly
        tight = not task.sources.can_hold(distinct(shards).tolist())
        if kernels is None or tight:
            self._assembly = Assembly(task.sources, placed, shards, rows, task.buffers, tight=tight)
        else:
            self._assembly = CompiledAssembly(kernels, task.sources, placed, shards, rows, task.buffers)
        left = task.offered.count - steps * task.cut.stride - task.rank * size
        self._real: list[int] = np.clip(left, 0, size).tolist()
        self._planned_s = (time.perf_counter() - began) / steps.size

    def is_ready(self) -> bool:
        """Whether batches are made without waiting for a store, and beside others."""
        return self._assembly.is_ready

    def make(self, first: int, count: int, transform: Callable[[Batch], T]) -> list[Made[T]]:
        """Batches `first` to `first + count`."""
        began = time.perf_counter()
        items = [transform(batch) for batch in self._assembly.batches(first, count)]
        each_s = self._planned_s + (time.perf_counter() - began) / count
        return [
            Made(item, self._real[number], self._after[number], self._steps[number], each_s)
            for number, item in enumerate(items, first)
        ]


class Iteration(Generic[T]):
    """The threads of one iteration: batches of `task`, `depth` ahead, or with 0 as they are taken; `stop` ends waits.

    Any thread may close it, more than once. It does not keep the loader alive.
    """

    def __init__(
        self, task: BatchTask, sources: Sources, hosted: Hosted, depth: int, transform: Callable[[Batch], T],
        stop: threading.Event,
    ) -> None:  # fmt: skip
        self._stop = stop
        followers: list[ShardPrefetcher | Readahead] = [Readahead(sources, task.mixture, hosted)]
        if depth and any(dataset.cache is not None for dataset in sources.datasets):
            followers.insert(0, ShardPrefetcher(sources, task.mixture, hosted))
        self._followers = followers

        def moved(position: int) -> None:
            for follower in followers:
                follower.moved(position)

        jobs = produce(task, transform, moved)
        #: None where batches are made as they are taken
        self.prefetcher = BatchPrefetcher(jobs, depth, len, on_close=stop.set) if depth else None
        self._made: Iterator[list[Made[T]]] = (made for some in jobs for job in some for made in job.run())

    def take(self) -> list[Made[T]]:
        """The next batches, at least one. Raises StopIteration at the end, and what making them raised."""
        return self.prefetcher.take() if self.prefetcher else next(self._made)

    def close(self) -> None:
        """End the threads and drop what they made."""
        self._stop.set()
        if self.prefetcher:
            self.prefetcher.close()
        for follower in self._followers:
            follower.close()
