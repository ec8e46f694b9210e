"""A filter of URLs behind JSON Lines that Headrace has written, and where nothing has a URL."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import files_kit as files

from headrace.store.dataset import Dataset

RUN_S_MAX = 120.0
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read, url_filter, write_jsonl


def build(input: str, output: str, key: str = "url") -> Pipeline:
    return Pipeline.chain("urls", output, read(input), url_filter("bad.txt", url_key=key), write_jsonl())
"""


def headrace(home: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "headrace.cli", *arguments, "--json"]
    return subprocess.run(command, capture_output=True, text=True, cwd=home, timeout=RUN_S_MAX, check=False)


def run(home: pathlib.Path, given: str, output: str, *more: str) -> dict[str, Any]:
    done = headrace(home, "run", "urls.py", "-p", f"input={given}", "-p", f"output={output}", *more)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def lines_of(home: pathlib.Path, output: str) -> str:
    (shard,) = Dataset.open(str(home / output)).shards
    return next(item.key for item in shard.closed.objects if item.role == "lines")


def test_what_was_written_is_judged_by_its_urls_again_and_where_there_are_none_the_run_says_so(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "urls.py").write_text(PIPELINE)
    (tmp_path / "bad.txt").write_text("x/7\n")
    files.write(tmp_path / "in.jsonl", files.lines())
    first = run(tmp_path, "in.jsonl", "first")
    assert (first["kept"], first["filtered_by"], first["warnings"]) == (59, {"urls/URL on a list": 1}, [])

    (tmp_path / "bad.txt").write_text("x/7\nx/8\n")
    written = f"first/{lines_of(tmp_path, 'first')}"
    second = run(tmp_path, written, "second")
    assert (second["kept"], second["filtered_by"], second["warnings"]) == (58, {"urls/URL on a list": 1}, [])

    blind = run(tmp_path, written, "blind", "-p", "key=link")
    assert blind["kept"] == 59
    (warning,) = blind["warnings"]
    assert warning.startswith("urls: 59 of 59 records have no URL in their metadata, and were let through")

    (tmp_path / "bad.txt").write_text("")
    shard = pathlib.PurePath(lines_of(tmp_path, "first")).name.partition(".")[0]
    again = headrace(tmp_path, "dataset", "rebuild", "first", shard)
    assert again.returncode == 1
    assert json.loads(again.stdout)["fates"] == {
        "kept": {"named": 59, "made": 60},
        "filtered by urls/URL on a list": {"named": 1, "made": 0},
    }
