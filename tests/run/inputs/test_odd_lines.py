"""Whole runs over lines of every kind that files really hold, and over lines too long or too many."""

from __future__ import annotations

import gzip
import json
import pathlib
import subprocess
import sys

import pytest

from tests.kits.inputs import files
from tests.run.inputs.test_runs import PLAIN, balance, headrace, run

GIB = 1 << 30
#: Runs a command, passes on what it says, and adds the most memory that one of its processes had, in bytes.
MEASURED = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
sys.exit(done.returncode)
"""
#: Of one process of a run, the tokenizer's tables and everything imported included.
PROCESS_BYTES_MAX = 700 << 20

#: Lines, and what becomes of each: kept with this text, or quarantined for this reason.
LINES = [
    (b'{"id":"plain","text":"plain"}', "kept", ""),
    (b'{"id":"crlf","text":"crlf"}\r', "kept", ""),
    (b"", None, ""),
    (b"   \r", None, ""),
    (b'{"id":"escaped","text":"a\\u0000b"}', "kept", ""),
    (b'{"id":"nul","text":"a\0b"}', "quarantined", "malformed JSON"),
    (b"\0\0\0", "quarantined", "malformed JSON"),
    (b'{"id":"surrogate","text":"\\ud800"}', "quarantined", "malformed JSON"),
    (b'{"id":"encoded","text":"\xed\xa0\x80"}', "quarantined", "invalid UTF-8"),
    (b'{"id":"latin","text":"\xe9"}', "quarantined", "invalid UTF-8"),
    (b'{"id":"null","text":null}', "quarantined", "text is not a string"),
    (b'{"id":"none"}', "quarantined", "no text"),
    (b'["a list"]', "quarantined", "not a JSON object"),
    (b'{"id":"cut","text":"cu', "quarantined", "malformed JSON"),
    (b'{"id":7,"text":"a number for an id"}', "kept", ""),
    (b'{"id":"last","text":"without a newline"}', "kept", ""),
]


@pytest.mark.parametrize(
    "name", ["a.jsonl", *(pytest.param(name, marks=pytest.mark.slow) for name in ("a.jsonl.gz", "a.jsonl.zst"))]
)
def test_odd_lines_are_quarantined_one_by_one_and_all_others_kept(tmp_path: pathlib.Path, name: str) -> None:
    data = b"\xef\xbb\xbf" + b"\n".join(line for line, _, _ in LINES)
    pack = {"a.jsonl": bytes, "a.jsonl.gz": gzip.compress, "a.jsonl.zst": files.zstd}[name]
    files.write(tmp_path / name, pack(data))
    report = balance(run(tmp_path, name, "--max-quarantined", "100%"))
    expected: dict[str, int] = {}
    for _, fate, reason in LINES:
        if fate == "quarantined":
            expected[f"read/{reason}"] = expected.get(f"read/{reason}", 0) + 1
    assert report["quarantined_by"] == expected
    assert report["kept"] == sum(fate == "kept" for _, fate, _ in LINES)
    assert report["balanced"]
    shown = headrace(tmp_path, "dataset", "show", "out", "--quarantine", "--json")
    assert len(json.loads(shown.stdout)["quarantine"]) == report["quarantined"]


@pytest.mark.slow
def test_a_gibibyte_line_and_many_tiny_ones_bound_memory(tmp_path: pathlib.Path) -> None:
    tiny = 100_000
    with open(tmp_path / "a.jsonl", "wb") as file:
        file.write(b'{"id":"before","text":"before"}\n')
        file.seek(GIB, 1)
        file.write(b'\n{"id":"after","text":"after"}\n')
        file.write(b'{"text":"a"}\n' * tiny)
    command = [sys.executable, "-P", "-m", "headrace.cli", "run", str(PLAIN), "-p", "input=a.jsonl"]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *command, "-p", "output=out", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    said, _, memory = done.stdout.strip().rpartition("\n")
    report = json.loads(said)
    assert (report["kept"], report["quarantined"], report["balanced"]) == (tiny + 2, 1, True)
    assert report["quarantined_by"] == {"read/line too long": 1}
    assert int(memory) < PROCESS_BYTES_MAX


@pytest.mark.slow
def test_a_million_tiny_lines_are_a_million_records_of_a_dataset(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "a.jsonl", b'{"text":"a"}\n' * 1_000_000)
    report = balance(run(tmp_path, "a.jsonl"))
    assert (report["kept"], report["balanced"]) == (1_000_000, True)
