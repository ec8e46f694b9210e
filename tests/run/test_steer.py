"""Paused, scaled and drained under load, by the commands of an operator: the dataset is the same, record by record."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kits.run.dataset import fates
from tests.kits.run.kill import count_entries
from tests.kits.run.operators import House, a_house, begin


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
    assert house.good("cancel", "small", "--wait")["state"] == "cancelled"
    assert "is cancelled" in house.call("pause", "small").stderr
    assert "'nope' is not here; those that have ended: small" in house.call("clear", "nope").stderr
    assert house.call("clear", "small").stdout == "cleared: small; the datasets are as they were\n"
    assert "pipelines" not in house.good("status") or house.good("status")["pipelines"] == []
    assert house.good("clear") == {"cleared": []}
