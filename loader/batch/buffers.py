"""The memory of a batch's wide fields (those with a value a token), used again once nobody holds a view of it.

Fresh pages cost more than the whole assembly: the kernel clears each, and a virtual machine's host may have to find it
first. So memory is kept from one pass to the next, and where a set of fields takes a large page or more it lies in
large pages, of which a set is touched by one fault and not by some hundred.
"""

import mmap
import sys
import threading
from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.loader.batch.fields import ALL_FIELDS, I32, Fields

#: sets of buffers kept: of a prefetch of eight that many ahead, as many that a reader who waits has made, the one in
#: the making, and what the reader holds
BUFFERS_MAX: Final = 20
#: a large page of x86-64 and of ARM with small ones of 4 KiB
LARGE_BYTES: Final = 2 << 20
#: sets of at least this many bytes are rounded up to large pages
LARGE_BYTES_MIN: Final = 1 << 20
#: fields begin on a cache line
_LINE_BYTES: Final = 64
_HAS_GIL: Final = getattr(sys, "_is_gil_enabled", lambda: True)()


class Wide:
    """The memory of the fields with a value a token, for `rows` sequences; of none where a field is not made."""

    __slots__ = ("_memory", "_references", "flat_labels", "flat_mask", "given", "label_line", "labels", "mask",
                 "position_ids", "position_line", "token_line", "tokens")  # fmt: skip

    def __init__(self, rows: int, seq_len: int, fields: Fields) -> None:
        labelled, counted = rows * fields.has_labels, rows * fields.has_positions
        sizes = [4 * rows * seq_len, 4 * labelled * seq_len, 4 * counted * seq_len, labelled * seq_len]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // _LINE_BYTES) * _LINE_BYTES)
        #: numpy has every view of a part hold this, so that its references count them all
        self._memory = _fresh(starts[-1])
        tokens, labels, position_ids, mask = (
            self._memory[start : start + size] for start, size in zip(starts, sizes, strict=False)
        )
        self.tokens: I32 = tokens.view(np.int32).reshape(rows, seq_len)
        self.labels: I32 = labels.view(np.int32).reshape(labelled, seq_len)
        self.position_ids: I32 = position_ids.view(np.int32).reshape(counted, seq_len)
        self.mask: NDArray[np.bool_] = mask.view(np.bool_).reshape(labelled, seq_len)
        every = {
            "tokens": self.tokens, "labels": self.labels, "loss_mask": self.mask, "position_ids": self.position_ids
        }  # fmt: skip
        #: what of it a batch shows, by name
        self.given = [(name, array) for name, array in every.items() if name == "tokens" or name in fields.names]
        self.flat_labels: I32 = self.labels.reshape(-1)
        self.flat_mask: NDArray[np.bool_] = self.mask.reshape(-1)
        self.token_line = self.tokens.reshape(-1).data
        self.label_line = self.flat_labels.data
        self.position_line = self.position_ids.reshape(-1).data
        # or they would be counted
        del tokens, labels, position_ids, mask
        self._references = sys.getrefcount(self._memory)

    def is_free(self) -> bool:
        """Whether there is no view of the arrays, nor anything that was made from one."""
        return sys.getrefcount(self._memory) <= self._references


def _fresh(size: int) -> NDArray[np.uint8]:
    """Memory of at least `size` bytes, whose first touch is its owner's."""
    if size < LARGE_BYTES_MIN:
        return np.empty(size, dtype=np.uint8)
    whole = -(-size // LARGE_BYTES) * LARGE_BYTES
    # the kernel gives no more than page bounds
    mapped = mmap.mmap(-1, whole + LARGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        # a kernel without large pages gives small ones
        mapped.madvise(mmap.MADV_HUGEPAGE)
    found = np.frombuffer(mapped, np.uint8)
    begin = -found.ctypes.data % LARGE_BYTES
    return np.frombuffer(mapped, np.uint8, whole, begin)


class Buffers:
    """The memory of the wide fields, used again once no view of it is left."""

    def __init__(self, fields: Fields = ALL_FIELDS) -> None:
        self.fields = fields
        self._sets: list[Wide] = []
        self._lock = threading.Lock()

    def take(self, rows: int, seq_len: int) -> Wide:
        """Memory for [rows, seq_len]; what it holds is undefined. `keep` it once views show what was made in it."""
        with self._lock:
            # the newest first: it is the likeliest to be in the processor's cache
            for at in range(len(self._sets) - 1, -1, -1):
                wide = self._sets[at]
                if wide.tokens.shape == (rows, seq_len) and wide.is_free():
                    return self._sets.pop(at)
        return Wide(rows, seq_len, self.fields)

    def keep(self, wide: Wide) -> None:
        """Memory that may be taken again when none of its views is left."""
        if _HAS_GIL:
            with self._lock:
                # the oldest goes: sizes differ only while the first batches grow
                self._sets = [*self._sets[-(BUFFERS_MAX - 1) :], wide]

    def clear(self) -> None:
        """Let go of all memory that is kept; views keep theirs."""
        with self._lock:
            self._sets = []
