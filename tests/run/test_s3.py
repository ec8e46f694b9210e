"""The main job with input and output on a real S3 server, and everything killed again and again."""

import json
import random
from pathlib import Path

import pytest

from headrace.store.datasets.dataset import Dataset
from headrace.store.open import open_store
from tests.kits.run.command_server import ended
from tests.kits.run.dataset import fates
from tests.kits.run.kill import Marked, headrace, kill_after_entries
from tests.kits.store.s3_server import S3Server, shared_server

#: The last kill is to come when this share of the records is closed: an entry of a slow store may close many.
LAST_KILL_SHARE = 0.5


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


def s3_command(home: Path, server: S3Server, output: str) -> list[str]:
    """A run whose input and output lie on the server."""
    base, query = server.uri("corpus").split("?", 1)
    parameters = ["-p", f"input={base}/*.jsonl?{query}", "-p", f"output={output}"]
    return headrace("run", "small.py", *parameters, "--json")


@pytest.fixture(scope="module")
def undisturbed_s3(home: Path, server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset of a run from S3 to S3 that nothing happened to, fetched."""
    corpus = open_store(server.uri("corpus"))
    for path in sorted((home / "corpus").iterdir()):
        assert corpus.create(path.name, [path.read_bytes()])
    done = ended(s3_command(home, server, server.uri("plain")), cwd=home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["balanced"]
    return fetched(server.uri("plain"), tmp_path_factory.mktemp("undisturbed"))


def by_place(dataset: Path) -> dict[tuple[str, int, int], tuple[object, ...]]:
    """Fates by the name of the file, the byte where the fragment begins, and the ordinal: the same from any store."""
    places = {
        fragment.hex(): (state.fragment.uri.rpartition("/")[2], state.fragment.start)
        for fragment, state in Dataset.open(str(dataset)).state.fragments.items()
    }
    # The name of a record without an id begins with the URI of its file.
    return {
        (*places[fragment], row): (verdict, name.rpartition("/")[2], *rest)
        for (fragment, row), (verdict, name, *rest) in fates(dataset).items()
    }


@pytest.mark.slow
def test_input_and_output_on_s3_give_the_documents_of_local_files(undisturbed: Path, undisturbed_s3: Path) -> None:
    assert by_place(undisturbed_s3) == by_place(undisturbed)


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_a_dataset_from_s3_to_s3_survives_the_death_of_everything(
    home: Path, undisturbed_s3: Path, server: S3Server, tmp_path: Path, kills: int
) -> None:
    uri = server.uri(f"killed-{kills}")
    command = s3_command(home, server, uri)
    store = open_store(uri)
    expected = fates(undisturbed_s3)
    chance = random.Random(kills)

    def entries() -> int:
        return sum(1 for _ in store.list("ledger/"))

    for kill in range(kills):
        closed = sum(counts.records for counts in Dataset.open(uri).state.counts.values()) if entries() else 0
        ahead = closed / len(expected) > LAST_KILL_SHARE * kill / kills
        run = Marked(command, home)
        wanted = entries() + (1 if ahead else chance.choice((2, 3, 4)))
        assert kill_after_entries(run, entries, wanted, delay_s=0), f"the run was complete after {kill} kills"
        assert not run.alive()
    done = ended(command, cwd=home)
    assert done.returncode == 0, done.stderr
    assert fates(fetched(uri, tmp_path)) == expected
