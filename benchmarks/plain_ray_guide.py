"""The functions that a user of Ray Data writes who has read its guides; for benchmarks/plain_ray.py."""

import functools
import os
import pathlib
from typing import Any

import numpy as np


@functools.cache
def tokenizer(path: str) -> Any:
    """One a process."""
    import gigatoken

    return gigatoken.Tokenizer.from_json(pathlib.Path(path).read_bytes())


def tokenize(batch: dict[str, np.ndarray], path: str, eos: int) -> dict[str, Any]:
    """A batch in Ray's default format: a dict of numpy arrays."""
    # parallel=False: Ray has as many processes as there are cores.
    encoded = tokenizer(path).encode_batch(list(batch["text"]), parallel=False)
    tokens = [np.append(np.asarray(ids), np.uint32(eos)) for ids in encoded]
    return {"id": batch["id"], "tokens": tokens, "count": np.array([len(ids) for ids in tokens])}


@functools.cache
def usual_tokenizer(path: str) -> Any:
    """The same file in the library that Hugging Face and Ray name in their guides; one a process."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # Ray has as many processes as there are cores
    import tokenizers

    return tokenizers.Tokenizer.from_file(path)


def tokenize_usual(batch: dict[str, np.ndarray], path: str, eos: int) -> dict[str, Any]:
    """As `tokenize`, by `tokenizers`."""
    encoded = usual_tokenizer(path).encode_batch(list(batch["text"]), add_special_tokens=False)
    tokens = [np.append(np.asarray(item.ids, np.uint32), np.uint32(eos)) for item in encoded]
    return {"id": batch["id"], "tokens": tokens, "count": np.array([len(ids) for ids in tokens])}
