"""The functions that a user of Ray Data writes who has read its guides, and a faster one; for plain_ray.py."""

import functools
import os
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa


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


@functools.cache
def encoder(path: str) -> Any:
    """gigatoken without its own ways in; one a process."""
    from gigatoken.gigatoken_rs import load_hf_json

    return load_hf_json(pathlib.Path(path).read_bytes())


def tokenize_column(table: pa.Table, path: str, eos: int) -> pa.Table:
    """As `tokenize`, from an Arrow column in one piece to another, without an object a text."""
    offsets, tokens = encode_column(table.column("text"), path)
    longer = offsets + np.arange(len(offsets))
    places = np.ones(longer[-1], np.bool_)
    places[longer[1:] - 1] = False
    joined = np.full(len(places), eos, np.uint32)
    joined[places] = tokens
    column = pa.LargeListArray.from_arrays(pa.array(longer, pa.int64()), pa.array(joined, pa.uint32()))
    return pa.table({"id": table.column("id"), "tokens": column, "count": pa.array(np.diff(longer), pa.int64())})


def encode_column(column: pa.ChunkedArray, path: str) -> tuple[np.ndarray, np.ndarray]:
    """Where each text's tokens begin, and the tokens of all."""
    import awkward as ak

    text = column.cast(pa.large_string()).combine_chunks()
    text = pa.concat_arrays(text.chunks) if isinstance(text, pa.ChunkedArray) else text
    _, bounds, content = text.buffers()
    offsets = np.frombuffer(bounds, np.int64)[text.offset : text.offset + len(text) + 1]
    characters = ak.contents.NumpyArray(np.frombuffer(content, np.uint8), parameters={"__array__": "char"})
    strings = ak.contents.ListOffsetArray(ak.index.Index64(offsets), characters, parameters={"__array__": "string"})
    answer = encoder(path).encode_batch(ak.Array(strings), parallel=False).layout
    ends = np.asarray(answer.offsets.data, np.int64)
    return ends - ends[0], np.asarray(answer.content.data, np.uint32)[ends[0] : ends[-1]]
