"""What is left in memory of a batch whose large columns are shelved, in a file that is mapped.

A sink that gathers 250 MiB of text has some 40,000 rows of which it must know where they begin, which record they are
and what became of the others: a few MiB, and as many again in pages that they share with what has long been freed.
Mapped they are there for who looks at them, and in memory only while somebody does.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from headrace.stages.batch import Batch
from headrace.store.scratch import Scratch

#: Bytes of one file, which is as large from the start: a mapping does not grow.
ROOM_BYTES = 16 << 20
#: Tables below it stay where they are: a page and the objects that describe a table are as much.
ROWS_BYTES_MIN = 4096
_ALIGNMENT_BYTES = 64


class RowFiles:
    """The files of one shelf. `put` is called on one thread, `forget` on any."""

    def __init__(self) -> None:
        self._room: _Room | None = None
        self._maps: list[weakref.ref[mmap.mmap]] = []

    def put(self, batch: Batch, new: Callable[[], Scratch]) -> Batch:
        """The batch with its rows and verdicts in a file, of those that `new` makes; as it is where no disk takes them.

        A column that is a dictionary, or has one in it, stays in memory with the others of its table.
        """
        rows, verdicts = self._mapped(batch.rows, new), self._mapped(batch.verdicts, new)
        return replace(batch, rows=rows, verdicts=verdicts)

    def forget(self) -> None:
        """Have no memory for what was looked at until somebody looks again."""
        for reference in tuple(self._maps):
            mapped = reference()
            if mapped is not None:
                mapped.madvise(mmap.MADV_DONTNEED)

    def _mapped(self, table: pa.RecordBatch, new: Callable[[], Scratch]) -> pa.RecordBatch:
        if table.nbytes < ROWS_BYTES_MIN:
            return table
        try:
            message = table.serialize()
            if message.size > ROOM_BYTES:
                return table
            if self._room is None or not self._room.fits(message.size):
                self._room = self._open(new)
            return self._room.put(message, table.schema) if self._room is not None else table
        except (OSError, pa.ArrowException):
            return table

    def _open(self, new: Callable[[], Scratch]) -> _Room | None:
        """Another file; None where only memory would hold it."""
        scratch = new()
        if scratch.is_memory:
            return None
        room = _Room(scratch)
        self._maps = [*(item for item in self._maps if item() is not None), weakref.ref(room.mapped)]
        return room


class _Room:
    """One file and its mapping, which lives as long as a table in it."""

    def __init__(self, scratch: Scratch) -> None:
        os.ftruncate(scratch.fileno(), ROOM_BYTES)
        self._scratch = scratch
        self.mapped = mmap.mmap(scratch.fileno(), ROOM_BYTES, access=mmap.ACCESS_READ)

    def fits(self, size: int) -> bool:
        return self._scratch.size + size + _ALIGNMENT_BYTES <= ROOM_BYTES

    def put(self, message: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
        at = self._scratch.append(memoryview(message))
        self._scratch.append(bytes(-self._scratch.size % _ALIGNMENT_BYTES))
        table = pa.ipc.read_record_batch(pa.py_buffer(memoryview(self.mapped)[at : at + message.size]), schema)
        # Of all of it: with the page that is read the kernel maps those around it.
        self.mapped.madvise(mmap.MADV_DONTNEED)
        return table
