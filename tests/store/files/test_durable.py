"""What a file store promises to survive a power failure does: bytes before names, and names before answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.stages.export.source import new_folder
from headrace.store.files import disk
from headrace.store.files.scratch import open_draft
from headrace.store.files.store import FileStore
from headrace.store.ledger.log import Log
from tests.kits.store.power_cut import Disk

DATA = b"what was promised"


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_an_object_is_synced_before_it_has_a_name(tmp_path: Path, recorded: Disk) -> None:
    FileStore(tmp_path / "store").create("a/b", [DATA])
    deeds = [deed for deed, name in recorded.deeds if not deed.endswith("folder") or name.endswith("store/a")]
    assert deeds == ["sync", "link", "sync folder"]
    assert (recorded.left(tmp_path, tmp_path / "left") / "store" / "a" / "b").read_bytes() == DATA


def test_a_refused_create_leaves_the_winners_name_durable(tmp_path: Path, recorded: Disk) -> None:
    FileStore(tmp_path).create("a/b", [DATA])
    del recorded.deeds[:]
    assert not FileStore(tmp_path).create("a/b", [b"another"])
    assert ("sync folder", str(tmp_path / "a")) in recorded.deeds


def test_a_draft_is_synced_before_it_has_a_name(tmp_path: Path, recorded: Disk) -> None:
    with open_draft(FileStore(tmp_path / "store")) as draft:
        draft.append(DATA)
        draft.create("a/b")
    assert (recorded.left(tmp_path, tmp_path / "left") / "store" / "a" / "b").read_bytes() == DATA


def test_what_takes_the_place_of_an_object_is_synced_first(tmp_path: Path, recorded: Disk) -> None:
    store = FileStore(tmp_path / "store")
    store.replace("manifest.json", [b"old"])
    store.replace("manifest.json", [DATA])
    assert (recorded.left(tmp_path, tmp_path / "left") / "store" / "manifest.json").read_bytes() == DATA


def test_a_deleted_object_stays_deleted(tmp_path: Path, recorded: Disk) -> None:
    store = FileStore(tmp_path / "store")
    store.create("a/b", [DATA])
    store.delete("a/b")
    assert list((recorded.left(tmp_path, tmp_path / "left") / "store" / "a").iterdir()) == []


def test_entries_and_snapshots_of_a_log_are_durable_when_they_are_answered(tmp_path: Path, recorded: Disk) -> None:
    log = Log(FileStore(tmp_path / "store"))
    log.append(0, b"an entry")
    log.write_snapshot(0, b"a snapshot")
    left = Log(FileStore(recorded.left(tmp_path, tmp_path / "left") / "store"))
    assert left.read_from(-1) == ((0, b"a snapshot"), [])
    assert list(left.read(-1)) == [(0, b"an entry")]


def test_an_export_has_its_name_only_with_all_of_its_bytes(tmp_path: Path, recorded: Disk) -> None:
    with new_folder(str(tmp_path / "out")) as folder:
        (folder / "part").write_bytes(DATA)
        del recorded.deeds[:]
    assert recorded.has_name(tmp_path / "out")
    kinds = [deed for deed, _ in recorded.deeds]
    assert kinds == ["sync", "sync folder", "rename", "sync folder"]


def test_a_folder_is_made_with_all_names_above_it(tmp_path: Path, recorded: Disk) -> None:
    disk.make_folder(tmp_path / "a" / "b")
    assert recorded.has_name(tmp_path / "a")
    assert recorded.has_name(tmp_path / "a" / "b")


def test_a_folder_where_a_file_stands_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(NotADirectoryError):
        disk.make_folder(tmp_path / "a")
