"""What a dataset's history costs to ask: `log` on a simulated ledger of 10^9 records, `diff` of real shards.

Method: a ledger is written as a run leaves it, a snapshot and the entries that begin a term: RECORDS records in shards
of 62,500 (256 MiB of tokens of 842 a document), a fragment each, in 20 versions of two recipes. `headrace dataset log`
is timed as a process, best of REPEATS. Limit: a second.

`diff`: two datasets of one input, DIFF_SHARDS shards of DIFF_RECORDS records, kept ones of DIFF_TOKENS tokens; every
20th record is filtered in one, every 20th has another text. All objects are read: none is in both. Best of REPEATS, in
this process, files in memory. Limit: 1,000,000 records a second.

`drift`: 12 planted drifts, and versions that are only shuffled (`benchmarks/history_drift.py`). Limit: all, and none.

`profiles`: what profiles cost of a run's processor time (`benchmarks/history_profiles.py`). Limit: 2 %.

`table`: 20 versions mirrored through 114 deaths, read by four readers (`benchmarks/history_tables.py`). Limit: equal
counts, no version twice.

`trace`: sidecars of 10^7 real records (`benchmarks/history_trace.py`). Limit: a second, also for an id that is nowhere.

    python benchmarks/history.py --json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import history_drift
import history_profiles
import history_tables
import history_trace
import numpy as np
import pyarrow as pa

from headrace.store.datasets import Dataset
from headrace.store.files.store import FileStore
from headrace.store.history import differences
from headrace.store.ledger import (
    Closed,
    Counts,
    Entry,
    EpochRaised,
    Fragment,
    FragmentEnded,
    FragmentsListed,
    Led,
    LedgerState,
    Log,
    PipelineApplied,
    Range,
    Resigned,
    StoredObject,
    VersionPublished,
    encode_entry,
    encode_snapshot,
)
from headrace.store.shards import build_tokens, content_hash, documents_schema, table_to_parquet, verdicts_schema

RECORDS = 10**9
SHARD_RECORDS = 62_500
VERSIONS = 20
REPEATS = 5
LOG_S_MAX = 1.0
DIFF_SHARDS, DIFF_RECORDS, DIFF_TOKENS, SEQ_LEN = 8, 125_000, 100, 2048
DIFF_RECORDS_S_MIN = 1_000_000


def pipeline(least: int) -> dict[str, object]:
    stages = [
        {"name": "read", "kind": "read_jsonl", "parameters": {"input": "s3://lake/*.jsonl"}},
        {"name": "filter", "kind": "gopher_quality", "parameters": {"min_words": least}, "after": ["read"]},
        {"name": "write", "kind": "write_tokens", "parameters": {"seq_len": 4096}, "after": ["filter"]},
    ]
    return {"name": "simulated", "stages": stages}


def closes(fragment: Fragment, number: int, version: str) -> Closed:
    kept, filtered, duplicate = SHARD_RECORDS * 6 // 10, SHARD_RECORDS * 3 // 10, SHARD_RECORDS // 10
    reasons = {f"filter/reason {reason}": filtered // 10 for reason in range(10)}
    counts = Counts(kept, filtered, duplicate, 0, reasons, tokens=kept * 842, sequences=kept * 842 // 4096)
    digest = f"{number:032x}"
    roles = {"tokens": ".safetensors", "documents": ".documents.parquet", "verdicts": ".verdicts.parquet"}
    objects = tuple(
        StoredObject(role, f"shards/1/{digest}{suffix}", f"xxh3-128:{digest}", 256 << 20)
        for role, suffix in roles.items()
    )
    return Closed("write", version, 1, (Range(fragment.id, 0, SHARD_RECORDS, 0, 256 << 20),), objects, counts)


def simulate(folder: Path) -> None:
    """Write the ledger of RECORDS records into a folder."""
    state, store = LedgerState(), FileStore(folder)
    first = Entry(
        1, (Led(1, {"host": "simulated", "pid": 1}), PipelineApplied("a" * 16, pipeline(50)), EpochRaised(""))
    )
    state.apply(0, first)
    shards = RECORDS // SHARD_RECORDS
    for version in range(VERSIONS):
        if version == VERSIONS // 2:
            state.apply(state.number + 1, Entry(1, (PipelineApplied("b" * 16, pipeline(80)),)))
        changes: list[object] = []
        for number in range(shards * version // VERSIONS, shards * (version + 1) // VERSIONS):
            uri = f"s3://lake/part-{number:06d}.jsonl"
            fragment = Fragment.named("read", uri, f'"{number:032x}"', start=0, end=-1, reader="jsonl", size=256 << 20)
            name = "a" * 16 if version < VERSIONS // 2 else "b" * 16
            ended = FragmentEnded(fragment.id, SHARD_RECORDS, fragment.id)
            changes += [FragmentsListed((fragment,)), closes(fragment, number, name), ended]
        state.apply(
            state.number + 1, Entry(1, (*changes, VersionPublished(version + 1, "completed", at=1_800_000_000)))
        )  # type: ignore[arg-type]
    state.apply(state.number + 1, Entry(1, (Resigned(1),)))
    log = Log(store)
    log.append(0, encode_entry(first))
    log.write_snapshot(state.number, encode_snapshot(state))


def timed(*arguments: str) -> float:
    """Seconds of a command, the best of REPEATS."""
    best = float("inf")
    for _ in range(REPEATS):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-P", "-m", "headrace.cli", *arguments], check=True, stdout=subprocess.DEVNULL)
        best = min(best, time.perf_counter() - begun)
    return best


def write_side(folder: Path, *, filtered: int, other: int) -> None:
    """A dataset: records whose ordinal modulo 20 is `filtered` are, those of `other` have another text."""
    store, state = FileStore(folder), LedgerState()
    log = Log(store)
    changes: list[object] = [Led(1, {"host": "simulated"}), PipelineApplied("a" * 16, pipeline(50)), EpochRaised("")]
    for number in range(DIFF_SHARDS):
        uri = f"s3://lake/part-{number}.jsonl"
        fragment = Fragment.named("read", uri, "v", start=0, end=-1, reader="jsonl", size=1)
        rows = np.arange(DIFF_RECORDS)
        lost, kept = rows[rows % 20 == filtered], rows[rows % 20 != filtered]
        tokens = (kept[:, None] + np.arange(DIFF_TOKENS)) % 50_000 + (kept % 20 == other)[:, None]
        built = build_tokens(
            tokens.reshape(-1).astype(np.uint16), [DIFF_TOKENS] * len(kept), seq_len=SEQ_LEN, dtype=np.uint16,
            pad_id=0, metadata={"tokenizer_sha256": "abc", "eos_id": "1"},
        )  # fmt: skip
        objects = [stored(store, "tokens", ".safetensors", built.parts)]
        for role, schema, those, more in (
            ("documents", documents_schema(), kept, {"tokens": DIFF_TOKENS}),
            ("verdicts", verdicts_schema(), lost, {"stage": "filter", "verdict": "filtered", "reason": "too short"}),
        ):
            facts = {"source": uri, "fragment": fragment.id.hex(), **more}
            columns = {name: pa.array([value] * len(those)) for name, value in facts.items()}
            columns |= {"id": pa.array([f"{uri}#{row}" for row in those.tolist()]), "row": pa.array(those)}
            table = pa.table({f.name: columns.get(f.name, pa.nulls(len(those), f.type)) for f in schema}, schema=schema)
            objects.append(stored(store, role, f".{role}.parquet", [table_to_parquet(table)]))
        counts = Counts(len(kept), len(lost), filtered_by={"filter/too short": len(lost)}, tokens=tokens.size)
        closed = Closed("write", "a" * 16, 0, (Range(fragment.id, 0, DIFF_RECORDS),), tuple(objects), counts)
        changes += [FragmentsListed((fragment,)), closed, FragmentEnded(fragment.id, DIFF_RECORDS)]
    entry = Entry(1, (*changes, VersionPublished(1, "completed")))  # type: ignore[arg-type]
    state.apply(0, entry)
    log.append(0, encode_entry(entry))


def stored(store: FileStore, role: str, suffix: str, parts: list[Any]) -> StoredObject:
    digest = content_hash(parts)
    key = f"shards/1/{digest}{suffix}"
    store.create(key, parts)
    return StoredObject(role, key, f"xxh3-128:{digest}", sum(memoryview(part).nbytes for part in parts))


def diff_rate(place: Path) -> dict[str, object]:
    """Records a second of a comparison of two datasets."""
    write_side(place / "old", filtered=3, other=-1)
    write_side(place / "new", filtered=7, other=11)
    records = DIFF_SHARDS * DIFF_RECORDS
    best = float("inf")
    for _ in range(REPEATS):
        begun = time.perf_counter()
        found = differences(Dataset.open(str(place / "old")), Dataset.open(str(place / "new")))
        best = min(best, time.perf_counter() - begun)
        expected = {("kept", "filtered filter/too short"), ("filtered filter/too short", "kept")}
        expected.add(("kept", "kept, other text"))
        if set(found.changed) != expected or set(found.changed.values()) != {records // 20}:
            raise SystemExit(f"diff is wrong: {found.changed}")
    rate = records / best
    return {"diff_records": records, "diff_records_s": round(rate), "diff_ratio": round(rate / DIFF_RECORDS_S_MIN, 2)}


def measure() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "simulated"
        simulate(folder)
        seconds = {
            kind: timed("dataset", "log", str(folder), *more) for kind, more in (("text", ()), ("json", ("--json",)))
        }
        diff = diff_rate(Path(place))
        profiles = history_profiles.measure(Path(place) / "profiles")
        (tables_at := Path(place) / "tables").mkdir()
        tables = history_tables.measure(tables_at)
        trace = history_trace.measure(Path(place) / "trace")
    drift = history_drift.measure()
    limits = [
        max(seconds.values()) <= LOG_S_MAX,
        float(str(diff["diff_ratio"])) >= 1,
        float(str(profiles["profiles_share"])) <= history_profiles.SHARE_MAX,
        not tables["table_wrong"],
        max(trace["trace_s"].values()) <= history_trace.TRACE_S_MAX,
        drift["drift_found"] == drift["drift_planted"],
        not drift["drift_false_alarms"],
    ]
    return {
        "records": RECORDS,
        "log_s": {name: round(value, 3) for name, value in seconds.items()},
        "log_s_max": LOG_S_MAX,
        **diff,
        **profiles,
        **tables,
        **trace,
        **drift,
        "passed": all(limits),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    found = measure()
    print(json.dumps(found) if arguments.json else "\n".join(f"{name:12} {value}" for name, value in found.items()))
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
