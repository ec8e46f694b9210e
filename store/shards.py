"""The bytes of a shard: a safetensors file of tokens and its Parquet sidecars (`docs/format.md`).

The safetensors header is written here and not by its library, so that the tokens are copied once, from
the documents into their sequences, and the bytes follow from the content alone.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from headrace.store.blocks import BLOCKS, HEADER_CHECK, describe_blocks, seal
from headrace.store.errors import ChecksumMismatch, FormatError, ObjectMissing
from headrace.store.header import HEADER_BYTES_MAX, malformed, read_plain_header
from headrace.store.objects import Buffer, ObjectStore
from headrace.store.packing import Packing, pack

#: The version of the token shard's layout, in its header metadata as `format_version`.
FORMAT_VERSION = 1
#: How much of an object is held at once while it is checked.
VERIFY_CHUNK_BYTES = 8 << 20
#: Bounds what a reader of one document's row must decode.
ROW_GROUP_ROWS = 1 << 16

_CHECKSUM_KIND = "xxh3-128"
_ALIGNMENT_BYTES = 8
_DTYPES: dict[str, type[np.generic]] = {
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
_DTYPE_NAMES = {np.dtype(kind): name for name, kind in _DTYPES.items()}
#: Columns of the documents table that stages have written: `score.<stage>.<name>`.
SCORE_PREFIX = "score."
#: Columns whose values repeat; the others would only pay for a dictionary that is then given up.
_DICTIONARY_COLUMNS = ("source", "fragment", "stage", "verdict", "reason", "lineage")
#: Columns whose smallest and largest value help nobody find a row.
_NO_STATISTICS = ("raw", "metadata", "lineage", "text")


@dataclass(frozen=True, slots=True, eq=False)
class ShardBytes:
    """A token shard that is ready to be written: its parts concatenated are the file."""

    parts: list[Buffer]
    packing: Packing
    #: bytes of all parts
    size: int
    #: tokens of all documents, padding not counted
    tokens: int


def build_tokens(
    flat_tokens: npt.NDArray[Any] | Sequence[npt.NDArray[Any]],
    lengths: npt.ArrayLike,
    *,
    seq_len: int,
    dtype: npt.DTypeLike,
    pad_id: int,
    metadata: Mapping[str, str],
    overlap: int = 0,
    blocks: bool = True,
) -> ShardBytes:
    """Pack documents into a token shard.

    `flat_tokens` `[tokens]` are the documents' tokens end to end, or several arrays of whole documents that are such
    when put together; they are not put together, so that beside the documents there is one copy of them. `lengths`
    `[documents]` are the tokens of each, in the order of the documents table. `dtype` is uint16 or uint32. `metadata`
    is what the caller knows of the dataset; the layout's own facts (`seq_len`, `pad_id`, counts) are added to it. The
    same arguments give the same bytes. With an `overlap` the shard says how many tokens each piece repeats. Without
    `blocks` it has no checksums of its blocks, as shards of before them. Raises ValueError where they do not fit
    together.
    """
    kind = np.dtype(dtype)
    sizes = np.asarray(lengths, dtype=np.int64).reshape(-1)
    chunks = [flat_tokens] if isinstance(flat_tokens, np.ndarray) else flat_tokens
    flat = [chunk for chunk in (np.asarray(part).reshape(-1) for part in chunks) if chunk.size]
    count = sum(chunk.size for chunk in flat)
    _check_tokens(flat, count, sizes, kind, pad_id)
    packing = pack(sizes, seq_len, overlap)
    arrays = {
        "piece_document": packing.piece_document,
        "piece_length": packing.piece_length,
        "piece_sequence": packing.piece_sequence,
        "piece_start": packing.piece_start,
        "tokens": _scatter(flat, sizes, packing, kind, pad_id),
    }
    if overlap:
        arrays["piece_repeated"] = packing.piece_repeated
    own = {
        **({"overlap": overlap} if overlap else {}),
        "format_version": FORMAT_VERSION,
        "seq_len": seq_len,
        "pad_id": pad_id,
        "sequences": packing.sequences,
        "pieces": packing.piece_document.size,
        "documents": sizes.size,
        "token_count": count,
        "padding": packing.padding,
    }
    facts = {name: str(value) for name, value in own.items()}
    wrong = sorted(name for name in facts.keys() & metadata.keys() if metadata[name] != facts[name])
    wrong += sorted({BLOCKS, HEADER_CHECK} & metadata.keys())
    if wrong:
        raise ValueError(f"shard metadata {wrong} contradict what the format says of itself; leave them out")
    parts = _safetensors(arrays, {**metadata, **facts}, blocks)
    return ShardBytes(parts, packing, sum(memoryview(part).nbytes for part in parts), count)


def _check_tokens(
    flat: Sequence[npt.NDArray[Any]], count: int, sizes: npt.NDArray[np.int64], kind: np.dtype[Any], pad_id: int
) -> None:
    if kind not in (np.dtype(np.uint16), np.dtype(np.uint32)):
        raise ValueError(f"tokens of dtype {kind}: a shard holds uint16 or uint32")
    limit = int(np.iinfo(kind).max)
    if not 0 <= pad_id <= limit:
        raise ValueError(f"pad_id {pad_id} does not fit {kind} (0..{limit})")
    if int(sizes.sum()) != count:
        raise ValueError(f"{sizes.size} documents of {int(sizes.sum())} tokens in all, but {count} tokens given")
    for chunk in flat:
        if not np.can_cast(chunk.dtype, kind) and not 0 <= int(chunk.min()) <= int(chunk.max()) <= limit:
            raise ValueError(f"tokens {chunk.min()}..{chunk.max()} do not fit {kind} (0..{limit}); use uint32")


def _scatter(
    flat: Sequence[npt.NDArray[Any]],
    sizes: npt.NDArray[np.int64],
    packing: Packing,
    kind: np.dtype[Any],
    pad_id: int,
) -> npt.NDArray[Any]:
    """Return `tokens` `[sequences, seq_len]`. Raises ValueError where a document reaches from one chunk into the next.

    A loop of slices, since an index a token would take four times the memory of the tokens. Pieces of one
    document that lie end to end, as whole sequences do, are one slice.
    """
    tokens = np.full((packing.sequences, packing.seq_len), pad_id, dtype=kind)
    line = tokens.reshape(-1)
    document = packing.piece_document
    length = packing.piece_length.astype(np.int64)
    target = packing.piece_sequence.astype(np.int64) * packing.seq_len + packing.piece_start
    source = (np.cumsum(sizes) - sizes)[document] + packing.piece_offset
    joins = (source[1:] == source[:-1] + length[:-1]) & (target[1:] == target[:-1] + length[:-1])
    joins &= document[1:] == document[:-1]
    first = np.flatnonzero(np.concatenate(([True], ~joins))) if document.size else np.zeros(0, np.int64)
    runs = np.add.reduceat(length, first) if document.size else length
    ends = np.cumsum([chunk.size for chunk in flat], dtype=np.int64)
    which = np.searchsorted(ends, source[first], side="right")
    if (source[first] + runs > ends[which]).any():
        raise ValueError("a document reaches from one chunk of tokens into the next: give whole documents")
    begins = source[first] - (ends - [chunk.size for chunk in flat])[which]
    steps = zip(which.tolist(), target[first].tolist(), begins.tolist(), runs.tolist(), strict=True)
    for chunk, to, begin, count in steps:
        line[to : to + count] = flat[chunk][begin : begin + count]
    return tokens


def _safetensors(arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str], blocks: bool) -> list[Buffer]:
    """Return the parts of a safetensors file: widest type first and then by name, as the library orders them."""
    header: dict[str, Any] = {"__metadata__": {}}
    bodies: list[Buffer] = []
    offset = 0
    for name, array in sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0])):
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        header[name] = {
            "dtype": _DTYPE_NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + little.nbytes],
        }
        offset += little.nbytes
        if little.nbytes:
            bodies.append(little.reshape(-1).data.cast("B"))
    described = describe_blocks(bodies) if blocks else {}
    header["__metadata__"] = dict(sorted({**metadata, **described}.items()))
    text = orjson.dumps(header)
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    if blocks:
        text = seal(text)
    if len(text) > HEADER_BYTES_MAX:
        raise ValueError(f"shard header of {len(text)} bytes, the limit is {HEADER_BYTES_MAX}; shorten the metadata")
    return [len(text).to_bytes(8, "little") + text, *bodies]


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
    dtype = np.dtype(_DTYPES[entry["dtype"]]).newbyteorder("<")
    shape = tuple(entry["shape"])
    if not all(type(value) is int and value >= 0 for value in (start, end, *shape)):
        raise ValueError(f"shape {shape} or offsets {start}, {end} are not sizes")
    if end - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"shape {shape} of {dtype} needs another size than {end - start} bytes")
    return TensorInfo(dtype, shape, body + start, end - start)


def read_shard(store: ObjectStore, key: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a token shard by name, read-only; mapped into memory where the store is local.

    Raises `ObjectMissing`, `FormatError`.
    """
    header = read_header(store, key)
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
    return arrays


def documents_schema() -> pa.Schema:
    """A row a kept document, in the order of `piece_document`; `row` is the record's ordinal in its fragment.

    `part` is null unless a stage split the record; it counts its parts from 0. So it is in the other tables.
    Behind these stand the scores that stages wrote, each a column `score.<stage>.<name>` of its own type.
    """
    return _schema_of_records(
        tokens=pa.int64(),
        lineage=pa.string(),
        metadata=pa.string(),
    )


def verdicts_schema() -> pa.Schema:
    """A row a record that was not kept; `duplicate_of` is the id of the record that was, or null."""
    return _schema_of_records(
        stage=pa.string(),
        verdict=pa.string(),
        reason=pa.string(),
        duplicate_of=pa.string(),
    )


def quarantine_schema() -> pa.Schema:
    """A row a quarantined record, with its raw bytes."""
    return _schema_of_records(
        stage=pa.string(),
        reason=pa.string(),
        raw=pa.binary(),
    )


def samples_schema() -> pa.Schema:
    """A row a record that was removed and is shown as a sample, with the beginning of its text."""
    return _schema_of_records(
        stage=pa.string(),
        verdict=pa.string(),
        reason=pa.string(),
        text=pa.string(),
    )


def _schema_of_records(**columns: pa.DataType) -> pa.Schema:
    """What says which record a row is about, and these columns behind it."""
    record = {
        "id": pa.string(),
        "source": pa.string(),
        "fragment": pa.string(),
        "row": pa.int64(),
        "part": pa.int32(),
    }
    return pa.schema([pa.field(name, kind) for name, kind in (record | columns).items()])


def table_to_parquet(table: pa.Table) -> bytes:
    """Return the table as a Parquet file; the same rows give the same bytes under one version of pyarrow."""
    names: Sequence[str] = table.schema.names
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=ROW_GROUP_ROWS,
        compression="zstd",
        compression_level=1,
        use_dictionary=cast("Any", [field.name for field in table.schema if _repeats(field)]),
        write_statistics=[name for name in names if name not in _NO_STATISTICS],
        store_schema=False,
    )
    return sink.getvalue().to_pybytes()


def _repeats(field: pa.Field[Any]) -> bool:
    return field.name in _DICTIONARY_COLUMNS or (field.name.startswith(SCORE_PREFIX) and pa.types.is_string(field.type))


def read_table(store: ObjectStore, key: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a sidecar, or some columns of it. Raises `ObjectMissing`, `FormatError`."""
    path = store.open_local(key)
    try:
        source = pa.BufferReader(store.get(key)) if path is None else pa.memory_map(str(path))
        with source, pq.ParquetFile(source) as file:
            return file.read(columns=None if columns is None else list(columns))
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{store.uri}: {key!r} is not a readable Parquet file: {error}; restore it") from error
