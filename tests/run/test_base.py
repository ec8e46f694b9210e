"""A run with a base against a full run, as a user has both: over filters, quarantine, deaths and a base that lies."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headrace.client import CliError, UsageError, load, with_base
from headrace.pipeline import Pipeline
from headrace.store import StoreError
from headrace.store.datasets import Dataset
from headrace.store.shards import read_table
from tests.kits.run.command import DEADLINE_S, dataset_answer as answer
from tests.kits.run.kill import Marked, headrace

PIPELINE = """
import headrace as hr


def long_enough(record):
    return len(record["text"]) > 20


def shout(record):
    if "boom" in record["text"] and FIXED is False:
        raise ValueError("boom")
    return {**record, "text": record["text"].upper()}


def early(record):
    return "EARLY" not in record["text"]


def late(record):
    return "LATE" not in record["text"]


FIXED = False


def build(output: str, filters: str = "", files: str = "in/*.jsonl") -> hr.Pipeline:
    chosen = {"late": late, "early": early}
    stages = [hr.read_jsonl(files, batch_records=50), hr.filter_records(long_enough)]
    stages += [hr.map_records(shout), *(hr.filter_records(chosen[name]) for name in filters.split())]
    return hr.Pipeline.chain("p", output, *stages, hr.write_documents(shard_bytes=1 << 13))
"""
RECORDS = 1500


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder, with a blank in its name, of an input, a dataset without the late filter, and one with it."""
    folder = tmp_path_factory.mktemp("a base")
    (folder / "p.py").write_text(PIPELINE)
    (folder / "in").mkdir()
    for file in range(3):
        rows = [json.dumps({"id": f"{file}-{row}", "text": text(row)}) for row in range(RECORDS // 3)]
        rows[7] = "{no json"
        (folder / "in" / f"{file}.jsonl").write_text("\n".join(rows))
    run(folder, "old", "filters=early")
    run(folder, "full", "filters=early late")
    return folder


def text(row: int) -> str:
    words = [word for word, step in (("EARLY", 5), ("LATE", 3), ("boom", 97)) if row % step == 0]
    return "short" if row % 11 == 0 else f"a text of some words in row {row} {' '.join(words)}"


def command(output: str, parameter: str = "", *more: str) -> list[str]:
    given = ("-p", f"output={output}", *(("-p", parameter) if parameter else ()), "--seal-seconds", "600", *more)
    return headrace("run", "p.py", *given, "--json")


def run(home: Path, output: str, parameter: str = "", *more: str) -> dict[str, Any]:
    done = call(home, output, parameter, *more)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def call(home: Path, output: str, parameter: str = "", *more: str) -> subprocess.CompletedProcess[str]:
    given = command(output, parameter, *more)
    return subprocess.run(given, capture_output=True, text=True, cwd=home, timeout=DEADLINE_S)


def records(home: Path, name: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Every row of every table but the samples, by table and record."""
    dataset = Dataset.open(str(home / name))
    assert dataset.balance().balanced
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for shard in dataset.shards:
        for role in ("documents", "verdicts", "quarantine"):
            stored = shard.object(role)
            for row in read_table(dataset.store, stored.key).to_pylist() if stored is not None else ():
                place = (role, row["fragment"], row["row"], row["part"])
                assert place not in found
                found[place] = row
    return found


def samples(home: Path, name: str) -> object:
    return answer(home, "show", name, "--samples")["samples"]


@pytest.mark.slow
def test_a_run_with_a_base_makes_what_a_full_run_makes(home: Path) -> None:
    done = run(home, "new", "filters=early late", "--from", "old@1")
    assert records(home, "new") == records(home, "full")
    assert len(Dataset.open(str(home / "new")).shards) > 1
    assert done["counters"]["read/taken over"] == RECORDS - 3, "all but the lines that are no JSON"
    assert samples(home, "new") == samples(home, "full")
    (version,) = answer(home, "log", "new")["versions"]
    assert (version["base"]["dataset"], version["base"]["version"]) == (f"file://{home}/old".replace(" ", "%20"), 1)
    assert version["base"]["changed"] == "late"
    assert based(home, "new", "old").base is not None, "the same base, by its newest version, goes on"
    with pytest.raises(CliError, match="was begun from"):
        based(home, "new", "full@1")
    with pytest.raises(CliError, match="was begun without --from"):
        based(home, "full", "old")


@pytest.mark.slow
def test_a_run_of_two_lives_makes_the_same(home: Path) -> None:
    marked = Marked(command("killed", "filters=early late", "--from", "old@1", "--seal-seconds", "0.05"), home)
    with marked.start() as child:
        while child.poll() is None and not any((home / "killed" / "shards").glob("*/*.parquet")):
            pass
        marked.kill()
    run(home, "killed", "filters=early late", "--from", "old@1")
    assert records(home, "killed") == records(home, "full")


def test_what_was_quarantined_is_judged_again_if_that_is_asked(home: Path) -> None:
    done = run(home, "again", "filters=early late", "--from", "old@1", "--judge-again", "quarantined")
    assert records(home, "again") == records(home, "full"), "the stage is the same, and judges as it did"
    quarantined = done["quarantined_by"]["shout/ValueError"]
    assert done["counters"]["read/taken over"] == RECORDS - 3 - quarantined < RECORDS - 3


def test_tables_that_the_ledger_does_not_name_are_not_believed(home: Path) -> None:
    shutil.copytree(home / "old", home / "liar")
    victim = next(path for path in sorted((home / "liar/shards").glob("*/*.verdicts.parquet")))
    victim.chmod(0o644)
    victim.write_bytes(victim.read_bytes()[:-9] + b"\0" * 9)
    done = run(home, "wary", "filters=early late", "--from", "liar@1")
    assert records(home, "wary") == records(home, "full")
    assert 0 < done["counters"]["read/taken over"] < RECORDS - 3


@pytest.mark.parametrize(
    ("parameters", "address", "judge_again", "words"),
    [
        (["files=in/0.jsonl"], "old@1", "", 'stage "read" is another: input'),
        ([], "old@9", "", "has no version 9"),
        ([], "nowhere", "", "holds no dataset"),
        ([], "", "quarantined", "needs --from"),
        ([], "old", "all", "give quarantined"),
    ],
)
def test_what_cannot_be_taken_over_is_refused_by_name(
    home: Path, parameters: list[str], address: str, judge_again: str, words: str
) -> None:
    with pytest.raises((CliError, StoreError)) as refused:
        based(home, "refused", address, judge_again, parameters)
    assert words in f"{refused.value} {getattr(refused.value, 'details', '')}"


def test_the_dataset_that_is_written_is_no_base(home: Path) -> None:
    with pytest.raises(UsageError, match="the dataset that this run writes"):
        based(home, "old", "old")


def based(home: Path, output: str, address: str, again: str = "", more: list[str] | None = None) -> Pipeline:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        given = [f"output={output}", *(["filters=early late"] if more is None else more)]
        return with_base(load(home / "p.py", given), address, again)
