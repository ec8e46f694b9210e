"""A dataset in the formats that others train with, each opened by a reader made from the format's definition."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.stages.export.folders import export_mds, export_megatron, export_parquet
from headrace.stages.runtime.errors import InputError
from headrace.store.datasets.dataset import Dataset
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import Closed, FragmentEnded, Retracted, VersionPublished
from headrace.store.ledger.core.fragments import Counts, Range
from headrace.store.shards.shard import read_shard
from headrace.store.shards.sidecars import documents_schema, read_table
from tests.kits.inputs import files, readers
from tests.kits.run.small_tokenizer import small_tokenizer
from tests.kits.store.dataset_writer import FRAGMENT, Writer
from tests.run.inputs.test_runs import balance, headrace

PIPELINE = """
from dataclasses import replace
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read, tokenize, write_documents, write_jsonl, write_tokens


def build(input: str, output: str, seq_len: int = 32) -> Pipeline:
    tokens = tokenize("TOKENIZER")
    source = read(input)
    after = lambda stage, *names: replace(stage, after=names)
    return Pipeline("both", output, (
        source,
        after(write_documents(), "read"),
        after(write_jsonl(), "read"),
        after(tokens, "read"),
        after(write_tokens(tokens, seq_len=seq_len, shard_bytes=2048), "tokenize"),
    ))
"""
SEQ_LEN = 32


def pipeline() -> str:
    """The text of the pipeline file."""
    return PIPELINE.replace("TOKENIZER", small_tokenizer())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A dataset with three sinks: documents, lines and tokens."""
    folder = tmp_path_factory.mktemp("export")
    files.write(folder / "a.jsonl", files.lines() + b"{broken\n")
    (folder / "both.py").write_text(pipeline())
    done = headrace(folder, "run", "both.py", "-p", "input=a.jsonl", "-p", "output=out", "--json")
    assert balance(done)["state"] == "completed"
    return folder


@functools.cache
def export(home: pathlib.Path, kind: str) -> dict[str, object]:
    """Export the dataset once into `to-<kind>`; the report."""
    done = headrace(home, "dataset", "export", "out", f"to-{kind}", "--format", kind, "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, object] = json.loads(done.stdout)
    return report


def documents(home: pathlib.Path) -> list[tuple[str, list[int]]]:
    """The id and tokens of each document, by the format's own rule: its pieces end to end."""
    dataset = Dataset.open(str(home / "out"))
    found: list[tuple[str, list[int]]] = []
    for shard in dataset.shards:
        tokens, rows = shard.object("tokens"), shard.object("documents")
        if tokens is None or rows is None:
            continue
        arrays, table = read_shard(dataset.store, tokens.key), read_table(dataset.store, rows.key)
        pieces: list[list[int]] = [[] for _ in range(table.num_rows)]
        names = ("piece_document", "piece_sequence", "piece_start", "piece_length")
        for document, sequence, start, length in zip(*(arrays[name].tolist() for name in names), strict=True):
            pieces[document] += arrays["tokens"][sequence, start : start + length].tolist()
        found += zip(table.column("id").to_pylist(), pieces, strict=True)
    return found


def test_a_dataset_of_three_sinks_is_sound(home: pathlib.Path) -> None:
    done = headrace(home, "dataset", "verify", "out")
    assert done.returncode == 0, done.stderr
    dataset = Dataset.open(str(home / "out"))
    assert {sink: counts.kept for sink, counts in dataset.state.counts.items()} == dict.fromkeys(
        ("documents", "lines", "write"), len(files.RECORDS)
    )


def test_records_quarantined_at_three_sinks_are_shown_once_traced_thrice(home: pathlib.Path) -> None:
    shown = headrace(home, "dataset", "show", "out", "--quarantine").stdout
    assert shown.count("{broken") == 1
    held = json.loads(headrace(home, "dataset", "show", "out", "--quarantine", "--json").stdout)["quarantine"]
    assert sorted(record["sink"] for record in held) == ["documents", "lines", "write"]
    (name,) = {record["id"] for record in held}
    traced = headrace(home, "dataset", "trace", "out", name).stdout
    assert all(f"quarantined at the sink {record['sink']}\n" in traced for record in held)


def test_megatron_reads_each_document(home: pathlib.Path) -> None:
    report = export(home, "megatron")
    index = (home / "to-megatron" / "documents.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, boundaries = struct.unpack_from("<QBQQ", index, 9)
    assert (version, sequences, boundaries) == (1, len(files.RECORDS), len(files.RECORDS) + 1)
    kind = {4: np.int32, 8: np.uint16}[code]
    at = 9 + 25
    sizes = np.frombuffer(index, np.int32, sequences, at)
    pointers = np.frombuffer(index, np.int64, sequences, at + 4 * sequences)
    ends = np.frombuffer(index, np.int64, boundaries, at + 12 * sequences)
    assert at + 12 * sequences + 8 * boundaries == len(index)
    assert ends.tolist() == list(range(boundaries))
    data = (home / "to-megatron" / "documents.bin").read_bytes()
    read = [np.frombuffer(data, kind, size, pointer).tolist() for size, pointer in zip(sizes, pointers, strict=True)]
    assert read == [tokens for _, tokens in documents(home)]
    assert report["tokens"] == sum(len(tokens) for tokens in read)


def sequences(home: pathlib.Path) -> list[list[int]]:
    dataset = Dataset.open(str(home / "out"))
    keys = [item.key for shard in dataset.shards if (item := shard.object("tokens")) is not None]
    return [row for key in keys for row in read_shard(dataset.store, key)["tokens"].tolist()]


def test_mds_has_each_packed_sequence(home: pathlib.Path) -> None:
    report = export(home, "mds")
    folder = home / "to-mds"
    index = json.loads((folder / "index.json").read_text())
    read: list[list[int]] = []
    for shard in index["shards"]:
        data = (folder / shard["raw_data"]["basename"]).read_bytes()
        assert len(data) == shard["raw_data"]["bytes"]
        (count,) = np.frombuffer(data, np.uint32, 1)
        offsets = np.frombuffer(data, np.uint32, count + 1, 4)
        config = json.loads(data[4 + 4 * (count + 1) : offsets[0]])
        assert config["column_encodings"] == shard["column_encodings"]
        _, kind, width = shard["column_encodings"][0].split(":")
        assert int(width) == SEQ_LEN
        spans = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        read += [np.frombuffer(data[first:end], kind).tolist() for first, end in spans]
    assert read == sequences(home)
    assert report["sequences"] == len(read)
    assert report["tokens"] == sum(len(tokens) for _, tokens in documents(home)), "padding is none"


@pytest.mark.slow
def test_each_format_is_read_by_its_own_reader(home: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for kind in ("mds", "megatron", "parquet"):
        export(home, kind)
    assert readers.read_with("mosaicml", readers.MOSAICML, str(home / "to-mds")) == sequences(home)
    megatron = readers.read_with("megatron", readers.MEGATRON, str(home / "to-megatron" / "documents"))
    assert megatron == [tokens for _, tokens in documents(home)]
    rows = readers.read_with("datasets", readers.DATASETS, str(home / "to-parquet"), str(tmp_path / "cache"))
    assert rows == [[name, tokens] for name, tokens in documents(home)]


def test_parquet_has_a_row_a_document(home: pathlib.Path) -> None:
    export(home, "parquet")
    paths = sorted((home / "to-parquet").iterdir())
    assert [path.name for path in paths] == [f"train-{n:05d}-of-{len(paths):05d}.parquet" for n in range(len(paths))]
    table = pa.concat_tables([pq.read_table(path) for path in paths])
    read = list(zip(table.column("id").to_pylist(), table.column("input_ids").to_pylist(), strict=True))
    assert read == documents(home)
    assert table.column("metadata").to_pylist()[0].startswith('{"url":')


def test_documents_and_lines_hold_the_text_of_the_records(home: pathlib.Path) -> None:
    dataset = Dataset.open(str(home / "out"))
    texts, rows = {}, {}
    for shard in dataset.shards:
        lines, documents = shard.object("lines"), shard.object("documents")
        assert documents is not None
        if lines is not None:
            stream = pa.CompressedInputStream(pa.BufferReader(dataset.store.get(lines.key)), "zstd")
            texts |= {record["id"]: record["text"] for record in map(json.loads, stream.read().splitlines())}
        elif shard.object("tokens") is None:
            rows |= {row["id"]: row["text"] for row in read_table(dataset.store, documents.key).to_pylist()}
    assert texts == rows == {record["id"]: record["text"] for record in files.RECORDS}


def test_each_published_version_is_exported_without_later_retractions(
    tmp_path: pathlib.Path,
) -> None:
    alone = pipeline().replace('after(write_documents(), "read"),', "").replace('after(write_jsonl(), "read"),', "")
    (tmp_path / "tokens.py").write_text(alone)
    first, second = files.RECORDS[:20], files.RECORDS[20:33]
    for name, records in (("a", first), ("b", second)):
        files.write(tmp_path / "in" / f"{name}.jsonl", files.lines(records))
        balance(headrace(tmp_path, "run", "tokens.py", "-p", "input=in/*.jsonl", "-p", "output=out", "--json"))
    gone = first[3]["id"]
    assert headrace(tmp_path, "dataset", "retract", "out", gone).returncode == 0

    def exported(kind: str, *version: str) -> dict[str, object]:
        folder = "-".join(("to", kind, *version))
        done = headrace(tmp_path, "dataset", "export", "out", folder, "--format", kind, *version, "--json")
        assert done.returncode == 0, done.stderr
        return {**json.loads(done.stdout), "folder": folder}

    def ids(report: dict[str, object]) -> list[str]:
        return sorted(
            name
            for path in (tmp_path / str(report["folder"])).iterdir()
            for name in pq.read_table(path).column("id").to_pylist()
        )

    for asked, version, records in ((("--version", "1"), 1, first), ((), 3, [*first, *second])):
        report = exported("parquet", *asked)
        assert report["version"] == version
        assert ids(report) == sorted(record["id"] for record in records if record["id"] != gone)
        assert exported("megatron", *asked)["documents"] == len(records) - 1
    assert int(str(exported("mds", "--version", "1")["sequences"])) < int(str(exported("mds")["sequences"]))
    refused = headrace(tmp_path, "dataset", "export", "out", "new", "--format", "mds", "--version", "4")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.endswith("has no version 4; it has 1, 2, 3\n")


@pytest.mark.parametrize("column", ["input_ids", "text"])
def test_files_have_the_scores_of_all_shards(tmp_path: pathlib.Path, column: str) -> None:
    writer = Writer(FileStore(tmp_path / "out"))
    tags = {"score.urls.listed": pa.string(), "score.length": pa.int64()}
    for first, (score, kind) in enumerate(tags.items()):
        closed = writer.shard([3], first)
        schema = documents_schema().append(pa.field(score, kind)).append(pa.field("text", pa.string()))
        row = {"id": f"{first}", "source": "s", "fragment": FRAGMENT.id.hex(), "row": first, "tokens": 3, "text": "a"}
        key = f"shards/1/{9 - first:032x}.documents.parquet"
        table = writer.table("documents", key, schema, [row | {score: "1" if kind == pa.string() else 1}])
        roles = ("tokens",) if column == "input_ids" else ()
        objects = tuple(item for item in closed.objects if item.role in roles)
        writer.entry(dataclasses.replace(closed, objects=(*objects, table)))
    export_parquet(Dataset.open(writer.store.uri), str(tmp_path / "to"))
    tables = [pq.read_table(path) for path in sorted((tmp_path / "to").iterdir())]
    assert [table.column_names for table in tables] == [["id", "source", "metadata", *tags, column]] * 2
    assert tables[0].schema == tables[1].schema
    rows = [row for table in tables for row in table.select(list(tags)).to_pylist()]
    assert [[row[score] for row in rows] for score in tags] == [["1", None], [None, 1]]


def test_an_export_never_writes_over_what_stands(home: pathlib.Path) -> None:
    (home / "full").mkdir()
    (home / "full" / "x").write_text("mine")
    done = headrace(home, "dataset", "export", "out", "full", "--format", "mds")
    assert done.returncode == 1
    assert "exists: name a new folder, or remove it" in done.stderr
    assert [path.name for path in (home / "full").iterdir()] == ["x"]
    done = headrace(home, "dataset", "export", "out", "new", "--format", "tar")
    assert done.returncode == 2
    assert not (home / "new").exists()


def test_tokens_of_an_export_are_neither_repeated_nor_retracted(tmp_path: pathlib.Path) -> None:
    writer = Writer(FileStore(tmp_path / "out"))
    writer.entry(closed := writer.shard([3, 40, 5]), VersionPublished(1, "completed"))
    key = next(item.key for item in closed.objects if item.role == "tokens")
    assert export_mds(Dataset.open(writer.store.uri), str(tmp_path / "whole")).tokens == closed.counts.tokens == 48
    writer.entry(Retracted(2, ((key, (1,)),), ()), VersionPublished(2, "retraction"))
    assert export_mds(Dataset.open(writer.store.uri), str(tmp_path / "less")).tokens == 8


def test_an_export_of_what_is_open_says_so(tmp_path: pathlib.Path) -> None:
    writer = Writer(FileStore(tmp_path / "out"))
    for write in (export_mds, export_parquet):
        with pytest.raises(InputError, match=r"out holds no shard: 1 fragment is open and not read to the end$"):
            write(Dataset.open(writer.store.uri), str(tmp_path / "to"))
    writer.entry(FragmentEnded(FRAGMENT.id, 0))
    with pytest.raises(InputError, match=r"out holds no shard: its input was empty, or no record was kept$"):
        export_mds(Dataset.open(writer.store.uri), str(tmp_path / "to"))


def test_an_export_names_the_sink_that_kept_nothing(tmp_path: pathlib.Path) -> None:
    writer = Writer(FileStore(tmp_path / "out"))
    writer.entry(writer.shard(["filtered", "filtered"]))
    writer.entry(Closed("lines", "v1", 0, (Range(FRAGMENT.id, 0, 2),), (), Counts(kept=2)))
    for write in (export_mds, export_megatron, export_parquet):
        with pytest.raises(InputError, match=r"no document for this format: sink write kept none of 2 records: 2 filt"):
            write(Dataset.open(writer.store.uri), str(tmp_path / "to"))
    assert not (tmp_path / "to").exists()


def test_an_empty_input_is_said_by_the_run_and_by_an_export(tmp_path: pathlib.Path) -> None:
    (tmp_path / "none.jsonl").touch()
    (tmp_path / "both.py").write_text(pipeline())
    done = headrace(tmp_path, "run", "both.py", "-p", "input=none.jsonl", "-p", "output=out")
    assert done.returncode == 1
    assert "nothing was kept, since the input holds no records" in done.stderr
    for kind in ("megatron", "parquet"):
        done = headrace(tmp_path, "dataset", "export", "out", "to", "--format", kind)
        assert done.returncode == 1
        assert done.stderr.endswith("out holds no shard: its input was empty, or no record was kept\n")
