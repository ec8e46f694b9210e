"""A compaction makes what the newest version shows: a rollback is heeded, and what it may undo can be undone."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.commands.maintenance.maintenance import publish_without
from headrace.cli.main import invoke
from headrace.controller import OfflineWriter, with_offline_writer
from headrace.store.datasets.dataset import Dataset
from headrace.store.datasets.retraction import to_erase
from headrace.store.history.address import open_at
from headrace.store.ledger.core.entries import FragmentDropped, FragmentsListed, Led, Resigned, decode_entry
from headrace.store.ledger.core.fold import DEDUPLICATION, HELD_OUT_SPLIT
from headrace.store.ledger.log import Log
from headrace.store.open import open_store
from headrace.store.shards import read_table
from tests.kits.run.command_server import ended
from tests.kits.run.kill import headrace
from tests.kits.run.small_tokenizer import small_tokenizer
from tests.kits.store.dataset_writer import FRAGMENT

PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read_jsonl, tokenize, write_tokens


def build(tokenizer: str) -> Pipeline:
    tokens = tokenize(tokenizer)
    return Pipeline.chain("p", "old", read_jsonl("*.jsonl"), tokens, write_tokens(tokens, seq_len=16))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset: version 1 shows the records 0 and 1, version 2 also 2 and 3."""
    home = tmp_path_factory.mktemp("compacted")
    (home / "p.py").write_text(PIPELINE)
    for first in (0, 2):
        rows = (json.dumps({"id": f"{first + n}", "text": f"record {first + n} " * 9}) for n in range(2))
        (home / f"{first}.jsonl").write_text("\n".join(rows))
        done = ended(headrace("run", "p.py", "-p", f"tokenizer={small_tokenizer()}"), cwd=home)
        assert done.returncode == 0, done.stderr
    return home


@pytest.fixture(autouse=True)
def home(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


def ids(address: str) -> list[str]:
    """The records that a version shows."""
    found: list[str] = []
    dataset = open_at(address).of_version()
    for shard in dataset.shards:
        objects: dict[str, Any] = {item.role: item.key for item in shard.closed.objects}
        names = read_table(dataset.store, objects["documents"], ["id"]).column("id").to_pylist()
        hidden = dataset.retracted(objects["tokens"])
        found += [name for row, name in enumerate(names) if row not in hidden]
    return found


def compacted(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = invoke(["dataset", "compact", "old", "new"])
    return code, capsys.readouterr().err


def written_behind(uri: str, number: int) -> set[type[object]]:
    """What the entries behind one are."""
    entries = Log(open_store(uri)).read(number)
    return {type(change) for _, data in entries for change in decode_entry(data).changes}


def deduplicate(reason: str = DEDUPLICATION) -> None:
    """Publish a version without record 1."""
    dataset = Dataset.open("old")
    rows = {next(item.key for item in dataset.shards[0].closed.objects if item.role == "tokens"): (1,)}
    with_offline_writer(dataset.uri, lambda writer: publish_without(writer, dataset, reason, rows, "now"))


def test_a_duplicate_stays_one_that_a_rollback_shows_again(capsys: pytest.CaptureFixture[str]) -> None:
    deduplicate()
    assert compacted(capsys)[0] == 0
    assert ids("new") == ["0", "2", "3"]
    assert to_erase(Dataset.open("new").state) == []
    assert invoke(["dataset", "log", "new", "--json"]) == 0
    log = json.loads(capsys.readouterr().out.splitlines()[-1])["versions"]
    assert [row["reason"] for row in log] == [DEDUPLICATION, "compaction"]
    assert invoke(["dataset", "rollback", "new@1"]) == 0
    assert ids("new") == ["0", "1", "2", "3"]


def test_a_deduplication_that_was_rolled_back_hides_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    deduplicate()
    assert invoke(["dataset", "rollback", "old@2"]) == 0
    assert compacted(capsys)[0] == 0
    assert ids("new") == ["0", "1", "2", "3"]


def test_a_duplicate_that_is_taken_down_is_taken_down_there_too(capsys: pytest.CaptureFixture[str]) -> None:
    deduplicate()
    assert compacted(capsys)[0] == 0
    assert invoke(["dataset", "retract", "old", "1"]) == 0
    assert compacted(capsys)[0] == 0
    assert [item.rows for item in to_erase(Dataset.open("new").state)] == [(1,)]
    assert invoke(["dataset", "rollback", "new@1"]) == 0
    assert ids("new") == ["0", "2", "3"]


def test_a_compaction_holds_nothing_that_a_rollback_hides(capsys: pytest.CaptureFixture[str]) -> None:
    assert compacted(capsys)[0] == 0
    assert invoke(["dataset", "rollback", "old@1"]) == 0
    code, said = compacted(capsys)
    assert (code, "compact into a new place" in said, len(said.splitlines())) == (1, True, 1)
    assert invoke(["dataset", "compact", "old", "other"]) == 0
    assert ids("other") == ids("old") == ["0", "1"]


def test_a_takedown_comes_through_behind_a_fragment_that_was_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert compacted(capsys)[0] == 0

    async def given_up(writer: OfflineWriter) -> None:
        await writer.commit(FragmentsListed((FRAGMENT,)), FragmentDropped(FRAGMENT.id, "unread", False))

    with_offline_writer(Dataset.open("old").uri, given_up)
    assert invoke(["dataset", "retract", "old", "2"]) == 0
    assert compacted(capsys)[0] == 0
    assert ids("new") == ["0", "1", "3"]
    assert Dataset.open("new").state.fragments.keys() == Dataset.open("old").state.fragments.keys()


def test_what_a_rollback_shows_again_is_not_hidden_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    deduplicate()
    assert compacted(capsys)[0] == 0
    assert invoke(["dataset", "rollback", "old@2"]) == 0
    number = Dataset.open("new").state.number
    code, said = compacted(capsys)
    assert (code, "compact into a new place" in said, len(said.splitlines())) == (1, True, 1)
    assert written_behind("new", number) <= {Led, Resigned}
    assert invoke(["dataset", "rollback", "new@1"]) == 0
    assert compacted(capsys)[0] == 0
    assert ids("new") == ids("old") == ["0", "1", "2", "3"]


def test_a_row_hidden_for_another_reason_is_published_once(capsys: pytest.CaptureFixture[str]) -> None:
    deduplicate()
    assert compacted(capsys)[0] == 0
    assert invoke(["dataset", "rollback", "old@2"]) == 0
    deduplicate(HELD_OUT_SPLIT)
    versions = []
    for _ in range(3):
        assert compacted(capsys)[0] == 0
        versions.append(Dataset.open("new").state.version)
    assert versions == [3, 3, 3]
    assert ids("new") == ids("old") == ["0", "2", "3"]
