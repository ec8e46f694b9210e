"""A ledger that cannot be written or read ends a command with a line; a standard stream that cannot ends none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from headrace.store.datasets.dataset import Dataset

DEADLINE_S = 300.0
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read_jsonl, write_documents


def build(input: str) -> Pipeline:
    return Pipeline.chain("small", "out", read_jsonl(input), write_documents())
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "small.py").write_text(PIPELINE)
    (tmp_path / "in").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/in/caf\xe9.jsonl")).write_text(json.dumps({"id": "a", "text": "b"}))
    return tmp_path


def run(home: Path, given: bytes) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "headrace.cli", "run", "small.py", "-p"]
    done = subprocess.run([*command, b"input=" + given], capture_output=True, cwd=home, timeout=DEADLINE_S)
    text = (done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
    return subprocess.CompletedProcess(done.args, done.returncode, *text)


def test_an_input_named_outside_utf_8_is_named_when_given(home: Path) -> None:
    done = run(home, b"in/caf\xe9.jsonl")
    assert done.returncode != 0
    assert "is not UTF-8" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_named_outside_utf_8_is_read_by_folder(home: Path) -> None:
    done = run(home, b"in")
    assert done.returncode == 0, done.stderr


def test_an_entry_of_a_newer_headrace_is_named_as_such(home: Path) -> None:
    (home / "out" / "ledger").mkdir(parents=True)
    (home / "out" / "ledger" / f"{0:020d}.msgpack").write_bytes(msgpack.packb([1, 1, [["Sung", []]]]))
    done = run(home, b"in")
    assert done.returncode == 1
    assert "entry 0 of file://" in done.stderr
    assert "a newer Headrace wrote it" in done.stderr


@pytest.mark.parametrize("streams", ["<&- >&-", "2>&-", "2>/dev/full"])
def test_a_run_needs_no_standard_streams(home: Path, streams: str) -> None:
    command = [sys.executable, "-P", "-m", "headrace.cli", "run", "small.py", "-p", "input=in"]
    shell = ["sh", "-c", f'exec "$@" {streams}', "sh", *command]
    done = subprocess.run(shell, capture_output=True, text=True, cwd=home, timeout=DEADLINE_S, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    newest = Dataset.open(str(home / "out")).state.newest
    assert newest is not None
    assert newest.complete
