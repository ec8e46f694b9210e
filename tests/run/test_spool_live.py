"""A pipeline reads a spool while records are pushed into it, until the spool is closed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.client.client import Client, RunOptions
from headrace.client.pipeline_file import load
from headrace.store.contract.errors import StoreError
from headrace.store.datasets.dataset import Dataset
from headrace.store.ledger.core.fold import LedgerState
from tests.kits.run.command import DEADLINE_S
from tests.kits.run.command_server import ended
from tests.kits.run.daemons import until
from tests.kits.run.kill import Marked, headrace
from tests.run.test_spool import PATIENCE_S, RECORDS, Server, lines

PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read_spool, write_documents


def build(folder: str, output: str) -> Pipeline:
    return Pipeline.chain("live", output, read_spool(folder), write_documents())
"""
#: Seconds after which a sink seals what it has, so that a test need not wait for 30.
AGE_S = 0.5


@dataclass(frozen=True, slots=True)
class House:
    """Where a controller serves, and the one worker that it has."""

    address: str
    worker: Marked

    def kill_task(self) -> None:
        """SIGKILL to the task; returns when its next attempt is there."""
        (task,) = status(self.address).tasks
        for pid in self.worker.alive():
            if b"headrace task live" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        until(lambda: status(self.address).tasks[0].restarts > task.restarts, "the next attempt")


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A controller and a worker."""
    controller = Marked(headrace("controller", "--listen", f"unix:{tmp_path}/sockets/controller.sock"), tmp_path)
    started: list[tuple[Marked, subprocess.Popen[bytes]]] = [(controller, controller.start())]
    try:
        stream = started[0][1].stderr
        assert stream is not None
        line = next(line for line in stream if b"serves on" in line)
        address = str(json.loads(line)["message"]).rpartition(" ")[2]
        worker = Marked(headrace("worker", "--controller", address, "--name", "one", "--cores", "1"), tmp_path)
        started.append((worker, worker.start()))
        with Client(address) as client:
            until(lambda: client.status().workers, "the worker")
        yield House(address, worker)
    finally:
        for marked, process in started:
            marked.kill()
            process.communicate(timeout=DEADLINE_S)


def begin(folder: Path, address: str) -> None:
    (folder / "live.py").write_text(PIPELINE)
    pipeline = load(folder / "live.py", [f"folder={folder}/spool", f"output={folder}/out"])
    with Client(address) as client:
        client.apply(pipeline, RunOptions(seal_age_s=AGE_S))


def closed(folder: Path) -> int:
    """Records that the ledger has closed."""
    return sum(counts.records for counts in ledger(folder).counts.values())


def ledger(folder: Path) -> LedgerState:
    try:
        return Dataset.open(str(folder / "out")).state
    except StoreError:
        return LedgerState()


def status(address: str) -> Any:
    with Client(address) as client:
        return client.status("live").pipelines[0]


def test_pushes_during_a_run_are_read_until_the_spool_closes(tmp_path: Path, house: House) -> None:
    dataset = f"file://{tmp_path}/out"
    server = Server(tmp_path / "spool", "--age-seconds", "0.2", "--limit-bytes", "4000", "--dataset", dataset)
    server.start()
    pushed = 0
    while (code := server.push(lines(f"a{pushed}"), f"a{pushed}")[0]) == 200:
        pushed += 1
    assert (code, pushed < 24) == (503, True), "twenty-four pushes do not fit into the spool at once"
    begin(tmp_path, house.address)
    while pushed < 24:
        code, answer, _ = server.push(lines(f"a{pushed}"), f"a{pushed}")
        pushed += code == 200
        if code == 503:
            # It is full: what holds the pusher up goes when the ledger has closed what stands in it.
            before = closed(tmp_path)
            until(lambda seen=before: closed(tmp_path) > seen or used(server) < 3000, "room")  # type: ignore[misc]
        else:
            assert answer == {"records": RECORDS, "shed": 0}
    house.kill_task()
    until(lambda: closed(tmp_path) == 24 * RECORDS, "all that was pushed is closed, once")
    assert status(house.address).state == "running", "more may come"
    server.end(signal.SIGKILL)
    server.start()
    assert server.push(lines("b"), "b")[0] == 200
    server.post("/close")
    assert server.push(lines("c"), "c")[0] == 410
    until(lambda: status(house.address).state == "completed", "the end")
    assert closed(tmp_path) == 25 * RECORDS
    until(lambda: not list((tmp_path / "spool").glob("*.jsonl")), "what is closed is let go")
    verified(tmp_path)
    server.end(signal.SIGTERM)


def verified(folder: Path) -> None:
    """Every object and every record agrees with the ledger."""
    command = headrace("dataset", "verify", str(folder / "out"))
    done = ended(command, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def used(server: Server) -> int:
    return int(str(server.get("/")["used_bytes"]))


@pytest.mark.slow
def test_what_a_full_spool_sheds_has_a_durable_verdict(tmp_path: Path, house: House) -> None:
    options = ("--age-seconds", "0.2", "--limit-bytes", "600", "--shed")
    server = Server(tmp_path / "spool", *options)
    server.start()
    shed = taken = 0
    for number in range(8):
        code, answer, _ = server.push(lines(f"a{number}"), f"a{number}")
        assert code == 200
        shed += int(str(answer["shed"]))
        taken += int(str(answer["records"]))
    assert shed > 0
    assert shed + taken == 8 * RECORDS
    server.end(signal.SIGKILL)
    server.start()
    again = [server.push(lines(f"a{number}"), f"a{number}")[1] for number in range(8)]
    assert sum(int(str(answer["shed"])) for answer in again) == shed, "a push has one answer, whoever forgot it"
    server.post("/close")
    begin(tmp_path, house.address)
    until(lambda: status(house.address).state == "completed", "the end", 2 * PATIENCE_S)
    (counts,) = ledger(tmp_path).counts.values()
    assert (counts.kept, counts.filtered) == (taken, shed)
    assert counts.filtered_by == {"read/shed": shed}
    verified(tmp_path)
    server.end(signal.SIGTERM)


def test_a_spool_that_is_not_there_is_told(tmp_path: Path, house: House) -> None:
    begin(tmp_path, house.address)
    until(lambda: status(house.address).state == "failed", "the end")
    assert "start it there first" in status(house.address).failure
