"""Mirrors of a dataset: a version of the table for each of its own, once, whatever dies between."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from headrace.stages.export import mirroring
from headrace.stages.export.mirroring import DeltaMirror, IcebergMirror, MirrorTable, _files_of, mirror
from headrace.stages.runtime import InputError
from headrace.stages.sources.tables import lakehouse
from headrace.store.datasets import Dataset
from headrace.store.files.store import FileStore
from headrace.store.history.address import delete_tag, set_tag
from headrace.store.ledger.core.entries import FragmentEnded, Retracted, VersionPublished
from tests.kits.store.dataset_writer import FRAGMENT, Writer


def write(folder: Path, versions: int) -> list[int]:
    """A dataset of some versions, of which the third takes records down; the documents that each shows."""
    made, shown = Writer(FileStore(folder)), list[int]()
    for version in range(1, versions + 1):
        made.entry(made.shard([3, "filtered", 5, 2], 4 * (version - 1)))
        change = ()
        if version == 3:
            key = next(item.key for item in Dataset.open(str(folder)).shards[0].closed.objects if item.role == "tokens")
            change = (Retracted(version, ((key, (0, 2)),), ()),)
        ended = (FragmentEnded(FRAGMENT.id, 4 * versions),) if version == versions else ()
        made.entry(*ended, *change, VersionPublished(version, "completed"))
        # What is taken down is taken down in every version.
        shown.append(3 * version - (2 if versions >= 3 else 0))
    return shown


def delta_counts(place: Path) -> list[int]:
    table = DeltaTable(str(place))
    return [DeltaTable(str(place), version=n).to_pyarrow_dataset().count_rows() for n in range(table.version() + 1)]


def iceberg(place: Path) -> SqlCatalog:
    return SqlCatalog("headrace", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}")


def iceberg_counts(place: Path) -> list[int]:
    with closing(iceberg(place)) as catalog:
        table = catalog.load_table(("c", "plain"))
        return [table.scan(snapshot_id=item.snapshot_id).to_arrow().num_rows for item in table.snapshots()]


Opened = tuple[Callable[[Path, str], MirrorTable], Callable[[Path], list[int]]]
TABLES: dict[str, Opened] = {
    "delta": (lambda place, origin: DeltaMirror(str(place), origin), delta_counts),
    "iceberg": (lambda place, origin: IcebergMirror(str(place), "c.plain", origin), iceberg_counts),
}


#: PyIceberg takes a second to import, in a child of each mirror.
ONE_KIND = pytest.mark.parametrize("table", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)], indirect=True)


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest) -> Opened:
    return TABLES[request.param]


def test_a_version_is_a_commit_and_no_second_one(tmp_path: Path, table: Opened) -> None:
    shown, place = write(tmp_path / "a set", 4), tmp_path / "a table"
    dataset = Dataset.open(str(tmp_path / "a set"))
    assert mirror(dataset, table[0](place, dataset.state.origin)) == [1, 2, 3, 4]
    assert mirror(dataset, table[0](place, dataset.state.origin)) == []
    assert table[1](place) == shown


def test_versions_that_come_later_are_added(tmp_path: Path, table: Opened) -> None:
    made, place = Writer(FileStore(tmp_path / "d")), tmp_path / "t"
    for version in (1, 2):
        made.entry(made.shard([3], version - 1))
        made.entry(VersionPublished(version, "stopped", complete=False))
        dataset = Dataset.open(str(tmp_path / "d"))
        assert mirror(dataset, table[0](place, dataset.state.origin)) == [version]
    made.entry(VersionPublished(3, "rollback", dataset.state.published[1].shows, restores=1))
    dataset = Dataset.open(str(tmp_path / "d"))
    assert mirror(dataset, table[0](place, dataset.state.origin)) == [3]
    made.entry(VersionPublished(4, "completed"))
    dataset = Dataset.open(str(tmp_path / "d"))
    assert mirror(dataset, table[0](place, dataset.state.origin)) == [4]
    assert table[1](place) == [1, 2, 1, 1]


@ONE_KIND
def test_a_version_without_documents_is_one_of_the_table(tmp_path: Path, table: Opened) -> None:
    made, place = Writer(FileStore(tmp_path / "d")), tmp_path / "t"
    for version, fates in enumerate((["filtered"], [3], ["filtered"]), start=1):
        made.entry(made.shard(fates, version - 1))
        made.entry(VersionPublished(version, "stopped", complete=False))
        dataset = Dataset.open(str(tmp_path / "d"))
        assert mirror(dataset, table[0](place, dataset.state.origin)) == [version]
    assert table[1](place) == [0, 1, 1]


def test_tags_of_versions_are_tags_of_snapshots(tmp_path: Path) -> None:
    write(tmp_path / "d", 2)
    dataset = Dataset.open(str(tmp_path / "d"))
    set_tag(dataset.store, dataset.state, "base", 1, move=False)
    mirror(dataset, IcebergMirror(str(tmp_path / "t"), "c.plain", dataset.state.origin))
    with closing(iceberg(tmp_path / "t")) as catalog:
        refs = catalog.load_table(("c", "plain")).refs()
    assert set(refs) == {"main", "v1", "v2", "base"}
    assert refs["base"].snapshot_id == refs["v1"].snapshot_id


@pytest.mark.parametrize("tag", ["v2", *(pytest.param(tag, marks=pytest.mark.slow) for tag in ("v7", "main"))])
def test_a_tag_takes_no_name_that_is_the_tables_own(tmp_path: Path, tag: str) -> None:
    write(tmp_path / "d", 2)
    dataset = Dataset.open(str(tmp_path / "d"))
    set_tag(dataset.store, dataset.state, tag, 1, move=False)
    with pytest.raises(InputError, match=f"version 1 has the tag '{tag}', .* delete '{tag}'"):
        mirror(dataset, IcebergMirror(str(tmp_path / "t"), "c.plain", dataset.state.origin))
    delete_tag(dataset.store, tag)
    set_tag(dataset.store, dataset.state, "v2", 2, move=False)
    assert mirror(dataset, IcebergMirror(str(tmp_path / "t"), "c.plain", dataset.state.origin)) == [1, 2]


@ONE_KIND
def test_a_table_of_another_dataset_is_refused(tmp_path: Path, table: Opened) -> None:
    write(tmp_path / "d", 1)
    dataset = Dataset.open(str(tmp_path / "d"))
    mirror(dataset, table[0](tmp_path / "t", "another"))
    with pytest.raises(InputError, match="no mirror of this dataset"):
        mirror(dataset, table[0](tmp_path / "t", dataset.state.origin))
    assert table[1](tmp_path / "t") == [3]


def test_a_folder_with_other_files_is_no_table(tmp_path: Path) -> None:
    write(tmp_path / "d", 1)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "mine.txt").write_text("x")
    dataset = Dataset.open(str(tmp_path / "d"))
    with pytest.raises(InputError, match="neither empty nor a mirror"):
        mirror(dataset, DeltaMirror(str(tmp_path / "t"), dataset.state.origin))


def test_a_mirror_writes_through_no_link(tmp_path: Path) -> None:
    write(tmp_path / "d", 1)
    place, victim = tmp_path / "t", tmp_path / "victim"
    victim.write_text("mine")
    (place / "data").mkdir(parents=True)
    dataset = Dataset.open(str(tmp_path / "d"))
    for item in _files_of(dataset):
        (place / "data" / f".{item.name}.{os.getpid()}").symlink_to(victim)
    assert mirror(dataset, DeltaMirror(str(place), "o")) == [1]
    assert victim.read_text() == "mine"
    (tmp_path / "u").mkdir()
    (tmp_path / "u" / "data").symlink_to(tmp_path / "t" / "data")
    with pytest.raises(InputError, match="is a link, through which nothing is written"):
        mirror(dataset, DeltaMirror(str(tmp_path / "u"), "o"))


@ONE_KIND
def test_a_dataset_without_a_version_has_no_mirror(tmp_path: Path, table: Opened) -> None:
    Writer(FileStore(tmp_path / "d"))
    with pytest.raises(InputError, match="has no version yet"):
        mirror(Dataset.open(str(tmp_path / "d")), table[0](tmp_path / "t", "o"))


def test_a_missing_library_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(InputError, match=r'deltalake is not installed: pip install "headrace\[tables\]"'):
        DeltaMirror("t", "o")


def test_what_describes_a_table_is_read_by_a_child_first(
    tmp_path: Path, table: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "d", 1)
    dataset = Dataset.open(str(tmp_path / "d"))
    assert mirror(dataset, table[0](tmp_path / "t", dataset.state.origin)) == [1]
    monkeypatch.setattr(lakehouse, "TABLE_MEMORY_BYTES", 1 << 20)
    with pytest.raises(InputError, match="takes more than 1 MiB of memory"):
        mirror(dataset, table[0](tmp_path / "t", dataset.state.origin))


def test_a_table_whose_log_is_damaged_is_one_line(tmp_path: Path) -> None:
    write(tmp_path / "d", 1)
    dataset = Dataset.open(str(tmp_path / "d"))
    mirror(dataset, DeltaMirror(str(tmp_path / "t"), "o"))
    (log,) = (tmp_path / "t" / "_delta_log").glob("*.json")
    log.write_text('{"txn": {"appId": "o", "version": "x"}}')
    with pytest.raises(InputError, match="has no Delta table: "):
        mirror(dataset, DeltaMirror(str(tmp_path / "t"), "o"))


def test_a_snapshot_that_says_no_number_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "d", 1)
    dataset = Dataset.open(str(tmp_path / "d"))
    told = {"headrace.origin": "o", "headrace.entry": "many"}
    monkeypatch.setattr("headrace.stages.export.mirroring.properties_of", lambda *_: told)
    with pytest.raises(InputError, match="the table cannot be read: ValueError"):
        mirror(dataset, IcebergMirror(str(tmp_path / "t"), "c.plain", "o"))


def test_a_name_without_a_namespace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give a namespace"):
        IcebergMirror(str(tmp_path), "plain", "o")


DIES = """
import os, sys
sys.path.insert(0, sys.argv[1])
from headrace.store.datasets import Dataset
from tests.stages.export.test_mirror import TABLES
from headrace.stages.export.mirroring import mirror
from pathlib import Path

folder, place, kind, moment = Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], sys.argv[5]
dataset = Dataset.open(str(folder))
table = TABLES[kind][0](place, dataset.state.origin)
commit, write = table.commit, table._write

def dying_commit(*given):
    commit(*given)
    os.kill(os.getpid(), 9)

def dying_write(*given):
    found = write(*given)
    os.kill(os.getpid(), 9)

if moment == "behind the commit":
    table.commit = dying_commit
else:
    table._write = dying_write
mirror(dataset, table)
"""


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("moment", ["behind the commit", pytest.param("before the commit", marks=pytest.mark.slow)])
def test_a_death_leaves_no_version_twice_and_none_out(tmp_path: Path, kind: str, moment: str) -> None:
    shown, place = write(tmp_path / "d", 3), tmp_path / "t"
    root = str(Path(mirroring.__file__).parents[2])
    command = [sys.executable, "-c", DIES, root, str(tmp_path / "d"), str(place), kind, moment]
    assert subprocess.run(command, check=False, timeout=300, cwd=root).returncode == -9
    dataset = Dataset.open(str(tmp_path / "d"))
    left = [2, 3] if moment == "behind the commit" else [1, 2, 3]
    assert mirror(dataset, TABLES[kind][0](place, dataset.state.origin)) == left
    assert TABLES[kind][1](place) == shown
