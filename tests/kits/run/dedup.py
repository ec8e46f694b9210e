"""A corpus with planted duplicates, a pipeline that removes them, and what must hold of its dataset whatever died."""

from __future__ import annotations

import json
import random
import sysconfig
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.stages.dedup.core.scheme import DEFAULTS, Scheme
from headrace.stages.dedup.minhash import make_keys
from headrace.store.datasets.dataset import Dataset
from headrace.store.ledger.core.entries import EpochRaised, decode_entry
from headrace.store.shards.dedup_files import RecordName
from tests.kits.store.duplicates import leaning_faults, shared_keys

PIPELINE = '''"""Modules without duplicates, in shards so small that a short run has many ledger entries."""

import fcntl
import zlib

from headrace.pipeline.graph import Pipeline
from headrace.stages.library import dedup, map_records, read_jsonl, tokenize, write_tokens

GATE = {gate!r}


def pass_gate(record):
    """Hold the last records up for as long as somebody has the gate's lock."""
    if record["id"] == "gate":
        with open(GATE) as gate:
            fcntl.flock(gate, fcntl.LOCK_SH)
    return record if len(record["text"]) > 40 else None


def curse(record):
    if record["id"].startswith("cursed"):
        raise ValueError("cursed")
    return record


def choose(record):
    """A filter behind dedup: what it removes takes its duplicates with it."""
    module = record["id"].partition("-")[2] or record["id"]
    return None if zlib.crc32(module.encode()) % 16 == 0 else record


def build(input: str, output: str, partitions: str = "0") -> Pipeline:
    tokens = tokenize({tokenizer!r})
    return Pipeline.chain(
        "small",
        output,
        read_jsonl(input, fragment_bytes=1 << 20, batch_bytes=1 << 15),
        map_records(pass_gate),
        *dedup(folder={folder!r}, partitions=int(partitions)),
        map_records(curse),
        map_records(choose),
        tokens,
        write_tokens(tokens, seq_len=512, shard_bytes=1 << 15),
    )
'''
FILES = 4
MODULES = 240


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a record, and by which entry."""

    id: str
    verdict: str
    stage: str
    entry: int
    duplicate_of: str | None


def write_corpus(folder: Path) -> dict[str, str]:
    """Files of modules, of copies that differ in white space or by a line, and of records that come to harm."""
    chance = random.Random(5)
    modules = _modules()
    files: list[list[tuple[str, str]]] = [[] for _ in range(FILES)]
    for number, text in enumerate(modules):
        files[number % FILES].append((f"module-{number}", text))
        lines = text.splitlines()
        if number % 3 == 0:
            files[chance.randrange(FILES)].append((f"copy-{number}", "\n\n".join(lines)))
        if number % 5 == 0:
            files[chance.randrange(FILES)].append((f"near-{number}", "\n".join([*lines[:-2], lines[-1]])))
        if number % 12 == 1:
            files[chance.randrange(FILES)].insert(0, (f"cursed-{number}", text))
    files[0].append(("short", "too short"))
    files[-1].append(("gate", "The last of the records stands behind a gate until the test has done what it wants."))
    folder.mkdir()
    for place, records in enumerate(files):
        lines = [json.dumps({"id": name, "text": text}) for name, text in records]
        (folder / f"{place}.jsonl").write_text("\n".join(lines) + "\n")
    return {name: text for records in files for name, text in records}


def _modules() -> list[str]:
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in sorted(root.rglob("*.py")) if "site-packages" not in path.parts]
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in paths)
    return [text for text in texts if 2_000 < len(text) < 20_000][:MODULES]


def fates_of(dataset: Path) -> dict[RecordName, Fate]:
    """The fate of each record; fails where one has two."""
    found: dict[RecordName, Fate] = {}
    for shard in Dataset.open(str(dataset)).state.shards:
        for item in shard.closed.objects:
            if item.role not in ("documents", "verdicts"):
                continue
            for row in pq.read_table(dataset / item.key).to_pylist():
                name = RecordName(bytes.fromhex(row["fragment"]), row["row"])
                assert name not in found, f"{name} stands in the dataset twice"
                verdict, stage = row.get("verdict", "kept"), row.get("stage", "")
                found[name] = Fate(row["id"], verdict, stage, shard.number, row.get("duplicate_of"))
    return found


def check(dataset: Path, corpus: dict[str, str]) -> Counter[str]:
    """Each record has one fate; of one module one text is kept; each duplicate shares a key with a kept record."""
    fates = fates_of(dataset)
    assert sorted(fate.id for fate in fates.values()) == sorted(corpus)
    ids = list(corpus)
    words = make_keys(pa.array([corpus[name] for name in ids], pa.string()), Scheme(*DEFAULTS[True])).tolist()
    keys = {
        name: {row[0] << 64 | row[1], *(place << 128 | word for place, word in enumerate(row[2:], 1))}
        for name, row in zip(ids, words, strict=True)
    }
    kept = {name: fate.entry for name, fate in fates.items() if fate.verdict == "kept"}
    chosen_not = {name: fate.entry for name, fate in fates.items() if fate.stage == "choose"}
    assert chosen_not
    assert list(shared_keys((name, [min(keys[fates[name].id], key=lambda key: key >> 128)]) for name in kept)) == []
    modules = Counter(fates[name].id.partition("-")[2] or fates[name].id for name in kept)
    assert max(modules.values()) == 1, f"kept twice: {[module for module, count in modules.items() if count > 1]}"
    leaning = [
        (fate.entry, name, RecordName.parse(fate.duplicate_of or "")) for name, fate in fates.items()
        if fate.verdict == "duplicate"
    ]  # fmt: skip
    assert list(leaning_faults(leaning, kept | chosen_not)) == []
    for _, name, target in leaning:
        assert keys[fates[name].id] & keys[fates[target].id], f"{fates[name].id} is no duplicate of {fates[target].id}"
    for fate in fates.values():
        removed = fate.id == "short" or zlib.crc32((fate.id.partition("-")[2] or fate.id).encode()) % 16 == 0
        expected = {"filtered", "duplicate"} if removed else {"kept", "duplicate"}
        assert fate.verdict in ({"quarantined", "duplicate"} if fate.id.startswith("cursed") else expected), fate
    return Counter(fate.verdict for fate in fates.values())


def epochs(dataset: Path) -> list[str]:
    """Why the epoch was raised, each time."""
    found: list[str] = []
    for path in sorted((dataset / "ledger").glob("*.msgpack")):
        changes = decode_entry(path.read_bytes()).changes
        found += [change.reason for change in changes if isinstance(change, EpochRaised)]
    return found
