"""Making the batches of one rank, or one worker's part of them, from a place in the sequence to the end of its pass."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np

from headrace.loader.assemble import Batch, Buffers, assemble_batches
from headrace.loader.mixture import Mixture
from headrace.loader.order import I64
from headrace.loader.plan import Cut, Offered
from headrace.loader.sources import Sources

T = TypeVar("T")

#: rows whose places are computed at once: enough that the cost a row stays near 0.1 us whatever the batch size
PLAN_ROWS: Final = 4096
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
        shards, rows = task.mixture.locate(positions)
        for begin in range(0, part.size, together):
            chosen = part[begin : begin + together]
            span = slice(begin * cut.batch_size, (begin + chosen.size) * cut.batch_size)
            yield from _chunk(task, chosen, positions[span], shards[span], rows[span], buffers, transform)
        at += planned
        together = min(together * 2, together_max)
        planned = min(planned * 4, steps_at_once)


def _chunk(
    task: Task,
    steps: I64,
    positions: I64,
    shards: I64,
    rows: I64,
    buffers: Buffers,
    transform: Callable[[Batch], T],
) -> Iterator[list[Made[T]]]:
    try:
        yield _make(task, steps, positions, shards, rows, buffers, transform)
    except Exception:
        if steps.size == 1:
            raise
        # one bad shard must not take the good batches before it along
        size = task.cut.batch_size
        for number in range(steps.size):
            span = slice(number * size, (number + 1) * size)
            yield _make(
                task, steps[number : number + 1], positions[span], shards[span], rows[span], buffers, transform
            )


def _make(
    task: Task,
    steps: I64,
    positions: I64,
    shards: I64,
    rows: I64,
    buffers: Buffers,
    transform: Callable[[Batch], Any],
) -> list[Made[Any]]:
    began = time.perf_counter()
    size = task.cut.batch_size
    in_pass = positions - task.pass_ * task.mixture.samples
    batches = assemble_batches(task.sources, in_pass, shards, rows, size, steps.size, buffers)
    sources = np.full(size * steps.size, -1, dtype=np.int32)
    sources[: shards.size] = task.mixture.source_of(shards)
    places: list[tuple[int, int]] = []
    for number, (batch, step) in enumerate(zip(batches, steps.tolist(), strict=True)):
        after = task.offered.after(min((step + 1) * task.cut.stride, task.offered.count))
        places.append((after, task.step + step + 1))
        batch["sources"] = sources[number * size : (number + 1) * size]
        position = after - task.pass_ * task.mixture.samples
        batch["state"] = np.array([task.pass_, position, task.step + step + 1], dtype=np.int64)
    items = [transform(batch) for batch in batches]
    each_s = (time.perf_counter() - began) / len(items)
    return [
        Made(item, max(0, min(size, positions.size - number * size)), after, step, each_s)
        for number, (item, (after, step)) in enumerate(zip(items, places, strict=True))
    ]
