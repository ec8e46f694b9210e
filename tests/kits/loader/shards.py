"""A tiny dataset of shards, document ids and a manifest, written without the pipeline."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from headrace.store.shards.builder import safetensors_parts
from headrace.store.shards.sidecars import table_to_parquet

PAD_ID = 1
EOS_ID = 2


def write_dataset(
    root: Path,
    sequences: tuple[int, ...] = (5, 0, 9, 3),
    seq_len: int = 16,
    seed: int = 0,
    vocabulary: int = 5000,
    repeats: bool = False,
    blocks: bool = True,
) -> Path:
    """Shards of random pieces with gaps; the token at each row's start names (shard, row) where it is no padding."""
    random = np.random.default_rng(seed)
    shards = []
    (root / "shards/0").mkdir(parents=True)
    for number, count in enumerate(sequences):
        tokens = np.full((count, seq_len), PAD_ID, dtype=np.uint32 if number % 2 else np.uint16)
        pieces = []
        for sequence in range(count):
            start = int(random.integers(0, 3)) if seq_len > 3 else 0
            while start < seq_len:
                length = int(random.integers(1, seq_len - start + 1))
                tokens[sequence, start : start + length] = random.integers(3, vocabulary, length)
                pieces.append((sequence, start, length))
                start += length + int(random.integers(0, 3))
        shuffled = [pieces[at] for at in random.permutation(len(pieces))]
        columns = np.array([(*piece, document) for document, piece in enumerate(shuffled)], dtype=np.int32)
        columns = columns.reshape(-1, 4)
        names = ("piece_sequence", "piece_start", "piece_length", "piece_document")
        arrays = {name: np.ascontiguousarray(columns[:, at]) for at, name in enumerate(names)} | {"tokens": tokens}
        if repeats:
            arrays["piece_repeated"] = random.integers(0, columns[:, 2], dtype=np.int32)
        data = b"".join(safetensors_parts(arrays, {"format_version": "1", "seq_len": str(seq_len)}, blocks=blocks))
        digest = xxhash.xxh3_128(data).hexdigest()
        key = f"shards/0/{digest}.safetensors"
        (root / key).write_bytes(data)
        documents = pa.table({"id": pa.array([f"{seed}/{number}/{at}" for at in range(len(pieces))], pa.string())})
        (root / key.replace("safetensors", "documents.parquet")).write_bytes(table_to_parquet(documents))
        shards.append(
            {
                "tokens": key,
                "documents": key.replace("safetensors", "documents.parquet"),
                "verdicts": key.replace("safetensors", "verdicts.parquet"),
                "checksum": f"xxh3-128:{digest}",
                "records": len(pieces),
                "token_count": int(columns[:, 2].sum()),
                "sequences": count,
            }
        )
    manifest = {
        "format": 1,
        "dataset": "tiny",
        "version": 1,
        "seq_len": seq_len,
        "tokenizer": "a tokenizer",
        "pad_id": PAD_ID,
        "eos_id": EOS_ID,
        "shards": shards,
    }
    (root / "manifest.json").write_text(json.dumps(manifest))
    return root
