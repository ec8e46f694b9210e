"""Releases side by side, and workers that end under flow: their tasks go on elsewhere; each record is closed once."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from tests.kits.run.another_release import make_release
from tests.kits.run.daemons import Cluster, Daemon, cluster, until

RECORDS = 1500
PIPELINE = """
import pathlib, time
from headrace import Pipeline, map_records, read_jsonl, write_jsonl

def slow(record):
    if not pathlib.Path({gate!r}).exists():
        time.sleep(0.2)
    return record

def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain(
        "upgrade", output, read_jsonl(input, batch_records=4),
        map_records(slow, name="slow").placed(replicas=4), write_jsonl().placed(replicas=2),
    )
"""


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Cluster]:
    """Two workers with a run that goes on until the gate is there."""
    home = tmp_path / "home"
    (home / "in").mkdir(parents=True)
    for part in range(30):
        lines = (json.dumps({"id": str(number), "text": "word " * 400}) for number in range(part, RECORDS, 30))
        (home / "in" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    (home / "pipe.py").write_text(PIPELINE.format(gate=str(tmp_path / "gate")))
    with cluster(home, tmp_path, str(tmp_path / "root")) as made:
        made.apply("pipe.py", f"input={home}/in/*.jsonl", f"output={tmp_path}/out")
        until(lambda: workers_of(made) == {"w0", "w1"}, "both workers have tasks")
        yield made


def workers_of(house: Cluster) -> set[str]:
    status = house.status("upgrade")
    return {task.worker for task in status.tasks if task.state == "ready"} if status is not None else set()


def check_all_once(house: Cluster) -> None:
    (house.folder / "gate").touch()
    assert house.wait_for_end("upgrade").state == "completed"
    files = (house.folder / "out" / "shards").rglob("*.jsonl.zst")
    texts = (zstandard.ZstdDecompressor().stream_reader(io.BytesIO(file.read_bytes())).read() for file in files)
    found = Counter(json.loads(line)["id"] for text in texts for line in text.splitlines())
    assert found == Counter(str(number) for number in range(RECORDS))


def ended(daemon: Daemon) -> int:
    assert daemon.process is not None
    return daemon.process.wait(120)


def drain(house: Cluster, *words: str) -> None:
    command = [sys.executable, "-P", "-m", "headrace.cli", "drain", *words, "--controller", house.known()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)


def test_every_process_becomes_another_release_under_flow(house: Cluster) -> None:
    later = make_release(house.folder / "later", "0.9.9", newest=2, oldest=1)
    for name in ("w0", "w1"):
        drain(house, name, "--wait")
        assert name not in workers_of(house)
        house.workers[name].signal(signal.SIGTERM)
        assert ended(house.workers[name]) == 0
        house.add_worker(name, environment=later)
        house.wait_for_workers()
        drain(house, name, "--back")
    for name in ("b", "a"):
        house.controllers[name].signal(signal.SIGTERM)
        assert ended(house.controllers[name]) == 0
        other = "a" if name == "b" else "b"
        until(lambda: house.leads(other), "the other leads")  # noqa: B023 - it is called at once
        house.add_controller(name, environment=later)
        until(lambda: house.ask(name), "it answers")  # noqa: B023
    until(lambda: workers_of(house), "the run goes on")
    check_all_once(house)


@pytest.mark.slow
def test_a_release_of_other_protocols_is_refused_by_name(house: Cluster) -> None:
    far = make_release(house.folder / "far", "3.0", newest=9, oldest=8)
    daemon = house.add_worker("w2", environment=far)
    assert ended(daemon) == 1
    assert "worker w2 is Headrace 3.0, the controller " in daemon.text()
    assert "they speak protocol 8 to 9 and 1; upgrade the controller" in daemon.text()


@pytest.mark.slow
def test_a_worker_that_is_ended_hands_on_its_tasks(house: Cluster) -> None:
    house.workers["w0"].signal(signal.SIGTERM)
    assert ended(house.workers["w0"]) == 0
    assert "hands on its tasks" in house.workers["w0"].text()
    assert workers_of(house) == {"w1"}
    house.add_worker("w0")
    house.wait_for_workers()
    drain(house, "w1", "--wait")
    assert workers_of(house) == {"w0"}, "who comes back may have tasks again"
    check_all_once(house)


@pytest.mark.slow
def test_a_drain_that_a_person_asked_for_outlives_the_worker(house: Cluster) -> None:
    drain(house, "w0")
    house.workers["w0"].signal(signal.SIGTERM)
    assert ended(house.workers["w0"]) == 0
    house.add_worker("w0")
    house.wait_for_workers()
    until(lambda: workers_of(house) == {"w1"}, "its tasks are elsewhere")
    drain(house, "w0", "--back")
    check_all_once(house)


@pytest.mark.slow
def test_the_last_worker_ends_without_waiting(house: Cluster) -> None:
    house.workers["w0"].signal(signal.SIGTERM)
    assert ended(house.workers["w0"]) == 0
    house.workers["w1"].signal(signal.SIGTERM)
    assert ended(house.workers["w1"]) == 0
    assert "its tasks stay until it ends: pipeline 'upgrade':" in house.workers["w1"].text()
    house.add_worker("w0")
    check_all_once(house)
