"""Paused, scaled and drained under load, by the commands of an operator: the dataset is the same, record by record."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import DEADLINE_S
from dataset_kit import fates
from kill_kit import Marked, count_entries, headrace

LOOK_S_MAX = 60.0


@dataclass(slots=True)
class House:
    """A controller, its workers, and the commands that are given to it."""

    home: Path
    address: str = ""
    started: list[tuple[Marked, "subprocess.Popen[bytes]"]] = field(default_factory=list)

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        marked = Marked(headrace(*arguments), self.home)
        self.started.append((marked, marked.start()))
        return self.started[-1][1]

    def call(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = headrace(*arguments, "--controller", self.address)
        return subprocess.run(command, capture_output=True, text=True, cwd=self.home, timeout=DEADLINE_S)

    def good(self, *arguments: str) -> dict[str, Any]:
        done = self.call(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def pipeline(self) -> dict[str, Any]:
        return self.good("status", "small")["pipelines"][0]

    def until(self, what: str, so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LOOK_S_MAX
        while not so():
            assert time.monotonic() < deadline, f"{what}: not after {LOOK_S_MAX} s: {self.pipeline()}"


@pytest.fixture
def house(home: Path) -> Iterator[House]:
    made = House(home)
    controller = made.start("controller", "--listen", "127.0.0.1:0")
    assert controller.stderr is not None
    made.address = next(
        line.decode().split("serves on", 1)[1].strip() for line in controller.stderr if b"serves on" in line
    )
    for name in ("one", "two"):
        made.start("worker", "--controller", made.address, "--name", name, "--cores", "1")
    made.until("two workers", lambda: len(made.good("status")["workers"]) == 2)
    yield made
    for marked, process in made.started:
        marked.kill()
        process.communicate(timeout=DEADLINE_S)


def begin(house: House, output: Path, *arguments: str) -> None:
    """The pipeline runs, and has written something."""
    given = ("apply", "small.py", "-p", f"input={house.home}/corpus/*.jsonl", "-p", f"output={output}")
    house.good(*given, *arguments)
    house.until("the first shard", lambda: count_entries(output / "ledger") > 4)


def test_what_is_paused_scaled_and_drained_under_load_gives_the_same_dataset(
    house: House, undisturbed: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    begin(house, output)
    assert house.good("pause", "small", "--wait")["state"] == "paused"
    still = house.pipeline()
    closed = count_entries(output / "ledger")
    assert still["fragments_done"] < still["fragments"], "there is something left to read"
    assert house.good("scale", "small", "tokenize", "4", "--wait")["changes"] == [
        "read to 4 tasks, has_many_lines to 4 tasks, tokenize to 4 tasks, write to 4 tasks"
    ]
    tasks = house.pipeline()["tasks"]
    assert sorted(task["worker"] for task in tasks) == ["one", "one", "two", "two"]
    assert house.pipeline()["state"] == "paused", "a change does not wake what stands still"
    assert house.good("resume", "small", "--wait")["state"] in ("running", "publishing", "completed")
    house.until("more is closed", lambda: count_entries(output / "ledger") > closed + 2)
    assert house.good("drain", "two", "--wait")["state"] == "drained"
    assert {task["worker"] for task in house.pipeline()["tasks"]} == {"one"}
    house.call("scale", "small", "read", "1")
    house.until("its end", lambda: house.pipeline()["state"] not in ("running", "pausing", "publishing"))
    assert house.pipeline()["state"] == "completed"
    assert fates(output) == fates(undisturbed)


def test_what_cannot_be_is_refused_with_the_reason(house: House, tmp_path: Path) -> None:
    begin(house, tmp_path / "out")
    house.good("pause", "small", "--wait")
    for arguments, words in (
        (("scale", "small", "nope", "2"), "has no stage 'nope'"),
        (("move", "small", "read", "disk=ssd"), "no worker has that name or label"),
        (("relink", "small", "write", "quic"), "'write' is fused with 'tokenize' before it"),
        (("drain", "three"), "no worker 'three'; there are: one, two"),
        (("pause", "large"), "pipeline 'large' is not here; there are: small"),
    ):
        done = house.call(*arguments)
        assert done.returncode == 1
        assert words in done.stderr
    assert house.good("cancel", "small", "--wait")["state"] == "cancelled"
    assert "is cancelled" in house.call("pause", "small").stderr
