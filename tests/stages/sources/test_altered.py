"""Input that was read and stands in another version: its bytes are compared before anything is read again."""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.contract import FragmentEnd
from headrace.stages.sources.mixed import MixedSource
from headrace.store.datasets.dataset import Dataset
from headrace.store.ledger.core.fragments import Fragment
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap
from tests.kits.inputs import files, reading
from tests.kits.run.command_server import ended

RUN_S_MAX = 300.0
RECORDS = 60
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read, write_jsonl

def build(input: str = "in", fragment_bytes: int = 1 << 20) -> Pipeline:
    return Pipeline.chain("plain", "out", read(input, fragment_bytes=fragment_bytes), write_jsonl())
"""
NAMES = ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.warc.gz", "a.txt")


def run(home: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
    (home / "plain.py").write_text(PIPELINE)
    command = [sys.executable, "-P", "-m", "headrace.cli", "run", "plain.py", "--json", "--replicas", "1", *options]
    done = ended(command, cwd=home, timeout=RUN_S_MAX)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def report(home: pathlib.Path, *options: str) -> dict[str, Any]:
    done = run(home, *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def fill(home: pathlib.Path) -> dict[str, pathlib.Path]:
    """A file of each format."""
    folder = home / "in"
    made = {
        "a.jsonl": files.lines(),
        "a.jsonl.gz": gzip.compress(files.lines(), mtime=0),
        "a.jsonl.zst": files.zstd(files.lines()),
        "a.warc.gz": files.members(files.warc()),
        "a.txt": b"a text\n",
    }
    paths = {name: files.write(folder / name, data) for name, data in made.items()}
    paths["a.parquet"] = files.parquet_of(folder / "a.parquet")
    return paths


def touch(path: pathlib.Path) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))


def copy_over(path: pathlib.Path) -> None:
    """The same bytes in another file of the same name, as cp, rsync or a restore leave them."""
    shutil.copyfile(path, path.with_name("copy"))
    os.replace(path.with_name("copy"), path)


def state(home: pathlib.Path) -> Any:
    return Dataset.open(str(home / "out")).state


def test_a_file_touched_or_copied_over_is_not_read_twice(tmp_path: pathlib.Path) -> None:
    paths = fill(tmp_path)
    first = report(tmp_path)
    assert set(paths) == set(NAMES)
    assert all(fragment.checksum for fragment in state(tmp_path).fragments.values())
    fragments = set(state(tmp_path).fragments)
    for name, path in paths.items():
        touch(path) if name < "a.jsonl.zst" else copy_over(path)
    again = report(tmp_path)
    assert (again["kept"], again["bytes_read"], again["warnings"]) == (first["kept"], 0, [])
    assert set(state(tmp_path).fragments) == fragments
    assert len(state(tmp_path).seen) == len(NAMES)
    entries = state(tmp_path).number
    assert report(tmp_path)["kept"] == first["kept"]
    assert state(tmp_path).number - entries < 6, "what was found is in the ledger, and not compared again"
    (shard,) = Dataset.open(str(tmp_path / "out")).shards
    rebuilt = ended(
        [
            sys.executable,
            "-P",
            "-m",
            "headrace.cli",
            "dataset",
            "rebuild",
            "--trust-code",
            "out",
            shard.closed.objects[0].key,
        ],
        cwd=tmp_path,
        timeout=RUN_S_MAX,
    )
    assert rebuilt.returncode == 0, rebuilt.stderr


@pytest.mark.parametrize(
    "name", ["a.jsonl", *(pytest.param(name, marks=pytest.mark.slow) for name in ("a.jsonl.gz", "a.parquet"))]
)
def test_a_file_that_holds_other_bytes_halts_by_default_and_is_named(tmp_path: pathlib.Path, name: str) -> None:
    path = fill(tmp_path)[name]
    kept = report(tmp_path)["kept"]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    files.write(tmp_path / "in" / "new.jsonl", b'{"text":"one more"}')
    for _ in range(2):
        done = run(tmp_path)
        assert done.returncode == 1
        assert f"1 object that was read has changed since: {path.as_uri()!r} (it holds other bytes than" in done.stderr
        assert "--changed-input drop" in done.stderr
    assert state(tmp_path).counts["lines"].kept == kept + 1, "all else is read and closed"
    dropped = report(tmp_path, "--changed-input", "drop")
    assert dropped["kept"] == kept + 1
    assert dropped["warnings"][0].startswith("source read: 1 object that was read holds other bytes now, which are not")
    assert report(tmp_path)["warnings"] == [], "a choice is made once"
    path.write_bytes(bytes(data[:-2]))
    assert run(tmp_path).returncode == 1, "and is of one version"


def test_a_changed_file_is_read_whole_only_if_asked(tmp_path: pathlib.Path) -> None:
    path = files.write(tmp_path / "in" / "a.jsonl", files.lines())
    report(tmp_path)
    path.write_bytes(files.lines()[::-1].replace(b"\n", b"", 1)[::-1].replace(b"text", b"texs", 1) + b"\n")
    found = report(tmp_path, "--changed-input", "reread")
    assert found["records_read"] == 2 * RECORDS
    assert found["warnings"][0].startswith("source read: 1 object that was read holds other bytes now and is read as")
    touch(path)
    assert report(tmp_path)["records_read"] == 2 * RECORDS, "the newest version is what it is compared with"


def test_lines_that_were_appended_are_read_and_nothing_before_them(tmp_path: pathlib.Path) -> None:
    path = files.write(tmp_path / "in" / "a.jsonl", files.lines())
    cut = ("-p", f"fragment_bytes={len(files.lines()) // 3}")
    report(tmp_path, *cut)
    line = b'{"id":"one more","text":"one more"}\n'
    for count in (1, 2):
        with path.open("ab") as file:
            file.write(line)
        found = report(tmp_path, *cut)
        assert (found["kept"], found["bytes_read"], found["warnings"]) == (RECORDS + count, len(line), [])
        touch(path)
        assert report(tmp_path, *cut)["kept"] == RECORDS + count


def test_a_last_line_that_was_written_on_is_another_record_and_halts(tmp_path: pathlib.Path) -> None:
    path = files.write(tmp_path / "in" / "a.jsonl", files.lines().rstrip(b"\n"))
    report(tmp_path)
    with path.open("ab") as file:
        file.write(b'\n{"id":"one more","text":"one more"}\n')
    done = run(tmp_path)
    assert (done.returncode, "and cannot be read on there" in done.stderr) == (1, True)


APPENDED = {
    "a.jsonl.gz": (gzip.compress(files.lines()), gzip.compress(b'{"text":"one more"}\n')),
    "a.jsonl.zst": (files.zstd(files.lines()), files.zstd(b'{"text":"one more"}\n')),
    "a.warc": (b"".join(files.warc()), b"".join(files.warc())),
    "a.warc.gz": (files.members(files.warc()), files.members(files.warc())),
}


def put(home: pathlib.Path, contents: dict[str, bytes]) -> pathlib.Path:
    for name, data in contents.items():
        files.write(home / "in" / name, data)
    return home


def append(home: pathlib.Path, contents: dict[str, bytes]) -> None:
    for name, data in contents.items():
        with (home / "in" / name).open("ab") as file:
            file.write(data)


def test_members_and_records_that_were_appended_are_read_and_nothing_before_them(tmp_path: pathlib.Path) -> None:
    begun, more = ({name: pair[at] for name, pair in APPENDED.items()} for at in (0, 1))
    first, alone = report(put(tmp_path, begun)), report(put(tmp_path / "alone", more))
    for count in (1, 2):
        append(tmp_path, more)
        found = report(tmp_path)
        assert found["records_read"] == first["records_read"] + count * alone["records_read"]
        assert found["bytes_read"] == alone["bytes_read"]
    for name in APPENDED:
        touch(tmp_path / "in" / name)
    again = report(tmp_path)
    assert (again["records_read"], again["kept"], again["bytes_read"]) == (found["records_read"], found["kept"], 0)
    whole = report(put(tmp_path / "whole", {name: (tmp_path / "in" / name).read_bytes() for name in APPENDED}))
    assert (found["records_read"], found["kept"]) == (whole["records_read"], whole["kept"])


CUT = files.lines().rstrip(b"\n")
UNENDED = {
    "a.jsonl.gz": (gzip.compress(CUT), gzip.compress(b'\n{"text":"one more"}\n')),
    "a.jsonl.zst": (files.zstd(CUT), files.zstd(b'\n{"text":"one more"}\n')),
    "a.warc.gz": (gzip.compress(b"".join(files.warc()).rstrip()), gzip.compress(b"\r\n\r\n" + files.warc()[1])),
    "a.txt": (b"a text\n", b"one more\n"),
}


def test_an_append_behind_no_ended_record_halts_with_remedy(tmp_path: pathlib.Path) -> None:
    report(put(tmp_path, {name: first for name, (first, _) in UNENDED.items()}))
    append(tmp_path, {name: more for name, (_, more) in UNENDED.items()})
    done = run(tmp_path)
    assert (done.returncode, "4 objects that were read have changed since" in done.stderr) == (1, True)
    for name in UNENDED:
        assert f"{(tmp_path / 'in' / name).as_uri()!r} (it has " in done.stderr
    assert done.stderr.count("and cannot be read on there: cut off what was appended, into a file of its own") == 4


@pytest.mark.parametrize("name", APPENDED)
def test_an_append_is_read_from_its_middle_alike(tmp_path: pathlib.Path, name: str) -> None:
    first, _ = APPENDED[name]
    path = files.write(tmp_path / name, first + first)
    source = MixedSource("read", [str(path)], batch_bytes=200, batch_records=3)
    (whole,) = filter(None, source.list())
    begin = len(first)
    facts = whole.stage, whole.uri, whole.version
    appended = Fragment.named(*facts, start=begin, end=-1, reader=whole.reader, size=begin)
    batches = [item for item in source.read(appended, reading.WHOLE) if isinstance(item, Batch)]
    both = [item for item in source.read(whole, reading.WHOLE) if isinstance(item, Batch)]
    assert 2 * texts(batches) == texts(both)
    middle = batches[len(batches) // 2]
    assert middle.first, "it begins behind a record"
    again = source.read(appended, [Gap(middle.first, UNBOUNDED, middle.offset)])
    behind = [item for item in again if isinstance(item, Batch)]
    assert texts(behind) == texts(batches[len(batches) // 2 :])
    assert sum(batch.length for batch in batches) == behind[-1].offset + behind[-1].length


def test_zeros_that_were_appended_to_gzip_are_no_damage(tmp_path: pathlib.Path) -> None:
    first, _ = APPENDED["a.jsonl.gz"]
    path = files.write(tmp_path / "a.jsonl.gz", first + bytes(512))
    source = MixedSource("read", [str(path)])
    (whole,) = filter(None, source.list())
    facts = whole.stage, whole.uri, whole.version
    appended = Fragment.named(*facts, start=len(first), end=-1, reader=whole.reader, size=512)
    (end,) = source.read(appended, reading.WHOLE)
    assert isinstance(end, FragmentEnd)
    assert end.count == 0


def texts(batches: Iterable[Batch]) -> list[str | None]:
    return [text for batch in batches for text in batch.rows.column("text").to_pylist()]


def test_a_copy_under_another_name_is_read_and_named(tmp_path: pathlib.Path) -> None:
    path = files.write(tmp_path / "in" / "a.jsonl", files.lines())
    report(tmp_path)
    shutil.copyfile(path, path.with_name("b.jsonl"))
    found = report(tmp_path)
    assert found["kept"] == 2 * RECORDS
    (note,) = found["warnings"]
    assert note.startswith("source read: 1 object holds, or begins with, the same bytes as another that was read")
    assert note.endswith(f"{path.with_name('b.jsonl').as_uri()!r} as {path.as_uri()!r}")
    assert report(tmp_path)["warnings"] == []


def test_a_file_that_was_read_in_another_cut_is_not_read_again(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "in" / "a.jsonl", files.lines())
    report(tmp_path)
    cut = ("-p", f"fragment_bytes={len(files.lines()) // 3}", "--amend")
    assert report(tmp_path, *cut)["kept"] == RECORDS
