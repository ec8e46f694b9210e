"""Whole runs of a user's own stages: functions in the pipeline file and in modules, what they lose, split and break."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from headrace.store.datasets.dataset import Dataset
from headrace.store.shards.sidecars import read_table
from tests.kits.inputs import files
from tests.kits.run.small_tokenizer import small_tokenizer

RUN_S_MAX = 300.0
PIPELINE = """
import mine
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_batches, map_records, read, tokenize, write_tokens


def without_nines(rows):
    import pyarrow.compute as pc
    return rows.filter(pc.invert(pc.ends_with(rows.column("id"), pattern="9")))


def twice(rows):
    import pyarrow as pa
    return pa.Table.from_batches([rows, rows])


def strange(rows):
    import pyarrow as pa
    return rows.set_column(0, "__row", pa.array(range(900, 900 + rows.num_rows), pa.int64()))


def sentences(record):
    if record["id"] == "r7":
        raise ValueError("seven")
    return [{"text": part, "metadata": record["metadata"]} for part in record["text"].split(". ") if part]


def not_second(record):
    print("neither the report nor the answer of a command")
    return None if record["text"].startswith("second") else record


STAGES = {
    "plain": lambda: (map_records("mine:shout"), map_batches(without_nines)),
    "twice": lambda: (map_batches(twice),),
    "strange": lambda: (map_batches(strange),),
    "split": lambda: (map_records(sentences, splits=True), map_records(not_second)),
}


def build(input: str, output: str, kind: str) -> Pipeline:
    tokens = tokenize("TOKENIZER")
    return Pipeline.chain("own", output, read(input), *STAGES[kind](), tokens, write_tokens(tokens, seq_len=32))
"""
MINE = "def shout(record):\n    return {**record, 'text': record['text'].upper()}\n"
#: Every third record is of two sentences, the fifth of the one that is not wanted alone, the sixth of none.
RECORDS: list[dict[str, Any]] = [
    {"id": f"r{index}", "text": f"first {index}" + (f". second {index}. third {index}" if index % 3 == 0 else "")}
    for index in range(30)
]
RECORDS[5]["text"] = "second alone"
RECORDS[4]["text"] = ""


def pipeline() -> str:
    return PIPELINE.replace("TOKENIZER", small_tokenizer())


@pytest.fixture
def home(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "own.py").write_text(pipeline())
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mine.py").write_text(MINE)
    (tmp_path / "in.jsonl").write_bytes(files.lines(RECORDS))
    return tmp_path


def headrace(home: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "headrace.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=home,
        timeout=RUN_S_MAX,
        env={**os.environ, "PYTHONPATH": str(home / "lib")},
    )


def run(home: pathlib.Path, kind: str, *options: str) -> subprocess.CompletedProcess[str]:
    parameters = ("-p", "input=in.jsonl", "-p", f"output={kind}", "-p", f"kind={kind}")
    return headrace(home, "run", "own.py", *parameters, "--json", *options)


def table(home: pathlib.Path, kind: str, role: str) -> pa.Table:
    dataset = Dataset.open(str(home / kind))
    keys = [item.key for shard in dataset.shards if (item := shard.object(role)) is not None]
    return pa.concat_tables([read_table(dataset.store, key) for key in keys])


def test_functions_of_file_and_module_run_and_lost_rows_filter(home: pathlib.Path) -> None:
    done = run(home, "plain")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["kept"], report["filtered"], report["balanced"]) == (27, 3, True)
    assert report["filtered_by"] == {"without_nines/function left it out": 3}
    assert table(home, "plain", "documents").column("lineage").to_pylist()[0] == '{"edited_by":["shout"]}'

    (home / "lib" / "mine.py").write_text(MINE.replace("upper", "title"))
    other = run(home, "plain")
    assert other.returncode == 1
    assert "shout.function_code: " in other.stderr
    (home / "lib" / "mine.py").write_text(MINE)
    (home / "own.py").write_text(pipeline().replace('pattern="9"', 'pattern="8"'))
    changed = run(home, "plain")
    assert changed.returncode == 1
    assert "source of pipeline: " in changed.stderr

    (home / "own.py").write_bytes(b'"""In other words."""\r\n' + pipeline().replace("\n", "\r\n").encode())
    (home / "lib" / "mine.py").write_text("# another comment\n" + MINE)
    reworded = run(home, "plain")
    assert (reworded.returncode, json.loads(reworded.stdout)["kept"]) == (0, 27)

    (home / "own.py").write_text(pipeline())
    (home / "lib" / "something-1.2.dist-info").mkdir()
    (home / "lib" / "something-1.2.dist-info" / "METADATA").write_text("Name: something\nVersion: 1.2\n")
    warned = run(home, "plain")
    assert warned.returncode == 0, warned.stderr
    assert "something: (absent) -> 1.2" in warned.stderr


@pytest.mark.parametrize(
    ("kind", "words"),
    [("twice", 'stage "twice" returned record 0 twice'), ("strange", "returned record 900, which it was not given")],
)
def test_a_stage_that_repeats_or_invents_records_is_named(home: pathlib.Path, kind: str, words: str) -> None:
    done = run(home, kind)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("own: ")]
    assert f'stage "{kind}"' in line
    assert words in line


@pytest.mark.parametrize("edges", [(), pytest.param(("--no-fuse",), marks=pytest.mark.slow)], ids=["fused", "rings"])
def test_a_stage_that_splits_records_balances_by_record(home: pathlib.Path, edges: tuple[str, ...]) -> None:
    done = run(home, "split", *edges)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["records_read"], report["kept"], report["filtered"], report["quarantined"]) == (30, 27, 2, 1)
    assert report["balanced"]
    assert report["filtered_by"] == {"not_second/function returned None": 1, "sentences/function returned no parts": 1}

    documents = table(home, "split", "documents").to_pylist()
    expected = [
        (f"r{index}/{part}", index, part)
        for index in range(30)
        if index not in (4, 5, 7)
        for part in ((0, 2) if index % 3 == 0 else (0,))
    ]
    assert sorted((row["id"], row["row"], row["part"]) for row in documents) == sorted(expected)
    lost = {(row["id"], row["part"], row["verdict"]) for row in table(home, "split", "verdicts").to_pylist()}
    thirds = {(f"r{index}/1", 1, "filtered") for index in range(0, 30, 3)}
    others = {("r4", None, "filtered"), ("r5/0", 0, "filtered"), ("r7", None, "quarantined")}
    assert lost == thirds | others

    assert headrace(home, "dataset", "verify", "split").returncode == 0
    traced = json.loads(headrace(home, "dataset", "trace", "split", "r3", "--json").stdout)["records"]
    assert [(fact["id"], fact["verdict"]) for fact in traced] == [
        ("r3/0", "kept"),
        ("r3/2", "kept"),
        ("r3/1", "filtered"),
    ]
    shard = Dataset.open(str(home / "split")).shards[0].object("tokens")
    assert shard is not None
    rebuilt = headrace(home, "dataset", "rebuild", "--trust-code", "split", pathlib.PurePath(shard.key).stem, "--json")
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert json.loads(rebuilt.stdout)["differing"] == []
    preview = json.loads(run(home, "split", "--limit", "100").stdout)
    assert (preview["records_read"], preview["kept"], preview["filtered"], preview["quarantined"]) == (30, 27, 2, 1)
