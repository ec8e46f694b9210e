"""The loader: a dataset in one global order, as batches for one rank, with exact and elastic resume.

A pass is one sequence of positions 0..N-1 (`headrace.loader.order`). With the state at position P, world size W and
batch size B, the next step reads positions P..P+W*B-1, and rank r takes the contiguous slice P+r*B..P+(r+1)*B-1.
So all ranks hold the same position after the same step, any of their states serves all, and a state loaded at
another W or B goes on with the same samples in the same order.

Every rank makes the same number of steps. Where fewer than W*B samples are left, `last` decides for all ranks alike:
"drop" ends the pass before them (the state still names their position, and a smaller global batch could read them),
"pad" fills the batch with rows of padding.
"""

import enum
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np

from headrace.loader.assemble import Batch, assemble
from headrace.loader.dataset import TokenDataset, open_dataset
from headrace.loader.errors import LoaderClosed, LoaderError
from headrace.loader.order import BLOCK_ROWS_DEFAULT, CONSTRUCTION, WINDOW_BLOCKS_DEFAULT, Order, OrderMode
from headrace.loader.prefetch import Prefetcher
from headrace.loader.state import STATE_FORMAT, check_state

T = TypeVar("T")

#: batches made ahead of the one in use
PREFETCH_DEFAULT: Final = 4
#: rows whose places are computed at once: enough that the cost a row stays near 0.1 us whatever the batch size
PLAN_ROWS: Final = 4096
#: cu_seqlens counts tokens of a flattened batch in int32
BATCH_TOKENS_MAX: Final = (1 << 31) - 1


class LastBatch(enum.Enum):
    """What becomes of the samples that do not fill a global batch at the end of a pass."""

    DROP = "drop"
    PAD = "pad"


@dataclass(frozen=True, slots=True)
class LoaderStatistics:
    """Counts since the loader was made, of what its caller received."""

    batches: int
    #: rows, those that pad a last batch not counted
    samples: int
    #: tokens of these rows, the padding inside of them counted
    tokens: int
    #: how long the caller waited for batches, in seconds
    data_wait_s: float
    #: how long assembling the received batches took, on whichever thread, in seconds
    assemble_s: float
    verified_shards: int
    verified_bytes: int


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a pass is cut into batches of one rank."""

    batch_size: int
    rank: int
    world_size: int
    last: LastBatch

    @property
    def stride(self) -> int:
        """Samples a step, over all ranks."""
        return self.batch_size * self.world_size

    def steps(self, left: int) -> int:
        return left // self.stride if self.last is LastBatch.DROP else -(-left // self.stride)


@dataclass(frozen=True, slots=True)
class _Made(Generic[T]):
    item: T
    samples: int
    #: the state's position once the caller has this batch
    position: int
    assemble_s: float


class Loader:
    """Batches of one rank, as dicts of numpy arrays (`headrace.loader.assemble.Batch`).

    `dataset` is a TokenDataset or its URI. `batch_size` is in sequences, per rank. `order` is "windowed",
    "sequential" or "full"; `window_blocks` and `block_rows` shape the windowed one. `last` is "drop" or "pad".
    `prefetch` is how many batches a thread makes ahead; with 0 they are made when asked for.

    Iterating goes on from the state, and after the end of a pass the next iteration begins the next pass.
    Only one iteration lives at a time: a new one, `close` and `load_state_dict` end it. Errors of reading come out of
    the iterator. Raises LoaderError where a pass has no step, ValueError for arguments that make no sense.
    """

    def __init__(
        self,
        dataset: TokenDataset | str,
        *,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        pass_: int = 0,
        order: OrderMode | str = OrderMode.WINDOWED,
        window_blocks: int = WINDOW_BLOCKS_DEFAULT,
        block_rows: int = BLOCK_ROWS_DEFAULT,
        last: LastBatch | str = LastBatch.DROP,
        prefetch: int = PREFETCH_DEFAULT,
    ) -> None:
        if batch_size < 1 or prefetch < 0:
            raise ValueError(f"batch_size is at least 1 and prefetch at least 0, got {batch_size} and {prefetch}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must lie in [0, world_size), got rank {rank} of {world_size}")
        self.dataset = open_dataset(dataset) if isinstance(dataset, str) else dataset
        if batch_size * self.dataset.seq_len > BATCH_TOKENS_MAX:
            raise ValueError(f"{batch_size} sequences of {self.dataset.seq_len} tokens pass 2^31 tokens a batch")
        self._cut = _Cut(batch_size, rank, world_size, LastBatch(last))
        self._order = Order(self.dataset.layout, seed, pass_, OrderMode(order), window_blocks, block_rows)
        self._prefetch = prefetch
        self._position = 0
        self._ended = False
        self._iterations = 0
        self._prefetcher: Prefetcher[_Made[Any]] | None = None
        self._counts = {"batches": 0, "samples": 0}
        self._seconds = {"wait": 0.0, "assemble": 0.0}
        if self._cut.steps(self.dataset.layout.samples) == 0:
            raise LoaderError(
                f"{self.dataset!r} cannot fill one global batch of {self._cut.stride} "
                f"(batch_size {batch_size} x world_size {world_size}); lower batch_size, or pass last='pad'"
            )

    @property
    def position(self) -> int:
        """Samples of this pass, over all ranks, up to and including the last batch that the caller received."""
        return self._position

    @property
    def pass_(self) -> int:
        """The number of the pass being read."""
        return self._order.pass_

    @property
    def order(self) -> Order:
        """The order of the pass being read: which row stands at a position, and at which position a row is read."""
        return self._order

    @property
    def steps_left(self) -> int:
        """Batches that are left of this pass, the same on each rank."""
        return self._cut.steps(self.dataset.layout.samples - self._position)

    def __iter__(self) -> Iterator[Batch]:
        return self.iterate(_same)

    def iterate(self, transform: Callable[[Batch], T]) -> Iterator[T]:
        """Like iterating, with `transform` applied to each batch by the thread that makes it.

        The state keeps to what the caller received, whatever was transformed ahead.
        """
        self._end_iteration()
        self._iterations += 1
        return self._run(transform, self._iterations)

    def _run(self, transform: Callable[[Batch], T], iteration: int) -> Iterator[T]:
        if iteration != self._iterations:
            raise LoaderClosed("this iteration was ended before it began; iterate the loader anew")
        if self._ended:
            self._start_pass(self._order.pass_ + 1, 0)
        made = _produce(self.dataset, self._order, self._cut, self._position, transform)
        prefetcher = Prefetcher(made, self._prefetch) if self._prefetch else None
        self._prefetcher = prefetcher
        try:
            while True:
                before = time.perf_counter()
                try:
                    one = prefetcher.take() if prefetcher else next(made)
                except StopIteration:
                    self._ended = True
                    return
                self._received(one, time.perf_counter() - before)
                yield one.item
                if iteration != self._iterations:
                    raise LoaderClosed("this iteration was ended by close, load_state_dict or a newer iteration")
        finally:
            if prefetcher:
                prefetcher.close()

    def _received(self, one: _Made[Any], waited_s: float) -> None:
        self._position = one.position
        self._counts["batches"] += 1
        self._counts["samples"] += one.samples
        self._seconds["wait"] += waited_s
        self._seconds["assemble"] += one.assemble_s

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that the caller received: plain JSON, equal on each rank.

        `position` is in samples of the pass over all ranks, whatever the world size and the batch size.
        """
        return {
            "format": STATE_FORMAT,
            "position": self._position,
            "pass": self._order.pass_,
            "journal": [],
            **self._binding(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; world size, rank and batch size may differ from then.

        Raises StateMismatch with a diff where dataset, tokenizer, seq_len, seed or order differ, else LoaderError.
        """
        pass_, position = check_state(state, self._binding())
        self._end_iteration()
        self._start_pass(pass_, position)

    def statistics(self) -> LoaderStatistics:
        """Counts and times since the loader was made."""
        return LoaderStatistics(
            batches=self._counts["batches"],
            samples=self._counts["samples"],
            tokens=self._counts["samples"] * self.dataset.seq_len,
            data_wait_s=self._seconds["wait"],
            assemble_s=self._seconds["assemble"],
            verified_shards=self.dataset.verified_shards,
            verified_bytes=self.dataset.verified_bytes,
        )

    def close(self) -> None:
        """End the running iteration and its thread; the loader can be iterated again."""
        self._end_iteration()

    def _end_iteration(self) -> None:
        self._iterations += 1
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None

    def _start_pass(self, pass_: int, position: int) -> None:
        old = self._order
        self._order = Order(old.layout, old.seed, pass_, old.mode, old.window_blocks, old.block_rows)
        self._position = position
        self._ended = False

    def _binding(self) -> dict[str, Any]:
        manifest = self.dataset.manifest
        windowed = self._order.mode is OrderMode.WINDOWED
        return {
            "dataset": manifest.dataset,
            "layout_root": self.dataset.layout.root,
            "samples": self.dataset.layout.samples,
            "tokenizer": manifest.tokenizer,
            "seq_len": manifest.seq_len,
            "seed": self._order.seed,
            "order": {
                "mode": self._order.mode.value,
                "construction": CONSTRUCTION,
                "window_blocks": self._order.window_blocks if windowed else None,
                "block_rows": self._order.block_rows if windowed else None,
            },
        }


def _same(batch: Batch) -> Batch:
    return batch


def _produce(
    dataset: TokenDataset, order: Order, cut: _Cut, position: int, transform: Callable[[Batch], T]
) -> Iterator[_Made[T]]:
    """The batches of one rank from `position` to the end of the pass; places are computed for many at a time.

    A function and no method: its thread must not keep an abandoned loader alive.
    """
    samples = order.layout.samples
    steps = cut.steps(samples - position)
    steps_at_once = max(1, PLAN_ROWS // cut.batch_size)
    mine = np.arange(cut.batch_size, dtype=np.int64) + cut.rank * cut.batch_size
    for first in range(0, steps, steps_at_once):
        count = min(steps_at_once, steps - first)
        planned = position + (first + np.arange(count, dtype=np.int64)) * cut.stride
        wanted = (planned[:, None] + mine).reshape(-1)
        wanted = wanted[wanted < samples]
        shards, rows = order.locate(wanted.view(np.uint64))
        for number in range(count):
            began = time.perf_counter()
            part = slice(number * cut.batch_size, (number + 1) * cut.batch_size)
            batch = assemble(dataset, wanted[part], shards[part], rows[part], cut.batch_size)
            item = transform(batch)
            after = min(position + (first + number + 1) * cut.stride, samples)
            yield _Made(item, wanted[part].size, after, time.perf_counter() - began)
