"""A dataset that is written by hand, so that each of its parts can be wrong."""

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.controller.logs import identity
from headrace.store import shards
from headrace.store.contract.objects import ObjectStore
from headrace.store.ledger.core.entries import (
    Change,
    Closed,
    Entry,
    FragmentsListed,
    Led,
    PipelineApplied,
    encode_entry,
)
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Counts, Fragment, Range, StoredObject
from headrace.store.ledger.log import Log
from headrace.store.shards.builder import build_tokens

SEQ_LEN = 4
#: A process of this host that has ended: who leads next need not wait for it.
GONE = identity() | {"start": -1}
FRAGMENT = Fragment.named("read", "file:///corpus/a.jsonl", "9-9-9", start=0, end=-1, reader="jsonl", size=9)
PIPELINE: dict[str, Any] = {
    "name": "books",
    "stages": [
        {"parameters": {"tokenizer": "t.json"}, "identity": {"tokenizer": "abc", "eos_id": 1, "pad_id": 2}},
        {"parameters": {"seq_len": SEQ_LEN}, "identity": {}},
    ],
}
#: What became of record 0, 1, ... of the fragment: a number of tokens if it is kept, else its verdict.
Fate = int | str
FATES: list[Fate] = [3, "filtered", 6, "quarantined", 0, "duplicate", 2, "filtered"]


class Writer:
    """Writes a dataset by hand, so that each of its parts can be wrong."""

    def __init__(self, store: ObjectStore, *stages: dict[str, Any]) -> None:
        self.store = store
        self.log = Log(store)
        self.number, self.term = 0, 1
        #: The record that duplicates are said to be of, and the stage that says what becomes of records.
        self.target: str | None = "0"
        self.stage = "s"
        pipeline: dict[str, Any] = {**PIPELINE, "stages": [*PIPELINE["stages"], *stages]}
        self.entry(Led(1, GONE), PipelineApplied("v1", pipeline), FragmentsListed((FRAGMENT,)))

    def entry(self, *changes: Change) -> None:
        self.log.append(self.number, encode_entry(Entry(self.term, changes)))
        self.number += 1

    def go_on(self, state: LedgerState) -> None:
        """Write behind what others have written meanwhile, as the leader of the next term."""
        self.number, self.term = state.number + 1, state.term + 1
        self.entry(Led(self.term, GONE))

    def object(self, role: str, key: str, parts: list[Any]) -> StoredObject:
        self.store.create(key, parts)
        return StoredObject(role, key, shards.checksum(parts), sum(memoryview(part).nbytes for part in parts))

    def table(self, role: str, key: str, schema: pa.Schema, rows: list[dict[str, Any]]) -> StoredObject:
        return self.object(role, key, [shards.table_to_parquet(pa.Table.from_pylist(rows, schema=schema))])

    def shard(self, fates: list[Fate], first: int = 0) -> Closed:
        rows = [
            {"id": f"{row}", "source": FRAGMENT.uri, "fragment": FRAGMENT.id.hex(), "row": row, "fate": fate}
            for row, fate in enumerate(fates, start=first)
        ]
        kept = [row | {"tokens": row["fate"]} for row in rows if isinstance(row["fate"], int)]
        lost = [row | {"verdict": row["fate"], "stage": self.stage, "reason": "r"} for row in rows if row not in kept]
        lost = [row for row in lost if isinstance(row["fate"], str)]
        lost = [row | {"duplicate_of": self.target if row["fate"] == "duplicate" else None} for row in lost]
        raw = [row | {"raw": b"?"} for row in lost if row["verdict"] == "quarantined"]
        lengths = [row["tokens"] for row in kept]
        built = build_tokens(
            np.arange(sum(lengths)), lengths, seq_len=SEQ_LEN, dtype=np.uint16, pad_id=2,
            metadata={"tokenizer": "abc", "eos_id": "1"},
        )  # fmt: skip
        prefix = f"shards/1/{first:032x}"
        objects = [
            self.object("tokens", f"{prefix}.safetensors", built.parts),
            self.table("documents", f"{prefix}.documents.parquet", shards.documents_schema(), kept),
            self.table("verdicts", f"{prefix}.verdicts.parquet", shards.verdicts_schema(), lost),
        ]
        if raw:
            key = f"quarantine/1/{first:032x}.parquet"
            objects.append(self.table("quarantine", key, shards.quarantine_schema(), raw))
        verdicts = [row["verdict"] for row in lost]
        counts = Counts(
            kept=len(kept),
            filtered=verdicts.count("filtered"),
            duplicate=verdicts.count("duplicate"),
            quarantined=verdicts.count("quarantined"),
            filtered_by={"s/r": verdicts.count("filtered")},
            tokens=built.tokens,
            sequences=built.packing.sequences,
            padding=built.packing.padding,
        )
        return Closed("write", "v1", 0, (Range(FRAGMENT.id, first, len(fates)),), tuple(objects), counts)
