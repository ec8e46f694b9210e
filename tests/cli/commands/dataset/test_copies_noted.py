"""Which folders a purge takes for exports of a dataset: those that an export wrote, or died over."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.cli.commands.maintenance import maintenance
from headrace.cli.main import invoke
from headrace.stages.export import folders
from headrace.store.files.store import FileStore
from headrace.store.history import copies
from headrace.store.ledger.core.entries import FragmentEnded, VersionPublished
from tests.kits.run.command_server import DEADLINE_S
from tests.kits.store.dataset_writer import FRAGMENT, Writer

FILE = "train-00000-of-00001.parquet"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a dataset of the records 0 and 1, and a person's with a file that is named like an export's."""
    writer = Writer(FileStore(tmp_path / "data"))
    writer.entry(writer.shard([3, 5]), FragmentEnded(FRAGMENT.id, 2), VersionPublished(1, "completed"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / FILE).write_text("mine")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def purged(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The copies of a receipt, by name, behind the takedown of record 0."""
    assert invoke(["dataset", "retract", "data", "0"]) == 0
    capsys.readouterr()
    assert invoke(["dataset", "purge", "data", "--json"]) == 0
    receipt: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {Path(copy["place"]).name: copy["state"] for copy in receipt["copies"]}


def exported(place: str, kind: str = "parquet") -> int:
    return invoke(["dataset", "export", "data", place, "--format", kind])


def test_a_purge_leaves_a_folder_that_an_export_was_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (exported("mine"), exported("")) == (1, 1)
    assert purged(capsys) == {}
    assert (home / "mine" / FILE).read_text() == "mine"


def test_a_refused_second_export_leaves_the_note_of_the_first(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exported("out") == 0
    (home / "out" / "notes.txt").write_text("mine")
    left = {"out": "left alone: out holds 'notes.txt', which no export wrote"}
    assert purged(capsys) == left
    assert exported("out") == 1
    assert purged(capsys) == left


def test_an_export_that_failed_is_no_copy(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: list[list[copies.Copy]] = []

    def failing(*_: object, **__: object) -> None:
        found.append(copies.COPIES.read(FileStore(home / "data")))
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(folders, "_write", failing)
    with pytest.raises(OSError, match="space"):
        maintenance.export_dataset("data", "out", "parquet", None, as_json=False)
    assert [[Path(one.place).name for one in copies] for copies in found] == [["out"]], "it is noted before its bytes"
    assert purged(capsys) == {}
    assert sorted(path.name for path in home.iterdir()) == ["data", "mine"]


def test_what_an_export_that_was_killed_has_written_is_deleted(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = """
import os, signal, sys
from headrace.cli.main import invoke
from headrace.store.files import disk
disk.sync_tree = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
invoke(["dataset", "export", "data", "out", "--format", "parquet"])
"""
    killed = subprocess.run([sys.executable, "-P", "-c", script], cwd=home, timeout=DEADLINE_S)
    assert killed.returncode == -9
    assert list(home.glob(f".out.*/*/{FILE}"))
    assert purged(capsys) == {"out": "left alone: it is not there"}
    assert sorted(path.name for path in home.iterdir()) == ["data", "mine"]


def test_nothing_disturbs_an_export_that_is_alive(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inner, answers = folders._write, list[object]()

    def write(*arguments: Any) -> int:
        monkeypatch.setattr(folders, "_write", inner)
        capsys.readouterr()
        answers.extend((exported("out"), capsys.readouterr().err, purged(capsys)))
        return inner(*arguments)

    monkeypatch.setattr(folders, "_write", write)
    assert exported("out") == 0
    said = f"an export writes {str(home / 'out')!r}: try again when it has ended"
    assert answers == [1, f"headrace: {said}\n", {"out": f"left alone: {said}"}]
    assert purged(capsys) == {"out": "written anew"}
    assert pq.read_table(home / "out").column("id").to_pylist() == ["1"]
    assert sorted(path.name for path in home.iterdir()) == ["data", "mine", "out"]


def test_what_cannot_be_deleted_beside_an_export_is_told_by_a_purge(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / ".out.abcdefgh.export").write_text("mine")
    (home / ".out.bcdefghi.export" / "lock").mkdir(parents=True)
    assert exported("out") == 0
    why = ".out.bcdefghi.export beside it cannot be deleted: delete it, then purge again"
    assert purged(capsys) == {"out": f"left alone: {why}"}
    shutil.rmtree(home / ".out.bcdefghi.export")
    assert purged(capsys) == {"out": "written anew"}
    assert (home / ".out.abcdefgh.export").read_text() == "mine"
