"""A user's own modules reach workers that have none of the files, and what is installed there is held to the lock."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.store.datasets.dataset import Dataset
from tests.kits.run.command_server import ended
from tests.kits.run.daemons import Cluster
from tests.kits.run.kill import headrace

DEADLINE_S = 300.0
RECORDS = 200
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, write_jsonl
from texts_own.loud import shout


def even(record):
    from texts_own import numbers
    return record if numbers.of(record["id"]) % 2 == 0 else None


def build(input: str, output: str) -> Pipeline:
    stages = (map_records(even), map_records(shout), map_records("texts_other:mark"))
    return Pipeline.chain("shipped", output, read_jsonl(input), *stages, write_jsonl())
"""
MODULES = {
    "texts_own/numbers.py": "def of(name):\n    return int(name)\n",
    "texts_own/loud.py": "from .rules import up\n\ndef shout(record):\n    return up(record)\n",
    "texts_own/rules.py": "def up(record):\n    return {**record, 'text': record['text'].upper()}\n",
    "texts_other.py": "def mark(record):\n    return {**record, 'text': record['text'] + '!'}\n",
}


@pytest.fixture
def author(tmp_path: Path) -> Path:
    """The folder of whoever declares the pipeline; only there are its modules, and one more distribution."""
    folder = tmp_path / "author"
    for name, text in {"shipped.py": PIPELINE, **MODULES}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    lines = [json.dumps({"id": str(number), "text": f"text {number}"}) for number in range(RECORDS)]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "rulebook-1.2.dist-info").mkdir()
    return folder


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A controller and a worker that run in a folder of their own."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with contextlib.closing(Cluster(elsewhere, elsewhere, str(tmp_path / "root"))) as made:
        made.add_controller("a")
        made.add_worker("press", cores=2)
        made.wait_for_workers()
        yield made


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ended(headrace(*arguments), cwd=folder)


def test_a_worker_without_the_files_runs_them_and_names_differences(
    author: Path, cluster: Cluster, tmp_path: Path
) -> None:
    at = ("--controller", cluster.known())
    output = tmp_path / "out"
    given = ("-p", f"input={author}/in.jsonl", "-p", f"output={output}")
    done = call(tmp_path, "apply", str(author / "shipped.py"), *given, *at, "--wait")
    assert done.returncode == 0, done.stderr
    assert "worker press has rulebook (absent), not 1.2: its output may differ" in " ".join(done.stdout.split())

    dataset = Dataset.open(str(output))
    texts = sorted(text for shard in dataset.shards for text in texts_of(dataset, shard.closed.objects[0].key))
    assert texts == sorted(f"TEXT {number}!" for number in range(0, RECORDS, 2))
    assert sorted(dataset.state.pipeline["modules"]) == [
        *("pipeline", "texts_other", "texts_own", "texts_own.loud", "texts_own.numbers", "texts_own.rules"),
    ]
    # The ledger has them too: a shard is made again where the files have never been.
    shard = dataset.shards[0].closed.objects[0].key
    rebuilt = call(
        tmp_path, "dataset", "rebuild", "--trust-code", str(output), Path(shard).name.partition(".")[0], "--json"
    )
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert json.loads(rebuilt.stdout)["differing"] == []


def texts_of(dataset: Dataset, key: str) -> list[str]:
    data = pa.input_stream(pa.BufferReader(dataset.store.get(key)), compression="zstd").read()
    return [json.loads(line)["text"] for line in data.splitlines()]
