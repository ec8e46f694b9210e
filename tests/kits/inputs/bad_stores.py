"""Runs against stores that fail: a small pipeline with many shards, and what is asked of it afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, Self

from headrace.store.datasets.dataset import Dataset
from headrace.store.shards.sidecars import read_table
from tests.kits.inputs import files
from tests.kits.run.command_server import ended

RUN_S_MAX = 300.0
LOOK_S = 0.05
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read, tokenize, write_tokens


def build(input: str, output: str, tokenizer: str = "TOKENIZER") -> Pipeline:
    tokens = tokenize(tokenizer)
    source = read(input, fragment_bytes=1 << 16, batch_bytes=1 << 13)
    return Pipeline.chain("bad", output, source, tokens, write_tokens(tokens, seq_len=128, shard_bytes=1 << 15))
"""
RECORDS = [{"id": f"r{index}", "text": f"record {index}: " + "some words of it " * 30} for index in range(2000)]
TEXT = files.lines(RECORDS)


def command(given: str, output: str, *options: str) -> list[str]:
    parameters = ["-p", f"input={given}", "-p", f"output={output}"]
    return [sys.executable, "-P", "-m", "headrace.cli", "run", "bad.py", *parameters, "--json", *options]


def run(
    folder: pathlib.Path, given: str, output: str, *options: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A run from the command line to its end."""
    return ended(
        command(given, output, *options), cwd=folder, timeout=RUN_S_MAX, env={**os.environ, **(environment or {})}
    )


class Watched:
    """A run whose standard error is read while it runs; a context, which leaves no process behind."""

    def __init__(self, folder: pathlib.Path, given: str, output: str) -> None:
        self._log = folder / "standard-error"
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                command(given, output), cwd=folder, text=True, stdout=subprocess.PIPE, stderr=log
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def says(self, words: str) -> str:
        """The first line that holds these words, once it is there."""
        deadline = time.monotonic() + RUN_S_MAX
        while True:
            for line in self._log.read_text().splitlines():
                if words in line:
                    return line
            assert self.process.poll() is None, f"it ended before it said {words!r}: {self._log.read_text()}"
            assert time.monotonic() < deadline, f"{words!r} was not said: {self._log.read_text()}"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(LOOK_S)

    def end(self) -> subprocess.CompletedProcess[str]:
        """The run at its end."""
        out, _ = self.process.communicate(timeout=RUN_S_MAX)
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, out, self._log.read_text())


def check_complete(done: subprocess.CompletedProcess[str], output: str) -> dict[str, Any]:
    """The run has ended well and each record stands in the dataset once; its report."""
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert (report["state"], report["balanced"], report["complete"]) == ("completed", True, True)
    assert kept(output) == sorted(record["id"] for record in RECORDS)
    return report


def kept(output: str) -> list[str]:
    """The ids of the documents that the ledger names, sorted."""
    dataset = Dataset.open(output)
    keys = [item.key for shard in dataset.shards if (item := shard.object("documents")) is not None]
    return sorted(name for key in keys for name in read_table(dataset.store, key, ["id"]).column("id").to_pylist())


def the_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a run that failed; progress aside."""
    assert (done.returncode, done.stdout) == (1, ""), (done.returncode, done.stderr)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("bad: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]
