"""Whole runs of graphs that are no chain: several sources into one stage, two sinks behind one."""

from __future__ import annotations

import json
import pathlib

import pyarrow as pa
import pytest

from headrace.store.datasets.dataset import Dataset
from headrace.store.shards.sidecars import read_table
from tests.kits.inputs import files
from tests.kits.run.small_tokenizer import small_tokenizer
from tests.run.inputs.test_runs import balance, headrace

PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, read_parquet, read_warc
from headrace.stages.library import tokenize, write_documents, write_tokens


def not_a_ninth(record):
    return None if record["id"].endswith("9") else record


def build(input: str, output: str) -> Pipeline:
    tokens = tokenize("TOKENIZER")
    return Pipeline("many", output, (
        read_jsonl(f"{input}/*.jsonl*", name="lines"),
        read_parquet(f"{input}/*.parquet", name="table"),
        read_warc(f"{input}/*.warc", name="pages"),
        map_records(not_a_ninth).fed_by("lines", "table", "pages"),
        write_documents(shard_bytes=4096).fed_by("not_a_ninth"),
        tokens.fed_by("not_a_ninth"),
        write_tokens(tokens, seq_len=32, shard_bytes=2048).fed_by("tokenize"),
    ))
"""


def documents(folder: pathlib.Path, sink: str) -> list[tuple[str, str]]:
    """The file and id of each document of one sink, sorted."""
    dataset = Dataset.open(str(folder / "out"))
    keys = [
        item.key
        for shard in dataset.state.shards
        if shard.closed.sink == sink
        for item in shard.closed.objects
        if item.role == "documents"
    ]
    tables = [read_table(dataset.store, key, ["source", "id"]).to_pydict() for key in keys]
    return sorted(
        (source.rpartition("/")[2], name)
        for table in tables
        for source, name in zip(table["source"], table["id"], strict=True)
    )


@pytest.mark.parametrize("edges", [(), ("--no-fuse",)], ids=["fused", "rings"])
def test_three_sources_feed_one_stage_and_two_sinks_each_get_every_record(
    tmp_path: pathlib.Path, edges: tuple[str, ...]
) -> None:
    (tmp_path / "many.py").write_text(PIPELINE.replace("TOKENIZER", small_tokenizer()))
    files.write(tmp_path / "in" / "a.jsonl", files.lines())
    files.write(tmp_path / "in" / "b.jsonl.zst", files.zstd(files.lines() + b"{broken"))
    files.parquet_of(tmp_path / "in" / "c.parquet")
    files.write(tmp_path / "in" / "d.warc", b"".join(files.warc()))
    report = balance(headrace(tmp_path, "run", "many.py", "-p", "input=in", "-p", "output=out", "--json", *edges))
    assert (report["records_read"], report["kept"], report["quarantined"]) == (3 * 60 + 1 + 22, 3 * 54 + 18, 1)
    assert report["filtered_by"] == {
        "not_a_ninth/function returned None": 3 * 6 + 2,
        "pages/http status": 1,
        "pages/not text": 1,
    }
    expected = [
        (name, record["id"])
        for name in ("a.jsonl", "b.jsonl.zst", "c.parquet")
        for record in files.RECORDS
        if not record["id"].endswith("9")
    ]
    expected += [("d.warc", f"urn:uuid:p{index}") for index in range(20) if index % 10 != 9]
    assert documents(tmp_path, "documents") == documents(tmp_path, "write") == sorted(expected)
    shown = json.loads(headrace(tmp_path, "dataset", "verify", "out", "--json").stdout)
    assert shown["problems"] == []


def test_the_pipeline_file_of_the_documentation_runs(tmp_path: pathlib.Path) -> None:
    page = (pathlib.Path(__file__).parents[3] / "docs" / "guide" / "stages.md").read_text()
    (tmp_path / "pages.py").write_text(page.split("```python pages.py\n")[1].split("```")[0])
    long = [{"id": "long", "text": "word " * 60}, {"id": "short", "text": "word"}]
    files.write_parquet(tmp_path / "in" / "hub" / "train-00000-of-00001.parquet", pa.Table.from_pylist(long))
    files.write(tmp_path / "in" / "warc" / "a.warc.gz", files.members([files.response("p", files.page("word " * 60))]))
    report = balance(headrace(tmp_path, "run", "pages.py", "-p", "input=in", "-p", "output=out", "--json"))
    assert (report["records_read"], report["kept"], report["filtered"]) == (3, 2, 1)
    expected = [("a.warc.gz", "urn:uuid:p"), ("train-00000-of-00001.parquet", "long")]
    assert documents(tmp_path, "documents") == documents(tmp_path, "write") == expected
