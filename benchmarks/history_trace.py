"""What `headrace dataset trace` takes on a dataset with sidecars of 10^7 real records, with its index.

Method: RECORDS records in shards of SHARD_RECORDS: tokens, documents and verdicts as a sink writes them, of texts of
DOCUMENT_TOKENS tokens; a tenth is filtered. The index is written by `dataset trace --index`. `trace` is timed as a
process, best of REPEATS, for a kept id, a filtered one, and one that no record has; its processor time stands beside,
which a loaded machine changes less. Limit: a second each. Of a ledger of 10^9 records `history.py` shows what `log`
takes to read it; the index of these has a file for each 2^24 records, of which a search reads three ranges.

    python benchmarks/history_trace.py
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.store.files.store import FileStore
from headrace.store.ledger import (
    Closed,
    Counts,
    Entry,
    Fragment,
    FragmentEnded,
    FragmentsListed,
    Led,
    Log,
    PipelineApplied,
    Range,
    StoredObject,
    VersionPublished,
    encode_entry,
)
from headrace.store.shards import build_tokens, content_hash, documents_schema, table_to_parquet, verdicts_schema

RECORDS, SHARD_RECORDS, DOCUMENT_TOKENS, SEQ_LEN = 10**7, 62_500, 8, 2048
REPEATS = 5
TRACE_S_MAX = 1.0


def write(folder: Path, records: int = RECORDS) -> None:
    """A dataset of so many records, each with an id of its own."""
    store = FileStore(folder)
    changes: list[Any] = [Led(1, {"host": "simulated"}), PipelineApplied("a" * 16, {"name": "simulated", "stages": []})]
    for number in range(records // SHARD_RECORDS):
        uri = f"s3://lake/part-{number:06d}.jsonl"
        fragment = Fragment.named("read", uri, "v", start=0, end=-1, reader="jsonl", size=1)
        rows = np.arange(SHARD_RECORDS)
        lost, kept = rows[rows % 10 == 3], rows[rows % 10 != 3]
        # Tokens of their own, so that no two shards have one key.
        tokens = (np.arange(len(kept) * DOCUMENT_TOKENS) + number) % 50_000
        built = build_tokens(
            tokens.astype(np.uint16), [DOCUMENT_TOKENS] * len(kept), seq_len=SEQ_LEN, dtype=np.uint16,
            pad_id=0, metadata={"tokenizer_sha256": "abc", "eos_id": "1"},
        )  # fmt: skip
        objects = [_stored(store, "tokens", ".safetensors", built.parts)]
        for role, schema, those, more in (
            ("documents", documents_schema(), kept, {"tokens": DOCUMENT_TOKENS}),
            ("verdicts", verdicts_schema(), lost, {"stage": "filter", "verdict": "filtered", "reason": "too short"}),
        ):
            facts = {"source": uri, "fragment": fragment.id.hex(), **more}
            columns = {name: pa.array([value] * len(those)) for name, value in facts.items()}
            columns |= {"id": pa.array([f"{number}-{row}" for row in those.tolist()]), "row": pa.array(those)}
            table = pa.table({f.name: columns.get(f.name, pa.nulls(len(those), f.type)) for f in schema}, schema=schema)
            objects.append(_stored(store, role, f".{role}.parquet", [table_to_parquet(table)]))
        counts = Counts(len(kept), len(lost), filtered_by={"filter/too short": len(lost)}, tokens=tokens.size)
        closed = Closed("write", "a" * 16, 0, (Range(fragment.id, 0, SHARD_RECORDS),), tuple(objects), counts)
        changes += [FragmentsListed((fragment,)), closed, FragmentEnded(fragment.id, SHARD_RECORDS)]
    changes.append(VersionPublished(1, "completed"))
    Log(store).append(0, encode_entry(Entry(1, tuple(changes))))


def _stored(store: FileStore, role: str, suffix: str, parts: list[Any]) -> StoredObject:
    digest = content_hash(parts)
    key = f"shards/1/{digest}{suffix}"
    store.create(key, parts)
    return StoredObject(role, key, f"xxh3-128:{digest}", sum(memoryview(part).nbytes for part in parts))


def _timed(code: int, *arguments: str) -> tuple[float, float]:
    """Seconds of a command that ends with this code, and of a processor, each the best of REPEATS."""
    best, best_cpu = float("inf"), float("inf")
    for _ in range(REPEATS):
        begun, cpu = time.perf_counter(), _children_s()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "headrace.cli", *arguments], capture_output=True, check=False
        )
        best, best_cpu = min(best, time.perf_counter() - begun), min(best_cpu, _children_s() - cpu)
        if done.returncode != code:
            raise SystemExit(f"{arguments} ended with {done.returncode}: {done.stderr.decode()}")
    return round(best, 3), round(best_cpu, 3)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(folder: Path, records: int = RECORDS) -> dict[str, Any]:
    """The row of `benchmarks/history.py`."""
    write(folder, records)
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, "-P", "-m", "headrace.cli", "dataset", "trace", str(folder), "--index"],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    indexed_s = time.perf_counter() - begun
    last = records // SHARD_RECORDS - 1
    seconds = {
        kind: _timed(code, "dataset", "trace", str(folder), name)
        for kind, name, code in (
            ("kept", f"{last // 2}-{SHARD_RECORDS - 1}", 0),
            ("filtered", f"{last}-13", 0),
            ("absent", "nobody-7", 1),
        )
    }
    size = sum(path.stat().st_size for path in (folder / "trace").iterdir())
    return {
        "trace_records": records,
        "trace_s": {kind: wall for kind, (wall, _) in seconds.items()},
        "trace_cpu_s": {kind: cpu for kind, (_, cpu) in seconds.items()},
        "trace_s_max": TRACE_S_MAX,
        "trace_index_bytes_a_record": round(size / records, 1),
        "trace_index_records_s": round(records / indexed_s),
    }


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        found = measure(Path(place) / "dataset")
    print(json.dumps(found))
    return 0 if max(found["trace_s"].values()) <= TRACE_S_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
