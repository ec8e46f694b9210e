"""Exports into a folder for training: MosaicML's MDS, Megatron's indexed dataset, and Parquet.

MDS has shards of packed sequences, and an `index.json` that describes them. A shard, little-endian: the number of
samples (u32), the byte at which each begins and the last ends (u32 each, from the start of the file), the
configuration as JSON, then the samples. A sample has one column, `tokens`, an array of a fixed type and shape, so it
is its bytes and nothing else.

Megatron's indexed dataset: `.bin` with the tokens of all documents end to end, `.idx` with where each begins. The
index, little-endian: the magic, version 1 (u64), the code of the token's type (u8), the number of sequences and of
document boundaries (u64 each), then the length of each sequence (i32), the byte at which it begins (i64), and the
boundaries (i64). A document is one sequence. The layout is that of Megatron-LM's `IndexedDataset`, which has no
unsigned 32-bit type: tokens of four bytes are written as i32.

The folder of Parquet is in Hugging Face's style: a row a document, with its text or its tokens.
"""

from __future__ import annotations

import array
import contextlib
import json
import pathlib
import re
import shutil
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.stages.export.source import (
    Exported,
    drop_begun,
    new_folder,
    read_documents,
    read_sequences,
    require_documents,
    require_shards,
    schema_of,
    stored_object_of,
    summary,
    token_shards,
)
from headrace.stages.runtime import InputError
from headrace.store.datasets import Dataset, with_schema
from headrace.store.files import disk
from headrace.store.ledger import ClosedShard
from headrace.store.shards import SCORE_PREFIX, column_names, read_row_groups

#: Bytes of a shard's samples; MDS counts offsets in 32 bits.
MDS_SHARD_BYTES = 64 << 20
MDS_VERSION = 2

#: What says of an export that it is begun, and takes that back where nothing is left of it.
Noted = contextlib.AbstractContextManager[None] | None


def export_mds(dataset: Dataset, place: str, noted: Noted = None) -> Exported:
    """Write a folder that `streaming.StreamingDataset(local=place)` reads. Raises InputError, StoreError."""
    require_documents(dataset, shards := token_shards(dataset))
    described: list[dict[str, Any]] = []
    sequences = tokens = 0
    with new_folder(place, noted) as folder:
        for shard in shards:
            rows, count = read_sequences(dataset, shard)
            step = max(1, MDS_SHARD_BYTES // max(1, rows.shape[1] * rows.itemsize))
            for start in range(0, rows.shape[0], step):
                part = rows[start : start + step]
                entry, data = _shard(part, f"shard.{len(described):05d}.mds")
                (folder / entry["raw_data"]["basename"]).write_bytes(data)
                described.append(entry)
            sequences += rows.shape[0]
            tokens += count
        index = {"version": MDS_VERSION, "shards": described}
        (folder / "index.json").write_text(json.dumps(index, sort_keys=True), encoding="utf-8")
        return summary("mds", place, folder, sequences=sequences, tokens=tokens)


def _shard(rows: npt.NDArray[Any], name: str) -> tuple[dict[str, Any], bytes]:
    """The entry of the index, and the file's bytes."""
    count, seq_len = rows.shape
    width = seq_len * rows.itemsize
    config = {
        "version": MDS_VERSION,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": MDS_SHARD_BYTES,
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


MAGIC = b"MMIDIDX\x00\x00"
MEGATRON_VERSION = 1
#: The codes of the types that tokens are written in.
TYPE_CODES = {np.dtype(np.int32): 4, np.dtype(np.uint16): 8}
#: The stem of both files.
STEM = "documents"


def export_megatron(dataset: Dataset, place: str, noted: Noted = None) -> Exported:
    """Write `<place>/documents.bin` and `.idx`. Raises InputError, StoreError."""
    require_documents(dataset, shards := token_shards(dataset))
    lengths = array.array("i")
    tokens, size = 0, 2
    with new_folder(place, noted) as folder:
        with open(folder / f"{STEM}.bin", "wb") as file:
            for shard in shards:
                found = read_documents(dataset, shard)
                size = found.tokens.dtype.itemsize
                file.write(np.ascontiguousarray(found.tokens, found.tokens.dtype.newbyteorder("<")).data)
                lengths.extend(found.lengths[found.lengths > 0].astype(np.int32).tolist())
                tokens += found.tokens.size
        kind = np.dtype(np.uint16) if size == 2 else np.dtype(np.int32)
        (folder / f"{STEM}.idx").write_bytes(_index(np.asarray(lengths, np.int32), kind))
        return summary("megatron", place, folder, documents=len(lengths), sequences=len(lengths), tokens=tokens)


def _index(lengths: np.ndarray[tuple[int], np.dtype[np.int32]], kind: np.dtype[np.generic]) -> bytes:
    ends = np.cumsum(lengths, dtype=np.int64) * kind.itemsize
    pointers = np.concatenate([np.zeros(1, np.int64), ends])[: lengths.size]
    boundaries = np.arange(lengths.size + 1, dtype=np.int64)
    head = MAGIC + struct.pack("<QBQQ", MEGATRON_VERSION, TYPE_CODES[kind], lengths.size, boundaries.size)
    return (
        head + lengths.astype("<i4").tobytes() + pointers.astype("<i8").tobytes() + boundaries.astype("<i8").tobytes()
    )


#: Rows in a row group: what a trainer reads at once.
ROW_GROUP_ROWS = 1 << 14
KEPT = ("id", "source", "metadata")
_TOKENS = pa.large_list(pa.int32())


def export_parquet(dataset: Dataset, place: str, noted: Noted = None) -> Exported:
    """Write `train-00000-of-0000N.parquet`, a file a shard. Raises InputError, StoreError."""
    shards = _exportable(dataset)
    if not shards:
        require_shards(dataset)
        raise InputError(
            f"{dataset.uri} holds neither tokens nor documents with text: this format is for what write_tokens(...) or "
            "write_documents(...) wrote; the JSON Lines of write_jsonl(...) are in its folder shards, for any reader"
        )
    require_documents(dataset, shards)
    documents = tokens = 0
    schema = _schema_of(dataset, shards)
    with new_folder(place, noted) as folder:
        for number, shard in enumerate(shards):
            path = folder / f"train-{number:05d}-of-{len(shards):05d}.parquet"
            if shard.object("tokens") is None:
                documents += _write(path, _texts(dataset, shard, schema))
            else:
                table, count = _tokens(dataset, shard, schema)
                documents += _write(path, [table])
                tokens += count
        return summary("parquet", place, folder, documents=documents, tokens=tokens)


def _exportable(dataset: Dataset) -> list[ClosedShard]:
    """The shards with tokens, if any was kept, else those with text, of one sink: of two would be each twice."""
    tokens = dataset.with_tokens()
    if any(shard.closed.counts.kept for shard in tokens):
        return tokens
    found = [shard for shard in dataset.shards if shard.object("documents") is not None]
    return dataset.of_main_sink(shard for shard in found if "text" in _names(dataset, shard)) or tokens


def _names(dataset: Dataset, shard: ClosedShard) -> list[str]:
    return column_names(dataset.store, stored_object_of(dataset, shard, "documents").key)


def _schema_of(dataset: Dataset, shards: list[ClosedShard]) -> pa.Schema:
    """The columns of all files: what is kept, the scores that any shard has, and the text or the tokens."""
    known = schema_of(dataset, shards)
    fields = [field for field in known if field.name in KEPT or field.name.startswith(SCORE_PREFIX)]
    fields.sort(key=lambda field: KEPT.index(field.name) if field.name in KEPT else len(KEPT))
    last = known.field("text") if shards[0].object("tokens") is None else pa.field("input_ids", _TOKENS)
    return pa.schema([*fields, last])


def _write(path: pathlib.Path, tables: Iterable[pa.Table]) -> int:
    """Write the tables, which have one schema and are held one at a time, into a file; their rows."""
    rows = 0
    with contextlib.ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for table in tables:
            if writer is None:
                writer = stack.enter_context(pq.ParquetWriter(path, table.schema, compression="zstd"))
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
            rows += table.num_rows
            del table  # before the next one is read
    return rows


def _texts(dataset: Dataset, shard: ClosedShard, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a shard of text, a row group at a time."""
    documents, known = stored_object_of(dataset, shard, "documents"), _names(dataset, shard)
    hidden, at = dataset.hidden_rows(shard), 0
    for found in read_row_groups(dataset.store, documents.key, [name for name in schema.names if name in known]):
        table = with_schema(found, schema)
        gone = [row - at for row in hidden if at <= row < at + table.num_rows]
        at += table.num_rows
        yield table.filter(pa.array(~np.isin(np.arange(table.num_rows), gone))) if gone else table


def _tokens(dataset: Dataset, shard: ClosedShard, schema: pa.Schema) -> tuple[pa.Table, int]:
    """The rows of a shard of tokens, and how many tokens they have."""
    found = read_documents(dataset, shard)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(found.lengths)])
    lists = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(found.tokens.astype(np.int32)))
    table = with_schema(found.table.append_column("input_ids", lists), schema)
    return table, int(found.tokens.size)


EXPORTS = {"megatron": export_megatron, "mds": export_mds, "parquet": export_parquet}
#: The names of the files that each writes.
_FILES = {
    "megatron": re.compile(r"documents\.(bin|idx)"),
    "mds": re.compile(r"index\.json|shard\.[0-9]+\.mds"),
    "parquet": re.compile(r"train-[0-9]{5,}-of-[0-9]{5,}\.parquet"),
}


def renew_export(dataset: Dataset, place: str, kind: str) -> str:
    """Have a folder hold a dataset's export anew; why it could not be, or "".

    A kill leaves the old export under its name or beside it, as `<name>.purged`, and the next call ends the exchange.
    Raises InputError, StoreError.
    """
    target = pathlib.Path(place)
    fresh, old = (target.with_name(target.name + end) for end in (".purging", ".purged"))
    if stays := [*drop_begun(target), *drop_begun(fresh)]:
        return f"{stays[0].name} beside it cannot be deleted: delete it, then purge again"
    for folder in (target, fresh, old):
        if strange := _strange(folder, kind):
            return f"{folder.name} holds {strange!r}, which no export wrote"
    if not target.exists() and old.exists():
        if not fresh.exists():
            disk.rename(old, target)
        else:
            disk.rename(fresh, target)
    if target.exists() and old.exists():
        shutil.rmtree(old)
    if not target.is_dir() or target.is_symlink():
        return "it is not there"
    shutil.rmtree(fresh, ignore_errors=True)
    EXPORTS[kind](dataset, str(fresh))
    disk.rename(target, old)
    disk.rename(fresh, target)
    shutil.rmtree(old)
    return ""


def _strange(folder: pathlib.Path, kind: str) -> str:
    """The name of something in a folder that an export of this kind does not write; "" where there is none."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []
    return next((name for name in names if not _FILES[kind].fullmatch(name)), "")
