"""The sink that packs token documents into shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.stages.batch import DUPLICATE, FILTERED, LINEAGE, QUARANTINED, ROW, Batch
from headrace.stages.contract import Shard
from headrace.stages.errors import StageContractError
from headrace.store.entries import Counts, StoredObject
from headrace.store.objects import Buffer, ObjectStore
from headrace.store.shards import (
    build_tokens,
    content_hash,
    documents_schema,
    quarantine_schema,
    table_to_parquet,
    verdicts_schema,
)

FORMAT = "headrace-tokens/1"
#: A vocabulary up to this size is stored in two bytes a token.
UINT16_VOCABULARY_MAX = 1 << 16


class TokenSink:
    """Writes `<hash>.safetensors`, `<hash>.documents.parquet` and `<hash>.verdicts.parquet`, each named by its bytes.

    The raw bytes of quarantined records, if there are any, go under `quarantine/`. `shard_bytes` is what the caller
    gathers, as `measure` counts it, before it writes.
    """

    def __init__(
        self,
        name: str,
        seq_len: int,
        vocab_size: int,
        pad_id: int,
        eos_id: int | None,
        tokenizer_sha256: str,
        shard_bytes: int = 64 << 20,
    ) -> None:
        self.name = name
        self.seq_len = seq_len
        self.shard_bytes = shard_bytes
        self.pad_id = pad_id
        self.dtype = np.dtype(np.uint16 if vocab_size <= UINT16_VOCABULARY_MAX else np.uint32)
        self._facts = {
            "format": FORMAT,
            "tokenizer_sha256": tokenizer_sha256,
            "vocab_size": str(vocab_size),
            "eos_id": "" if eos_id is None else str(eos_id),
        }

    def begin(self, dataset: str, version: str) -> None:
        """Note for the shards' headers what they are part of."""
        self._facts |= {"dataset": dataset, "pipeline": version}

    def measure(self, batch: Batch) -> int:
        """Bytes of the batch's tokens in a shard, padding not counted."""
        tokens = self._tokens(batch)
        return (_end(tokens) - _begin(tokens)) * self.dtype.itemsize

    def write(self, batches: Sequence[Batch], store: ObjectStore, prefix: str) -> Shard:
        """Write the shard of these batches; the same batches in any order give the same objects."""
        ordered = sorted(batches, key=lambda batch: (batch.uri, batch.fragment, batch.first))
        lists = [self._tokens(batch) for batch in ordered]
        lengths = np.concatenate([np.zeros(0, np.int64), *(np.diff(part.offsets.to_numpy()) for part in lists)])
        flat = [part.values.to_numpy()[_begin(part) : _end(part)] for part in lists]
        built = build_tokens(
            np.concatenate([np.zeros(0, np.uint32), *flat]),
            lengths,
            seq_len=self.seq_len,
            dtype=self.dtype,
            pad_id=self.pad_id,
            metadata=self._facts,
        )
        quarantined = _gather(ordered, quarantine_schema(), _quarantine)
        sidecars: list[tuple[str, str, str, list[Buffer]]] = [
            ("tokens", prefix, ".safetensors", built.parts),
            ("documents", prefix, ".documents.parquet", [_documents(ordered, lengths)]),
            ("verdicts", prefix, ".verdicts.parquet", [table_to_parquet(_gather(ordered, verdicts_schema(), _lost))]),
        ]
        if quarantined.num_rows:
            sidecars.append(("quarantine", "quarantine/", ".parquet", [table_to_parquet(quarantined)]))
        objects = tuple(_create(store, *sidecar) for sidecar in sidecars)
        counts = _count(ordered, tokens=built.tokens, sequences=built.packing.sequences, padding=built.packing.padding)
        return Shard(objects, counts)

    def _tokens(self, batch: Batch) -> pa.ListArray[Any]:
        if "tokens" not in batch.rows.schema.names:
            raise StageContractError(f'sink "{self.name}" got records without tokens: put tokenize(...) before it')
        return cast("pa.ListArray[Any]", batch.rows.column("tokens"))


def _begin(tokens: pa.ListArray[Any]) -> int:
    return int(tokens.offsets[0].as_py())


def _end(tokens: pa.ListArray[Any]) -> int:
    return int(tokens.offsets[len(tokens)].as_py())


def _create(store: ObjectStore, role: str, prefix: str, suffix: str, parts: list[Buffer]) -> StoredObject:
    digest = content_hash(parts)
    key = f"{prefix}{digest}{suffix}"
    store.create(key, parts)
    return StoredObject(role, key, f"xxh3-128:{digest}", sum(memoryview(part).nbytes for part in parts))


def _documents(batches: Iterable[Batch], lengths: npt.NDArray[np.int64]) -> bytes:
    table = _gather(batches, documents_schema(), _kept)
    place = table.schema.get_field_index("tokens")
    return table_to_parquet(table.set_column(place, "tokens", pa.array(lengths, pa.int64())))


def _kept(batch: Batch) -> dict[str, Any]:
    rows, count = batch.rows, batch.rows.num_rows
    names = rows.schema.names
    return {
        "id": rows.column("id"),
        "row": rows.column(ROW),
        "tokens": pa.nulls(count, pa.int64()),
        "lineage": rows.column(LINEAGE) if LINEAGE in names else pa.nulls(count, pa.string()),
        "metadata": rows.column("metadata") if "metadata" in names else pa.nulls(count, pa.string()),
    }


def _lost(batch: Batch) -> dict[str, Any]:
    verdicts = batch.verdicts.sort_by("row") if batch.verdicts.num_rows else batch.verdicts
    return {name: verdicts.column(name) for name in verdicts.schema.names}


def _quarantine(batch: Batch) -> dict[str, Any]:
    lost = batch.verdicts
    if lost.num_rows:
        lost = lost.filter(pc.equal(lost.column("verdict"), pa.scalar(QUARANTINED)))
        lost = lost.sort_by("row") if lost.num_rows else lost
    return {name: lost.column(name) for name in lost.schema.names}


def _gather(batches: Iterable[Batch], schema: pa.Schema, columns_of: Any) -> pa.Table:
    """The rows that `columns_of` finds in each batch, with the fragment that they are of."""
    parts: list[pa.RecordBatch] = []
    for batch in batches:
        columns = columns_of(batch)
        count = len(columns["id"])
        if not count:
            continue
        columns["source"] = pa.repeat(pa.scalar(batch.uri), count)
        columns["fragment"] = pa.repeat(pa.scalar(batch.fragment.hex()), count)
        parts.append(pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema))
    return pa.Table.from_batches(parts, schema=schema)


def _count(batches: Sequence[Batch], *, tokens: int, sequences: int, padding: int) -> Counts:
    verdicts: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {FILTERED: Counter(), QUARANTINED: Counter(), DUPLICATE: Counter()}
    edited: Counter[str] = Counter()
    for batch in batches:
        edited.update(batch.edits)
        lost = batch.verdicts
        if not lost.num_rows:
            continue
        for stage, verdict, reason in zip(*(lost.column(i).to_pylist() for i in (2, 3, 4)), strict=True):
            verdicts[verdict] += 1
            reasons[verdict][f"{stage}/{reason_class(reason)}"] += 1
    return Counts(
        kept=sum(batch.rows.num_rows for batch in batches),
        filtered=verdicts[FILTERED],
        duplicate=verdicts[DUPLICATE],
        quarantined=verdicts[QUARANTINED],
        filtered_by=dict(sorted(reasons[FILTERED].items())),
        quarantined_by=dict(sorted(reasons[QUARANTINED].items())),
        edited=dict(sorted(edited.items())),
        tokens=tokens,
        sequences=sequences,
        padding=padding,
    )


def reason_class(reason: str | None) -> str:
    """A reason without its particulars, which follow a colon: what records are counted by."""
    return (reason or "unknown").partition(": ")[0]
