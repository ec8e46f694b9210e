"""What a dataset's history costs to ask: `log` on a simulated ledger of 10^9 records.

Method: a ledger is written as a run leaves it, a snapshot and the entries that begin a term: RECORDS records in shards
of 62,500 (256 MiB of tokens of 842 a document), a fragment each, in 20 versions of two recipes. `headrace dataset log`
is timed as a process, best of REPEATS. Limit: a second.

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

from headrace.store.files.store import FileStore
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

RECORDS = 10**9
SHARD_RECORDS = 62_500
VERSIONS = 20
REPEATS = 5
LOG_S_MAX = 1.0


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


def measure() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "simulated"
        simulate(folder)
        seconds = {
            kind: timed("dataset", "log", str(folder), *more) for kind, more in (("text", ()), ("json", ("--json",)))
        }
    return {
        "records": RECORDS,
        "log_s": {name: round(value, 3) for name, value in seconds.items()},
        "log_s_max": LOG_S_MAX,
        "passed": max(seconds.values()) <= LOG_S_MAX,
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
