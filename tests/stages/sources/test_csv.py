"""CSV and TSV: rows as Python's own reader finds them, each counted once, and what is no row quarantined alone."""

from __future__ import annotations

import csv
import gzip
import io
import json
import pathlib
import random

import pytest

from headrace.stages.runtime.errors import DamagedInput, InputError
from headrace.stages.sources.csv_rows import CsvSource
from headrace.stages.sources.mixed import MixedSource
from tests.kits.inputs import files, reading


def source_of(path: pathlib.Path, **options: object) -> CsvSource:
    return CsvSource("read", [str(path)], **options)


def read(tmp_path: pathlib.Path, data: bytes, name: str = "a.csv", **options: object) -> list[tuple[object, ...]]:
    return reading.read_all(source_of(files.write(tmp_path / name, data), **options))


def table(count: int, seed: int, delimiter: str = ",") -> tuple[list[list[str]], bytes]:
    chance = random.Random(seed)
    pieces = ["a", '"', "\n", delimiter, " ", "é", "line\nand", '""', "x" * 30, ""]
    rows = [[str(place), "".join(chance.choices(pieces, k=chance.randrange(9))), "u"] for place in range(count)]
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, lineterminator=chance.choice(["\n", "\r\n"])).writerows(
        [["id", "text", "url"], *rows]
    )
    return rows, out.getvalue().encode()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.tsv", "\t"), ("a.csv.gz", ",")])
def test_rows_are_those_that_were_written(tmp_path: pathlib.Path, seed: int, name: str, delimiter: str) -> None:
    rows, data = table(80, seed, delimiter)
    packed = gzip.compress(data) if name.endswith(".gz") else data
    found = read(tmp_path, packed, name, batch_bytes=50 + 40 * seed, batch_records=7)
    assert [(fate[1], fate[2], json.loads(str(fate[3]))) for fate in found] == [
        (identity, text, {"url": url}) for identity, text, url in rows
    ]
    reading.check_gaps(source_of(tmp_path / name, batch_bytes=90), seed, rounds=4)


def test_bad_rows_are_quarantined_alone(tmp_path: pathlib.Path) -> None:
    data = b'\xef\xbb\xbfid,text\n1,one\n2\n3,a,b\n4,\xff\n\n5,"two ""quoted"""\n6,5" pipe\n7,"open\n8,eight\n9,nine'
    found = read(tmp_path, data)
    assert [(fate[0], fate[2]) for fate in found] == [
        ("kept", "one"),
        ("quarantined", "malformed row: it has 1 fields, where the first row names 2"),
        ("quarantined", "malformed row: it has 3 fields, where the first row names 2"),
        ("quarantined", "invalid UTF-8: byte 0xff at byte 2 of the row"),
        ("kept", 'two "quoted"'),
        ("kept", '5" pipe'),
        ("quarantined", "malformed row: a quote is opened, and never closed"),
        ("kept", "eight"),
        ("kept", "nine"),
    ]


def test_rows_of_empty_fields_are_records(tmp_path: pathlib.Path) -> None:
    assert [fate[0] for fate in read(tmp_path, b"text\tb\n\t\n\n \t\n", "a.tsv")] == ["kept", "kept"]


def test_a_quote_without_an_end_takes_one_line(tmp_path: pathlib.Path) -> None:
    data = b"text,b\n" + b'"open,1\n' + b"fine,1\n" * 200
    found = read(tmp_path, data, max_record_bytes=500, batch_bytes=100)
    assert [fate[0] for fate in found] == ["quarantined"] + ["kept"] * 200
    reading.check_gaps(source_of(tmp_path / "a.csv", max_record_bytes=500, batch_bytes=100), rounds=5)


def test_quotes_that_close_one_another_wrongly_take_no_longer(tmp_path: pathlib.Path) -> None:
    data = b"text,b\n" + b"fine,1\n" * 5 + b'"open,1\n' + b'5","a\n' * 400 + b"x,y\n" * 300 + b'"fine",1\n'
    found = read(tmp_path, data, max_record_bytes=200, batch_bytes=100)
    assert [fate[0] for fate in found[:5]] == ["kept"] * 5
    assert "line too long" in " ".join(str(fate[2]) for fate in found)
    assert found[-1][2] == "fine"
    reading.check_gaps(source_of(tmp_path / "a.csv", max_record_bytes=200, batch_bytes=100), rounds=5)


def test_a_row_above_the_limit_is_quarantined_with_its_beginning(tmp_path: pathlib.Path) -> None:
    data = b"text,b\n" + b"x" * 5000 + b',1\n"' + b"y\n" * 3000 + b'",2\nfine,3\n'
    found = read(tmp_path, data, max_record_bytes=2000, batch_bytes=300)
    assert found[0][2] == "line too long: 5002 bytes at byte 7 of the file, the limit is 2000"
    assert found[-1][:3] == ("kept", found[-1][1], "fine")


def test_a_row_above_the_limit_is_the_same_in_any_blocks(tmp_path: pathlib.Path) -> None:
    data = b'text,b\n"open1"\nf\n"open' + b"\n" + b" " * 83 + b"\nfine,2\n"
    whole = read(tmp_path, data, max_record_bytes=60)
    for step in range(1, 60):
        assert read(tmp_path, data, max_record_bytes=60, batch_bytes=step) == whole, step


@pytest.mark.parametrize(
    ("data", "error", "why"),
    [
        (b"a,b\n1,2\n", InputError, "has no column \"text\"; its first row names: 'a', 'b'; name it with text_key="),
        (b"text,a,a\n", InputError, "has 2 columns 'a'"),
        (b"text,\xff\n", InputError, "its header, the first row, cannot be read: invalid UTF-8"),
        (b'text,"a\nb\n', InputError, "its header, the first row, cannot be read: malformed row: a quote"),
        (b"text" + b",x" * 700_000, InputError, "its header, the first row, has more than 1 MiB"),
        (b"text" + b"".join(b",%d" % place for place in range(5000)), InputError, "the limit is 4096"),
        (b"\x1f\x8b" + bytes(600), DamagedInput, "holds no CSV but a gzip stream"),
        (b"\xff\xfet\0e\0x\0t\0", DamagedInput, "UTF-16"),
        (b'[{"text": "a"}]', DamagedInput, "one JSON array"),
    ],
)
def test_a_file_without_a_header_is_refused(tmp_path: pathlib.Path, data: bytes, error: type, why: str) -> None:
    with pytest.raises(error, match=why):
        read(tmp_path, data)


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b"text\n", b"text,b"])
def test_a_file_without_rows_has_no_records(tmp_path: pathlib.Path, data: bytes) -> None:
    assert read(tmp_path, data) == []


def test_a_folder_stands_for_csv_where_nothing_else_is_read(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "a.csv", b"text\none\n")
    files.write(tmp_path / "b.jsonl", b'{"text": "two"}\n')
    assert [fate[2] for fate in reading.read_all(CsvSource("read", [str(tmp_path)]))] == ["one"]
    assert [fate[2] for fate in reading.read_all(MixedSource("read", [str(tmp_path)]))] == ["two"]
    assert [fate[2] for fate in reading.read_all(MixedSource("read", [f"{tmp_path}/*"]))] == ["one", "two"]
