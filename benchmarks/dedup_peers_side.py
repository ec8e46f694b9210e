"""The others' side of `dedup_peers.py`, in an interpreter that has datatrove and rensa; it prints one object.

    python dedup_peers_side.py run INPUT FOLDER WORKERS
    python dedup_peers_side.py signatures FILE VALUES

`run` is the example of datatrove's documentation: signatures, buckets, clusters and a filter, with its default numbers,
and a reader and a writer with zstd. `signatures` are rensa's, of sets of shingles.
"""

from __future__ import annotations

import importlib.metadata  # noqa: F401 (datatrove uses it without importing it)
import json
import re
import sys
import time
from pathlib import Path
from typing import Any


def run(given: str, folder: str, workers: int) -> dict[str, float]:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers.jsonl import JsonlWriter

    config, read = MinhashConfig(), lambda: JsonlReader(given)
    kept = JsonlWriter(f"{folder}/kept", "${rank}.jsonl.zst", compression="zstd")
    tasks = min(workers, len(list(Path(given).iterdir())))
    stages: list[tuple[list[Any], int]] = [
        ([read(), MinhashDedupSignature(f"{folder}/signatures", config=config)], tasks),
        (
            [MinhashDedupBuckets(f"{folder}/signatures", f"{folder}/buckets", config=config)],
            config.num_buckets,
        ),
        ([MinhashDedupCluster(f"{folder}/buckets", f"{folder}/removed", config=config)], 1),
        ([read(), MinhashDedupFilter(f"{folder}/removed"), kept], tasks),
    ]
    left = 0
    for number, (stage, count) in enumerate(stages):
        executor = LocalPipelineExecutor(
            # Forked, so that their processor time is told when they have ended.
            stage, tasks=count, workers=workers, logging_dir=f"{folder}/logs-{number}", start_method="fork"
        )  # fmt: skip
        totals = executor.run()
        left = totals.stats[-1].stats["total"].total if number == len(stages) - 1 else left
    return {"kept": left}


def signatures(path: str, values: int) -> dict[str, float]:
    from rensa import RMinHash

    texts = [json.loads(line)["text"] for line in Path(path).read_bytes().split(b"\n") if line]
    begun = time.process_time()
    sets = [shingles(text) for text in texts]
    cut = time.process_time() - begun
    begun = time.process_time()
    for one in sets:
        sketch = RMinHash(num_perm=values, seed=1)
        sketch.update(one)
        sketch.digest()
    signed = time.process_time() - begun
    return {"rensa_from_shingles": len(texts) / signed, "rensa_from_texts": len(texts) / (cut + signed)}


def shingles(text: str) -> list[str]:
    words = re.findall(r"\w+", text.lower())
    return [" ".join(words[at : at + 3]) for at in range(max(1, len(words) - 2))]


if __name__ == "__main__":
    mode, first, second, *rest = sys.argv[1:]
    print(json.dumps(run(first, second, int(rest[0])) if mode == "run" else signatures(first, int(second))))
