"""Thousands of small files share batches on their way: each record has the fate that it would have had alone."""

import json
import random
from functools import partial
from pathlib import Path

import pytest

from headrace.store.datasets.dataset import Dataset
from tests.kits.run.command_server import ended
from tests.kits.run.dataset import fates
from tests.kits.run.kill import Marked, count_entries, headrace, kill_after_entries
from tests.kits.run.small_tokenizer import small_tokenizer

FILES = 2000
KILLS = 4
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import gopher_quality, map_records, read_jsonl, tokenize, write_tokens


def same(record):
    return record


def build(input: str, output: str, alone: bool = False) -> Pipeline:
    tokens = tokenize("TOKENIZER")
    # A function of the user's takes no merged batches, so that each file's are alone in all stages.
    between = [map_records(same)] if alone else []
    sink = write_tokens(tokens, seq_len=256, shard_bytes=1 << 16)
    return Pipeline.chain("files", output, read_jsonl(input), *between, gopher_quality(), tokens, sink)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pipeline and its input: files of no, one or a few records, some of them broken or too short."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "files.py").write_text(PIPELINE.replace("TOKENIZER", small_tokenizer()))
    (folder / "in").mkdir()
    chance = random.Random(3)
    for number in range(FILES):
        lines: list[str] = []
        for row in range(chance.choice((0, 1, 1, 1, 1, 3))):
            words = chance.choice((5, 80, 120))
            text = " ".join(chance.choice(("the", "water", "of", "that", "channel", "with")) for _ in range(words))
            lines.append(json.dumps({"id": f"{number}-{row}", "text": text}) if chance.random() < 0.95 else '{"id": ')
        (folder / "in" / f"{number}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    # Not small: it comes alone, between the others.
    line = json.dumps({"id": "large", "text": "the water of that channel " * 4000})
    (folder / "in" / "1000-large.jsonl").write_text(f"{line}\n")
    return folder


def command(folder: Path, output: str, *arguments: str) -> list[str]:
    given = ("-p", f"input={folder}/in/*.jsonl", "-p", f"output={folder}/{output}", *arguments)
    return headrace("run", "files.py", *given, "--json")


def run(folder: Path, output: str, *arguments: str) -> Path:
    done = ended(command(folder, output, *arguments), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["balanced"]
    return folder / output


@pytest.fixture(scope="module")
def together(files: Path) -> Path:
    """The dataset of a run that nothing happened to."""
    return run(files, "together")


@pytest.mark.slow
def test_their_records_have_the_fates_that_they_have_alone(files: Path, together: Path) -> None:
    found = fates(together)
    assert found == fates(run(files, "alone", "-p", "alone=true"))
    assert {fate[0] for fate in found.values()} == {"kept", "filtered", "quarantined"}


def test_each_file_is_a_fragment_with_its_own_end(together: Path, files: Path) -> None:
    counts = {state.fragment.uri: state.count for state in Dataset.open(str(together)).state.fragments.values()}
    assert counts == {path.as_uri(): len(path.read_text().splitlines()) for path in (files / "in").iterdir()}


@pytest.mark.slow
def test_killed_again_and_again_they_give_the_same_dataset(files: Path, together: Path) -> None:
    dataset = files / "killed"
    for kill in range(KILLS):
        count = partial(count_entries, dataset / "ledger")
        killed = kill_after_entries(Marked(command(files, "killed"), files), count, count() + 2 + kill % 2, 0.0)
        assert killed or kill, "the run was over before it was killed"
    assert fates(run(files, "killed")) == fates(together)


@pytest.mark.slow
def test_files_that_vanish_while_they_are_open_leave_the_others_accounted_for(files: Path, together: Path) -> None:
    dataset, gone = files / "vanished", files / "in" / "7.jsonl"
    count = partial(count_entries, dataset / "ledger")
    if not kill_after_entries(Marked(command(files, "vanished"), files), count, 2, 0.0):
        pytest.skip("the run was over before it was killed")
    records = len(gone.read_bytes().splitlines())
    # Moved and not made anew: to whoever runs behind this test it is the file that it was.
    away = gone.rename(files / gone.name)
    try:
        done = run(files, "vanished", "--changed-input", "drop")
    finally:
        away.rename(gone)
    left, whole = fates(done), fates(together)
    missing = whole.keys() - left.keys()
    assert left.items() <= whole.items()
    assert len(missing) <= records
