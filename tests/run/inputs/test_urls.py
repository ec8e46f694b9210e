"""A filter of URLs behind JSON Lines that Headrace has written, and where nothing has a URL."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from headrace.cli.commands.preview import preview_file
from headrace.store.datasets.dataset import Dataset
from tests.kits.inputs import files
from tests.kits.run.command_server import ended

RUN_S_MAX = 300.0
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read, url_filter, write_jsonl


def build(input: str, output: str, key: str = "url") -> Pipeline:
    return Pipeline.chain("urls", output, read(input), url_filter("bad.txt", url_key=key), write_jsonl())
"""


def headrace(home: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "headrace.cli", *arguments, "--json"]
    return ended(command, cwd=home, timeout=RUN_S_MAX)


def run(home: pathlib.Path, given: str, output: str, *more: str) -> dict[str, Any]:
    done = headrace(home, "run", "urls.py", "-p", f"input={given}", "-p", f"output={output}", *more)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def lines_of(home: pathlib.Path, output: str) -> str:
    (shard,) = Dataset.open(str(home / output)).shards
    return next(item.key for item in shard.closed.objects if item.role == "lines")


def test_a_preview_names_what_a_stage_counted_by_its_name(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "urls.py").write_text(PIPELINE)
    (tmp_path / "bad.txt").write_text("x/7\n")
    files.write(tmp_path / "in.jsonl", files.lines())
    given = ["input=in.jsonl", "output=out", "key=link"]
    assert preview_file(tmp_path / "urls.py", given, 9, as_json=False) == 0
    shown = capsys.readouterr().out
    assert "counted urls/without a URL  9" in shown
    assert "edited by" not in shown


def test_written_records_are_judged_by_their_urls_again(
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
    assert warning == (
        "urls: 59 of 59 records are without a URL, and were let through without being judged; "
        "name the field that holds it with url_key="
    )
    assert (first["counters"], blind["counters"], blind["edited"]) == ({}, {"urls/without a URL": 59}, {})
    shown = headrace(tmp_path, "dataset", "show", "blind")
    assert json.loads(shown.stdout)["counters"] == blind["counters"]
    ahead = run(tmp_path, written, "ahead", "-p", "key=link", "--limit", "9")
    assert (ahead["counters"], ahead["edited"]) == ({"urls/without a URL": 9}, {})

    (tmp_path / "bad.txt").write_text("")
    shard = pathlib.PurePath(lines_of(tmp_path, "first")).name.partition(".")[0]
    again = headrace(tmp_path, "dataset", "rebuild", "--trust-code", "first", shard)
    assert again.returncode == 1
    assert json.loads(again.stdout)["fates"] == {
        "kept": {"named": 59, "made": 60},
        "filtered by urls/URL on a list": {"named": 1, "made": 0},
    }
