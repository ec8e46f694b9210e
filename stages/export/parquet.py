"""A Hugging Face style folder of Parquet: a row a document, with its text or its tokens."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.stages.export.source import Exported, new_folder, read_documents, require_shards, summary
from headrace.stages.runtime import InputError
from headrace.store.datasets import Dataset, ShardRecord
from headrace.store.shards import SCORE_PREFIX, column_names, read_row_groups

#: Rows in a row group: what a trainer reads at once.
ROW_GROUP_ROWS = 1 << 14
KEPT = ("id", "source", "metadata")


def export_parquet(dataset: Dataset, place: str) -> Exported:
    """Write `train-00000-of-0000N.parquet`, a file a shard. Raises InputError, StoreError."""
    shards = list(_exportable(dataset))
    if not shards:
        require_shards(dataset)
        raise InputError(
            f"{dataset.uri} holds neither tokens nor documents with text: this format is for what write_tokens(...) or "
            "write_documents(...) wrote; the JSON Lines of write_jsonl(...) are in its folder shards, for any reader"
        )
    documents = tokens = 0
    with new_folder(place) as folder:
        for number, shard in enumerate(shards):
            path = folder / f"train-{number:05d}-of-{len(shards):05d}.parquet"
            if shard.object("tokens") is None:
                documents += _write(path, _texts(dataset, shard))
            else:
                table, count = _tokens(dataset, shard)
                documents += _write(path, [table])
                tokens += count
        return summary("parquet", place, folder, documents=documents, tokens=tokens)


def _exportable(dataset: Dataset) -> Iterator[ShardRecord]:
    """The shards with tokens, else those with text: not both, which would be each document twice."""
    with_tokens = [shard for shard in dataset.shards if shard.object("tokens") is not None]
    if with_tokens:
        return iter(with_tokens)
    found = [shard for shard in dataset.shards if shard.object("documents") is not None]
    return (shard for shard in found if "text" in _names(dataset, shard))


def _names(dataset: Dataset, shard: ShardRecord) -> list[str]:
    documents = shard.object("documents")
    assert documents is not None
    return column_names(dataset.store, documents.key)


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


def _texts(dataset: Dataset, shard: ShardRecord) -> Iterator[pa.Table]:
    """The rows of a shard of text, a row group at a time."""
    documents = shard.object("documents")
    assert documents is not None
    scores = [name for name in _names(dataset, shard) if name.startswith(SCORE_PREFIX)]
    hidden, at = dataset.retracted(documents.key), 0
    for table in read_row_groups(dataset.store, documents.key, [*KEPT, *scores, "text"]):
        gone = [row - at for row in hidden if at <= row < at + table.num_rows]
        at += table.num_rows
        yield table.filter(pa.array(~np.isin(np.arange(table.num_rows), gone))) if gone else table


def _tokens(dataset: Dataset, shard: ShardRecord) -> tuple[pa.Table, int]:
    """The rows of a shard of tokens, and how many tokens they have."""
    found = read_documents(dataset, shard)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(found.lengths)])
    lists = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(found.tokens.astype(np.int32)))
    scores = [name for name in found.table.schema.names if name.startswith(SCORE_PREFIX)]
    table = found.table.select([*KEPT, *scores]).append_column("input_ids", lists)
    return table, int(found.tokens.size)
