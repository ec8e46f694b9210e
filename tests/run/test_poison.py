"""A record that kills its process, hangs or eats memory is quarantined alone, and the run goes on with all others."""

import json
import os
import random
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.store.datasets.dataset import Dataset
from tests.kits.run.command_server import ended
from tests.kits.run.kill import Marked, headrace

DEADLINE_S = 300.0
RECORDS = 500
PIPELINE = '''"""Records that do harm to the stage that is named before the colon in their text."""

import os
import signal
import sys
import time

from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.stages.sources.jsonl import JsonlSource
from headrace.stages.library import map_batches, map_records, read_jsonl, write_jsonl
from headrace.stages.sinks.spill import SpilledStrings
from headrace.stages.sinks.texts import JsonlSink


def harm(text, stage):
    who, _, what = text.partition(":")
    if who != stage:
        return
    if what == "abort":
        os.abort()
    if what == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "exit":
        sys.exit(3)
    if what == "hang":
        while True:
            time.sleep(0.05)
    if what == "eat":
        held = []
        for _ in range(10):
            held.append(bytearray(b"1") * (40 << 20))
        while True:
            time.sleep(0.05)


def first(record):
    harm(record["text"], "first")
    return record


def second(rows):
    for text in rows.column("text").to_pylist():
        harm(text, "second")
    return rows


class Reading(JsonlSource):
    def _parse(self, columns, first, lines, ends):
        for line in lines:
            if b'"reader:abort' in line:
                os.abort()
            while b'"reader:spin' in line:
                pass
        super()._parse(columns, first, lines, ends)


class Writing(JsonlSink):
    def write(self, batches, store, prefix):
        texts = SpilledStrings(self._in_order(batches, store), ("text",))
        found = texts.column("text", 0, len(texts.sizes)).to_pylist()
        for text in found:
            harm(text, "writer")
        if len(found) > 1 and "writer:company" in found:
            os.abort()
        return super().write(batches, store, prefix)


def build(input: str, output: str) -> Pipeline:
    read, write = read_jsonl(input, batch_bytes=1 << 12), write_jsonl()
    source = Stage("read", StageKind.SOURCE, "poison:Reading", read.parameters, volatile=read.volatile)
    sink = Stage("write", StageKind.SINK, "poison:Writing", write.parameters, volatile=write.volatile)
    return Pipeline.chain("poison", output, source, map_records(first), map_batches(second), sink)
'''


def write_corpus(folder: Path, harmful: dict[int, str]) -> None:
    """Two files of RECORDS records, in the first of which some do harm."""
    (folder / "poison.py").write_text(PIPELINE)
    for part in range(2):
        texts = [harmful.get(index, f"record {index}") if part == 0 else f"record {index}" for index in range(RECORDS)]
        lines = [json.dumps({"id": f"{part}-{index}", "text": text}) for index, text in enumerate(texts)]
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n")


def command(folder: Path, *arguments: str, record_seconds: float = 2) -> list[str]:
    parameters = ("-p", f"input={folder}/*.jsonl", "-p", f"output={folder}/out")
    # to eat takes a second where the machine's host has to find the pages
    limits = ("--record-seconds", str(record_seconds), "--task-memory", "350")
    return headrace("run", str(folder / "poison.py"), *parameters, *limits, *arguments, "--json")


def check(folder: Path, answer: dict[str, Any], expected: dict[int, tuple[str, str]]) -> None:
    """Every record is kept but those expected, and each of those stands under its stage with its story."""
    assert answer["balanced"]
    quarantined = {}
    kept = 0
    for fate in verdicts(folder / "out"):
        if fate["verdict"] == "quarantined":
            quarantined[fate["id"]] = (fate["stage"], fate["reason"])
        else:
            kept += 1
    assert set(quarantined) == {name_of(folder, index, stage) for index, (stage, _) in expected.items()}
    for index, (stage, story) in expected.items():
        found_stage, reason = quarantined[name_of(folder, index, stage)]
        assert found_stage == stage
        assert reason.startswith("killed its process: ")
        assert story in reason
    assert kept == 2 * RECORDS - len(expected)


def name_of(folder: Path, index: int, stage: str) -> str:
    """A record that its source could not read has no id."""
    return f"{(folder / '0.jsonl').as_uri()}#{index}" if stage == "read" else f"0-{index}"


def verdicts(dataset: Path) -> list[dict[str, Any]]:
    """A row a record, from the tables of all shards that the ledger names."""
    found: list[dict[str, Any]] = []
    seen: set[tuple[str, int]] = set()
    for shard in Dataset.open(str(dataset)).state.shards:
        named = {item.role: item.key for item in shard.closed.objects}
        tables = {role: pq.read_table(dataset / named[role]).to_pylist() for role in ("documents", "verdicts")}
        rows = [{**row, "verdict": "kept"} for row in tables["documents"]] + tables["verdicts"]
        for row in rows:
            key = (row["fragment"], row["row"])
            assert key not in seen, f"{key} has two fates"
            seen.add(key)
        found += rows
    return found


#: What stands in which record, and its story.
HARM = {
    "abort": (350, "first:abort", "signal 6"),
    "segfault in a batch": (5, "second:segfault", "signal 11"),
    "exit": (RECORDS - 1, "first:exit", "exit code 3"),
    "hang": (150, "second:hang", "it did not return within 2 s"),
    "memory": (151, "first:eat", "of memory, the cap of a task is 350 MiB"),
    "reader": (300, "reader:abort", "signal 6"),
    "reader that computes": (301, "reader:spin", "it did not return within 1 s of processor time"),
    "sink": (450, "writer:abort", "signal 6"),
}
STAGES = {"reader": "read", "writer": "write"}
#: Seconds for a record that are not two: a source says not how many it has, so it first computes for ten times as many,
#: and where others work on the machine that takes several times as long.
RECORD_SECONDS = {"reader that computes": 1.0}
QUICK = ("abort", "hang", "memory", "reader", "sink")


def plant(folder: Path, *kinds: str) -> dict[int, tuple[str, str]]:
    """Write the corpus with these records in it; the stage and the story of each that is to be found."""
    write_corpus(folder, {HARM[kind][0]: HARM[kind][1] for kind in kinds})
    found: dict[int, tuple[str, str]] = {}
    for index, text, story in (HARM[kind] for kind in kinds):
        stage = text.partition(":")[0]
        found[index] = (STAGES.get(stage, stage), story)
    return found


def test_harmful_records_are_quarantined_alone_and_spared_by_rebuild(tmp_path: Path) -> None:
    expected = plant(tmp_path, *QUICK)
    done = ended(command(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check(tmp_path, json.loads(done.stdout), expected)

    deadly = [shard for shard in Dataset.open(str(tmp_path / "out")).shards if shard.closed.counts.quarantined]
    assert sum(shard.closed.counts.quarantined for shard in deadly) == len(QUICK)
    for shard in deadly:
        verdicts_of = next(item for item in shard.closed.objects if item.role == "verdicts")
        rebuild = (
            "dataset",
            "rebuild",
            "--trust-code",
            str(tmp_path / "out"),
            Path(verdicts_of.key).name.partition(".")[0],
            "--json",
        )
        again = answer_of(rebuild, tmp_path / "out")
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout)["differing"] == []
    (tmp_path / "out" / verdicts_of.key).unlink()
    refused = answer_of(rebuild, tmp_path / "out")
    assert refused.returncode == 1
    assert "records of this shard killed their processes" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("edges", [(), ("--no-fuse",)], ids=["fused", "rings"])
@pytest.mark.parametrize("kind", HARM)
def test_a_record_that_harms_its_task_is_quarantined_alone(tmp_path: Path, kind: str, edges: tuple[str, ...]) -> None:
    expected = plant(tmp_path, kind)
    line = command(tmp_path, *edges, record_seconds=RECORD_SECONDS.get(kind, 2))
    done = ended(line, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check(tmp_path, json.loads(done.stdout), expected)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_it_is_found_behind_rings_too_while_tasks_are_killed(tmp_path: Path, seed: int) -> None:
    expected = plant(tmp_path, "abort", "segfault in a batch", "exit")
    run = Marked(command(tmp_path, "--no-fuse"), tmp_path)
    process = run.start()
    chance = random.Random(seed)
    kills = 0
    until = time.monotonic() + DEADLINE_S
    fd = os.pidfd_open(process.pid)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    # The first as soon as there is a task, however fast the run is; the others while it finds the records.
    while kills < 4 and not poll.poll(int(chance.uniform(300, 900)) if kills else 5):
        assert time.monotonic() < until
        victims = sorted(pid for pid in run.alive() if title(pid).startswith("headrace task"))
        if victims:
            os.kill(chance.choice(victims), signal.SIGKILL)
            kills += 1
    os.close(fd)
    out, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors.decode()
    assert kills, "the run was over before anything was killed"
    check(tmp_path, json.loads(out), expected)
    assert not run.alive()


@pytest.mark.slow
def test_a_stage_that_kills_every_process_fails_the_run_with_its_name(tmp_path: Path) -> None:
    write_corpus(tmp_path, dict.fromkeys(range(RECORDS), "first:abort"))
    done = ended(command(tmp_path), cwd=tmp_path)
    assert done.returncode == 1
    assert "stage first killed its process on 8 records in a row" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_sink_dying_of_shards_alone_fails_the_run_named(tmp_path: Path) -> None:
    write_corpus(tmp_path, {7: "writer:company"})
    line = command(tmp_path, "--seal-seconds", "1")
    done = ended(line, cwd=tmp_path)
    assert done.returncode == 1
    assert "stage write killed its process 8 times in a row with several records in hand" in done.stderr
    assert "the last time records 0.." in done.stderr
    assert f"of {(tmp_path / '0.jsonl').as_uri()}, and no record does so alone" in done.stderr
    assert "Traceback" not in done.stderr


def answer_of(arguments: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    return ended(headrace(*arguments), cwd=folder)


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
