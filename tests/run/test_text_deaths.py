"""Sinks of text gather in scratch files: whatever dies, each record stands once at each sink, and no file is left."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard

from headrace.store.datasets.dataset import Dataset
from headrace.store.files.store import TEMP_AGE_MIN_S
from headrace.store.open import open_store
from tests.kits.run.command_server import ended
from tests.kits.run.kill import Marked, count_entries, headrace, kill_after_entries

PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, write_documents, write_jsonl


def has_many_lines(record):
    return record if record["text"].count("\\n") >= 10 else None


def build(input: str, output: str) -> Pipeline:
    stages = (
        read_jsonl(input, fragment_bytes=1 << 20, batch_bytes=1 << 16),
        map_records(has_many_lines).fed_by("read"),
        write_documents(shard_bytes=1 << 18).fed_by("has_many_lines"),
        write_jsonl(shard_bytes=1 << 19).fed_by("has_many_lines"),
    )
    return Pipeline("text", output, stages)
"""


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.py"
    path.write_text(PIPELINE)
    return path


def command(text_file: Path, home: Path, output: Path, *edges: str) -> list[str]:
    given = ["-p", f"input={home}/corpus/*.jsonl", "-p", f"output={output}"]
    return headrace("run", str(text_file), *given, *edges, "--json")


def complete(text_file: Path, home: Path, output: Path, *edges: str) -> None:
    done = ended(command(text_file, home, output, *edges), cwd=home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["balanced"]


@pytest.fixture(scope="module")
def undisturbed(text_file: Path, home: Path) -> Path:
    complete(text_file, home, text_file.parent / "undisturbed")
    return text_file.parent / "undisturbed"


def fates(output: Path, sink: str) -> dict[tuple[str, int], tuple[Any, ...]]:
    """By fragment and ordinal what became of each record, with its text; fails where one has two fates."""
    found: dict[tuple[str, int], tuple[Any, ...]] = {}
    for shard in Dataset.open(str(output)).shards:
        if shard.closed.sink != sink:
            continue
        paths = {item.role: output / item.key for item in shard.closed.objects}
        documents, verdicts = (pq.read_table(paths[role]).to_pylist() for role in ("documents", "verdicts"))
        texts = [row.get("text") for row in documents]
        if "lines" in paths:
            with paths["lines"].open("rb") as file:
                plain = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
                lines = [json.loads(line) for line in io.TextIOWrapper(plain, encoding="utf-8", newline="\n")]
            assert [line["id"] for line in lines] == [row["id"] for row in documents]
            texts = [line["text"] for line in lines]
        fresh = {
            (row["fragment"], row["row"]): ("kept", row["id"], row["metadata"], text)
            for row, text in zip(documents, texts, strict=True)
        }
        fresh |= {(row["fragment"], row["row"]): (row["verdict"], row["id"], row["reason"]) for row in verdicts}
        assert len(fresh) == len(documents) + len(verdicts)
        assert not fresh.keys() & found.keys(), "a record stands in the dataset twice"
        found |= fresh
    return found


def until_gone(pid: int) -> None:
    """Wait until a process has ended and was waited for; a draft of one that is there is left alone."""
    deadline, stat = time.monotonic() + 180, Path(f"/proc/{pid}/stat")
    while stat.exists():
        assert time.monotonic() < deadline, f"process {pid} lives on: {stat.read_text()}"
        # Where a test before made this process the parent of orphans, nobody else waits for it.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        os.sched_yield()


def left(output: Path) -> list[Path]:
    """What stands among the drafts but the lock that updates of the manifest hold."""
    return [path for path in (output / ".tmp").iterdir() if path.name != "update.lock"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "edges"),
    [
        pytest.param(3, (), id="fused"),
        pytest.param(20, (), id="fused, twenty times"),
        pytest.param(20, ("--no-fuse",), id="rings, twenty times"),
    ],
)
def test_text_gathered_at_death_stands_once_and_leaves_no_file(
    text_file: Path, home: Path, undisturbed: Path, tmp_path: Path, kills: int, edges: tuple[str, ...]
) -> None:
    output = tmp_path / "out"
    entries = partial(count_entries, output / "ledger")
    killed = 0
    for kill in range(kills):
        run = Marked(command(text_file, home, output, *edges), home)
        # the first time behind the leader's first entry, which comes long before a run ends
        if not kill_after_entries(run, entries, entries() + (3 if kill else 1), delay_s=0):
            break
        assert not run.alive()
        killed += 1
    assert killed
    complete(text_file, home, output, *edges)
    for sink in ("documents", "lines"):
        assert fates(output, sink) == fates(undisturbed, sink)
    for path in left(output):  # drafts; what waits in scratch files has no name
        assert path.suffix == ".tmp"
        os.utime(path, (0, time.time() - 2 * TEMP_AGE_MIN_S))
        until_gone(int(path.name.split(".")[1]))
    open_store(str(output))
    assert left(output) == []
