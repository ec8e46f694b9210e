"""The tokens of a shard: a safetensors file (`docs/reference/format.md`), read, named and checked.

`headrace.store.shards.builder` writes it. Nothing here loads Arrow, which training hosts may not have.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from headrace.store import Buffer, ChecksumMismatch, FormatError, ObjectMissing, ObjectStore
from headrace.store.shards.header import malformed, read_plain_header

#: How much of an object is held at once while it is checked.
VERIFY_CHUNK_BYTES = 8 << 20

_CHECKSUM_KIND = "xxh3-128"
#: Of the arrays in a safetensors file, by the names that it gives them.
DTYPES: dict[str, type[np.generic]] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
}


def content_hash(parts: Iterable[Buffer]) -> str:
    """Return the xxh3-128 of the concatenated parts, in hex: what an object is named by."""
    state = xxhash.xxh3_128()
    for part in parts:
        state.update(part)
    return state.hexdigest()


def checksum(parts: Iterable[Buffer]) -> str:
    """Return the checksum as the ledger records it: `xxh3-128:<hex>`."""
    return f"{_CHECKSUM_KIND}:{content_hash(parts)}"


def verify_object(store: ObjectStore, key: str, expected: str) -> int:
    """Read the object and return its size in bytes.

    Raises `ObjectMissing`, `ChecksumMismatch`, and `FormatError` for a kind of checksum that is not known.
    """
    if not expected.startswith(_CHECKSUM_KIND + ":"):
        raise FormatError(
            f"{key!r} has the checksum {expected!r}; this Headrace reads {_CHECKSUM_KIND}:<hex>, upgrade it"
        )
    if store.head(key) is None:
        raise ObjectMissing(key, store.uri)
    state = xxhash.xxh3_128()
    size = 0
    while chunk := store.get(key, offset=size, length=VERIFY_CHUNK_BYTES):
        state.update(chunk)
        size += len(chunk)
        if len(chunk) < VERIFY_CHUNK_BYTES:
            break
    found = f"{_CHECKSUM_KIND}:{state.hexdigest()}"
    if found != expected:
        raise ChecksumMismatch(key, store.uri, expected, found)
    return size


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one array lies in a safetensors file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    #: bytes from the start of the file
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """What a safetensors file says of itself."""

    metadata: dict[str, str]
    tensors: dict[str, TensorInfo]


def read_header(store: ObjectStore, key: str) -> ShardHeader:
    """Read the header of a token shard, and nothing else of it. Raises `ObjectMissing`, `FormatError`."""
    plain = read_plain_header(store, key)
    try:
        tensors = {str(name): _tensor_info(entry, plain.body) for name, entry in plain.tensors.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise malformed(store, key, f"{type(error).__name__}: {error}") from error
    for name, tensor in tensors.items():
        if tensor.offset + tensor.size > plain.size:
            raise malformed(store, key, f"{name!r} ends at byte {tensor.offset + tensor.size} of {plain.size}")
    return ShardHeader(plain.metadata, tensors)


def _tensor_info(entry: Any, body: int) -> TensorInfo:
    start, end = entry["data_offsets"]
    dtype = np.dtype(DTYPES[entry["dtype"]]).newbyteorder("<")
    shape = tuple(entry["shape"])
    if not all(type(value) is int and value >= 0 for value in (start, end, *shape)):
        raise ValueError(f"shape {shape} or offsets {start}, {end} are not sizes")
    if end - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"shape {shape} of {dtype} needs another size than {end - start} bytes")
    return TensorInfo(dtype, shape, body + start, end - start)


def read_shard(store: ObjectStore, key: str, header: ShardHeader | None = None) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a token shard by name, read-only; mapped into memory where the store is local.

    `header` is the shard's, where it was read already. Raises `ObjectMissing`, `FormatError`.
    """
    header = header or read_header(store, key)
    path = store.open_local(key)
    if path is None:
        data: Buffer | mmap.mmap = store.get(key)
    else:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, tensor in header.tensors.items():
        count = math.prod(tensor.shape)
        flat = np.frombuffer(data, tensor.dtype, count, tensor.offset) if count else np.zeros(0, tensor.dtype)
        arrays[name] = flat.reshape(tensor.shape)
    if wrong := _misplaced(arrays):
        raise malformed(store, key, wrong)
    return arrays


def _misplaced(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Which piece lies outside of the tokens of its shard, or has another shape than pieces have; "" if none is."""
    pieces = {name: array for name, array in arrays.items() if name.startswith(_PIECE)}
    if not pieces:
        return ""
    tokens, missing = arrays.get("tokens"), {f"{_PIECE}{name}" for name in _PLACE} - pieces.keys()
    if tokens is None or missing:
        return f"its pieces lack {', '.join(sorted(missing)) or 'their tokens'}"
    if tokens.ndim != 2:
        return f"its tokens have the shape {tokens.shape}, not [sequences, seq_len]"
    many = pieces[f"{_PIECE}start"].shape
    if any(array.shape != many or array.ndim != 1 for array in pieces.values()):
        return "its piece arrays differ in length"
    if other := next(
        (name for name, array in (("tokens", tokens), *pieces.items()) if array.dtype.kind not in "ui"), ""
    ):
        return f"{other!r} is of {arrays[other].dtype}, and should be of whole numbers"
    lines, width = tokens.shape
    # Arrays of 32 bits are compared as they are: copies took nine tenths of the time.
    if width >= _NARROW_MAX or any(array.dtype != np.int32 for array in pieces.values()):
        pieces = {name: array.astype(np.int64) for name, array in pieces.items()}
    sequence, start, length, document = (pieces[f"{_PIECE}{name}"] for name in _PLACE)
    again = pieces.get("piece_repeated", np.zeros_like(length))
    within = (sequence >= 0) & (sequence < lines) & (start >= 0) & (length >= 0) & (start <= width - length)
    within &= (document >= 0) & (again >= 0) & (again <= length)
    # an overflow of the difference is a length beyond any line
    within &= length <= width
    return "" if within.all() else f"piece {int(np.argmin(within))} lies outside of its sequence"


#: The length of a line on which a sum of two places may be beyond 32 bits.
_NARROW_MAX = 1 << 30
_PIECE, _PLACE = "piece_", ("sequence", "start", "length", "document")
