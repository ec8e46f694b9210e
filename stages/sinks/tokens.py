"""The sink that packs token documents into shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stages.runtime import Batch, Sink, StageContractError, WrittenShard, as_column
from headrace.stages.sinks.sidecars import count_fates, documents_table, in_order, write_profile, write_sidecars
from headrace.stages.sinks.spill import SpillFiles, copied
from headrace.store import ObjectStore, put_draft
from headrace.store.files import Scratch, open_draft
from headrace.store.ledger import StoredObject
from headrace.store.shards import (
    Built,
    Documents,
    ProfileBuilder,
    ScratchTokens,
    ShardLayout,
    check_fit,
    content_hash,
    write_tokens,
)

FORMAT = "headrace-tokens/1"
#: A vocabulary up to this size is stored in two bytes a token.
UINT16_VOCABULARY_MAX = 1 << 16
#: In the place of `tokens` in a batch that is spilled: where a row's tokens begin in the scratch file, in tokens, and
#: how many they are.
_BEGIN = "__tokens_begin"
_COUNT = "__tokens_count"


class TokenSink(Sink):
    """Writes `<hash>.safetensors`, `<hash>.documents.parquet` and `<hash>.verdicts.parquet`, each named by its bytes.

    The raw bytes of quarantined records, if there are any, go under `quarantine/`. `shard_bytes` is what the caller
    gathers, as `measure` counts it, before it writes. No tokens of what is gathered are in memory: they wait in a
    scratch file, and go from there into the shard by the window (`headrace.store.shards.builder.WINDOW_BYTES`).
    """

    borrows = True
    merges = True

    def __init__(
        self,
        name: str,
        seq_len: int,
        vocab_size: int,
        pad_id: int,
        eos_id: int | None,
        tokenizer_sha256: str,
        shard_bytes: int = 32 << 20,
        overlap: int = 0,
    ) -> None:
        self.name = name
        #: whether columns have numbers and shards profiles, and checksums of their blocks; those of before have none
        self.has_ids = self.blocks = True
        self.overlap = overlap
        self.seq_len = seq_len
        self.shard_bytes = shard_bytes
        self.pad_id = pad_id
        self.dtype = np.dtype(np.uint16 if vocab_size <= UINT16_VOCABULARY_MAX else np.uint32)
        self._spill_files = SpillFiles(shard_bytes)
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

    def spill(self, batch: Batch, store: ObjectStore) -> Batch:
        """The batch with its tokens in a scratch file."""
        return self._spill_files.put(store, lambda scratch: self._spilled(batch, scratch))

    def use_older_layout(self) -> bool:
        """Write shards as they were before they had numbers of columns, then before they had checksums of blocks."""
        if self.has_ids:
            self.has_ids = False
            return True
        had, self.blocks = self.blocks, False
        return had

    def write(self, batches: Sequence[Batch], store: ObjectStore, prefix: str) -> WrittenShard:
        """Write the shard of these batches; the same batches in any order give the same objects."""
        spill_files = SpillFiles(self.shard_bytes)
        ordered = in_order(spill_files.spilled(batches, store, self._spilled))
        documents = self._documents(ordered)
        builder = ProfileBuilder()
        tokens, built = self._write_tokens(documents, store, prefix, builder)
        table = documents_table(ordered, documents.lengths)
        sidecars = write_sidecars(ordered, store, prefix, table, has_ids=self.has_ids)
        packing = built.packing
        counts = count_fates(ordered, tokens=built.tokens, sequences=packing.sequences, padding=packing.padding)
        if self.has_ids:
            builder.add(table)
            sidecars = (*sidecars, write_profile(builder, counts, store, prefix))
        return WrittenShard((tokens, *sidecars), counts)

    def _write_tokens(
        self, documents: Documents, store: ObjectStore, prefix: str, builder: ProfileBuilder
    ) -> tuple[StoredObject, Built]:
        see = builder.token_counter(int(documents.lengths.sum()), self.pad_id)
        layout = ShardLayout(self.seq_len, self.dtype, self.pad_id, self._facts, self.overlap, self.blocks)
        with open_draft(store) as draft:
            built = write_tokens(draft, documents, layout, see)
            digest = content_hash(draft.pieces())
            key = f"{prefix}{digest}.safetensors"
            put_draft(store, key, draft)
        return StoredObject("tokens", key, f"xxh3-128:{digest}", built.size), built

    def _spilled(self, batch: Batch, scratch: Scratch) -> Batch:
        tokens = self._tokens(batch)
        values = tokens.values.to_numpy()[_begin(tokens) : _end(tokens)]
        check_fit(values, self.dtype)
        at = scratch.append(np.ascontiguousarray(values, self.dtype.newbyteorder("<")).data) // self.dtype.itemsize
        offsets = tokens.offsets.to_numpy().astype(np.int64)
        names = [name for name in batch.rows.schema.names if name != "tokens"]
        rows = copied(batch.rows, names)
        columns = [*rows.columns, as_column(offsets[:-1] - offsets[0] + at), as_column(np.diff(offsets))]
        rows = pa.RecordBatch.from_arrays(columns, names=[*names, _BEGIN, _COUNT])
        return replace(batch, rows=rows, scratch=scratch)

    def _documents(self, spilled: Sequence[Batch]) -> Documents:
        scratches = list({id(batch.scratch): batch.scratch for batch in spilled if batch.scratch is not None}.values())
        number = {id(scratch): index for index, scratch in enumerate(scratches)}
        kind = self.dtype.newbyteorder("<")
        return Documents(
            _joined(batch.rows.column(_COUNT).to_numpy() for batch in spilled),
            [ScratchTokens(scratch, kind) for scratch in scratches],
            _joined(np.full(batch.rows.num_rows, number[id(batch.scratch)]) for batch in spilled),
            _joined(batch.rows.column(_BEGIN).to_numpy() for batch in spilled),
        )

    def _tokens(self, batch: Batch) -> pa.ListArray[Any]:
        if "tokens" not in batch.rows.schema.names:
            raise StageContractError(f'sink "{self.name}" got records without tokens: put tokenize(...) before it')
        return cast("pa.ListArray[Any]", batch.rows.column("tokens"))


def _joined(columns: Iterable[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *columns])


def _begin(tokens: pa.ListArray[Any]) -> int:
    return int(tokens.offsets[0].as_py())


def _end(tokens: pa.ListArray[Any]) -> int:
    return int(tokens.offsets[len(tokens)].as_py())
