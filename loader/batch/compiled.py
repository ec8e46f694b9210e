"""Batches filled by compiled loops (`headrace.loader.batch.kernels`): the same batches as
`headrace.loader.batch.assemble` makes.

Loading the loops takes some tenths of a second, and compiling them, once a machine, some seconds. A resume must not
wait for that, and a job of a few batches should not pay for it. So the first batches are made by numpy, then a thread
loads the loops, and the producer changes over at the next plan once they are there. Nothing but the speed depends on
when that is; tests hold both ways to one reference.
"""

import atexit
import functools
import os
import threading
from collections.abc import Sequence
from math import isqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headrace.loader.batch.assemble import cut
from headrace.loader.batch.buffers import Buffers
from headrace.loader.batch.fields import Batch, Bounds, Placed, small_fields
from headrace.loader.dataset import PieceTable, Shard, Sources
from headrace.loader.order import I64, U64, Loops, Windowed, distinct

#: how long the end of the process, and a fork, wait for loops that are being loaded: LLVM must not run while it is
#: taken down, and what a module is imported under is locked in the child for good where the thread that had it is gone
LOADED_S_MAX: Final = 60.0


class Kernels:
    """The loops of this process, once they are loaded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._module: Any = None
        #: why they could not be loaded; batches are then made by numpy
        self.error: Exception | None = None

    def get(self) -> Any:
        """The module of the loops, or None where they are not loaded."""
        return self._module

    @functools.cached_property
    def loops(self) -> Loops:
        """The arithmetic of orders by the loops, which must be loaded."""
        return Loops(functools.partial(_walk, self._module), functools.partial(_locate, self._module))

    def request(self) -> None:
        """Have them loaded by a thread; a second call does nothing."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._load, name="headrace kernels", daemon=True)
                self._thread.start()
                atexit.register(self.wait_loading)

    def wait(self, timeout_s: float) -> bool:
        """Load them and wait; whether they are there."""
        self.request()
        assert self._thread is not None
        self._thread.join(timeout_s)
        return self._module is not None

    def wait_loading(self) -> None:
        """Return when they are being loaded no more, by another thread than this one."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(LOADED_S_MAX)

    def _load(self) -> None:
        try:
            from headrace.loader.batch import kernels
        except Exception as error:  # noqa: BLE001 - whatever numba fails with, numpy goes on
            self.error = error
        else:
            self._module = kernels


KERNELS = Kernels()


def _after_fork() -> None:
    """A thread does not come along into a forked process; what it had loaded does."""
    module = KERNELS.get()
    KERNELS.__init__()  # type: ignore[misc]
    KERNELS._module = module


os.register_at_fork(before=KERNELS.wait_loading, after_in_child=_after_fork)


def _walk(kernels: Any, values: U64, n: int, keys: Sequence[U64]) -> U64:
    """See `headrace.loader.order.order.walk_forth`; `kernels` is what `Kernels.get` gave."""
    images = np.empty_like(values)
    kernels.walk(np.ascontiguousarray(values), n, isqrt(n - 1) + 1, np.stack(keys), images)
    return images


def _locate(kernels: Any, order: Windowed, places: I64) -> tuple[I64, I64]:
    """See `headrace.loader.order.order.Order.locate`; `kernels` is what `Kernels.get` gave."""
    shards, rows = np.empty_like(places), np.empty_like(places)
    keys = np.stack(order.block_keys)
    kernels.locate(np.ascontiguousarray(places), order.blocks, order.row_key, keys, order.ends, shards, rows)
    return shards, rows


class CompiledIndex:
    """See `headrace.loader.dataset.shard.Indexer`; `kernels` is what `Kernels.get` gave."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels

    def __call__(self, pieces: Sequence[NDArray[Any]], seq_len: int, pointers: I64, table: PieceTable) -> bool:
        """Whether the index could be built."""
        if not all(array.dtype == np.int32 and array.flags.c_contiguous and array.flags.aligned for array in pieces):
            return False
        return bool(self._kernels.index_pieces(*pieces, seq_len, pointers, table))


class CompiledAssembly:
    """See `headrace.loader.batch.assemble.Assembly`; `kernels` is what `Kernels.get` gave."""

    def __init__(
        self, kernels: Any, dataset: Sources, placed: Placed, shards: I64, rows: I64, buffers: Buffers
    ) -> None:
        self._kernels = kernels
        self._dataset = dataset
        self._batch_size = placed.positions.size // placed.batches
        self._buffers = buffers
        numbers = distinct(shards)
        # held for as long as their addresses are used
        self._held: list[Shard] = [dataset.shard(number) for number in numbers.tolist()]
        self._tokens_at = np.array([shard.tokens.ctypes.data for shard in self._held], dtype=np.uint64)
        self._narrow = np.array([shard.tokens.dtype == np.uint16 for shard in self._held], dtype=np.bool_)
        self._which = np.searchsorted(numbers, shards)
        #: which of the held shards come block by block
        self._arriving = [at for at, shard in enumerate(self._held) if shard.arriving is not None]
        self._rows = np.ascontiguousarray(rows)
        bounds = None
        if buffers.fields.need_segments or any(shard.hides for shard in self._held):
            bounds = self._find_segments(numbers, placed.batches)
        self._is_plain = bounds is None
        self._small = small_fields(buffers.fields, placed, bounds)

    @property
    def is_ready(self) -> bool:
        """Whether all rows are there, so that any thread makes batches without waiting."""
        return not self._arriving

    def _find_segments(self, numbers: I64, count: int) -> Bounds:
        indexer = CompiledIndex(self._kernels)
        addresses = np.array([shard.addresses(indexer) for shard in self._held], dtype=np.uint64).reshape(-1, 2)
        pointers_at, tables_at = (np.ascontiguousarray(column) for column in addresses.T)
        # padding lies before pieces and behind the last, at most
        rows = self._batch_size * count
        most = 2 * int(self._kernels.count_pieces(pointers_at, self._which, self._rows)) + rows
        self._cu_seqlens = np.empty(most + count, dtype=np.int32)
        self._documents = np.empty((most, 2), dtype=np.int64)
        self._repeated = np.empty(most, dtype=np.int32)
        self._edges = np.empty(count + 1, dtype=np.int64)
        longest = np.empty(count, dtype=np.int64)
        self._kernels.find_segments(
            pointers_at, tables_at, numbers, self._which, self._rows, self._batch_size, self._dataset.seq_len,
            self._cu_seqlens, self._documents, self._repeated, self._edges, longest,
        )  # fmt: skip
        return Bounds(self._edges.tolist(), self._cu_seqlens, longest.tolist(), self._documents)

    def _wait(self, first: int, end: int) -> None:
        """Return when rows `first` to `end` are there."""
        for at in self._arriving:
            self._held[at].wait(self._rows[first:end][self._which[first:end] == at], self._dataset.stopped)
        self._arriving = [at for at in self._arriving if self._held[at].arriving is not None]

    def batches(self, first: int, count: int) -> list[Batch]:
        """Batches `first` to `first + count`, as views of one memory. Raises the store's errors."""
        size = self._batch_size
        if self._arriving:
            self._wait(first * size, (first + count) * size)
        wide = self._buffers.take(size * count, self._dataset.seq_len)
        if self._is_plain:
            self._kernels.copy_rows(
                self._tokens_at, self._narrow, self._which, self._rows, first * size, self._dataset.pad_id, wide.tokens
            )
        else:
            self._kernels.fill(
                self._tokens_at, self._narrow, self._which, self._rows, self._cu_seqlens, self._documents,
                self._repeated, self._edges, first, size, self._dataset.pad_id,
                wide.tokens, wide.labels, wide.mask, wide.position_ids,
            )  # fmt: skip
        batches = cut(wide, self._small[first : first + count])
        self._buffers.keep(wide)
        return batches
