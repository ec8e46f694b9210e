"""The stages of a pipeline in a plain loop, one process a core; a command that benchmarks/plain.py times.

    python plain_loop.py PIPELINE.json CORES

Each process takes the next fragment, reads a batch, tokenizes it, gathers, and writes a shard when it is full. The
stages are built from the pipeline's own declarations. No controller, no ledger, no links, and nothing survives a death.
It prints one object: `ready_at`, the moment of CLOCK_MONOTONIC at which the last process had its stages, and `tokens`.
"""

import json
import multiprocessing
import pathlib
import sys
import time
from typing import Any

RUN_S_MAX = 1200.0


def main() -> int:
    declared, cores = json.loads(pathlib.Path(sys.argv[1]).read_bytes()), int(sys.argv[2])
    context = multiprocessing.get_context("spawn")
    following, reports = context.Value("i", 0), context.Queue()
    workers = [context.Process(target=work, args=(declared, following, reports)) for _ in range(cores)]
    for worker in workers:
        worker.start()
    told = [reports.get(timeout=RUN_S_MAX) for _ in workers]
    for worker in workers:
        worker.join(RUN_S_MAX)
        if worker.exitcode:
            raise SystemExit(f"a process of the plain loop died with exit code {worker.exitcode}")
    print(json.dumps({"ready_at": max(ready for ready, _ in told), "tokens": sum(tokens for _, tokens in told)}))
    return 0


def work(declared: dict[str, Any], following: Any, reports: Any) -> None:
    """One process of the loop. What it needs is imported here, and not by the process that only starts it."""
    from headrace.pipeline import Pipeline
    from headrace.stages.runtime import Batch, build_stage
    from headrace.store import open_store
    from headrace.store.ledger import UNBOUNDED, Gap

    pipeline = Pipeline.from_dict(declared)
    source, transform, sink = (build_stage(stage, {}) for stage in pipeline.stages)
    sink.begin(pipeline.name, "plain")
    ready = time.monotonic()
    store = open_store(pipeline.dataset)
    fragments = list(source.list())
    batches: list[Batch] = []
    size = tokens = 0
    while True:
        with following.get_lock():
            index, following.value = following.value, following.value + 1
        if index >= len(fragments):
            break
        for item in source.read(fragments[index], [Gap(0, UNBOUNDED, 0)]):
            if not isinstance(item, Batch):
                continue
            batch = transform.process(item)
            batches.append(batch)
            size += sink.measure(batch)
            if size >= sink.shard_bytes:
                tokens += sink.write(batches, store, "shards/1/").counts.tokens
                batches, size = [], 0
    if batches:
        tokens += sink.write(batches, store, "shards/1/").counts.tokens
    reports.put((ready, tokens))


if __name__ == "__main__":
    sys.exit(main())
