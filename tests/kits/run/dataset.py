"""A dataset as a reader without Headrace sees it: safetensors, Parquet, and nothing else of ours but the manifest."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from safetensors.numpy import load_file


def fates(dataset: Path) -> dict[tuple[str, int], tuple[Any, ...]]:
    """For each record, by fragment and ordinal, what became of it; fails where a record has two fates."""
    found: dict[tuple[str, int], tuple[Any, ...]] = {}

    def note(key: tuple[str, int], fate: tuple[Any, ...]) -> None:
        assert key not in found, f"{key} stands in the dataset twice: {found[key]} and {fate}"
        found[key] = fate

    for shard in json.loads((dataset / "manifest.json").read_text())["shards"]:
        tokens = tokens_of_documents(dataset / shard["tokens"])
        documents = pq.read_table(dataset / shard["documents"]).to_pydict()
        for index, (name, fragment, row) in enumerate(
            zip(documents["id"], documents["fragment"], documents["row"], strict=True)
        ):
            note((fragment, row), ("kept", name, documents["metadata"][index], tokens.get(index, b"")))
        verdicts = pq.read_table(dataset / shard["verdicts"]).to_pydict()
        for index, (fragment, row) in enumerate(zip(verdicts["fragment"], verdicts["row"], strict=True)):
            note((fragment, row), tuple(verdicts[name][index] for name in ("verdict", "id", "stage", "reason")))
    return found


def tokens_of_documents(path: Path) -> dict[int, bytes]:
    """The tokens of each row of the documents table: its pieces in array order, one behind the other."""
    arrays = load_file(path)
    parts: dict[int, list[Any]] = {}
    for sequence, start, length, document in zip(
        arrays["piece_sequence"],
        arrays["piece_start"],
        arrays["piece_length"],
        arrays["piece_document"],
        strict=True,
    ):
        parts.setdefault(int(document), []).append(arrays["tokens"][sequence, start : start + length])
    return {document: np.concatenate(pieces).tobytes() for document, pieces in parts.items()}
