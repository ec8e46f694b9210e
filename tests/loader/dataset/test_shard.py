"""A shard that several threads look into at once."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from headrace.loader.batch.compiled import KERNELS, CompiledIndex
from headrace.loader.dataset.shard import Shard
from headrace.store.contract.errors import FormatError

#: Seconds that a thread which builds an index has to be joined by another that does.
THREADS, MEET_S_MAX = 8, 0.2


MEETING = threading.Barrier(2)


class ShardOfMeetings(Shard):
    """A shard on whose index a thread goes on building when a second one does so too, if ever."""

    __slots__ = ("builds",)

    def _build_index(self, indexer: Any) -> Any:
        self.builds = getattr(self, "builds", 0) + 1
        with contextlib.suppress(threading.BrokenBarrierError):
            MEETING.wait(timeout=MEET_S_MAX)
        return super()._build_index(indexer)


def test_threads_that_share_a_shard_get_addresses_of_one_index() -> None:
    pieces = {"sequence": [0, 1], "start": [0, 0], "length": [4, 3], "document": [0, 1]}
    arrays = {f"piece_{name}": np.array(values, dtype=np.int32) for name, values in pieces.items()}
    shard = ShardOfMeetings("a", {"tokens": np.zeros((2, 4), dtype=np.uint32), **arrays}, 2, 4)
    start = threading.Barrier(THREADS)

    def look(_: int) -> tuple[int, int, int]:
        start.wait(timeout=300)
        return shard.addresses()

    with ThreadPoolExecutor(THREADS) as threads:
        seen = set(threads.map(look, range(THREADS)))
    assert len(seen) == 1, "the memory of an index that was replaced is no longer held by anyone"
    assert shard.builds == 1


ROWS, SEQ_LEN = 5, 12
#: what a damaged piece has where its sequence, start, length, document or repeated tokens stand
WRONG = st.tuples(st.integers(0, 4), st.sampled_from([-(2**31), -1, 0, 5, 12, 13, 2**31 - 1]))


def shard_of(pieces: list[tuple[int, ...]]) -> Shard:
    names = ("sequence", "start", "length", "document", "repeated")
    table = np.array(pieces, dtype=np.int32).reshape(-1, 5)
    arrays = {f"piece_{name}": np.ascontiguousarray(table[:, at]) for at, name in enumerate(names)}
    for array in arrays.values():
        array.flags.writeable = False
    return Shard("a", {"tokens": np.zeros((ROWS, SEQ_LEN), dtype=np.uint32), **arrays}, ROWS, SEQ_LEN)


def looked_up(shard: Shard, rows: range) -> list[Any] | None:
    """Pieces of each row, or None where the shard is refused."""
    try:
        return [shard.row_pieces(row).tolist() for row in rows]
    except FormatError:
        return None


@given(
    cuts=st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(0, SEQ_LEN), st.integers(0, 3)), max_size=25),
    shuffled=st.randoms(use_true_random=False),
    damage=st.none() | WRONG,
)
@settings(max_examples=300, deadline=None)
def test_the_compiled_index_equals_that_of_numpy_or_is_refused(
    cuts: list[tuple[int, int, int]], shuffled: Any, damage: tuple[int, int] | None
) -> None:
    assert KERNELS.wait(300), KERNELS.error
    pieces = []
    for row in range(ROWS):
        bounds = sorted({0, SEQ_LEN, *(at for of, at, _ in cuts if of == row)})
        pieces += [
            (row, begin, end - begin, number, min(number % 3, end - begin))
            for number, (begin, end) in enumerate(pairwise(bounds))
            if not any((row, begin, 0) == cut for cut in cuts)
        ]
    shuffled.shuffle(pieces)
    if damage is not None and pieces:
        column, value = damage
        pieces[0] = (*pieces[0][:column], value, *pieces[0][column + 1 :])
    by_numpy, compiled = shard_of(pieces), shard_of(pieces)
    expected: Any = None
    with contextlib.suppress(FormatError):
        by_numpy.addresses()
        expected = looked_up(by_numpy, range(ROWS))
    if expected is None:
        with pytest.raises(FormatError, match="pieces lie outside"):
            compiled.addresses(CompiledIndex(KERNELS.get()))
    else:
        compiled.addresses(CompiledIndex(KERNELS.get()))
        assert looked_up(compiled, range(ROWS)) == expected


def test_pieces_in_slow_orders_are_sorted_by_numpy() -> None:
    assert KERNELS.wait(300), KERNELS.error
    backwards = np.arange(999, -1, -1, dtype=np.int32)
    ones, zeros = np.ones(1000, np.int32), np.zeros(1000, np.int32)
    arrays = {"sequence": zeros, "start": backwards, "length": ones, "document": backwards, "repeated": zeros}
    pointers, table = np.empty(2, np.int64), np.empty((1000, 4), np.int32)
    assert not CompiledIndex(KERNELS.get())(list(arrays.values()), 1000, pointers, table)
    named = {f"piece_{name}": array for name, array in arrays.items()}
    shard = Shard("a", {"tokens": np.zeros((1, 1000), dtype=np.uint32), **named}, 1, 1000)
    shard.addresses(CompiledIndex(KERNELS.get()))
    assert shard.row_pieces(0)[:, 0].tolist() == list(range(1000))
