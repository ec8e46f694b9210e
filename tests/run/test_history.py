"""Tags, rollbacks and addresses, as a user has them: real runs, two writers, and a death between two steps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.loader.loader import Loader
from headrace.store.datasets.dataset import Dataset
from tests.kits.run.command import DEADLINE_S, dataset_answer as answer, dataset_command as call
from tests.kits.run.command_server import ended
from tests.kits.run.kill import dies_behind, headrace
from tests.kits.run.small_tokenizer import small_tokenizer

PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read_jsonl, tokenize, write_tokens


def build(input: str, output: str, tokenizer: str) -> Pipeline:
    tokens = tokenize(tokenizer)
    return Pipeline.chain("p", output, read_jsonl(input), tokens, write_tokens(tokens, seq_len=16))
"""


def run(home: Path, name: str, *more: str) -> subprocess.CompletedProcess[str]:
    """A run over one more file of five records."""
    rows = [json.dumps({"id": f"{name}{number}", "text": f"{name} text {number} " * 9}) for number in range(5)]
    (home / f"{name}.jsonl").write_text("\n".join(rows))
    given = (*more, "-p", "input=*.jsonl", "-p", "output=out", "-p", f"tokenizer={small_tokenizer()}")
    done = ended(headrace("run", "p.py", *given), cwd=home)
    assert more or done.returncode == 0, done.stderr
    return done


def ids(home: Path, address: str) -> list[str]:
    return [one["id"] for one in answer(home, "cat", address)["records"]]


def named(*letters: str) -> list[str]:
    return [f"{letter}{number}" for letter in letters for number in range(5)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a dataset of two versions."""
    (tmp_path / "p.py").write_text(PIPELINE)
    for name in "ab":
        run(tmp_path, name)
    return tmp_path


@pytest.mark.slow
def test_a_run_goes_on_from_what_a_rollback_shows(home: Path) -> None:
    assert answer(home, "tag", "out@1", "first")["version"] == 1
    assert answer(home, "tag", "out", "second")["version"] == 2
    assert answer(home, "rollback", "out@first")["version"] == 3
    assert answer(home, "rollback", "out@1")["version"] == 3, "it shows that already"
    assert ids(home, "out") == named("a")
    shown = answer(home, "show", "out")
    assert (shown["shards_unshown"], shown["shards_rolled_back"]) == (0, 1)
    assert "1 shard is hidden by a rollback" in call(home, "show", "out").stdout
    assert call(home, "verify", "out").returncode == 0
    run(home, "c")
    assert ids(home, "out") == named("a", "c")
    for address in ("out@2", "out@second"):
        assert ids(home, address) == named("a", "b")
        assert call(home, "verify", address).returncode == 0
    assert call(home, "gc", "out").returncode == 0
    assert ids(home, "out@second") == named("a", "b"), "a collection deletes nothing of any version"
    assert answer(home, "rollback", "out@second")["version"] == 5
    assert ids(home, "out") == named("a", "b")
    log = answer(home, "log", "out")["versions"]
    assert [(row["version"], row["reason"], row["restores"], row["records"]) for row in log] == [
        (5, "rollback", 2, 10),
        (4, "completed", 0, 10),
        (3, "rollback", 1, 5),
        (2, "completed", 0, 10),
        (1, "completed", 0, 5),
    ]
    exported = answer(home, "export", "out@4", "exported", "--format", "parquet")
    assert (exported["version"], exported["documents"]) == (4, 10)
    assert call(home, "compact", "out", "small").returncode == 0
    assert ids(home, "small") == named("a", "b")


def test_a_run_behind_a_rollback_reports_what_its_version_shows(home: Path) -> None:
    answer(home, "rollback", "out@1")
    given = ("-p", "input=*.jsonl", "-p", "output=out", "-p", f"tokenizer={small_tokenizer()}", "--json")
    found = json.loads(ended(headrace("run", "p.py", *given), cwd=home).stdout)
    assert (found["state"], found["version"], found["complete"]) == ("completed", 3, True)
    assert [found[name] for name in ("kept", "records_closed", "records_resumed", "shards")] == [5, 5, 5, 1]
    assert [recipe["records_closed"] for recipe in found["recipes"]] == [5]


def test_a_loader_reads_the_version_that_its_address_names(home: Path) -> None:
    answer(home, "tag", "out@1", "first")
    answer(home, "rollback", "out@1")
    first, second = (Loader(str(home / f"out@{name}"), batch_size=1, seed=1) for name in ("first", "2"))
    assert [loader.sources.versions for loader in (first, second)] == [(1,), (2,)]
    assert first.sources.datasets[0].layout.samples < second.sources.datasets[0].layout.samples
    iterator = iter(second)
    before = [next(iterator)["tokens"].tolist() for _ in range(3)]
    state = second.state_dict()
    after = next(iterator)["tokens"].tolist()
    assert after not in before
    again = Loader(str(home / "out@2"), batch_size=1, seed=1)
    again.load_state_dict(state)
    assert next(iter(again))["tokens"].tolist() == after


def test_the_next_call_ends_a_rollback_that_was_killed(home: Path) -> None:
    command = dies_behind("headrace.store.ledger.log:Log.append", 2, "dataset", "rollback", "out@1")
    killed = subprocess.run(command, capture_output=True, text=True, cwd=home, timeout=DEADLINE_S)
    assert killed.returncode == -9
    assert json.loads((home / "out/manifest.json").read_text())["version"] == 2
    assert Dataset.open(str(home / "out")).state.version == 3
    assert answer(home, "rollback", "out@1")["version"] == 3
    assert json.loads((home / "out/manifest.json").read_text())["version"] == 3


def test_of_two_rollbacks_at_one_instant_each_is_whole_or_refused(home: Path) -> None:
    commands = [headrace("dataset", "rollback", f"out@{version}", "--json") for version in (1, 1, 2)]
    begun = [subprocess.Popen(one, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for one in commands]
    ended = [(*process.communicate(timeout=DEADLINE_S), process.returncode) for process in begun]
    made = {json.loads(out)["version"] for out, _, code in ended if code == 0}
    assert made
    assert all(code == 0 or b"is being written by process" in error for _, error, code in ended)
    log = answer(home, "log", "out")["versions"]
    assert [row["version"] for row in log] == list(range(len(log), 0, -1))
    assert made <= {row["version"] for row in log}
    assert call(home, "verify", "out").returncode == 0


def test_what_cannot_be_named_is_refused(home: Path) -> None:
    for arguments, code, said in (
        (("rollback", "out"), 2, "name the version to go back to"),
        (("rollback", "out@7"), 1, "has no version 7"),
        (("tag", "out", "1"), 1, "no name of a tag"),
        (("tag", "out", "a" * 65), 1, "at most 64"),
        (("tag", "out", "none", "--delete"), 1, "has no tag 'none'"),
        (("retract", "out@1", "a1"), 1, "holds no dataset"),
    ):
        done = call(home, *arguments)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    answer(home, "tag", "out@1", "first")
    assert "add --move" in call(home, "tag", "out@2", "first").stderr
    assert answer(home, "tag", "out@2", "first", "--move")["version"] == 2
    assert answer(home, "tag", "out")["tags"]["first"]["version"] == 2
    assert "first  version 2" in call(home, "tag", "out").stdout
    assert answer(home, "tag", "out", "first", "--delete")["deleted"]
    assert "has no tag" in call(home, "tag", "out").stdout
    answer(home, "tag", "out@2", "second")
    assert "names version 2: add --move" in call(home, "tag", "out@1", "second").stderr, "a later version has it"


def test_diff_names_what_a_version_has_more(home: Path) -> None:
    found = answer(home, "diff", "out@1", "out@2")
    assert (found["records"], found["changed"], found["texts_compared"]) == (10, 5, True)
    (change,) = found["changes"]
    assert (change["before"], change["after"], change["records"]) == ("absent", "kept", 5)
    assert [one["id"] for one in change["samples"]] == named("b")[:3]
    text = call(home, "diff", "out@1", "out@2").stdout
    assert "5 of 10 records differ" in text
    assert "absent -> kept  5" in text
    assert "b0" in text


def test_bisect_finds_the_first_version_for_which_a_command_fails(home: Path) -> None:
    for name in "cde":
        run(home, name)
    script = (
        "import os, sys; from headrace.store.history.address import open_at;"
        "assert sys.argv[1] == os.environ['HEADRACE_DATASET'];"
        "print('judged'); sys.exit(open_at(sys.argv[1]).balance().counts.kept > int(sys.argv[2]))"
    )
    for limit, first in ((5, 2), (10, 3), (20, 5)):
        command = f'{sys.executable} -P -c "{script}" {{}} {limit}'
        found = answer(home, "bisect", "out", "--run", command)
        assert (found["good"], found["bad"], found["first_bad"]) == (1, 5, [first])
    done = call(home, "bisect", "out", "--good", "2", "--run", f"{sys.executable} -c 'raise SystemExit(125)'")
    assert "version 3 or 4 or 5 is the first bad one" in done.stdout
    assert "version 3: skipped" in done.stderr
    for arguments, code, said in (
        (("--run", "/no/such/command"), 1, "cannot run /no/such/command"),
        (("--run", "sh -c 'kill -9 $$'"), 1, "it judged nothing"),
        (("--good", "5", "--run", "true"), 2, "is not before the bad one"),
        (("--run", "true"), 1, "version 5 is good as well: the command fails at no version that it tried"),
        (("--run", "false"), 1, "version 1 is bad as well: the command fails at all versions that it tried"),
        (("--good", "9", "--run", "true"), 1, "has no version 9"),
        (("--run", ""), 2, "give the command"),
    ):
        done = call(home, "bisect", "out", *arguments)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_a_version_that_breaks_its_gate_is_held(home: Path) -> None:
    gate = home / "the gate.toml"
    gate.write_text("[kept]\nmax = 12\n[drift]\n")
    held = run(home, "c", "--gate", str(gate))
    assert held.returncode == 1
    assert "version 3 is held by its gate: kept: max 12, and it is 15" in held.stderr
    assert ids(home, "out") == named("a", "b")
    assert "version 3 is held" in call(home, "show", "out").stdout
    assert answer(home, "show", "out")["held"] == ["kept: max 12, and it is 15"]
    assert call(home, "publish", "out").returncode == 1
    assert answer(home, "publish", "out", "--anyway")["version"] == 3
    assert answer(home, "publish", "out", "--anyway")["version"] == 3, "it is published"
    assert ids(home, "out") == named("a", "b", "c")
    assert answer(home, "log", "out")["versions"][0]["reason"] == "published anyway"
    gate.write_text("[kept]\nmax = 20\n")
    assert run(home, "d", "--gate", str(gate)).returncode == 0
    assert run(home, "e", "--gate", str(home / "none.toml")).returncode == 1
