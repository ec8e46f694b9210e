"""A run that keeps nothing, or loses most of what it reads, says so at once, ends with 1, and publishes no version."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

import pytest

from headrace.loader.loader import Loader
from headrace.loader.order.errors import LoaderError
from headrace.store.datasets.dataset import Dataset
from tests.kits.run.command_server import ended
from tests.kits.run.small_tokenizer import small_tokenizer

RUN_S_MAX = 300.0
#: So many that a run has not read them all by the time its first thousand are closed.
RECORDS = 400_000
NO_TEXT = 'read/no text, looked for in the field "text": text_key= names another'
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, write_jsonl

def kind(record):
    return record if record["metadata"].get("kind") == KIND else None

KIND = "a"

def build(text_key: str = "text") -> Pipeline:
    source = read_jsonl("in.jsonl", text_key=text_key, batch_records=500)
    return Pipeline.chain("kinds", "out", source, map_records(kind), write_jsonl())
"""
BRANCHED = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, tokenize, write_jsonl, write_tokens

def build() -> Pipeline:
    tokens, source = tokenize(TOKENIZER), read_jsonl("in.jsonl", text_key="body")
    kept = Pipeline.chain("kinds", "out", source, map_records(nothing), tokens, write_tokens(tokens, seq_len=8))
    return Pipeline("kinds", "out", (*kept.stages, write_jsonl(name="archive").fed_by(source.name)))

def nothing(record):
    return None
"""


@pytest.fixture
def home(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "kinds.py").write_text(PIPELINE)
    return tmp_path


def fill(home: pathlib.Path, count: int) -> None:
    (home / "in.jsonl").write_text('{"body":"x","kind":"b"}\n' * count)


def run(home: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "headrace.cli", "run", "kinds.py", "--json", *options]
    done = ended(command, cwd=home, timeout=RUN_S_MAX)
    assert "Traceback" not in done.stderr
    return done


def unpublished(home: pathlib.Path) -> Dataset:
    """The dataset, of which there is no version."""
    dataset = Dataset.open(str(home / "out"))
    assert (dataset.state.version, (home / "out" / "manifest.json").exists()) == (0, False)
    return dataset


def test_a_wrong_text_key_ends_the_run_soon_and_leaves_nothing(
    home: pathlib.Path,
) -> None:
    fill(home, RECORDS)
    wrong = run(home, "--replicas", "1")
    assert wrong.returncode == 1
    assert f"are quarantined, more than the 50% allowed; most of them by {NO_TEXT}" in wrong.stderr
    assert unpublished(home).state.counts["lines"].records < RECORDS / 4
    fill(home, 2000)
    (home / "kinds.py").write_text(PIPELINE.replace('KIND = "a"', 'KIND = "b"'))
    right = run(home, "-p", "text_key=body")
    assert right.returncode == 0, right.stderr
    report = json.loads(right.stdout)
    assert (report["kept"], report["quarantined"], report["version"]) == (2000, 0, 1)
    assert any("the dataset begins anew: another pipeline had read" in line for line in report["warnings"])


def test_a_run_that_filters_everything_ends_with_1_unpublished(home: pathlib.Path) -> None:
    fill(home, 30)
    done = run(home, "-p", "text_key=body")
    assert done.returncode == 1
    said = "nothing was kept of 30 records: 30 filtered (most of them by kind/function returned None); no version is"
    assert said in done.stderr
    assert unpublished(home).state.counts["lines"].filtered == 30
    again = run(home, "-p", "text_key=body")
    assert (again.returncode, said in again.stderr) == (1, True), "and so does the same command again"


def test_all_may_be_quarantined_if_asked_but_without_success(home: pathlib.Path) -> None:
    fill(home, 30)
    few = run(home)
    assert (few.returncode, "more than the 50% allowed" in few.stderr) == (1, True)
    allowed = run(home, "--max-quarantined", "100%")
    assert allowed.returncode == 1
    assert f"nothing was kept of 30 records: 30 quarantined (most of them by {NO_TEXT})" in allowed.stderr
    unpublished(home)


def test_an_empty_file_is_no_input(home: pathlib.Path) -> None:
    fill(home, 0)
    done = run(home)
    assert done.returncode == 1
    assert "nothing was kept, since the input holds no records: no version is published" in done.stderr


def test_a_run_failed_before_its_first_record_frees_its_output(home: pathlib.Path) -> None:
    (home / "in.jsonl").write_bytes(b"\x1f\x8b\x08 no JSON Lines")
    assert run(home).returncode == 1
    assert not unpublished(home).shards
    fill(home, 30)
    (home / "kinds.py").write_text(PIPELINE.replace('KIND = "a"', 'KIND = "b"'))
    done = run(home, "-p", "text_key=body")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kept"] == 30


def test_a_sink_that_kept_nothing_beside_another_is_named_everywhere(home: pathlib.Path) -> None:
    fill(home, 30)
    (home / "kinds.py").write_text(BRANCHED.replace("TOKENIZER", repr(small_tokenizer())))
    done = run(home)
    assert done.returncode == 0, done.stderr
    said = "sink write kept none of 30 records: 30 filtered (most of them by nothing/function returned None)"
    assert said in json.loads(done.stdout)["warnings"]
    shown = ended([sys.executable, "-P", "-m", "headrace.cli", "dataset", "show", "out"], cwd=home)
    assert said in shown.stdout
    with pytest.raises(LoaderError, match=re.escape(f"0 samples>: no samples: {said}; `headrace dataset show`")):
        Loader(str(home / "out"), batch_size=1)
