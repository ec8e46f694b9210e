from __future__ import annotations

import bz2
import gzip
import pathlib
from typing import Any

import pytest
import zstandard

from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.contract import FragmentChanged, FragmentEnd
from headrace.stages.runtime.errors import DamagedInput
from headrace.stages.sources.documents import FilesSource
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap

WHOLE = [Gap(0, UNBOUNDED, 0)]


def packed(data: bytes, suffix: str) -> bytes:
    return {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": zstandard.compress}[suffix](data)


def read(path: pathlib.Path, **parameters: Any) -> Batch:
    reader = FilesSource("read", [str(path)], **parameters)
    (fragment,) = reader.list()
    batch, end = reader.read(fragment, WHOLE)
    assert end == FragmentEnd(1)
    assert isinstance(batch, Batch)
    return batch


def test_a_file_is_one_record_with_its_path_and_size(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\r\ntwo é", encoding="utf-8", newline="")
    (row,) = read(path).rows.to_pylist()
    assert row["text"] == "one\r\ntwo é"
    assert row["id"] == f"{path.as_uri()}#0"
    assert row["metadata"] == f'{{"path":"{path}","bytes":11}}'


def test_a_file_that_is_not_utf_8_is_quarantined(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"ab\xff")
    batch = read(path)
    (verdict,) = batch.verdicts.to_pylist()
    assert batch.rows.num_rows == 0
    assert (verdict["reason"], verdict["raw"]) == ("invalid UTF-8: byte 0xff at 2", b"ab\xff")


def test_a_file_over_the_limit_is_quarantined(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 11)
    (verdict,) = read(path, max_record_bytes=10).verdicts.to_pylist()
    assert verdict["reason"] == "file too large: 11 bytes, the limit is 10"


def test_a_directory_stands_for_the_documents_in_it(tmp_path: pathlib.Path) -> None:
    for name in ("b.md", "sub/a.rst", "c.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = [fragment.uri.rpartition("/")[2] for fragment in FilesSource("read", [str(tmp_path)]).list()]
    assert found == ["b.md", "a.rst"]


def test_a_file_that_vanished_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x")
    reader = FilesSource("read", [str(path)])
    (fragment,) = reader.list()
    path.unlink()
    with pytest.raises(FragmentChanged):
        list(reader.read(fragment, WHOLE))


def test_a_closed_file_is_not_read_again(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x")
    reader = FilesSource("read", [str(path)])
    (fragment,) = reader.list()
    assert list(reader.read(fragment, [Gap(1, UNBOUNDED, 1)])) == [FragmentEnd(1)]
    assert reader.bytes_read == 0


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst"])
def test_a_compressed_file_is_one_record_of_what_it_unpacks_to(tmp_path: pathlib.Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(packed(b"one\ntwo", suffix))
    batch = read(path)
    (row,) = batch.rows.to_pylist()
    assert (row["text"], row["metadata"]) == ("one\ntwo", f'{{"path":"{path}","bytes":7}}')
    assert (batch.first, batch.count, batch.length) == (0, 1, path.stat().st_size)


def test_no_more_is_unpacked_than_a_record_may_have(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(bytes(1 << 24)))
    reader = FilesSource("read", [str(path)], max_record_bytes=10)
    (fragment,) = reader.list()
    batch, _ = reader.read(fragment, WHOLE)
    assert isinstance(batch, Batch)
    (verdict,) = batch.verdicts.to_pylist()
    assert verdict["reason"] == "file too large: more than 10 bytes once it is unpacked"
    assert reader.bytes_read == 11


def test_of_a_damaged_file_nothing_is_kept(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one two three" * 100)[:-9])
    with pytest.raises(DamagedInput, match="cut off"):
        read(path)
    batch = read(path, damaged="quarantine")
    (verdict,) = batch.verdicts.to_pylist()
    assert batch.rows.num_rows == 0
    assert verdict["reason"].startswith("damaged file: ")


def test_a_folder_stands_for_its_compressed_documents_too(tmp_path: pathlib.Path) -> None:
    for name in ("a.txt.gz", "b.md.zst", "c.gz"):
        (tmp_path / name).write_bytes(b"")
    found = [fragment.uri.rpartition("/")[2] for fragment in FilesSource("read", [str(tmp_path)]).list()]
    assert found == ["a.txt.gz", "b.md.zst"]
