"""`headrace dataset ls` beside what is no dataset, and beside one that cannot be read."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.commands.dataset.show import list_datasets
from headrace.client.errors import CliError
from headrace.store.contract.errors import NoDataset
from headrace.store.datasets.dataset import Dataset
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.cluster_changes import TokenSpent
from headrace.store.ledger.core.cluster_fold import ClusterState
from headrace.store.ledger.core.entries import Change, Entry, EpochRaised, Led, PipelineApplied, Removed, encode_entry
from headrace.store.ledger.log import Log
from headrace.store.ledger.snapshot import encode_snapshot

SPENT = TokenSpent("token", "worker", "key")


def log(folder: Path, *entries: tuple[Change, ...]) -> Log:
    made = Log(FileStore(folder))
    for number, changes in enumerate(entries):
        made.append(number, encode_entry(Entry(1, changes)))
    return made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with one dataset."""
    log(tmp_path / "books", (Led(1, {}), PipelineApplied("v", {"name": "books"})))
    return tmp_path


def listed(home: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    list_datasets(str(home), as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def names(found: dict[str, Any]) -> list[str]:
    return [Path(row["dataset"]).name for row in found["datasets"]]


def test_the_log_of_a_cluster_is_no_dataset(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log(home / "cluster", (Led(1, {}),), (SPENT,))
    log(home / "young", (Led(1, {}),))
    found = listed(home, capsys)
    assert (names(found), found["unreadable"]) == (["books"], [])
    with pytest.raises(NoDataset, match="holds the log of a cluster and no dataset"):
        Dataset.open(str(home / "cluster"))


def test_the_log_of_a_cluster_behind_a_snapshot_is_no_dataset(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, state = log(home / "cluster", (Led(1, {}),), (SPENT,)), ClusterState()
    state.apply(0, Entry(1, (Led(1, {}),)))
    state.apply(1, Entry(1, (SPENT,)))
    made.write_snapshot(1, encode_snapshot(state))
    assert names(listed(home, capsys)) == ["books"]


def test_a_dataset_that_was_removed_is_not_listed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log(home / "gone", (Led(1, {}), PipelineApplied("v", {"name": "gone"})), (EpochRaised("removal"), Removed("rm")))
    assert names(listed(home, capsys)) == ["books"]


def test_an_unreadable_dataset_is_named_and_the_others_are_listed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log(home / "torn", (Led(1, {}), PipelineApplied("v", {"name": "torn"}))).append(1, b"not msgpack")
    log(home / "mixed", (Led(1, {}), PipelineApplied("v", {"name": "mixed"})), (SPENT,))
    found = listed(home, capsys)
    assert names(found) == ["books"]
    assert [Path(row["dataset"]).name for row in found["unreadable"]] == ["mixed", "torn"]
    assert "entry 1" in found["unreadable"][1]["reason"]
    assert list_datasets(str(home), as_json=True) == 1
    capsys.readouterr()
    with pytest.raises(CliError, match=r"2 places below .* cannot be read"):
        list_datasets(str(home), as_json=False)
    assert "books" in capsys.readouterr().out


def test_a_root_that_is_not_there_is_no_empty_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "empty r\u00e4um").mkdir()
    assert list_datasets(str(home / "empty r\u00e4um"), as_json=False) == 0
    assert "no dataset below" in capsys.readouterr().out
    with pytest.raises(CliError, match=r"nothing stands at .*/slip: see how it is spelt"):
        list_datasets(str(home / "slip"), as_json=False)


def test_folders_that_may_not_be_read_are_named_and_the_rest_listed(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("closed\udcff", "closed\udcff/deep", "zoo"):
        log(home / name, (Led(1, {}), PipelineApplied("v", {"name": "any"})))
    look = os.scandir

    def scandir(path: Any) -> Any:
        if "/closed" in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return look(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = listed(home, capsys)
    assert names(found) == ["books", "zoo"]
    ((name, reason),) = [(Path(row["dataset"]).name, row["reason"]) for row in found["unreadable"]]
    assert name == "closed%FF"
    assert "Permission denied; give this user the right to read" in reason
    assert list_datasets(str(home), as_json=True) == 1
