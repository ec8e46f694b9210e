"""Files whose names promise JSON Lines and that hold something else: a fault of the file, said at once."""

from __future__ import annotations

import gzip
import json
import pathlib
from collections.abc import Callable

import pytest

from headrace.stages.runtime.errors import DamagedInput
from headrace.stages.sources.jsonl import JsonlSource
from headrace.stages.sources.mixed import MixedSource
from headrace.stages.sources.objects.formats import data_format
from tests.kits.inputs import files, reading
from tests.run.inputs.test_runs import balance, run

FOREIGN = {
    "gzip": (gzip.compress(files.lines()), "a gzip stream; let its name end in .gz"),
    "zstd": (files.zstd(files.lines()), "a zstd stream; let its name end in .zst"),
    "warc": (b"".join(files.warc()), "WARC; let its name end in .warc"),
    "utf-16": (files.lines().decode().encode("utf-16"), "UTF-16; convert it with iconv -f UTF-16 -t UTF-8"),
    "utf-16, low byte first": (files.lines().decode().encode("utf-16-le"), "UTF-16; convert it with iconv -f UTF-16LE"),
    "utf-16, high byte first": (
        files.lines().decode().encode("utf-16-be"),
        "UTF-16; convert it with iconv -f UTF-16BE",
    ),
    "utf-32": (files.lines().decode().encode("utf-32"), "UTF-32; convert it with iconv -f UTF-32 -t UTF-8"),
    "lz4": (b"\x04\x22\x4d\x18" + bytes(100), "an lz4 stream; decompress it"),
    "tar": (files.tar("a.jsonl", files.lines()), "a tar archive; unpack it"),
    "page": (b"\n<!DOCTYPE html>\n<html>404 Not Found</html>\n", "HTML or XML, such as the error page of a download"),
    "pointer": (files.LFS_POINTER, "a pointer of Git LFS; fetch what it stands for with git lfs pull"),
    "array": (json.dumps(files.RECORDS).encode(), "one JSON array; make each of its items a line"),
    "array, indented": (b"\n" + json.dumps(files.RECORDS, indent=2).encode(), "one JSON array"),
    "object, indented": (json.dumps({"data": files.RECORDS}, indent=2).encode(), "JSON over several lines"),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("pack", [bytes, gzip.compress, files.zstd], ids=["plain", "gz", "zst"])
def test_a_file_of_another_format_is_named_with_what_to_do(tmp_path: pathlib.Path, kind: str, pack: object) -> None:
    data, words = FOREIGN[kind]
    assert callable(pack)
    name = {bytes: "a.jsonl", gzip.compress: "a.jsonl.gz"}.get(pack, "a.jsonl.zst")  # type: ignore[call-overload]
    files.write(tmp_path / name, pack(data))
    with pytest.raises(DamagedInput) as caught:
        reading.read_all(JsonlSource("read", [str(tmp_path / name)]))
    assert f"{name}' holds no JSON Lines but {words}" in str(caught.value)
    assert "\n" not in str(caught.value)
    (last,) = reading.read_all(JsonlSource("read", [str(tmp_path / name)], damaged="quarantine"))
    assert (last[0], last[2].startswith(f"damaged file: no JSON Lines but {words}")) == ("quarantined", True)


#: Under which name what is found, and what is said of it.
MISNAMED: dict[str, tuple[str, bytes, str]] = {
    "json as gzip": ("a.jsonl.gz", files.lines(), "gzip stream but plain JSON; take .gz off its name"),
    "zstd as gzip": (
        "a.jsonl.gz",
        files.zstd(files.lines()),
        "gzip stream but a zstd stream; let its name end in .zst",
    ),
    "gzip as zstd": ("a.jsonl.zst", gzip.compress(files.lines()), "zstd stream but a gzip stream; let its name"),
    "page as gzip": ("a.warc.gz", b"<html>404</html>", "gzip stream but HTML or XML, such as the error page"),
    "pointer as gzip": ("a.jsonl.gz", files.LFS_POINTER, "gzip stream but a pointer of Git LFS; fetch what"),
    "pointer as Parquet": (
        "a.parquet",
        files.LFS_POINTER,
        "Parquet but a pointer of Git LFS; fetch what it stands for",
    ),
    "json as Parquet": ("a.parquet", files.lines(), "Parquet but plain JSON; take .parquet off its name"),
    "gzip as WARC": (
        "a.warc",
        gzip.compress(b"".join(files.warc())),
        "WARC but a gzip stream; let its name end",
    ),
    "window of 2 GiB": (
        "a.jsonl.zst",
        files.zstd_of_window(31, b'{"text":"a"}\n'),
        "zstd stream that can be read but one with a window above 128 MiB; declare the source with window_bytes_max=",
    ),
    "page as WARC": ("a.warc", b"<html>404</html>", "WARC but HTML or XML, such as the error page of a download"),
    "pointer in a WARC": ("a.warc.gz", gzip.compress(files.LFS_POINTER), "WARC but a pointer of Git LFS; fetch what"),
}


@pytest.mark.parametrize("kind", MISNAMED)
def test_what_another_format_is_called_is_said_with_what_to_do(
    place: tuple[pathlib.Path, Callable[[str], str]], kind: str
) -> None:
    folder, uri_of = place
    name, data, words = MISNAMED[kind]
    files.write(folder / name, data)
    with pytest.raises(DamagedInput) as caught:
        reading.read_all(MixedSource("read", [uri_of(name)]))
    assert f"{name}' holds no {words}" in str(caught.value)
    (last,) = reading.read_all(MixedSource("read", [uri_of(name)], damaged="quarantine"))
    assert (last[0], last[2].startswith(f"damaged file: no {words}")) == ("quarantined", True)


def test_a_file_whose_beginning_is_sound_is_damaged_and_not_misnamed(tmp_path: pathlib.Path) -> None:
    for name, data in {
        "a.jsonl.gz": gzip.compress(files.lines())[:-4] + bytes(4),
        "a.jsonl.zst": files.zstd(files.lines())[:-4],
        "a.parquet": files.parquet_of(tmp_path / "whole").read_bytes()[:-4],
        "a.warc": b"".join(files.warc()) + b"<html>",
    }.items():
        files.write(tmp_path / name, data)
        with pytest.raises(DamagedInput, match=f"{name}' is damaged: "):
            reading.read_all(MixedSource("read", [str(tmp_path / name)]))


@pytest.mark.parametrize("line", [b'["a list"]', b"[[1]]", b"{", b'{"text":', b"\xff", b"PK", b"{} {}"])
def test_a_first_line_that_is_no_record_is_quarantined_alone(tmp_path: pathlib.Path, line: bytes) -> None:
    files.write(tmp_path / "a.jsonl", line + b'\n{"text":"a"}\n')
    assert [fate[0] for fate in reading.read_all(JsonlSource("read", [str(tmp_path / "a.jsonl")]))] == [
        "quarantined",
        "kept",
    ]


def test_a_run_over_a_file_of_another_format_ends_with_one_line(tmp_path: pathlib.Path) -> None:
    files.parquet_of(tmp_path / "in" / "a.jsonl")
    files.write(tmp_path / "in" / "good.jsonl", files.lines())
    done = run(tmp_path, "in")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("plain: ")]
    assert "a.jsonl' holds no JSON Lines but Parquet; let its name end in .parquet" in line
    (tmp_path / "in" / "a.jsonl").rename(tmp_path / "in" / "a.parquet")
    assert "run again with --changed-input reread, or drop" in line
    assert balance(run(tmp_path, "in", "--changed-input", "drop"))["kept"] == 2 * len(files.RECORDS)


def test_a_line_with_the_tar_magic_in_place_is_a_line() -> None:
    line = b'{"text": "' + b"x" * 247 + b'ustar"}\n'
    assert line[257:262] == b"ustar"
    assert data_format(line) == ""
    assert data_format(files.tar("a", b"b")[:512]) == "a tar archive; unpack it"
