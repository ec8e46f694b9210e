"""Whole runs with an executable as a stage: what it keeps, what it fails on, and what its death costs."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import threading
from typing import Any

import pytest

from headrace.store.datasets.dataset import Dataset
from headrace.store.shards.sidecars import read_table
from tests.kits.inputs import files
from tests.kits.run.command_server import ended

RUN_S_MAX = 300.0
RECORDS = 3000
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import command, read, write_jsonl


def build(input: str, output: str, script: str) -> Pipeline:
    shout = command(["python3", script], seconds=60, name="shout")
    tail = command(["jq", "-c", "--unbuffered", 'select(.text != "DROP") | .metadata.seen = true'])
    return Pipeline.chain("commands", output, read(input, batch_bytes=1 << 13), shout, tail, write_jsonl())
"""
SCRIPT = """
import json, os, sys, time
for line in sys.stdin:
    record = json.loads(line)
    if record["text"] == "die":
        sys.exit("no way with " + record["id"])
    if record["id"] == "r2000" and not os.path.exists("was-killed"):
        print(os.getpid(), file=open("pid.new", "w"), flush=True)
        os.rename("pid.new", "pid")
        time.sleep(50)
    record["text"] = record["text"].upper()
    print(json.dumps(record), flush=True)
"""


def kill_when_told(home: pathlib.Path, killed: list[int]) -> None:
    """Send SIGKILL to the command once it says who it is."""
    told = threading.Event()
    for _ in range(int(RUN_S_MAX / 0.02)):
        if (home / "pid").exists():
            (home / "was-killed").touch()
            killed.append(int((home / "pid").read_text()))
            os.kill(killed[0], signal.SIGKILL)
            return
        told.wait(0.02)


@pytest.mark.parametrize("edges", [(), pytest.param(("--no-fuse",), marks=pytest.mark.slow)], ids=["fused", "rings"])
def test_executables_are_stages_of_a_run_whatever_becomes_of_them(
    tmp_path: pathlib.Path, edges: tuple[str, ...]
) -> None:
    (tmp_path / "commands.py").write_text(PIPELINE)
    (tmp_path / "shout.py").write_text(SCRIPT)
    records: list[dict[str, Any]] = [{"id": f"r{index}", "text": f"text {index}"} for index in range(RECORDS)]
    records[700]["text"], records[900]["text"] = "die", "drop"
    (tmp_path / "in.jsonl").write_bytes(files.lines(records))
    killed: list[int] = []
    killer = threading.Thread(target=kill_when_told, args=(tmp_path, killed))
    killer.start()
    parameters = ("-p", "input=in.jsonl", "-p", "output=out", "-p", f"script={tmp_path}/shout.py")
    done = ended(
        [sys.executable, "-P", "-m", "headrace.cli", "run", "commands.py", *parameters, "--json", *edges],
        cwd=tmp_path,
        timeout=RUN_S_MAX,
    )
    killer.join()
    assert done.returncode == 0, done.stderr
    assert killed
    report = json.loads(done.stdout)
    assert (report["kept"], report["filtered"], report["quarantined"]) == (RECORDS - 2, 1, 1)
    assert report["balanced"]
    assert report["filtered_by"] == {"jq/command gave no line": 1}

    dataset = Dataset.open(str(tmp_path / "out"))
    keys = [item.key for shard in dataset.shards if (item := shard.object("verdicts")) is not None]
    fates = {row["id"]: row for key in keys for row in read_table(dataset.store, key).to_pylist()}
    assert set(fates) == {"r700", "r900"}
    assert fates["r700"]["stage"] == "shout"
    assert fates["r700"]["reason"] == "command ended with exit code 1: no way with r700"
