"""The sinks that keep text as text: Parquet tables of documents, and compressed JSON Lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import pyarrow as pa

from headrace.stages.batch import Batch
from headrace.stages.contract import Shard
from headrace.stages.errors import StageContractError
from headrace.stages.sidecars import count_fates, create_object, documents_table, in_order, write_sidecars
from headrace.store.objects import Buffer, ObjectStore

#: zstd's own default: 3 keeps a core ahead of most disks.
COMPRESSION_LEVEL = 3
#: Bytes of JSON in one zstd frame, so that writing takes bounded memory beside the batches.
FRAME_BYTES = 8 << 20


class TextSink:
    """What both sinks share: shards are measured by their text."""

    def __init__(self, name: str, shard_bytes: int = 256 << 20) -> None:
        self.name = name
        self.shard_bytes = shard_bytes

    def begin(self, dataset: str, version: str) -> None:
        """Nothing to note: the tables name their fragments."""

    def measure(self, batch: Batch) -> int:
        """Bytes of the kept text."""
        return int(self._texts(batch).nbytes)

    def _texts(self, batch: Batch) -> Any:
        if "text" not in batch.rows.schema.names:
            raise StageContractError(f'sink "{self.name}" got records without text: put it before tokenize(...)')
        return batch.rows.column("text")


class DocumentSink(TextSink):
    """Writes `<hash>.documents.parquet` with the text as its last column, and the table of verdicts."""

    def write(self, batches: Sequence[Batch], store: ObjectStore, prefix: str) -> Shard:
        """Write the shard of these batches; the same batches in any order give the same objects."""
        ordered = in_order(batches)
        documents = documents_table(ordered)
        texts = [self._texts(batch).cast(pa.string()) for batch in ordered if batch.rows.num_rows]
        documents = documents.append_column("text", pa.chunked_array(texts, pa.string()))
        counts = count_fates(ordered, tokens=0, sequences=0, padding=0)
        return Shard(write_sidecars(ordered, store, prefix, documents), counts)


class JsonlSink(TextSink):
    """Writes `<hash>.jsonl.zst`, a line {"id", "text", "metadata"} a kept record, and the tables of both fates."""

    def write(self, batches: Sequence[Batch], store: ObjectStore, prefix: str) -> Shard:
        """Write the shard of these batches; the same batches in any order give the same objects."""
        ordered = in_order(batches)
        lines = create_object(store, "lines", prefix, ".jsonl.zst", list(_frames(self._lines(ordered))))
        sidecars = write_sidecars(ordered, store, prefix, documents_table(ordered))
        return Shard((lines, *sidecars), count_fates(ordered, tokens=0, sequences=0, padding=0))

    def _lines(self, batches: Sequence[Batch]) -> Iterator[bytes]:
        for batch in batches:
            ids, texts = batch.rows.column("id").to_pylist(), self._texts(batch).to_pylist()
            has_metadata = "metadata" in batch.rows.schema.names
            packed = batch.rows.column("metadata").to_pylist() if has_metadata else [None] * len(ids)
            for name, text, metadata in zip(ids, texts, packed, strict=True):
                record = {"id": name, "text": text}
                fragment = {"metadata": orjson.Fragment(metadata)} if metadata else {}
                yield orjson.dumps({**record, **fragment}, option=orjson.OPT_APPEND_NEWLINE)


def _frames(lines: Iterator[bytes]) -> Iterator[Buffer]:
    """The lines as zstd frames of about FRAME_BYTES each; at least one frame, so that the file is never empty."""
    codec = pa.Codec("zstd", compression_level=COMPRESSION_LEVEL)
    held: list[bytes] = []
    size, count = 0, 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= FRAME_BYTES:
            yield _compress(codec, held)
            held, size, count = [], 0, count + 1
    if held or not count:
        yield _compress(codec, held)


def _compress(codec: pa.Codec, parts: Sequence[bytes]) -> bytes:
    packed: bytes = codec.compress(b"".join(parts), asbytes=True)
    return packed
