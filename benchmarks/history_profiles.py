"""What `benchmarks/history.py` asks of profiles: their part of a run's processor time.

A run reads PROFILE_RECORDS records of words with a site in their fields, tokenizes and writes them, without a filter:
the least that a run can do. Then the profile of each of its shards is made again from its documents and tokens, and
written, in this process; both are processor time, the best of REPEATS.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

from headrace.store.datasets import Dataset
from headrace.store.files.store import FileStore
from headrace.store.shards import ProfileBuilder, encode_profile, read_shard, read_table

PROFILE_RECORDS = 30_000
SHARE_MAX = 0.02
REPEATS = 3
WINDOW = 1 << 19

PIPELINE = """
from headrace import Pipeline, read_jsonl, tokenize, write_tokens


def build(input: str, output: str) -> Pipeline:
    tokens = tokenize("deepseek")
    return Pipeline.chain("plain", output, read_jsonl(input), tokens, write_tokens(tokens, seq_len=2048))
"""


def children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write_corpus(path: Path) -> None:
    chance = random.Random(7)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(20_000)]
    with path.open("w") as file:
        for number in range(PROFILE_RECORDS):
            text = " ".join(chance.choices(words, k=max(20, int(chance.lognormvariate(5.8, 0.8)))))
            fields = {"url": f"https://site{chance.randint(0, 400)}.example/{number}", "language": "en"}
            file.write(json.dumps({"id": str(number), "text": text, "metadata": fields}) + "\n")


def run_s(home: Path) -> float:
    """Processor time of the run."""
    (home / "p.py").write_text(PIPELINE)
    write_corpus(home / "in.jsonl")
    before = children_s()
    given = ("-p", f"input={home}/in.jsonl", "-p", f"output={home}/out")
    subprocess.run(
        [sys.executable, "-P", "-m", "headrace.cli", "run", str(home / "p.py"), *given],
        check=True, capture_output=True, timeout=600,
    )  # fmt: skip
    return children_s() - before


def profiles_s(home: Path, name: str) -> float:
    """Processor time of the profiles of all shards."""
    dataset, target, used = Dataset.open(str(home / "out")), FileStore(home / name), 0.0
    for number, shard in enumerate(dataset.shards):
        tokens, documents = shard.object("tokens"), shard.object("documents")
        assert tokens is not None
        assert documents is not None
        lines = read_shard(dataset.store, tokens.key)["tokens"].reshape(-1).copy()
        table = read_table(dataset.store, documents.key)
        began = time.process_time()
        builder = ProfileBuilder()
        take = builder.token_counter(shard.closed.counts.tokens, 0)
        for at in range(0, len(lines), WINDOW):
            take(lines[at : at + WINDOW])
        builder.add(table)
        target.create(f"shards/1/{number:032x}.profile", [encode_profile(builder.finish(shard.closed.counts.by_fate))])
        used += time.process_time() - began
    return used


def measure(place: Path) -> dict[str, object]:
    """The share of a run that profiles are."""
    place.mkdir()
    run = run_s(place)
    cost = min(profiles_s(place, f"again-{number}") for number in range(REPEATS))
    return {
        "profile_records": PROFILE_RECORDS,
        "run_cpu_s": round(run, 2),
        "profiles_cpu_s": round(cost, 4),
        "profiles_share": round(cost / run, 4),
        "profiles_share_max": SHARE_MAX,
    }
