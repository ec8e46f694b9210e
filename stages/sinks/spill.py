"""Columns of batches in scratch files while a sink gathers: what is large of the rows waits outside memory.

Of a column that is spilled a batch has two others: where a row's bytes begin in its scratch file, and how many they
are. So rows may be cut out of it as of any batch (`headrace.worker.task.batch.coverage.part`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stages.runtime import Batch, as_column
from headrace.store import ObjectStore
from headrace.store.files import Scratch, near

_Integer = TypeVar("_Integer", np.int32, np.int64)

#: In the place of a value that is null.
_NULL = -1


class SpillFiles:
    """The scratch files of one sink, near its store, of which each holds about `scratch_bytes`."""

    def __init__(self, scratch_bytes: int) -> None:
        self._scratch_bytes = scratch_bytes
        self._scratch: Scratch | None = None

    def put(self, store: ObjectStore, spill: Callable[[Scratch], Batch]) -> Batch:
        """What `spill` makes of a batch and a scratch file; where the disk takes no more, of one in memory."""
        if self._scratch is None or self._scratch.size >= self._scratch_bytes:
            self._scratch = near(store)
        try:
            return spill(self._scratch)
        except OSError:
            self._scratch = Scratch.in_memory()
            return spill(self._scratch)

    def spilled(
        self, batches: Sequence[Batch], store: ObjectStore, spill: Callable[[Batch, Scratch], Batch]
    ) -> list[Batch]:
        """These batches, those spilled that are not yet."""
        return [batch if batch.scratch is not None else self.put(store, partial(spill, batch)) for batch in batches]


def copied(rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """These columns in memory of their own: as they are, they may lie in one piece with what is spilled."""
    return rows.select(names).take(as_column(np.arange(rows.num_rows)))


def spill_strings(batch: Batch, scratch: Scratch, columns: Sequence[str]) -> Batch:
    """The batch with these columns of strings in a scratch file, those of them that it has. Raises OSError."""
    found = [name for name in columns if name in batch.rows.schema.names]
    rows = copied(batch.rows, [name for name in batch.rows.schema.names if name not in found])
    names: list[str] = list(rows.schema.names)
    arrays: list[Any] = list(rows.columns)
    for name in found:
        begins, counts = _append(batch.rows.column(name), scratch)
        names += [_begin(name), _count(name)]
        arrays += [as_column(begins), as_column(counts)]
    return replace(batch, rows=pa.RecordBatch.from_arrays(arrays, names=names), scratch=scratch)


class SpilledStrings:
    """The columns that `spill_strings` has spilled, by the rows of all batches in their order."""

    def __init__(self, batches: Sequence[Batch], columns: Sequence[str]) -> None:
        scratches = {id(batch.scratch): batch.scratch for batch in batches if batch.scratch is not None}
        self._scratches: list[Scratch] = list(scratches.values())
        number = {name: index for index, name in enumerate(scratches)}
        self.columns = tuple(columns)
        rows = [batch.rows.num_rows for batch in batches]
        self._scratch = np.repeat(np.array([number.get(id(batch.scratch), 0) for batch in batches], np.int32), rows)
        self._begins = {name: _joined(batches, _begin(name), np.int64) for name in columns}
        self._counts = {name: _joined(batches, _count(name), np.int32) for name in columns}
        #: `[rows]`: bytes of the spilled columns together
        self.sizes: npt.NDArray[np.int64] = np.zeros(sum(rows), np.int64)
        for counts in self._counts.values():
            self.sizes += np.maximum(counts, 0)

    def column(self, name: str, first: int, end: int) -> pa.Array[Any]:
        """The strings of the rows `first` to `end`, in memory of exactly their size. Raises OSError."""
        begins, counts = self._begins[name][first:end], self._counts[name][first:end]
        sizes = np.maximum(counts, 0)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        data = np.empty(int(offsets[-1]), np.uint8)
        self._read(data.data, self._scratch[first:end], begins, offsets)
        valid = counts != _NULL
        bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little").data)
        buffers = [bits, pa.py_buffer(offsets.astype(np.int32).data), pa.py_buffer(data.data)]
        return pa.Array.from_buffers(pa.string(), len(counts), buffers)

    def _read(
        self,
        target: memoryview,
        scratch: npt.NDArray[np.int32],
        begins: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
    ) -> None:
        """Fill `target`, with one read for all rows that lie end to end in one file."""
        full = np.flatnonzero(np.diff(offsets))
        if not len(full):
            return
        begins, starts, ends, scratch = begins[full], offsets[full], offsets[full + 1], scratch[full]
        joins = (begins[1:] == begins[:-1] + (ends - starts)[:-1]) & (scratch[1:] == scratch[:-1])
        heads = np.flatnonzero(np.concatenate([[True], ~joins]))
        tails = np.append(heads[1:], len(full)) - 1
        columns = (scratch[heads], begins[heads], starts[heads], ends[tails])
        for file, begin, start, end in zip(*(column.tolist() for column in columns), strict=True):
            self._scratches[file].read_into(target[start:end], begin)


def cut_by_size(sizes: npt.NDArray[np.int64], *, bytes_max: int, rows_max: int) -> Iterator[tuple[int, int]]:
    """The rows in runs (first, end), each of which ends behind the row with which it has reached a limit."""
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        end = min(int(np.searchsorted(ends, before + bytes_max, "left")) + 1, first + rows_max, len(sizes))
        yield first, end
        first = end


def slice_rows(batches: Sequence[Batch], first: int, end: int) -> Iterator[Batch]:
    """The kept rows `first` to `end`, counted over all batches, as batches whose verdicts mean nothing."""
    edges = itertools.accumulate((batch.rows.num_rows for batch in batches), initial=0)
    for batch, begin in zip(batches, edges, strict=False):
        low, high = max(first - begin, 0), min(end - begin, batch.rows.num_rows)
        if low < high:
            yield batch.with_rows(batch.rows.slice(low, high - low))


def _append(column: pa.Array[Any], scratch: Scratch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Where each value begins, and how many bytes it has."""
    strings = column.cast(pa.string())
    buffers: Any = strings.buffers()
    _, offset_buffer, data = buffers
    if not len(strings):
        return np.zeros(0, np.int64), np.zeros(0, np.int32)
    ends = np.frombuffer(offset_buffer, np.int32)[strings.offset : strings.offset + len(strings) + 1]
    offsets: npt.NDArray[np.int64] = ends.astype(np.int64)
    low, high = int(offsets[0]), int(offsets[-1])
    at = scratch.append(memoryview(data)[low:high] if data is not None else b"")
    counts = np.diff(ends)
    if strings.null_count:
        counts[np.asarray(strings.is_null())] = _NULL
    return offsets[:-1] - low + at, counts


def _joined(batches: Sequence[Batch], column: str, kind: type[_Integer]) -> npt.NDArray[_Integer]:
    """A hidden column of all batches; a batch that has none is of nulls."""
    parts: list[npt.NDArray[_Integer]] = [
        np.asarray(batch.rows.column(column), kind)
        if column in batch.rows.schema.names
        else np.full(batch.rows.num_rows, _NULL, kind)
        for batch in batches
    ]
    return np.concatenate([np.zeros(0, kind), *parts])


def _begin(column: str) -> str:
    return f"__{column}_begin"


def _count(column: str) -> str:
    return f"__{column}_count"
