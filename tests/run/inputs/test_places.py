"""Whole runs over input in several places, one large file among all tasks, and output in a store."""

from __future__ import annotations

import io
import json
import pathlib
import random
import secrets

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.store.datasets.dataset import Dataset
from headrace.store.open import open_store
from tests.kits.inputs import files
from tests.kits.store.s3_server import S3Server, shared_server
from tests.run.inputs.test_export import pipeline as three_sinks
from tests.run.inputs.test_runs import balance, headrace, run

#: Records of a file of 32 MB.
LARGE = 400
#: Each task says that it is there and waits until another is, so the run ends only if two tasks read.
MEETING = """
import os
import pathlib
import threading
import time

from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read, write_jsonl

MET_S_MAX = 120.0


def meet(record):
    here = pathlib.Path(record["metadata"]["seen"])
    (here / str(os.getpid())).touch()
    until = time.monotonic() + MET_S_MAX
    while len(list(here.iterdir())) < 2:
        if time.monotonic() > until:
            raise RuntimeError("there is no other task")
        threading.Event().wait(0.01)
    return record


def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain("met", output, read(input, fragment_bytes=1 << 20), map_records(meet), write_jsonl())
"""
TWO_SOURCES = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, write_jsonl


def same(record):
    return record


def build(here: str, there: str, output: str) -> Pipeline:
    return Pipeline("places", output, (
        read_jsonl(here, name="here"),
        read_jsonl(there, name="there"),
        map_records(same).fed_by("here", "there"),
        write_jsonl().fed_by("same"),
    ))
"""


@pytest.fixture(scope="module")
def server() -> S3Server:
    return shared_server()


def objects(server: S3Server, **bodies: bytes) -> tuple[str, str]:
    """A fresh prefix with these JSON Lines: its URI without a query, and the query."""
    base, query = server.uri(f"places-{secrets.token_hex(4)}").split("?", 1)
    store = open_store(f"{base}?{query}")
    for name, body in bodies.items():
        store.create(f"{name}.jsonl", [body])
    return base, query


def ids_and_tokens(body: bytes) -> object:
    return pq.read_table(io.BytesIO(body), columns=["id", "input_ids"]).to_pydict()


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_one_large_file_is_read_by_several_tasks_at_once(tmp_path: pathlib.Path, kind: str) -> None:
    (tmp_path / "met.py").write_text(MEETING)
    (tmp_path / "seen").mkdir()
    # more than a task is given ahead of what it reads, and such as does not compress
    chance = random.Random(1)
    seen = str(tmp_path / "seen")
    records = [{"id": f"r{index}", "text": chance.randbytes(40_000).hex(), "seen": seen} for index in range(LARGE)]
    if kind == "jsonl":
        files.write(tmp_path / "in" / "a.jsonl", files.lines(records))
    else:
        files.write_parquet(tmp_path / "in" / "a.parquet", pa.Table.from_pylist(records), group=10)
    report = balance(
        headrace(tmp_path, "run", "met.py", "-p", "input=in", "-p", "output=out", "--replicas", "2", "--json")
    )
    assert (report["kept"], report["balanced"]) == (LARGE, True)
    assert len(list((tmp_path / "seen").iterdir())) == 2
    assert len(Dataset.open(str(tmp_path / "out")).state.fragments) > 2


def test_a_folder_and_a_bucket_are_one_input_and_two_sources(tmp_path: pathlib.Path, server: S3Server) -> None:
    base, query = objects(server, a=b'{"id":"far","text":"far"}\n')
    files.write(tmp_path / "in" / "b.jsonl", b'{"id":"near","text":"near"}\n')
    report = balance(run(tmp_path, f"in,{base}?{query}"))
    assert (report["kept"], report["balanced"]) == (2, True)
    (tmp_path / "places.py").write_text(TWO_SOURCES)
    given = ("-p", "here=in", "-p", f"there={base}/*?{query}", "-p", "output=both")
    report = balance(headrace(tmp_path, "run", "places.py", *given, "--json"))
    assert (report["kept"], report["balanced"]) == (2, True)
    assert {stage["stage"]: stage["records"] for stage in report["stages"]}["same"] == 2


def test_what_is_new_in_a_bucket_at_the_next_run_is_added(tmp_path: pathlib.Path, server: S3Server) -> None:
    base, query = objects(server, b=files.lines())
    assert balance(run(tmp_path, f"{base}/*.jsonl?{query}"))["kept"] == 60
    one = b'{"text":"one more"}'
    assert open_store(f"{base}?{query}").create("a.jsonl", [one])
    report = balance(run(tmp_path, f"{base}/*.jsonl?{query}"))
    assert (report["kept"], report["records_resumed"], report["bytes_read"]) == (61, 60, len(one))


@pytest.mark.slow
def test_three_sinks_write_into_a_bucket_and_a_dataset_there_is_exported(
    tmp_path: pathlib.Path, server: S3Server
) -> None:
    (tmp_path / "both.py").write_text(three_sinks())
    files.write(tmp_path / "a.jsonl", files.lines() + b"{broken\n")
    uri = server.uri(f"three-{secrets.token_hex(4)}")
    report = balance(headrace(tmp_path, "run", "both.py", "-p", "input=a.jsonl", "-p", f"output={uri}", "--json"))
    assert (report["balanced"], report["complete"]) == (True, True)
    assert headrace(tmp_path, "dataset", "verify", uri).returncode == 0
    (listed,) = json.loads(headrace(tmp_path, "dataset", "ls", uri, "--json").stdout)["datasets"]
    assert (listed["dataset"], listed["shards"]) == (report["dataset"], report["shards"])
    balance(headrace(tmp_path, "run", "both.py", "-p", "input=a.jsonl", "-p", "output=here", "--json"))
    for kind in ("megatron", "mds", "parquet"):
        for source, folder in ((uri, "far"), ("here", "near")):
            done = headrace(tmp_path, "dataset", "export", source, f"{folder}-{kind}", "--format", kind, "--json")
            assert done.returncode == 0, done.stderr
        far, near = (
            {path.name: path.read_bytes() for path in (tmp_path / f"{folder}-{kind}").iterdir()}
            for folder in ("far", "near")
        )
        assert sorted(far) == sorted(near)
        if kind == "parquet":  # its rows name the fragments that they are of, and so the place
            far, near = ({name: ids_and_tokens(body) for name, body in exported.items()} for exported in (far, near))
        assert far == near


def test_a_share_of_quarantined_records_ends_a_run_early(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "in" / "a.jsonl", (files.lines() + b"{broken\n") * 100)
    files.write(tmp_path / "in" / "b.jsonl", b'{"id":"last","text":"stop"}\n')
    (tmp_path / "stuck.py").write_text(STUCK)
    given = ("-p", "input=in", "-p", "output=out", "--max-quarantined", "1%", "--no-fuse")
    done = headrace(tmp_path, "run", "stuck.py", *given, "--json")
    assert (done.returncode, done.stdout) == (1, "")
    line = done.stderr.splitlines()[-1]
    assert "records closed by sink lines are quarantined, more than the 1% allowed" in line
    closed = Dataset.open(str(tmp_path / "out")).state.counts["lines"].records
    assert 1000 <= closed < 6101, "the last record waits for as long as the run goes on"


STUCK = """
import threading

from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read, write_jsonl


def stop(record):
    if record["text"] == "stop":
        threading.Event().wait()
    return record


def build(input: str, output: str) -> Pipeline:
    source = read(input, fragment_bytes=1 << 14, batch_bytes=1 << 12)
    return Pipeline.chain("stuck", output, source, map_records(stop), write_jsonl(shard_bytes=1 << 13))
"""
