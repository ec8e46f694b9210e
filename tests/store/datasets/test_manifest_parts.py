"""Each part of what is said of a manifest: the entry that it names, its bytes, and what the ledger says against it."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.store.contract.errors import FormatError
from headrace.store.datasets.manifest import MANIFEST_KEY, bring_forward, doubt, entry_of, removal
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import Entry, Led, Removed, VersionPublished, encode_entry
from headrace.store.ledger.log import NUMBER_MAX, Log

SHOWN = {"entry": 1, "version": 1, "shards": []}


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """A ledger whose entry 1 publishes version 1."""
    store = FileStore(tmp_path)
    for number, changes in enumerate(((Led(1, {}),), (VersionPublished(1, "completed"),))):
        append(store, number, *changes)
    return store


def append(store: FileStore, number: int, *changes: Any) -> None:
    Log(store).append(number, encode_entry(Entry(1, changes)))


@pytest.mark.parametrize(
    ("said", "entry"),
    [
        (0, 0),
        (7, 7),
        (NUMBER_MAX, NUMBER_MAX),
        (-1, -1),
        (-2, -1),
        (NUMBER_MAX + 1, -1),
        (True, -1),
        ("3", -1),
        (1.0, -1),
    ],
)
def test_an_entry_that_no_ledger_has_is_none(said: object, entry: int) -> None:
    assert entry_of({"entry": said}) == entry


def test_a_manifest_of_before_names_no_entry() -> None:
    assert entry_of({}) == -1


def test_a_manifest_is_text_for_people(store: FileStore) -> None:
    assert bring_forward(store, SHOWN)
    assert store.get(MANIFEST_KEY) == json.dumps(SHOWN, indent=2).encode() + b"\n"


def test_the_same_manifest_is_not_written_again(store: FileStore, tmp_path: Path) -> None:
    assert bring_forward(store, SHOWN)
    path = tmp_path / MANIFEST_KEY
    written = path.stat().st_ino
    assert bring_forward(store, SHOWN)
    assert path.stat().st_ino == written


def test_another_manifest_of_the_same_entry_takes_its_place(store: FileStore) -> None:
    assert bring_forward(store, {**SHOWN, "shards": ["derived otherwise"]})
    assert bring_forward(store, SHOWN)
    assert json.loads(store.get(MANIFEST_KEY)) == SHOWN


def test_the_manifest_of_a_removed_dataset_shows_no_version() -> None:
    assert (removal(4)["version"], removal(4)["entry"], removal(4)["shards"]) == (0, 4, [])


def test_what_its_entry_published_is_not_doubted(store: FileStore) -> None:
    assert doubt(store, 1, 1) == ""


def test_a_later_version_is_named(store: FileStore) -> None:
    append(store, 2, VersionPublished(2, "completed"))
    assert doubt(store, 1, 1) == "shows version 1, and entry 2 published version 2"
    assert doubt(store, 2, 2) == ""


def test_another_version_than_its_entrys_is_named(store: FileStore) -> None:
    assert doubt(store, 1, 2) == "names entry 1 for version 2, and that entry does not publish it"
    assert doubt(store, 0, 1) == "names entry 0 for version 1, and that entry does not publish it"


def test_a_removal_is_named_whatever_comes_behind(store: FileStore) -> None:
    assert doubt(store, 1, 0) == "is of a dataset that was removed"
    append(store, 2, Removed("for a test"))
    assert doubt(store, 1, 1) == "is of a dataset that was removed"
    append(store, 3, Led(2, {}))
    assert doubt(store, 1, 1) == "is of a dataset that was removed"


def test_one_that_names_no_entry_is_doubted_beside_a_ledger_alone(store: FileStore, tmp_path: Path) -> None:
    assert doubt(store, -1, 1) == "names no entry of the ledger"
    assert doubt(FileStore(tmp_path / "elsewhere"), -1, 1) == ""
    with pytest.raises(FormatError, match="names entry 0, and the ledger beside it has none of that number"):
        doubt(FileStore(tmp_path / "elsewhere"), 0, 1)
