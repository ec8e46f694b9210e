"""One iteration as it runs: the thread that makes its batches, and those that have read what comes next."""

import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from headrace.loader.batch import Batch, Made, Task, produce
from headrace.loader.dataset import Sources
from headrace.loader.order import Hosted
from headrace.loader.prefetch import Ahead, Prefetcher, Readahead

T = TypeVar("T")


class Running(Generic[T]):
    """Makes the batches of `task`, `depth` ahead, or with 0 as they are taken. `stop` ends what its threads wait for.

    Any thread may close it, more than once. It does not keep the loader alive.
    """

    def __init__(
        self, task: Task, sources: Sources, hosted: Hosted, depth: int, transform: Callable[[Batch], T],
        stop: threading.Event,
    ) -> None:  # fmt: skip
        self._stop = stop
        followers: list[Ahead | Readahead] = [Readahead(sources, task.mixture, hosted)]
        if depth and any(dataset.cache is not None for dataset in sources.datasets):
            followers.insert(0, Ahead(sources, task.mixture, hosted))
        self._followers = followers

        def moved(position: int) -> None:
            for follower in followers:
                follower.moved(position)

        jobs = produce(task, transform, moved)
        #: None where batches are made as they are taken
        self.prefetcher = Prefetcher(jobs, depth, len, on_close=stop.set) if depth else None
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
