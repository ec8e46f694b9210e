"""How much a rank makes ahead of its reader, and what keeps the memory of it."""

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from headrace.loader.batch.fields import chosen_fields
from headrace.loader.batch.producer import CHUNK_BYTES, PREFETCH_DEFAULT, PREFETCH_MIN, prefetch_of
from headrace.loader.loader import Batch, Loader
from headrace.loader.prefetch.batch_prefetcher import BatchPrefetcher, Job

PATIENCE_S = 120.0
#: in which what must not come would
SHORTLY_S = 0.2
EVERY_FIELD = chosen_fields(None).token_bytes


@pytest.mark.parametrize(
    ("tokens", "ahead"), [(1, 8), (32 * 2048, 8), (1 << 18, 8), (64 * 8192, 4), (1 << 20, 2), (1 << 31, 2)]
)
def test_fewer_batches_are_made_ahead_where_they_are_large(tokens: int, ahead: int):
    assert prefetch_of(tokens * EVERY_FIELD, by_worker=False) == ahead


def test_a_worker_process_makes_few_batches_ahead_of_a_data_loader():
    assert prefetch_of(EVERY_FIELD, by_worker=True) == PREFETCH_MIN < PREFETCH_DEFAULT


class Counted:
    """A transform that counts, and says when so many batches were made."""

    def __init__(self) -> None:
        self.made = 0
        self._changed = threading.Condition()

    def __call__(self, batch: Batch) -> int:
        with self._changed:
            self.made += 1
            self._changed.notify_all()
        return int(batch["positions"][0])

    def wait_for(self, count: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.made >= count, PATIENCE_S)


@pytest.mark.parametrize(
    ("arguments", "is_worker", "depth", "ahead"),
    # jobs are of one batch, twice of two, then of four; of those behind the first what fits, and one that waits
    [
        ({}, False, 8, 1 + (2 + 2 + 4) + 4),
        ({"prefetch": 3}, False, 3, 1 + 2 + 2),
        ({}, True, 2, 1 + 2 + 2),
        ({"prefetch": 1}, True, 1, 1 + 1 + 1),
    ],
)
def test_during_the_first_batch_so_many_are_made_and_no_more(
    thousand_dataset: str, arguments: dict[str, int], is_worker: bool, depth: int, ahead: int
):
    loader = Loader(thousand_dataset, batch_size=4, **arguments)  # type: ignore[arg-type]
    if is_worker:
        loader.share_steps(0, 1)
    counted = Counted()
    batches = loader.iterate(counted)
    assert next(batches) == 0
    assert counted.wait_for(ahead)
    assert loader._running is not None
    prefetcher = loader._running.prefetcher
    assert prefetcher is not None
    assert not prefetcher._helped
    assert prefetcher._depth == depth
    assert loader.position == 4
    loader.close()
    assert not prefetcher._thread.is_alive()
    assert counted.made == ahead


def test_items_that_come_several_at_once_count_singly():
    made = threading.Semaphore(0)
    count = 0

    def several() -> list[list[int]]:
        nonlocal count
        count += 1
        made.release()
        return [[count] * 4]

    def jobs() -> Iterator[list[Job[list[int]]]]:
        while True:
            yield [Job(several)]

    prefetcher = BatchPrefetcher(jobs(), 6, len)
    for _ in range(2):
        assert made.acquire(timeout=PATIENCE_S)
    assert prefetcher.take() == [1] * 4
    assert made.acquire(timeout=PATIENCE_S)
    # four wait, and four more are made, which find no room
    assert not made.acquire(timeout=SHORTLY_S)
    assert prefetcher._held == 4
    prefetcher.close()
    assert count == 3


def test_a_batch_larger_than_a_job_is_made_alone(make_dataset: Callable[..., str]):
    rows = CHUNK_BYTES // (EVERY_FIELD * 1024) + 1
    loader = Loader(make_dataset(sequences=(rows * 4,), seq_len=1024), batch_size=rows)
    iterator = iter(loader)
    next(iterator)
    assert loader._running is not None
    prefetcher = loader._running.prefetcher
    assert prefetcher is not None
    assert all(len(prefetcher.take()) == 1 for _ in range(3))
    loader.close()


def test_kept_tensors_leave_the_memory_of_batches_to_the_next(thousand_dataset: str):
    pytest.importorskip("torch")
    from headrace.loader.torch import TorchLoader

    loader = Loader(thousand_dataset, batch_size=8, prefetch=0)
    kept = list(TorchLoader(loader))
    assert len(kept) == 125
    assert len(loader._buffers._sets) == 1
    plain = Loader(thousand_dataset, batch_size=8, prefetch=0)
    assert all(np.array_equal(ours["loss_mask"], one["loss_mask"]) for ours, one in zip(kept, plain, strict=True))
