"""A table as input: its version, no more of its files, and those that are new under a later version."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from headrace.cli.help import EXAMPLES
from headrace.pipeline import PipelineError
from headrace.stages.export.mirroring import IcebergMirror
from headrace.stages.library import read_delta, read_iceberg
from headrace.stages.runtime import InputError, build_stage
from headrace.stages.sources.tables import lakehouse as tables
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import VersionPublished
from tests.kits.run.command import dataset_answer as answer
from tests.kits.run.command_server import ended
from tests.kits.run.kill import headrace
from tests.kits.store.dataset_writer import Writer

PIPELINE = """
from headrace import Pipeline, read_delta, write_jsonl


def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain("p", output, read_delta(input), write_jsonl())
"""


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"id": [f"r{number}" for number in numbers], "text": [f"text {number}" for number in numbers]})


def texts(stage: object) -> list[str]:
    source = build_stage(stage, {})  # type: ignore[arg-type]
    found = []
    for fragment in source.list():
        from headrace.store.ledger import UNBOUNDED, Gap

        for batch in source.read(fragment, [Gap(0, UNBOUNDED, 0)]):
            if hasattr(batch, "rows"):
                found += batch.rows.column("id").to_pylist()
    return sorted(found)


def test_a_catalog_that_is_not_there_is_said_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"there is no such folder, and so no catalog with table 'a\.b'"):
        read_iceberg(str(tmp_path / "none"), "a.b")
    assert list(tmp_path.iterdir()) == []


def test_a_catalog_of_no_settings_says_what_the_library_says() -> None:
    with pytest.raises(
        PipelineError, match=r"no catalog that PyIceberg can load \(URI missing.*a folder, as \./nowhere$"
    ):
        read_iceberg("nowhere", "a.b")


@pytest.mark.parametrize("example", EXAMPLES["dataset mirror"])
def test_an_example_of_mirror_makes_a_table(tmp_path: Path, example: str) -> None:
    made = Writer(FileStore(tmp_path / "data" / "plain"))
    made.entry(made.shard([3]), VersionPublished(1, "completed"))
    done = ended(headrace(*shlex.split(example)[1:]), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_library_that_is_missing_in_the_child_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deltalake.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(PipelineError, match=r'deltalake is not installed: pip install "headrace\[tables\]"'):
        read_delta(str(tmp_path))


def test_a_run_reads_a_version_and_a_later_one_what_is_new(tmp_path: Path) -> None:
    table = tmp_path / "a table"
    write_deltalake(table, rows(0, 3))
    (tmp_path / "p.py").write_text(PIPELINE)
    for more, count in (((), 3), (("--amend",), 5)):
        given = ("run", *more, "p.py", "-p", f"input={table}", "-p", "output=out")
        done = ended(headrace(*given), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert answer(tmp_path, "show", "out")["kept"] == count
        write_deltalake(table, rows(3, 2), mode="append")
    log = json.dumps(answer(tmp_path, "log", "out"))
    assert '"version": 0' in log


def test_a_rewritten_table_is_not_read_twice_unless_one_chooses(tmp_path: Path) -> None:
    table = tmp_path / "a table"
    write_deltalake(table, rows(0, 3))
    write_deltalake(table, rows(3, 2), mode="append")
    (tmp_path / "p.py").write_text(PIPELINE)
    given = ("p.py", "-p", f"input={table}", "-p", "output=out")
    assert ended(headrace("run", *given), cwd=tmp_path).returncode == 0
    DeltaTable(table).optimize.compact()
    done = ended(headrace("run", "--amend", *given), cwd=tmp_path)
    assert done.returncode == 1
    assert "2 objects that were read or passed over are gone from file://" in done.stderr
    assert "Let the pipeline read the version (or snapshot) that was read before" in done.stderr
    assert answer(tmp_path, "show", "out")["kept"] == 5
    assert ended(headrace("run", *given, "--changed-input", "drop"), cwd=tmp_path).returncode == 0
    write_deltalake(table, rows(5, 1), mode="append")
    done = ended(headrace("run", "--amend", *given), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert answer(tmp_path, "show", "out")["kept"] == 6
    DeltaTable(table).optimize.compact()
    done = ended(headrace("run", "--amend", *given), cwd=tmp_path)
    assert done.returncode == 1, "what was passed over is gone, and what is new holds its records"
    assert answer(tmp_path, "show", "out")["kept"] == 6


def test_a_version_of_a_delta_table_is_what_it_names(tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    write_deltalake(table, rows(0, 3))
    write_deltalake(table, rows(3, 2), mode="append")
    write_deltalake(table, rows(9, 1), mode="overwrite")
    assert texts(read_delta(table, version=0)) == ["r0", "r1", "r2"]
    assert texts(read_delta(table, version=1)) == ["r0", "r1", "r2", "r3", "r4"]
    assert texts(read_delta(table)) == ["r9"]
    assert read_delta(table).parameters["version"] == 2


@pytest.mark.slow
def test_a_snapshot_of_an_iceberg_table_is_what_it_names(tmp_path: Path) -> None:
    place = tmp_path / "a place"
    place.mkdir()
    catalog = SqlCatalog("headrace", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}")
    catalog.create_namespace("n")
    table = catalog.create_table(("n", "t"), rows(0, 1).schema)
    with pytest.raises(PipelineError, match="no snapshot yet"):
        read_iceberg(str(place), "n.t")
    table.append(rows(0, 3))
    first = table.current_snapshot()
    assert first is not None
    table.append(rows(3, 2))
    assert texts(read_iceberg(str(place), "n.t", snapshot=first.snapshot_id)) == ["r0", "r1", "r2"]
    assert texts(read_iceberg(str(place), "n.t")) == ["r0", "r1", "r2", "r3", "r4"]
    with pytest.raises(InputError, match="has no snapshot 7"):
        texts(read_iceberg(str(place), "n.t", snapshot=7))
    with pytest.raises(PipelineError, match="has no table"):
        read_iceberg(str(place), "n.other")
    catalog.close()


def foreign(place: Path, **changed: object) -> Path:
    """A catalog with a table whose metadata somebody has changed by hand."""
    place.mkdir(parents=True)
    catalog = SqlCatalog("headrace", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}")
    catalog.create_namespace("n")
    table = catalog.create_table(("n", "t"), rows(0, 1).schema)
    table.append(rows(0, 3))
    metadata = Path(table.metadata_location.removeprefix("file://"))
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | changed))
    catalog.close()
    return metadata


def test_a_table_that_names_code_runs_none(tmp_path: Path) -> None:
    made = tmp_path / "made"
    program = {"touch": "", str(made): "", "py-io-impl": "subprocess.Popen"}
    foreign(tmp_path / "c", properties=program)
    assert texts(read_iceberg(str(tmp_path / "c"), "n.t")) == ["r0", "r1", "r2"]
    assert not made.exists()
    foreign(tmp_path / "m", properties={"write.py-location-provider.impl": "subprocess.Popen"})
    with pytest.raises(InputError, match="names code, 'subprocess"):
        IcebergMirror(str(tmp_path / "m"), "n.t", "an origin").position()


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("file://{0}", marks=pytest.mark.slow),
        pytest.param("{1}/..%2f../../../..", marks=pytest.mark.slow),
        "file://{1}/../../../..",
    ],
)
def test_a_snapshot_opens_no_file_out_of_its_folder(tmp_path: Path, where: str) -> None:
    metadata = foreign(tmp_path / "a")
    shown = json.loads(metadata.read_text())
    manifests = Path(shown["snapshots"][0]["manifest-list"].removeprefix("file://"))
    shutil.copy(manifests, tmp_path / manifests.name)
    place = where.format(tmp_path, metadata.parent)
    snapshots = [shown["snapshots"][0] | {"manifest-list": f"{place}/{manifests.name}"}]
    metadata.write_text(json.dumps(shown | {"snapshots": snapshots}))
    with pytest.raises(InputError, match="not below its folder"):
        texts(read_iceberg(str(tmp_path / "a"), "n.t"))


def test_a_table_is_in_its_folder(tmp_path: Path) -> None:
    metadata = foreign(tmp_path / "a")
    shutil.copy(metadata, tmp_path / metadata.name)
    (tmp_path / "c").mkdir()
    foreign(tmp_path / "b", location=str(tmp_path / "c"))
    with pytest.raises(PipelineError, match="not below its folder"):
        read_iceberg(str(tmp_path / "b"), "n.t")
    with contextlib.closing(sqlite3.connect(tmp_path / "a" / "catalog.db")) as known, known:
        known.execute("UPDATE iceberg_tables SET metadata_location = ?", [f"file://{tmp_path / metadata.name}"])
    with pytest.raises(PipelineError, match="not below its folder"):
        read_iceberg(str(tmp_path / "a"), "n.t")


def test_what_files_alone_do_not_tell_is_refused(tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    write_deltalake(table, rows(0, 3), partition_by=["id"])
    with pytest.raises(InputError, match="partitioned by id"):
        texts(read_delta(table))
    with pytest.raises(PipelineError, match="only tables in folders"):
        read_delta("s3://bucket/table")
    with pytest.raises(PipelineError, match="no Delta table"):
        read_delta(str(tmp_path))
    with pytest.raises(InputError, match="no Delta table of version 9"):
        texts(read_delta(table, version=9))


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    table = tmp_path / "t"
    write_deltalake(table, rows(0, 3))
    write_deltalake(table, rows(3, 3), mode="append")
    Path(DeltaTable(table).file_uris()[0]).unlink()
    with pytest.raises(InputError, match="1 files of the table are not below its folder"):
        texts(read_delta(str(table)))


def test_a_small_table_that_unfolds_to_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "t"
    write_deltalake(folder, rows(0, 3))
    DeltaTable(folder).create_checkpoint()
    (checkpoint,) = (folder / "_delta_log").glob("*.checkpoint.parquet")
    table = pq.read_table(checkpoint)
    (row,) = [row for row in table.to_pylist() if row["add"]][:1]
    row["add"]["stats"] = f'{{"numRecords": 1, "pad": "{"p" * (1 << 20)}"}}'
    adds = [{**row, "add": {**row["add"], "path": f"{number}.parquet"}} for number in range(250)]
    bomb = pa.concat_tables(pa.Table.from_pylist([add], schema=table.schema) for add in adds)
    pq.write_table(pa.concat_tables([table, bomb]), checkpoint, compression="zstd")
    assert checkpoint.stat().st_size < 1 << 20
    assert read_delta(str(folder)).parameters["version"] == 0
    monkeypatch.setattr(tables, "TABLE_MEMORY_BYTES", 256 << 20)
    with pytest.raises(PipelineError, match="takes more than 256 MiB of memory"):
        read_delta(str(folder))
    monkeypatch.setattr(tables, "TABLE_MEMORY_BYTES", 2 << 30)
    monkeypatch.setattr(tables, "ANSWER_BYTES_MAX", 1 << 10)
    with pytest.raises(PipelineError, match="names of the table's files take more than"):
        read_delta(str(folder))
