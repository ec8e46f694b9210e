"""A shard that several threads look into at once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from headrace.loader.shard import Shard

THREADS, BUILD_S = 8, 0.02


class SlowToIndex(Shard):
    """A shard whose index takes long enough for every thread to want it meanwhile."""

    __slots__ = ("builds",)

    def _build_index(self) -> Any:
        self.builds = getattr(self, "builds", 0) + 1
        threading.Event().wait(BUILD_S)
        return super()._build_index()


def test_threads_that_share_a_shard_get_addresses_of_one_index() -> None:
    pieces = {"sequence": [0, 1], "start": [0, 0], "length": [4, 3], "document": [0, 1]}
    arrays = {f"piece_{name}": np.array(values, dtype=np.int32) for name, values in pieces.items()}
    shard = SlowToIndex("a", {"tokens": np.zeros((2, 4), dtype=np.uint32), **arrays}, 2, 4)
    start = threading.Barrier(THREADS)

    def look(_: int) -> tuple[int, int, int]:
        start.wait(timeout=10)
        return shard.addresses()

    with ThreadPoolExecutor(THREADS) as threads:
        seen = set(threads.map(look, range(THREADS)))
    assert len(seen) == 1, "the memory of an index that was replaced is no longer held by anyone"
    assert shard.builds == 1
