"""Nested keys and folders `k=v/`, alike in all formats."""

from __future__ import annotations

import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.stages.sources.mixed import MixedSource
from headrace.stages.sources.objects.patterns import partition_of
from tests.kits.inputs import files, reading

RECORD = {"doc": {"text": "one", "key": {"id": "a"}}, "n": 1}


@pytest.fixture
def place(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "lang=de" / "day=2026%2D11"
    files.write(folder / "a.jsonl", json.dumps(RECORD).encode() + b"\n")
    pq.write_table(pa.Table.from_pylist([RECORD]), folder / "b.parquet")
    return tmp_path


def read(place: pathlib.Path, **options: object) -> list[tuple[str, str, dict[str, object]]]:
    found = reading.read_all(MixedSource("read", [str(place)], **options))
    assert [fate[0] for fate in found] == ["kept"] * len(found)
    return [(identity, text, json.loads(metadata or "{}")) for _, identity, text, metadata in found]


def test_text_and_id_lie_within_objects_and_columns_alike(place: pathlib.Path) -> None:
    fields = {"lang": "de", "day": "2026-11", "n": 1}
    assert read(place, text_key="doc.text", id_key="doc.key.id") == [("a", "one", fields)] * 2


def test_what_stands_beside_them_stays(place: pathlib.Path) -> None:
    left = {"doc": {"key": {"id": "a"}}, "n": 1, "lang": "de", "day": "2026-11"}
    assert [metadata for *_, metadata in read(place, text_key="doc.text")] == [left] * 2


def test_a_field_of_that_very_name_goes_first(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "a.jsonl", b'{"a.b": "outer", "a": {"b": "inner"}, "id": 7}\n')
    assert read(tmp_path, text_key="a.b") == [("7", "outer", {"a": {"b": "inner"}})]


@pytest.mark.parametrize("line", [b'{"a": 5}', b'{"a": {"b": 5}}', b'{"a": [{"b": "x"}]}', b'{"a": null}'])
def test_what_leads_to_no_text_is_quarantined_whole(tmp_path: pathlib.Path, line: bytes) -> None:
    files.write(tmp_path / "a.jsonl", line + b"\n")
    (fate,) = reading.read_all(MixedSource("read", [str(tmp_path)], text_key="a.b"))
    assert (fate[0], fate[3]) == ("quarantined", line)


def test_a_long_number_within_an_object_is_an_id(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "a.jsonl", b'{"text": "x", "m": {"id": 123456789012345678901234567890}}\n')
    assert read(tmp_path, id_key="m.id")[0][0] == "123456789012345678901234567890"


def test_the_records_own_field_hides_that_of_the_folder(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "n=2" / "a.jsonl", b'{"text": "x", "n": 1}\n{"text": "y"}\n')
    assert [metadata for *_, metadata in read(tmp_path)] == [{"n": 1}, {"n": "2"}]


def test_only_folders_are_partitions() -> None:
    assert partition_of("s3://bucket/a=1/b=__HIVE_DEFAULT_PARTITION__/c=x%2Fy/=z/9=q/d=4.jsonl") == {
        "a": "1",
        "c": "x/y",
    }
    assert partition_of("file:///data/k%3Dv/a.jsonl") == {"k": "v"}


def test_rows_without_other_columns_have_the_folders_fields(tmp_path: pathlib.Path) -> None:
    (tmp_path / "k=v").mkdir()
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "k=v" / "a.parquet")
    files.write(tmp_path / "k=v" / "b.txt", b"plain")
    assert [metadata["k"] for *_, metadata in read(tmp_path)] == ["v"] * 3
