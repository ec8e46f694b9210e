"""A sink that stands still holds up its source, costs no more memory than the credit, and is fed again at once."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.transport.ring.memory import DEFAULT_WINDOW_BYTES
from tests.kits.run.daemons import until
from tests.kits.run.kill import Marked, headrace

DEADLINE_S = 300.0
#: Seconds in which throughput is back.
BACK_S_MAX = 60.0
MIB = 1 << 20
BATCH_BYTES = MIB
RECORDS, RECORD_BYTES = 3200, 32 << 10
#: Links that each kind of process has an end of.
LINKS = {"read": 1, "work": 2, "write": 1}
#: How far a process may grow over credit and batch: what an allocator keeps of memory that it was given back.
SLACK_BYTES = MIB
PIPELINE = '''"""One task a stage; the middle one takes its time."""

import time
from dataclasses import replace

from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, write_jsonl


def work(record):
    time.sleep(0.002)
    return record


def build(input: str, output: str) -> Pipeline:
    write = write_jsonl(shard_bytes=4 << 20, name="write")
    stages = (read_jsonl(input, fragment_bytes=8 << 20), map_records(work), write)
    return Pipeline.chain("pressure", output, *(replace(stage, replicas=1) for stage in stages))
'''


class Watched:
    """A run, and what its processes have in memory and have read."""

    def __init__(self, folder: Path) -> None:
        parameters = ("-p", f"input={folder}/in.jsonl", "-p", f"output={folder}/out")
        self.run = Marked(headrace("run", str(folder / "pressure.py"), *parameters, "--no-fuse", "--json"), folder)
        self.process = self.run.start()

    def tasks(self) -> dict[str, int]:
        """Process ids by stage, once all are there."""

        def look() -> dict[str, int]:
            titles = {pid: _text(pid, "cmdline").replace("\0", " ") for pid in self.run.alive()}
            tasks = [(pid, title) for pid, title in titles.items() if title.startswith("headrace task")]
            found = {stage: pid for pid, title in tasks for stage in LINKS if f"/{stage}." in title}
            return found if len(found) == len(LINKS) else {}

        return until(look, "a task for each stage")

    def memory(self) -> dict[int, int]:
        """Bytes of each process: its own, and its part of what it shares."""
        found: dict[int, int] = {}
        for pid in self.run.alive():
            lines = [line.split() for line in _text(pid, "smaps_rollup").splitlines()]
            sizes = {line[0]: int(line[1]) << 10 for line in lines if len(line) == 3 and line[2] == "kB"}
            if "Pss_Anon:" in sizes:
                # Not the pages of files: of a library that others map too, more falls to us when they end.
                found[pid] = sizes["Pss_Anon:"] + sizes["Pss_Shmem:"]
        return found


def _text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""


def bytes_read(pid: int) -> int:
    """Bytes that a process has read from files, pipes and the like; more than any file has if it has ended."""
    text = _text(pid, "io")
    return int(text.split("rchar:")[1].split()[0]) if text else 1 << 62


def rate(pid: int, seconds: float) -> float:
    """Bytes that a process reads in a second, seen for this long."""
    before, started = bytes_read(pid), time.monotonic()
    until(lambda: time.monotonic() - started >= seconds, "a while")
    return (bytes_read(pid) - before) / (time.monotonic() - started)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    (tmp_path / "pressure.py").write_text(PIPELINE)
    chance = random.Random(1)
    with open(tmp_path / "in.jsonl", "w", encoding="ascii") as file:
        texts = (chance.randbytes(RECORD_BYTES // 2).hex() for _ in range(RECORDS))
        file.writelines(json.dumps({"id": str(index), "text": text}) + "\n" for index, text in enumerate(texts))
    item = Watched(tmp_path)
    yield item
    item.run.kill()
    item.process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("stopped_s", [3.0, 60.0])
def test_a_stopped_sink_stops_the_source_and_costs_the_credit_at_most(watched: Watched, stopped_s: float) -> None:
    tasks = watched.tasks()
    source, sink = tasks["read"], tasks["write"]
    until(lambda: bytes_read(source) > 16 * MIB, "the source reads")
    speed = rate(source, 1.0)
    before = watched.memory()
    os.kill(sink, signal.SIGSTOP)
    until(lambda: rate(source, 0.5) < BATCH_BYTES / 100, "the source stands still")
    total = (watched.run.cwd / "in.jsonl").stat().st_size
    assert bytes_read(source) < total - 8 * MIB, "the source stands still since it has read all"
    read, until_s = bytes_read(source), time.monotonic() + stopped_s
    most: dict[int, int] = {}
    while time.monotonic() < until_s:
        for pid, size in watched.memory().items():
            most[pid] = max(size, most.get(pid, 0))
        rate(source, 0.2)
    grown = {pid: size - before[pid] for pid, size in most.items()}
    stage_of = {pid: stage for stage, pid in tasks.items()}
    print(
        {stage_of.get(pid, "other"): round(size / MIB, 1) for pid, size in grown.items()}, round(speed / MIB), "MiB/s"
    )
    for pid, size in grown.items():
        links = LINKS.get(stage_of.get(pid, ""), 0)
        allowed = links * DEFAULT_WINDOW_BYTES + BATCH_BYTES + SLACK_BYTES
        assert size <= allowed, f"{stage_of.get(pid, _text(pid, 'cmdline'))} grew by {size} bytes of {allowed}"
    assert bytes_read(source) - read < BATCH_BYTES, "the source read on"
    assert watched.tasks() == tasks, "a task was killed for standing still"

    os.kill(sink, signal.SIGCONT)
    # On a machine that has become busier than it was, it may have read all before it is as fast as then.
    until(lambda: rate(source, 0.5) > speed / 2 or bytes_read(source) >= total, "throughput is back", BACK_S_MAX)
    out, errors = watched.process.communicate(timeout=DEADLINE_S)
    assert watched.process.returncode == 0, errors.decode()
    report = json.loads(out)
    assert report["balanced"]
    assert report["kept"] == RECORDS
