"""A dataset that was amended says that it is of two recipes, wherever one looks."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.loader.loader import Loader
from headrace.pipeline.graph import difference
from tests.kits.run.command_server import ended
from tests.kits.run.small_tokenizer import small_tokenizer

DEADLINE_S = 300.0
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, tokenize, write_tokens


def longer(record):
    return record if len(record["text"]) > LENGTH else None


def build(input: str, output: str, tokenizer: str) -> Pipeline:
    tokens = tokenize(tokenizer)
    return Pipeline.chain("p", output, read_jsonl(input), map_records(longer), tokens, write_tokens(tokens, seq_len=16))
"""


def headrace(home: Path, *arguments: str) -> str:
    command = [sys.executable, "-P", "-m", "headrace.cli", *arguments]
    done = ended(command, cwd=home)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(home: Path, length: int, name: str) -> dict[str, Any]:
    """Run with a rule of that length, on one more file of ten records, which are of ten lengths."""
    (home / "p.py").write_text(PIPELINE.replace("LENGTH", str(length)))
    rows = [json.dumps({"id": f"{name}{number}", "text": "x" * number}) for number in range(10)]
    (home / f"{name}.jsonl").write_text("\n".join(rows))
    given = ("-p", "input=*.jsonl", "-p", "output=out", "-p", f"tokenizer={small_tokenizer()}")
    found = json.loads(headrace(home, "run", "p.py", *given, "--amend", "--json"))
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset of two recipes."""
    home = tmp_path_factory.mktemp("recipes")
    assert len(run(home, 3, "a")["recipes"]) == 1
    assert len(run(home, 6, "b")["recipes"]) == 2
    return home


def test_show_names_both_recipes_their_parts_and_their_difference(home: Path) -> None:
    shown = json.loads(headrace(home, "dataset", "show", "out", "--json"))
    old, new = shown["recipes"]
    assert (old["records_closed"], old["kept"], old["in_force"], old["difference"]) == (10, 6, False, [])
    assert (new["records_closed"], new["kept"], new["in_force"]) == (10, 3, True)
    assert new["version"] == shown["pipeline_version"] != old["version"]
    assert any(line.startswith("longer.") for line in new["difference"])
    text = headrace(home, "dataset", "show", "out")
    for words in (old["version"], new["version"], "2 recipes", "changed from recipe 1 to 2", "longer."):
        assert words in text, text


def test_show_names_the_recipe_of_each_closed_range(home: Path) -> None:
    shown = json.loads(headrace(home, "dataset", "show", "out", "--ranges", "--json"))
    versions = [recipe["version"] for recipe in shown["recipes"]]
    found = [(item["uri"][-7:], item["first"], item["records"], item["version"]) for item in shown["ranges"]]
    assert found == [("a.jsonl", 0, 10, versions[0]), ("b.jsonl", 0, 10, versions[1])]
    text = headrace(home, "dataset", "show", "out", "--ranges")
    assert f"{versions[0]}  0 to 9" in text


@pytest.mark.parametrize(("record", "place"), [("a9", 0), ("a1", 0), ("b9", 1), ("b1", 1)])
def test_trace_names_the_recipe_of_a_record_kept_or_not(home: Path, record: str, place: int) -> None:
    versions = [
        recipe["version"] for recipe in json.loads(headrace(home, "dataset", "show", "out", "--json"))["recipes"]
    ]
    (fact,) = json.loads(headrace(home, "dataset", "trace", "out", record, "--json"))["records"]
    assert (fact["pipeline"], fact["recipe"]) == (versions[place], f"{place + 1} of 2")
    assert f"{versions[place]}, recipe {place + 1} of 2" in headrace(home, "dataset", "trace", "out", record)


def test_a_training_step_names_the_recipe_of_each_row(home: Path) -> None:
    loader = Loader(str(home / "out"), batch_size=1, seed=1)
    steps = sum(1 for _ in loader)
    (home / "state.json").write_text(json.dumps(Loader(str(home / "out"), batch_size=1, seed=1).state_dict()))
    trace = ("dataset", "trace", "--checkpoint", "state.json", "--step")
    rows = [json.loads(headrace(home, *trace, str(step), "--json"))["rows"][0] for step in range(steps)]
    recipes = json.loads(headrace(home, "dataset", "show", "out", "--json"))["recipes"]
    assert {row["pipeline"] for row in rows} == {recipe["version"] for recipe in recipes}
    assert f"  by {rows[0]['pipeline']}" in headrace(home, *trace, "0")


def test_an_export_says_that_it_is_of_two_recipes(home: Path) -> None:
    recipes = json.loads(headrace(home, "dataset", "show", "out", "--json"))["recipes"]
    told = json.loads(headrace(home, "dataset", "export", "out", "files", "--format", "parquet", "--json"))
    assert told["pipelines"] == sorted(recipe["version"] for recipe in recipes)
    assert "made by 2 recipes" in headrace(home, "dataset", "export", "out", "again", "--format", "parquet")


def test_list_card_and_manifest_tell_the_recipes(home: Path) -> None:
    assert "p, 2 recipes" in headrace(home, "dataset", "ls", ".")
    assert json.loads(headrace(home, "dataset", "ls", ".", "--json"))["datasets"][0]["recipes"] == 2
    headrace(home, "dataset", "show", "out", "--card", "card")
    assert "Recipe 2 of 2" in (home / "card" / "card.md").read_text()
    assert "Recipe 2 of 2" in (home / "card" / "card.html").read_text()
    manifest = json.loads((home / "out" / "manifest.json").read_text())
    assert len({shard["pipeline"] for shard in manifest["shards"]}) == 2


def test_the_difference_of_two_long_values_shows_where_they_differ() -> None:
    long = "x" * 200
    (line,) = difference({"a": long + "1" + long}, {"a": long + "2" + long})
    before, after = line.removeprefix("a: ").split(" -> ")
    assert "1" in before
    assert "2" in after
    assert len(line) < 200


def test_log_shows_when_each_version_was_made_of_which_recipe_and_input(home: Path) -> None:
    found = json.loads(headrace(home, "dataset", "log", "out", "--json"))["versions"]
    newest, oldest = found
    assert [(row["version"], row["reason"], row["complete"], row["records"]) for row in found] == [
        (2, "completed", True, 20),
        (1, "completed", True, 10),
    ]
    assert oldest["at"] <= newest["at"]
    assert newest["at"][:2] == "20"
    assert (oldest["difference"], len(newest["recipes"])) == ([], 2)
    assert any(line.startswith("longer.") for line in newest["difference"])
    assert [stage["stage"] for stage in newest["recipe"]][1] == "longer"
    assert [(one["uri"][-7:], one["records"]) for one in newest["inputs"]] == [("b.jsonl", 10)]
    assert all(one["version"] for one in newest["inputs"])
    assert (newest["objects"], oldest["objects"]) == (2, 1)
    text = headrace(home, "dataset", "log", "out", "--limit", "1")
    for words in ("version 2", newest["recipes"][-1], "longer.", "b.jsonl", "1 version before it"):
        assert words in text, text
