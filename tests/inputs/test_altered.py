"""Input that was read and stands in another version: its bytes are compared before anything is read again."""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import files_kit as files
import pytest

from headrace.store.dataset import Dataset

RUN_S_MAX = 120.0
RECORDS = 60
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read, write_jsonl

def build(input: str = "in", fragment_bytes: int = 1 << 20) -> Pipeline:
    return Pipeline.chain("plain", "out", read(input, fragment_bytes=fragment_bytes), write_jsonl())
"""
NAMES = ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.warc.gz", "a.txt")


def run(home: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
    (home / "plain.py").write_text(PIPELINE)
    command = [sys.executable, "-P", "-m", "headrace.cli", "run", "plain.py", "--json", "--replicas", "1", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=home, timeout=RUN_S_MAX)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def report(home: pathlib.Path, *options: str) -> dict[str, Any]:
    done = run(home, *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def fill(home: pathlib.Path) -> dict[str, pathlib.Path]:
    """A file of each format."""
    folder = home / "in"
    made = {
        "a.jsonl": files.lines(),
        "a.jsonl.gz": gzip.compress(files.lines(), mtime=0),
        "a.jsonl.zst": files.zstd(files.lines()),
        "a.warc.gz": files.members(files.warc()),
        "a.txt": b"a text\n",
    }
    paths = {name: files.write(folder / name, data) for name, data in made.items()}
    paths["a.parquet"] = files.parquet_of(folder / "a.parquet")
    return paths


def touch(path: pathlib.Path) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))


def copy_over(path: pathlib.Path) -> None:
    """The same bytes in another file of the same name, as cp, rsync or a restore leave them."""
    shutil.copyfile(path, path.with_name("copy"))
    os.replace(path.with_name("copy"), path)


def state(home: pathlib.Path) -> Any:
    return Dataset.open(str(home / "out")).state


def test_a_file_that_was_touched_or_copied_over_is_the_same_and_nothing_is_read_twice(tmp_path: pathlib.Path) -> None:
    paths = fill(tmp_path)
    first = report(tmp_path)
    assert set(paths) == set(NAMES)
    assert all(fragment.checksum for fragment in state(tmp_path).fragments.values())
    fragments = set(state(tmp_path).fragments)
    for name, path in paths.items():
        touch(path) if name < "a.jsonl.zst" else copy_over(path)
    again = report(tmp_path)
    assert (again["kept"], again["bytes_read"], again["warnings"]) == (first["kept"], 0, [])
    assert set(state(tmp_path).fragments) == fragments
    assert len(state(tmp_path).seen) == len(NAMES)
    entries = state(tmp_path).number
    assert report(tmp_path)["kept"] == first["kept"]
    assert state(tmp_path).number - entries < 6, "what was found is in the ledger, and not compared again"
    (shard,) = Dataset.open(str(tmp_path / "out")).shards
    rebuilt = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "headrace.cli",
            "dataset",
            "rebuild",
            "--trust-code",
            "out",
            shard.closed.objects[0].key,
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=RUN_S_MAX,
    )
    assert rebuilt.returncode == 0, rebuilt.stderr


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_a_file_that_holds_other_bytes_halts_by_default_and_is_named(tmp_path: pathlib.Path, name: str) -> None:
    path = fill(tmp_path)[name]
    kept = report(tmp_path)["kept"]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    files.write(tmp_path / "in" / "new.jsonl", b'{"text":"one more"}')
    for _ in range(2):
        done = run(tmp_path)
        assert done.returncode == 1
        assert f"1 object that was read has changed since: {path.as_uri()!r} (it holds other bytes than" in done.stderr
        assert "--changed-input drop" in done.stderr
    assert state(tmp_path).counts["lines"].kept == kept + 1, "all else is read and closed"
    dropped = report(tmp_path, "--changed-input", "drop")
    assert dropped["kept"] == kept + 1
    assert dropped["warnings"][0].startswith("source read: 1 object that was read holds other bytes now, which are not")
    assert report(tmp_path)["warnings"] == [], "a choice is made once"
    path.write_bytes(bytes(data[:-2]))
    assert run(tmp_path).returncode == 1, "and is of one version"


def test_a_file_that_changed_is_read_whole_beside_what_was_read_only_if_asked(tmp_path: pathlib.Path) -> None:
    path = files.write(tmp_path / "in" / "a.jsonl", files.lines())
    report(tmp_path)
    path.write_bytes(files.lines()[::-1].replace(b"\n", b"", 1)[::-1].replace(b"text", b"texs", 1) + b"\n")
    found = report(tmp_path, "--changed-input", "reread")
    assert found["records_read"] == 2 * RECORDS
    assert found["warnings"][0].startswith("source read: 1 object that was read holds other bytes now and is read as")
    touch(path)
    assert report(tmp_path)["records_read"] == 2 * RECORDS, "the newest version is what it is compared with"


def test_lines_that_were_appended_are_read_and_nothing_before_them(tmp_path: pathlib.Path) -> None:
    path = files.write(tmp_path / "in" / "a.jsonl", files.lines())
    cut = ("-p", f"fragment_bytes={len(files.lines()) // 3}")
    report(tmp_path, *cut)
    line = b'{"id":"one more","text":"one more"}\n'
    for count in (1, 2):
        with path.open("ab") as file:
            file.write(line)
        found = report(tmp_path, *cut)
        assert (found["kept"], found["bytes_read"], found["warnings"]) == (RECORDS + count, len(line), [])
        touch(path)
        assert report(tmp_path, *cut)["kept"] == RECORDS + count


def test_a_last_line_that_was_written_on_is_another_record_and_halts(tmp_path: pathlib.Path) -> None:
    path = files.write(tmp_path / "in" / "a.jsonl", files.lines().rstrip(b"\n"))
    report(tmp_path)
    with path.open("ab") as file:
        file.write(b'\n{"id":"one more","text":"one more"}\n')
    done = run(tmp_path)
    assert (done.returncode, "and cannot be read on there" in done.stderr) == (1, True)


def test_a_compressed_file_that_grew_halts(tmp_path: pathlib.Path) -> None:
    path = files.write(tmp_path / "in" / "a.jsonl.gz", gzip.compress(files.lines()))
    report(tmp_path)
    with path.open("ab") as file:
        file.write(gzip.compress(b'{"text":"one more"}\n'))
    done = run(tmp_path)
    assert (done.returncode, "and cannot be read on there" in done.stderr) == (1, True)


def test_a_copy_under_another_name_is_read_and_named(tmp_path: pathlib.Path) -> None:
    path = files.write(tmp_path / "in" / "a.jsonl", files.lines())
    report(tmp_path)
    shutil.copyfile(path, path.with_name("b.jsonl"))
    found = report(tmp_path)
    assert found["kept"] == 2 * RECORDS
    (note,) = found["warnings"]
    assert note.startswith("source read: 1 object holds, or begins with, the same bytes as another that was read")
    assert note.endswith(f"{path.with_name('b.jsonl').as_uri()!r} as {path.as_uri()!r}")
    assert report(tmp_path)["warnings"] == []


def test_a_file_that_was_read_in_another_cut_is_not_read_again(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "in" / "a.jsonl", files.lines())
    report(tmp_path)
    cut = ("-p", f"fragment_bytes={len(files.lines()) // 3}", "--amend")
    assert report(tmp_path, *cut)["kept"] == RECORDS
