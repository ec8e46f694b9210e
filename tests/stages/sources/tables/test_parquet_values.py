"""Columns of Parquet beside the text: a value becomes the same JSON whatever stands beside it."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace.stages.runtime.errors import InputError
from headrace.stages.sources.mixed import MixedSource
from headrace.stages.sources.tables.parquet_values import values_of
from tests.kits.inputs import files, reading

TIMES = (
    *(pa.timestamp(unit, tz=zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Europe/Berlin")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
)
LONG = st.integers(-(1 << 62), 1 << 62) | st.integers(-(10**12), 10**12) | st.none()


def metadata_of(folder: pathlib.Path, column: pa.Array[Any]) -> list[Any]:
    files.write_parquet(folder / "a.parquet", {"text": ["t"] * len(column), "at": column})
    found = reading.read_all(MixedSource("read", [str(folder)]))
    assert {fate[0] for fate in found} == {"kept"}
    return [json.loads(fate[3])["at"] for fate in found]


@given(kind=st.sampled_from(TIMES), counts=st.lists(LONG, min_size=1, max_size=5))
def test_a_time_is_pythons_or_else_text(kind: pa.DataType, counts: list[Any]) -> None:
    column: pa.Array[Any] = pa.array(counts, pa.int64()).cast(kind)
    values = values_of(column)
    # Alone as among others, in a list and in an object as by itself.
    assert [values_of(column.slice(index, 1))[0] for index in range(len(column))] == values
    assert values_of(pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column)) == [values]
    nulls = pa.array([count is None for count in counts])
    within = pa.StructArray.from_arrays([column], ["at"], mask=nulls)
    assert values_of(within) == [
        None if count is None else {"at": value} for count, value in zip(counts, values, strict=True)
    ]
    try:
        expected = column.to_pylist()
    except (ValueError, OverflowError):
        return
    assert values == expected


@pytest.mark.parametrize(
    ("kind", "count", "said"),
    [
        (pa.timestamp("ns"), 1_600_000_000_123_456_789, "2020-09-13T12:26:40.123456789"),
        (pa.timestamp("ns"), 1_600_000_000_123_456_000, "2020-09-13T12:26:40.123456"),
        (pa.timestamp("ns", "Europe/Berlin"), 1, "1970-01-01T01:00:00.000000001+01:00"),
        (pa.timestamp("ns"), -1, "1969-12-31T23:59:59.999999999"),
        (pa.timestamp("us"), 1 << 62, "<value out of range: 4611686018427387904>"),
        (pa.timestamp("us", "Mars/Phobos"), 5, "5"),
        (pa.duration("ns"), 1_500, "0:00:00.000001500"),
        (pa.duration("ns"), 2_000_000_000, "0:00:02"),
        (pa.time64("ns"), 1, "00:00:00.000000001"),
        (pa.date32(), 18_000, "2019-04-14"),
        (pa.date32(), 1 << 30, "<value out of range: 1073741824>"),
    ],
    ids=str,
)
def test_a_time_that_python_has_no_room_for_ends_no_run(
    tmp_path: pathlib.Path, kind: pa.DataType, count: int, said: str
) -> None:
    whole = pa.int32() if pa.types.is_date(kind) else pa.int64()
    column: pa.Array[Any] = pa.array([0, count, None], whole).cast(kind)
    _, found, nothing = metadata_of(tmp_path, column)
    assert (found, nothing) == (said, None)


def test_an_id_is_kept_whatever_the_others_are(tmp_path: pathlib.Path) -> None:
    ids = pa.array([b"a", b"\xff", None, b"d", b""], pa.binary())
    files.write_parquet(tmp_path / "a.parquet", {"text": ["t"] * 5, "id": ids})
    files.write_parquet(tmp_path / "b.parquet", {"text": ["t"] * 3, "id": ["e", "", None]})
    files.write(tmp_path / "c.jsonl", b'{"text":"t","id":""}\n{"text":"t","id":"g"}\n{"text":"t","id":0}\n')
    of_b = ["e", f"file://{tmp_path}/b.parquet#1", f"file://{tmp_path}/b.parquet#2"]
    of_c = [f"file://{tmp_path}/c.jsonl#0", "g", "0"]
    uri = f"file://{tmp_path}/a.parquet"
    for batch_records in (1, 4):
        reader = MixedSource("read", [str(tmp_path)], batch_records=batch_records)
        of_a = ["a", f"{uri}#1", f"{uri}#2", "d", f"{uri}#4"]
        assert [fate[1] for fate in reading.read_all(reader)] == of_a + of_b + of_c


@pytest.mark.parametrize("kind", [pa.null(), pa.binary_view(), pa.dictionary(pa.int8(), pa.large_string())], ids=str)
def test_a_column_of_nothing_but_nulls_is_quarantined_row_by_row(tmp_path: pathlib.Path, kind: pa.DataType) -> None:
    files.write_parquet(tmp_path / "a.parquet", {"text": pa.nulls(3, kind), "n": [1, 2, 3]})
    found = reading.read_all(MixedSource("read", [str(tmp_path)]))
    assert [fate[2] for fate in found] == ['text is not a string: column "text" is null'] * 3


def test_nested_text_is_read_by_path_and_its_neighbours_kept(tmp_path: pathlib.Path) -> None:
    docs = [
        {"url": "u0", "body": {"text": "a é", "lang": "fr"}, "n": 0},
        {"url": "u1", "body": None, "n": 1},
        None,
        {"url": "u3", "body": {"text": None, "lang": "de"}, "n": 3},
        {"url": "u4", "body": {"text": "", "lang": None}, "n": 4},
    ] * 7
    table = pa.table({"doc": docs, "id": [f"r{n}" for n in range(35)], "bare": [{"text": "t"}] * 35})
    files.write_parquet(tmp_path / "a.parquet", table, group=10)
    source = MixedSource("read", [str(tmp_path)], text_key="doc.body.text", batch_records=4)
    found = reading.read_all(source)
    rest = {"url": "u0", "body": {"lang": "fr"}, "n": 0}
    assert found[5][:3] == ("kept", "r5", "a é")
    assert orjson.loads(str(found[5][3])) == {"doc": rest, "bare": {"text": "t"}}
    assert [fate[0] for fate in found[:5]] == ["kept", "quarantined", "quarantined", "quarantined", "kept"]
    assert found[3][2] == 'text is not a string: column "doc.body.text" is null'
    reading.check_gaps(source, rounds=4)
    alone = reading.read_all(MixedSource("read", [str(tmp_path)], text_key="bare.text"))
    assert [fate[2] for fate in alone] == ["t"] * 35
    assert set(orjson.loads(str(alone[0][3]))) == {"doc"}, "a column that holds nothing else is not kept"


@pytest.mark.parametrize("key", ["doc.words", "doc.text.more", "other.text", "doc."])
def test_a_path_that_leads_nowhere_is_refused_with_how_to_write_one(tmp_path: pathlib.Path, key: str) -> None:
    files.write_parquet(tmp_path / "a.parquet", {"doc": [{"text": "a"}]})
    with pytest.raises(InputError, match=r'no column "doc.*it has: doc; .* as "column.field"|no column "other'):
        list(MixedSource("read", [str(tmp_path)], text_key=key).list())


def test_text_within_a_column_may_be_named_without_knowing_how(tmp_path: pathlib.Path) -> None:
    files.write_parquet(tmp_path / "a.parquet", {"doc": [{"text": "a"}]})
    with pytest.raises(InputError, match=r'as "column.field" where it lies within another'):
        list(MixedSource("read", [str(tmp_path)]).list())
