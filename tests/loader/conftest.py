"""A tiny dataset of shards, document ids and a manifest, written without the pipeline."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from headrace.store.building import safetensors_parts
from headrace.store.shards import table_to_parquet

#: Of torch, here and in processes that a test starts: the models are small, and threads that spin while they wait for
#: each other take three times the work where something else runs.
THREADS = "1"
PAD_ID = 1
EOS_ID = 2


@pytest.fixture(autouse=True)
def _few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", THREADS)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(THREADS))


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
        key = f"shards/0/{number}-{digest}.safetensors"
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


@pytest.fixture
def make_dataset(tmp_path: Path) -> Callable[..., str]:
    """Writes a dataset and returns its URI; arguments as of `write_dataset`."""
    made = iter(range(1000))

    def make(**arguments: object) -> str:
        return str(write_dataset(tmp_path / str(next(made)), **arguments))  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def tiny_dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 17 sequences of 16 tokens in four shards, one of them empty."""
    return str(write_dataset(tmp_path_factory.mktemp("datasets") / "tiny"))


@pytest.fixture(scope="session")
def thousand_dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 1,003 sequences of 8 tokens in five shards."""
    root = tmp_path_factory.mktemp("datasets") / "thousand"
    return str(write_dataset(root, sequences=(300, 1, 402, 200, 100), seq_len=8))


@pytest.fixture(scope="session")
def large_dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Shards of 16 and of 31 blocks."""
    root = tmp_path_factory.mktemp("datasets") / "large"
    return str(write_dataset(root, sequences=(500, 490), seq_len=1000))
