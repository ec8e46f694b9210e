"""Making the batches of one rank, or one worker's part of them, from a place in the sequence to the end of its pass."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.loader.assemble import Assembly, Batch, Buffers
from headrace.loader.errors import LoaderError
from headrace.loader.mixture import Mixture
from headrace.loader.order import I64
from headrace.loader.plan import Cut, Offered
from headrace.loader.sources import Sources
from headrace.store.errors import StoreError

T = TypeVar("T")

#: rows whose places are computed at once: enough that the cost a row stays near 0.2 us whatever the batch size
PLAN_ROWS: Final = 1024
#: tokens assembled at once: enough that numpy's calls cost little, and little enough for a processor's cache
CHUNK_TOKENS: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class Share:
    """Which steps to make: of every `of` steps the `first`-th, and so on. All of them is (0, 1)."""

    first: int
    of: int


@dataclass(frozen=True, slots=True)
class Made(Generic[T]):
    """One batch and where the state stands once the caller has it."""

    item: T
    #: rows that are no padding
    samples: int
    #: absolute
    position: int
    step: int
    assemble_s: float


@dataclass(frozen=True, slots=True)
class Task:
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


def produce(
    task: Task, transform: Callable[[Batch], T], moved: Callable[[int], None] = lambda _: None
) -> Iterator[list[Made[T]]]:
    """The batches to the end of the pass, some at a time; the first alone, so that it comes soon.

    `moved` is told the absolute position before it is read.
    """
    cut, share = task.cut, task.share
    steps = np.arange(share.first, cut.steps(task.offered.count), share.of, dtype=np.int64)
    mine = np.arange(cut.batch_size, dtype=np.int64) + task.rank * cut.batch_size
    together_max = max(1, min(task.batches_max, CHUNK_TOKENS // (cut.batch_size * task.sources.seq_len)))
    steps_at_once = max(together_max, PLAN_ROWS // cut.batch_size)
    buffers = Buffers()
    together, planned = 1, 1
    at = 0
    while at < steps.size:
        part = steps[at : at + planned]
        numbers = (part[:, None] * cut.stride + mine).reshape(-1)
        positions = task.offered.at(numbers[numbers < task.offered.count])
        moved(int(positions[0]) if positions.size else task.offered.end)
        yield from _made(task, part, positions, buffers, together, transform)
        at += planned
        together = min(together * 2, together_max)
        planned = min(planned * 4, steps_at_once)


def _made(
    task: Task, steps: I64, positions: I64, buffers: Buffers, together: int, transform: Callable[[Batch], T]
) -> Iterator[list[Made[T]]]:
    shards, rows = task.mixture.locate(positions)
    sources = np.full(task.cut.batch_size * steps.size, -1, dtype=np.int32)
    sources[: shards.size] = task.mixture.source_of(shards)
    in_pass = positions - task.pass_ * task.mixture.samples
    try:
        began = time.perf_counter()
        assembly = Assembly(task.sources, in_pass, shards, rows, task.cut.batch_size, steps.size, buffers)
        each_s = (time.perf_counter() - began) / steps.size
        for first in range(0, steps.size, together):
            count = min(together, steps.size - first)
            yield _finish(task, steps, assembly, sources, first, count, each_s, transform)
    except (StoreError, LoaderError):
        if steps.size == 1:
            raise
    else:
        return
    # one bad shard must not take the good batches before it along
    size = task.cut.batch_size
    for number in range(steps.size):
        yield from _made(
            task, steps[number : number + 1], positions[number * size : (number + 1) * size], buffers, 1, transform
        )


def _finish(
    task: Task,
    steps: I64,
    assembly: Assembly,
    sources: NDArray[np.int32],
    first: int,
    count: int,
    planned_s: float,
    transform: Callable[[Batch], Any],
) -> list[Made[Any]]:
    began = time.perf_counter()
    size = task.cut.batch_size
    made: list[tuple[Any, int, int]] = []
    for number, batch in enumerate(assembly.batches(first, count), first):
        step = int(steps[number])
        after = task.offered.after(min((step + 1) * task.cut.stride, task.offered.count))
        batch["sources"] = sources[number * size : (number + 1) * size]
        position = after - task.pass_ * task.mixture.samples
        batch["state"] = np.array([task.pass_, position, task.step + step + 1], dtype=np.int64)
        made.append((transform(batch), after, task.step + step + 1))
    each_s = planned_s + (time.perf_counter() - began) / count
    read = task.offered.count
    return [
        Made(item, max(0, min(size, read - int(steps[number]) * task.cut.stride - task.rank * size)), *place, each_s)
        for number, (item, *place) in enumerate(made, first)
    ]
