"""The function that a user of Ray Data writes who has read its guides; for benchmarks/plain_ray.py."""

import functools
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
