"""Megatron's indexed dataset: `.bin` with the tokens of all documents end to end, `.idx` with where each begins.

The index, little-endian: the magic, version 1 (u64), the code of the token's type (u8), the number of sequences and of
document boundaries (u64 each), then the length of each sequence (i32), the byte at which it begins (i64), and the
boundaries (i64). A document is one sequence. The layout is that of Megatron-LM's `IndexedDataset`, which has no
unsigned 32-bit type: tokens of four bytes are written as i32.
"""

from __future__ import annotations

import array
import struct

import numpy as np

from headrace.stages.export.source import Exported, new_folder, read_documents, summary, token_shards
from headrace.store.datasets import Dataset

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
#: The codes of the types that tokens are written in.
TYPE_CODES = {np.dtype(np.int32): 4, np.dtype(np.uint16): 8}
#: The stem of both files.
STEM = "documents"


def export_megatron(dataset: Dataset, place: str) -> Exported:
    """Write `<place>/documents.bin` and `.idx`. Raises InputError, StoreError."""
    shards = token_shards(dataset)
    lengths = array.array("i")
    tokens, size = 0, 2
    with new_folder(place) as folder:
        with open(folder / f"{STEM}.bin", "wb") as file:
            for shard in shards:
                found = read_documents(dataset, shard)
                size = found.tokens.dtype.itemsize
                file.write(np.ascontiguousarray(found.tokens, found.tokens.dtype.newbyteorder("<")).data)
                lengths.extend(found.lengths[found.lengths > 0].astype(np.int32).tolist())
                tokens += found.tokens.size
        kind = np.dtype(np.uint16) if size == 2 else np.dtype(np.int32)
        (folder / f"{STEM}.idx").write_bytes(_index(np.asarray(lengths, np.int32), kind))
        return summary("megatron", place, folder, documents=len(lengths), sequences=len(lengths), tokens=tokens)


def _index(lengths: np.ndarray[tuple[int], np.dtype[np.int32]], kind: np.dtype[np.generic]) -> bytes:
    ends = np.cumsum(lengths, dtype=np.int64) * kind.itemsize
    pointers = np.concatenate([np.zeros(1, np.int64), ends])[: lengths.size]
    boundaries = np.arange(lengths.size + 1, dtype=np.int64)
    head = MAGIC + struct.pack("<QBQQ", VERSION, TYPE_CODES[kind], lengths.size, boundaries.size)
    return (
        head + lengths.astype("<i4").tobytes() + pointers.astype("<i8").tobytes() + boundaries.astype("<i8").tobytes()
    )
