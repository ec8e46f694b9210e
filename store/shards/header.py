"""What a token shard says of itself, read without numpy or Arrow: a manifest needs no more, and starts no slower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from headrace.store import FormatError, ObjectMissing, ObjectStore

#: The header of a shard has a few hundred bytes; safetensors allows 100 MB, which no reader should have to allocate.
HEADER_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class PlainHeader:
    """The JSON at the start of a safetensors file, and where the file's body lies."""

    metadata: dict[str, str]
    #: As it stands there: dtype, shape and offsets of each array, by name.
    tensors: dict[str, Any]
    #: bytes from the start of the file
    body: int
    #: bytes of the whole file
    size: int


def read_plain_header(store: ObjectStore, key: str) -> PlainHeader:
    """Read the header of a token shard, and nothing else of it. Raises `ObjectMissing`, `FormatError`."""
    info = store.head(key)
    if info is None:
        raise ObjectMissing(key, store.uri)
    length = int.from_bytes(store.get(key, 0, 8), "little")
    if info.size < 8 or length > min(HEADER_BYTES_MAX, info.size - 8):
        raise malformed(store, key, f"a header of {length} bytes in a file of {info.size}")
    try:
        header = orjson.loads(store.get(key, 8, length))
        metadata = {str(name): str(value) for name, value in header.pop("__metadata__", {}).items()}
        return PlainHeader(metadata, dict(header), 8 + length, info.size)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise malformed(store, key, f"{type(error).__name__}: {error}") from error


def data_end(store: ObjectStore, key: str) -> int:
    """Where the arrays of a token shard end, in bytes. Raises `ObjectMissing`, `FormatError`."""
    plain = read_plain_header(store, key)
    try:
        return plain.body + max((int(entry["data_offsets"][1]) for entry in plain.tensors.values()), default=0)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise malformed(store, key, f"{type(error).__name__}: {error}") from error


def malformed(store: ObjectStore, key: str, problem: str) -> FormatError:
    """The error of an object that is no token shard."""
    return FormatError(
        f"{store.uri}: {key!r} is not a token shard: {problem}; "
        f"compare it with the ledger by `headrace dataset verify {store.uri}`"
    )
