"""The main job with input and output on a real S3 server, and everything killed again and again."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DEADLINE_S, run_command
from dataset_kit import fates
from kill_kit import Marked, headrace, kill_after_entries

from headrace.store.dataset import Dataset
from headrace.store.objects import open_store

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

from s3_server import S3Server, shared_server


@pytest.fixture(scope="module")
def server() -> S3Server:
    return shared_server()


def fetched(uri: str, into: Path) -> Path:
    """The dataset as files, for readers that know no S3."""
    store = open_store(uri)
    for info in store.list(""):
        path = into / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(info.key))
    return into


def nameless(found: dict[tuple[str, int], tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Fates without what names the place that a record was read from."""
    return sorted(tuple(fate) for fate in found.values() if "#" not in str(fate[1]))


def test_input_and_output_on_s3_give_the_documents_of_local_files(
    home: Path, undisturbed: Path, server: S3Server, tmp_path: Path
) -> None:
    corpus = open_store(server.uri("corpus"))
    for path in sorted((home / "corpus").iterdir()):
        assert corpus.create(path.name, [path.read_bytes()])
    base, query = server.uri("corpus").split("?", 1)
    parameters = ["-p", f"input={base}/*.jsonl?{query}", "-p", f"output={server.uri('plain')}"]
    done = subprocess.run(
        headrace("run", "small.py", *parameters, "--json"), capture_output=True, text=True, cwd=home, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["balanced"]
    assert nameless(fates(fetched(server.uri("plain"), tmp_path))) == nameless(fates(undisturbed))


@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_a_dataset_on_s3_survives_the_death_of_everything(
    home: Path, undisturbed: Path, server: S3Server, tmp_path: Path, kills: int
) -> None:
    uri = server.uri(f"killed-{kills}")
    store = open_store(uri)
    expected = fates(undisturbed)
    chance = random.Random(kills)

    def entries() -> int:
        return sum(1 for _ in store.list("ledger/"))

    for kill in range(kills):
        closed = sum(counts.records for counts in Dataset.open(uri).state.counts.values()) if entries() else 0
        ahead = closed / len(expected) > kill / kills
        run = Marked(run_command(home, uri), home)
        wanted = entries() + (1 if ahead else chance.choice((2, 3, 4)))
        assert kill_after_entries(run, entries, wanted, delay_s=0), f"the run was complete after {kill} kills"
        assert not run.alive()
    done = subprocess.run(run_command(home, uri), capture_output=True, text=True, cwd=home, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert fates(fetched(uri, tmp_path)) == expected
