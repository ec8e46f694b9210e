"""Paused, scaled and drained under load, by the commands of an operator: the dataset is the same, record by record."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.client.client import Client
from tests.kits.run.command import run_command
from tests.kits.run.command_server import ended
from tests.kits.run.dataset import fates
from tests.kits.run.kill import count_entries
from tests.kits.run.operators import House, a_house, begin

#: The corpora that a run reads which is changed three times: each change waits for what is on the way, about a third of
#: one.
CORPORA = 4


@pytest.fixture
def house(home: Path) -> Iterator[House]:
    with a_house(home) as made:
        yield made


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
    house.hurry()
    house.until("its end", lambda: house.pipeline()["state"] not in ("running", "pausing", "publishing"))
    assert house.pipeline()["state"] == "completed"
    assert fates(output) == fates(undisturbed)


@pytest.fixture
def long_house(home: Path, tmp_path: Path) -> Iterator[House]:
    """One whose corpus is so long that there is input left behind several changes."""
    folder = tmp_path / "long"
    (folder / "corpus").mkdir(parents=True)
    shutil.copy(home / "small.py", folder)
    for file in sorted((home / "corpus").iterdir()):
        for number in range(CORPORA):
            first = json.dumps({"id": f"first-{number}", "text": "a line\n"})
            (folder / "corpus" / f"{number}-{file.name}").write_text(f"{first}\n{file.read_text()}")
    with a_house(folder) as made:
        yield made


@pytest.mark.slow
def test_a_run_is_scaled_moved_and_relinked_without_a_pause(long_house: House, tmp_path: Path) -> None:
    house, output = long_house, tmp_path / "out"
    begin(house, output, "--no-fuse")
    first = {task["task"] for task in house.pipeline()["tasks"]}
    states, over = list[str](), threading.Event()

    def look() -> None:
        with Client(house.address) as client:
            while not over.wait(0.1):
                states.append(client.status("small").pipelines[0].state)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        house.good("scale", "small", "tokenize", "3", "--wait")
        scaled = house.pipeline()["tasks"]
        assert sum("tokenize" in task["stages"] for task in scaled) == 3
        now = {task["task"] for task in scaled}
        assert len(first & now) == 4, "the tasks of the other worker are linked with none of those"
        assert len(first - now) == 4, "what they had on the way to each other is theirs to finish"
        house.good("move", "small", "has_many_lines", "two", "--wait")
        assert {task["worker"] for task in house.pipeline()["tasks"] if "has_many_lines" in task["stages"]} == {"two"}
        house.good("relink", "small", "write", "pipe", "--wait")
        assert {link["transport"] for link in house.pipeline()["links"] if "write" in link["receiver"]} == {"pipe"}
    finally:
        over.set()
        looking.join()
    assert set(states) == {"running"}
    house.hurry()
    house.until("its end", lambda: house.pipeline()["state"] not in ("running", "publishing"))
    assert house.pipeline()["state"] == "completed"
    undisturbed = ended(run_command(house.home, "undisturbed"), cwd=house.home)
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert fates(output) == fates(house.home / "undisturbed")


@pytest.mark.slow
@pytest.mark.parametrize("moment", [0.3, 0.0, 0.6, 1.0, 1.5, 2.5])
def test_a_worker_is_killed_while_its_run_is_scaled(
    house: House, undisturbed: Path, tmp_path: Path, moment: float
) -> None:
    """Whether the change is made or not, nothing is lost and nothing stands twice."""
    output = tmp_path / "out"
    begin(house, output)
    asking = threading.Thread(target=lambda: house.call("scale", "small", "tokenize", "4", "--wait"))
    asking.start()
    threading.Event().wait(moment)
    killed, process = house.started[2]
    killed.kill()
    process.communicate(timeout=300)
    asking.join()
    house.hurry()
    house.until("its end", lambda: house.pipeline()["state"] not in ("running", "pausing", "publishing"))
    assert house.pipeline()["state"] == "completed"
    assert fates(output) == fates(undisturbed)


def test_what_cannot_be_is_refused_with_the_reason(house: House, tmp_path: Path) -> None:
    begin(house, tmp_path / "out")
    house.good("pause", "small", "--wait")
    given = ("apply", "paced.py", "-p", f"input={house.home}/corpus/*.jsonl", "-p")
    again = house.call(*given, f"output={tmp_path}/out")
    assert again.returncode == 0, "the same command again joins what runs"
    assert "pipeline small is paused already" in again.stderr
    for arguments, words in (
        ((*given, f"output={tmp_path}/other"), "pipeline 'small' is paused: stop it first"),
        (("scale", "small", "nope", "2"), "has no stage 'nope'"),
        (("move", "small", "read", "disk=ssd"), "no worker has that name or label"),
        (("relink", "small", "write", "quic"), "'write' is fused with 'tokenize' before it"),
        (("relink", "small", "write", "quic"), "with `headrace move small write WORKER`, or stop the run and apply it"),
        (("drain", "three"), "no worker 'three'; there are: one, two"),
        (("pause", "large"), "pipeline 'large' is not here; there are: small"),
        (("clear", "small"), "pipeline 'small' is paused: stop it first"),
    ):
        done = house.call(*arguments)
        assert done.returncode == 1
        assert words in done.stderr
    waits = house.start(*given, f"output={tmp_path}/out", "--controller", house.address, "--wait")
    assert waits.stderr is not None
    assert b"pipeline small is paused already" in waits.stderr.readline()
    assert house.good("cancel", "small", "--wait")["state"] == "cancelled"
    said = waits.stderr.read()
    assert (waits.wait(), b"somebody else ended pipeline small: it is cancelled; apply it again" in said) == (1, True)
    assert "is cancelled" in house.call("pause", "small").stderr
    assert "'nope' is not here; those that have ended: small" in house.call("clear", "nope").stderr
    assert house.call("clear", "small").stdout == "cleared: small; the datasets are as they were\n"
    assert "pipelines" not in house.good("status") or house.good("status")["pipelines"] == []
    assert house.good("clear") == {"cleared": []}
