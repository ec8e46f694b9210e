"""The stages of a pipeline between gets and puts of the plain minio client, one process a core; s3_run.py times it.

    python s3_loop.py ORDER.json

What a script would be that does the same work: each process gets the next object to a temporary file, reads it,
gathers, and puts a shard when it is full. The stages are built from Headrace's own declarations. No controller, no
ledger, no checksum, no condition, no attempt is made twice, and nothing survives a death. ORDER holds `endpoint`,
`bucket`, `inputs` (keys), `output` (a prefix), `chain`, `pipeline` (a file that defines `build`) and `cores`.
"""

import functools
import importlib.util
import io
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

RUN_S_MAX = 600.0


class Plain:
    """The plain client as far as a sink needs a store."""

    is_remote = True

    def __init__(self, order: dict[str, Any]) -> None:
        from minio import Minio

        self.bucket, self.output = order["bucket"], order["output"]
        self.uri = f"s3://{self.bucket}/{self.output}"
        self.client = Minio(
            order["endpoint"].removeprefix("http://"),
            os.environ["AWS_ACCESS_KEY_ID"],
            os.environ["AWS_SECRET_ACCESS_KEY"],
            secure=False,
            region=os.environ.get("AWS_REGION", "us-east-1"),
        )

    def get(self, key: str) -> bytes:
        response = self.client.get_object(self.bucket, key)
        try:
            return response.read()
        finally:
            response.release_conn()

    def create(self, key: str, parts: Sequence[bytes | bytearray | memoryview]) -> bool:
        body = b"".join(parts)
        self.client.put_object(self.bucket, f"{self.output}/{key}", io.BytesIO(body), len(body))
        return True

    def head(self, _key: str) -> None:
        """Nobody looks what stands there."""


def main() -> int:
    order = json.loads(pathlib.Path(sys.argv[1]).read_bytes())
    context = multiprocessing.get_context("spawn")
    following = context.Value("i", 0)
    workers = [context.Process(target=work, args=(order, following)) for _ in range(order["cores"])]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(RUN_S_MAX)
        if worker.exitcode:
            raise SystemExit(f"a process of the plain loop died with exit code {worker.exitcode}")
    return 0


def work(order: dict[str, Any], following: Any) -> None:
    """One process of the loop."""
    from headrace.stages.runtime import build_stage

    spec = importlib.util.spec_from_file_location("moved", order["pipeline"])
    assert spec is not None
    assert spec.loader is not None
    declared = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(declared)
    store = Plain(order)
    with tempfile.TemporaryDirectory() as folder:
        *transforms, sink = (
            build_stage(stage, {}) for stage in declared.build("a.txt", "out", order["chain"]).stages[1:]
        )
        sink.begin("moved", "plain")
        batches: list[Any] = []
        size = 0
        while True:
            with following.get_lock():
                index, following.value = following.value, following.value + 1
            if index >= len(order["inputs"]):
                break
            key = order["inputs"][index]
            path = pathlib.Path(folder, key.rpartition("/")[2])
            path.write_bytes(store.get(key))
            for batch in _batches(_source(declared, str(path), order["chain"])):
                batches.append(functools.reduce(lambda held, stage: stage.process(held), transforms, batch))
                size += sink.measure(batches[-1])
                if size >= sink.shard_bytes:
                    sink.write(batches, store, "shards/1/")
                    batches, size = [], 0
            path.unlink()
        if batches:
            sink.write(batches, store, "shards/1/")


def _source(declared: Any, path: str, chain: str) -> Any:
    from headrace.stages.runtime import build_stage

    return build_stage(declared.build(path, "out", chain).stages[0], {})


def _batches(source: Any) -> Iterator[Any]:
    from headrace.stages.runtime import Batch
    from headrace.store.ledger import UNBOUNDED, Gap

    for fragment in source.list():
        for item in source.read(fragment, [Gap(0, UNBOUNDED, 0)]):
            if isinstance(item, Batch):
                yield item


if __name__ == "__main__":
    sys.exit(main())
