"""A graph is changed while records flow, by the commands of an operator: every record has one fate, of one version."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.store.datasets.dataset import Dataset
from tests.kits.run.dataset import fates
from tests.kits.run.kill import count_entries
from tests.kits.run.operators import House, a_house, begin, write_paced

QUALITY = "gopher_quality(words_min=20, words_max=1_000_000, name='longer')"

#: The command can load it, and no task can.
UNLOADABLE = "\nif 'apply' not in sys.argv:\n    raise ValueError('the model is not there')\n"


@pytest.fixture
def house(home: Path) -> Iterator[House]:
    with a_house(home) as made:
        yield made


def versions(output: Path) -> list[str]:
    """The version of the pipeline of each closed shard, in the order of the ledger."""
    return [shard.closed.version for shard in Dataset.open(str(output)).state.shards]


def end(house: House, output: Path) -> dict[tuple[str, int], tuple[Any, ...]]:
    house.hurry()
    house.until("its end", lambda: house.pipeline()["state"] not in ("running", "publishing"))
    assert house.pipeline()["state"] == "completed", house.pipeline()
    return fates(output)


def in_blocks(found: list[str]) -> list[str]:
    """The versions, each once; fails where one comes back."""
    seen = list(dict.fromkeys(found))
    assert found == sorted(found, key=seen.index), "shards of one version stand together in the ledger"
    return seen


@pytest.mark.slow
def test_stages_are_inserted_replaced_and_removed_while_records_flow(
    house: House, undisturbed: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    begin(house, output)
    first = house.pipeline()["version"]
    planned = house.good("insert", "small", QUALITY, "--after", "has_many_lines", "--dry-run")
    assert {tuple(task["stages"]) for task in planned["tasks"]} == {
        ("read", "has_many_lines", "longer", "tokenize", "write")
    }
    assert {task["task"] for task in planned["stops"]}.isdisjoint(task["task"] for task in planned["tasks"])
    assert planned["shared_s"] > 0
    assert house.pipeline()["version"] == first, "a dry run changes nothing"
    second = house.good("insert", "small", QUALITY, "--after", "has_many_lines")["version"]
    closed = count_entries(output / "ledger")
    house.until("more is closed", lambda: count_entries(output / "ledger") > closed + 2)
    third = house.good("replace", "small", "longer", QUALITY.replace("20", "30"))["version"]
    fourth = house.good("remove", "small", "longer")
    assert (fourth["version"], fourth["was"]) == (first, third), "the graph of the beginning has its version"
    got, wanted = end(house, output), fates(undisturbed)
    assert got.keys() == wanted.keys(), "nothing is lost"
    assert set(in_blocks(versions(output)[: versions(output).index(second) + 1])) == {first, second}
    different = {key: fate for key, fate in got.items() if fate != wanted[key]}
    assert all(fate[2] == "longer" for fate in different.values())


def test_a_changed_file_is_taken_up_and_one_that_fails_is_not(house: House, undisturbed: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    begin(house, output)
    first = house.pipeline()
    paced = house.home / "paced.py"
    text = paced.read_text()
    given = ("apply", "paced.py", "-p", f"input={house.home}/corpus/*.jsonl", "-p", f"output={output}")
    paced.write_text(text + UNLOADABLE)
    refused = house.call(*given, "--amend")
    assert refused.returncode == 1
    assert "rolled back" in refused.stderr
    assert "the model is not there" in refused.stderr
    still = house.pipeline()
    assert (still["version"], still["state"]) == (first["version"], "running")
    assert [task["task"] for task in still["tasks"]] == [task["task"] for task in first["tasks"]]
    paced.write_text(text.replace(">= 10", ">= 20"))
    second = house.good("replace", "small", "has_many_lines", "paced.py:has_many_lines", *given[2:])
    assert second["version"] == house.pipeline()["version"] != first["version"], "of the file one stage alone"
    assert house.good(*given, "--amend")["version"] == house.pipeline()["version"] != second["version"]
    got, wanted = end(house, output), fates(undisturbed)
    assert got.keys() == wanted.keys()
    assert len(in_blocks(versions(output))) in (2, 3), "nothing need be closed between the two"
    assert {fate[2] for key, fate in got.items() if fate != wanted[key]} <= {"has_many_lines"}
    shown = json.loads(house.call("status", "small", "--json").stdout)
    assert shown["pipelines"][0]["refused_change"] == ""


@pytest.mark.slow
def test_a_change_of_what_an_index_knows_by_is_rolled_back_too(house: House, tmp_path: Path) -> None:
    output, paced = tmp_path / "out", house.home / "paced.py"
    write_paced(house.home)
    text = paced.read_text().replace("library import ", "library import dedup, ")
    text = text.replace("        tokens,\n", "        *dedup(near=False),\n        tokens,\n")
    given = ("apply", "paced.py", "-p", f"input={house.home}/corpus/*.jsonl", "-p", f"output={output}")
    paced.write_text(text)
    house.good(*given)
    house.until("the first shard", lambda: count_entries(output / "ledger") > 4)
    first = house.pipeline()["version"]
    paced.write_text(text.replace("dedup(near=False)", "dedup()"))
    refused = house.call(*given, "--amend")
    assert refused.returncode == 1
    assert "stage 'dedup' needs keys from 'dedup-keys' of all that 'write' keeps" in refused.stderr
    assert "write a new dataset" in refused.stderr
    # It filters before the dedup stage.
    paced.write_text(text + UNLOADABLE)
    refused = house.call(*given, "--amend")
    assert refused.returncode == 1
    assert "rolled back" in refused.stderr
    assert "the model is not there" in refused.stderr
    assert house.pipeline()["version"] == first
    closed = count_entries(output / "ledger")
    house.until("more is closed", lambda: count_entries(output / "ledger") > closed + 2)
    paced.write_text(text.replace(">= 10", ">= 20"))
    second = house.good(*given, "--amend")["version"]
    end(house, output)
    assert in_blocks(versions(output)) == [first, second]
    assert Dataset.open(str(output)).balance().balanced


@pytest.mark.slow
def test_a_canary_shows_what_differs_and_changes_nothing_until_told(house: House, tmp_path: Path) -> None:
    output = tmp_path / "out"
    begin(house, output)
    first = house.pipeline()
    paced = house.home / "paced.py"
    paced.write_text(paced.read_text().replace(">= 10", ">= 20"))
    given = ("apply", "paced.py", "-p", f"input={house.home}/corpus/*.jsonl", "-p", f"output={output}", "--amend")
    refused = house.call(*given, "--canary", "50%")
    assert refused.returncode == 2
    assert "has_many_lines: " in refused.stderr, "the code that would run is named"
    shown = house.good(*given, "--canary", "50%", "--trust-code")
    found = shown["canary"]
    assert shown["version"] == first["version"]
    assert 0 < found["fragments"] <= found["fragments_known"]
    assert {(one["before"], one["after"]) for one in found["changes"]} == {
        ("kept", "filtered has_many_lines/function returned None")
    }
    assert all(one["text"].count("\n") < 20 for one in found["changes"][0]["samples"])
    still = house.pipeline()
    assert (still["version"], [task["task"] for task in still["tasks"]]) == (
        first["version"],
        [task["task"] for task in first["tasks"]],
    )
    text = house.call(*given, "--canary", "50%", "--trust-code").stdout
    assert "nothing is changed" in text
    made = house.good(*given, "--canary", "50%", "--trust-code", "--yes")
    assert made["canary"] == found, "the same fragments again"
    assert made["version"] == house.pipeline()["version"] != first["version"]
    removed = house.call("remove", "small", "has_many_lines", "--canary", "2%", "--trust-code")
    assert "filtered has_many_lines/function returned None -> kept" in removed.stdout
    assert house.pipeline()["version"] == made["version"]


@pytest.mark.slow
@pytest.mark.parametrize("moment", [0.0, 0.3, 0.8, 1.5, 2.5])
def test_a_worker_is_killed_while_the_graph_is_changed(
    house: House, undisturbed: Path, tmp_path: Path, moment: float
) -> None:
    """Whether the change is made or rolled back, nothing is lost and nothing stands twice."""
    output = tmp_path / "out"
    begin(house, output)
    first = house.pipeline()["version"]
    answers: list[int] = []
    change = ("insert", "small", QUALITY, "--after", "has_many_lines")
    asking = threading.Thread(target=lambda: answers.append(house.call(*change).returncode))
    asking.start()
    threading.Event().wait(moment)
    killed, process = house.started[2]
    killed.kill()
    process.communicate(timeout=300)
    asking.join()
    house.start("worker", "--controller", house.address, "--name", "two", "--cores", "1", "--metrics", "127.0.0.1:0")
    assert (house.pipeline()["version"] == first) == (answers == [1])
    got, wanted = end(house, output), fates(undisturbed)
    assert got.keys() == wanted.keys(), "nothing is lost"
    assert len(in_blocks(versions(output))) == 2 - answers[0]
    assert {fate[2] for key, fate in got.items() if fate != wanted[key]} <= {"longer"}
