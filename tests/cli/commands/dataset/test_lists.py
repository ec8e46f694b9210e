"""Lists of records, which some commands write and `headrace dataset retract --list` reads."""

import json
from pathlib import Path

import pytest

from headrace.cli.commands.maintenance import findings
from headrace.cli.main import invoke
from headrace.client.errors import CliError
from headrace.store.datasets.dataset import Dataset
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import FragmentEnded, VersionPublished
from tests.kits.store.dataset_writer import FRAGMENT, Writer


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a dataset of two records, whose version is 1."""
    writer = Writer(FileStore(tmp_path / "data"))
    writer.entry(writer.shard([3, 5]), FragmentEnded(FRAGMENT.id, 2), VersionPublished(1, "completed"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_list_that_names_no_record_retracts_none(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    findings.write_list(home / "none.jsonl", [])
    assert invoke(["dataset", "retract", "data", "--list", "none.jsonl"]) == 0
    assert "the list names no record" in capsys.readouterr().out
    assert invoke(["dataset", "retract", "data", "--list", "none.jsonl", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["records"], found["version"], Dataset.open("data").state.version) == (0, 1, 1)


def test_what_names_nothing_and_no_list_is_wrong_usage(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["dataset", "retract", str(home / "data")]) == 2
    assert "give the ids of records, --list" in capsys.readouterr().err


def test_a_list_is_read_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "LIST_BYTES_MAX", 1000)
    with pytest.raises(CliError, match="the list /dev/zero has more than 1,000 bytes: give it in parts"):
        findings.read_list(Path("/dev/zero"))


def test_a_list_that_ends_its_lines_as_windows_does_is_read(tmp_path: Path) -> None:
    (tmp_path / "list.jsonl").write_bytes(b'{"id": "a"}\r\n\r\n{"id": "b"}\r\n')
    assert findings.read_list(tmp_path / "list.jsonl") == ["a", "b"]
