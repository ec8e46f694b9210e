"""A shard that several threads look into at once."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from headrace.loader.shard import Shard

#: Seconds that a thread which builds an index has to be joined by another that does.
THREADS, MEET_S_MAX = 8, 0.2


MEETING = threading.Barrier(2)


class ShardOfMeetings(Shard):
    """A shard on whose index a thread goes on building when a second one does so too, if ever."""

    __slots__ = ("builds",)

    def _build_index(self) -> Any:
        self.builds = getattr(self, "builds", 0) + 1
        with contextlib.suppress(threading.BrokenBarrierError):
            MEETING.wait(timeout=MEET_S_MAX)
        return super()._build_index()


def test_threads_that_share_a_shard_get_addresses_of_one_index() -> None:
    pieces = {"sequence": [0, 1], "start": [0, 0], "length": [4, 3], "document": [0, 1]}
    arrays = {f"piece_{name}": np.array(values, dtype=np.int32) for name, values in pieces.items()}
    shard = ShardOfMeetings("a", {"tokens": np.zeros((2, 4), dtype=np.uint32), **arrays}, 2, 4)
    start = threading.Barrier(THREADS)

    def look(_: int) -> tuple[int, int, int]:
        start.wait(timeout=60)
        return shard.addresses()

    with ThreadPoolExecutor(THREADS) as threads:
        seen = set(threads.map(look, range(THREADS)))
    assert len(seen) == 1, "the memory of an index that was replaced is no longer held by anyone"
    assert shard.builds == 1
