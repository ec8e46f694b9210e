"""Folders that commands write into: a path, or its file:// URI, and no other store."""

from pathlib import Path

import pytest

from headrace.cli.main import invoke
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import FragmentEnded, VersionPublished
from tests.kits.store.dataset_writer import FRAGMENT, Writer

WRITING = {
    "export": ("export", "data", "{}", "--format", "parquet"),
    "delta": ("mirror", "data", "--delta", "{}"),
    "iceberg": ("mirror", "data", "--iceberg", "{}"),
    "card": ("show", "data", "--card", "{}"),
}


@pytest.fixture(params=WRITING)
def command(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    writer = Writer(FileStore(tmp_path / "data"))
    writer.entry(writer.shard([3, 5]), FragmentEnded(FRAGMENT.id, 2), VersionPublished(1, "completed"))
    monkeypatch.chdir(tmp_path)
    return WRITING[request.param]


def said_to(command: tuple[str, ...], place: str) -> int:
    return invoke(["dataset", *(word.format(place) for word in command)])


@pytest.mark.parametrize("place", ["s3://bucket/out", "hf://datasets/a/b", "file://host/out"])
def test_another_store_is_no_name_of_a_folder(
    command: tuple[str, ...], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said_to(command, place) == 1
    said = capsys.readouterr().err
    assert place in said
    assert len(said.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert not (tmp_path / "data" / "copies.json").exists()


def test_a_file_uri_is_the_path_that_it_escapes(command: tuple[str, ...], tmp_path: Path) -> None:
    assert said_to(command, f"file://{tmp_path}/a%20b") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a b", "data"]
    assert list((tmp_path / "a b").iterdir())
