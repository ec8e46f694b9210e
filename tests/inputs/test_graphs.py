"""Whole runs of graphs that are no chain: several sources into one stage, two sinks behind one."""

from __future__ import annotations

import json
import pathlib

import files_kit as files
import pytest
from small_tokenizer import small_tokenizer
from test_runs import balance, headrace

from headrace.store.dataset import Dataset
from headrace.store.shards import read_table

PIPELINE = """
from dataclasses import replace
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, read_parquet, read_warc
from headrace.stages.library import tokenize, write_documents, write_tokens


def not_a_ninth(record):
    return None if record["id"].endswith("9") else record


def build(input: str, output: str) -> Pipeline:
    tokens = tokenize("TOKENIZER")
    after = lambda stage, *names: replace(stage, after=names)
    return Pipeline("many", output, (
        read_jsonl(f"{input}/*.jsonl*", name="lines"),
        read_parquet(f"{input}/*.parquet", name="table"),
        read_warc(f"{input}/*.warc", name="pages"),
        after(map_records(not_a_ninth), "lines", "table", "pages"),
        after(write_documents(shard_bytes=4096), "not_a_ninth"),
        after(tokens, "not_a_ninth"),
        after(write_tokens(tokens, seq_len=32, shard_bytes=2048), "tokenize"),
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
