"""MosaicML's MDS: shards of packed sequences, and an `index.json` that describes them.

A shard, little-endian: the number of samples (u32), the byte at which each begins and the last ends (u32 each, from
the start of the file), the configuration as JSON, then the samples. A sample has one column, `tokens`, an array of a
fixed type and shape, so it is its bytes and nothing else.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.stages.export.source import Exported, new_folder, read_sequences, summary, token_shards
from headrace.store.datasets import Dataset

#: Bytes of a shard's samples; MDS counts offsets in 32 bits.
SHARD_BYTES = 64 << 20
VERSION = 2


def export_mds(dataset: Dataset, place: str) -> Exported:
    """Write a folder that `streaming.StreamingDataset(local=place)` reads. Raises InputError, StoreError."""
    shards = token_shards(dataset)
    described: list[dict[str, Any]] = []
    sequences = tokens = 0
    with new_folder(place) as folder:
        for shard in shards:
            rows = read_sequences(dataset, shard)
            step = max(1, SHARD_BYTES // max(1, rows.shape[1] * rows.itemsize))
            for start in range(0, rows.shape[0], step):
                part = rows[start : start + step]
                entry, data = _shard(part, f"shard.{len(described):05d}.mds")
                (folder / entry["raw_data"]["basename"]).write_bytes(data)
                described.append(entry)
            sequences += rows.shape[0]
            tokens += rows.size
        index = {"version": VERSION, "shards": described}
        (folder / "index.json").write_text(json.dumps(index, sort_keys=True), encoding="utf-8")
        return summary("mds", place, folder, sequences=sequences, tokens=tokens)


def _shard(rows: npt.NDArray[Any], name: str) -> tuple[dict[str, Any], bytes]:
    """The entry of the index, and the file's bytes."""
    count, seq_len = rows.shape
    width = seq_len * rows.itemsize
    config = {
        "version": VERSION,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": SHARD_BYTES,
        "column_names": ["tokens"],
        "column_encodings": [f"ndarray:{rows.dtype.name}:{seq_len}"],
        "column_sizes": [width],
    }
    text = json.dumps(config, sort_keys=True).encode()
    begin = 4 + 4 * (count + 1) + len(text)
    offsets = begin + width * np.arange(count + 1, dtype=np.int64)
    body = np.ascontiguousarray(rows, rows.dtype.newbyteorder("<")).tobytes()
    data = np.array([count], "<u4").tobytes() + offsets.astype("<u4").tobytes() + text + body
    raw = {"basename": name, "bytes": len(data), "hashes": {}}
    return {**config, "samples": count, "raw_data": raw, "zip_data": None}, data
