"""The sink that packs token documents into shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa

from headrace.stages.batch import Batch
from headrace.stages.contract import Shard
from headrace.stages.errors import StageContractError
from headrace.stages.sidecars import count_fates, create_object, documents_table, in_order, write_sidecars
from headrace.store.objects import ObjectStore
from headrace.store.shards import build_tokens

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
        shard_bytes: int = 32 << 20,
        overlap: int = 0,
    ) -> None:
        self.name = name
        #: whether shards have checksums of their blocks; those of before have none
        self.blocks = True
        self.overlap = overlap
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
        ordered = in_order(batches)
        lists = [self._tokens(batch) for batch in ordered]
        lengths = np.concatenate([np.zeros(0, np.int64), *(np.diff(part.offsets.to_numpy()) for part in lists)])
        flat = [part.values.to_numpy()[_begin(part) : _end(part)] for part in lists]
        built = build_tokens(
            flat,
            lengths,
            seq_len=self.seq_len,
            dtype=self.dtype,
            pad_id=self.pad_id,
            metadata=self._facts,
            overlap=self.overlap,
            blocks=self.blocks,
        )
        tokens = create_object(store, "tokens", prefix, ".safetensors", built.parts)
        sidecars = write_sidecars(ordered, store, prefix, documents_table(ordered, lengths))
        packing = built.packing
        counts = count_fates(ordered, tokens=built.tokens, sequences=packing.sequences, padding=packing.padding)
        return Shard((tokens, *sidecars), counts)

    def _tokens(self, batch: Batch) -> pa.ListArray[Any]:
        if "tokens" not in batch.rows.schema.names:
            raise StageContractError(f'sink "{self.name}" got records without tokens: put tokenize(...) before it')
        return cast("pa.ListArray[Any]", batch.rows.column("tokens"))


def _begin(tokens: pa.ListArray[Any]) -> int:
    return int(tokens.offsets[0].as_py())


def _end(tokens: pa.ListArray[Any]) -> int:
    return int(tokens.offsets[len(tokens)].as_py())
