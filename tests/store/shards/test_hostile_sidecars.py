"""Sidecars and files of keys whose footer or values lie: an error names the file, and memory is bounded."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.store.contract.errors import FormatError
from headrace.store.contract.objects import ObjectStore
from headrace.store.open import open_store
from headrace.store.shards.dedup_files import decode_keys, encode_keys
from headrace.store.shards.sidecars import column_names, decode_table, read_row_groups, read_table, table_to_parquet
from tests.kits.inputs import lying_parquet as lies


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


READERS: dict[str, Callable[[ObjectStore], object]] = {
    "whole": lambda store: read_table(store, "lies.parquet"),
    "by row groups": lambda store: list(read_row_groups(store, "lies.parquet", ["id"])),
    "names": lambda store: column_names(store, "lies.parquet"),
    "keys": lambda store: decode_keys(bytes(store.get("lies.parquet")), "", "lies.parquet"),
}


@pytest.mark.parametrize("how", READERS)
def test_a_lying_footer_is_a_fault_of_the_named_file(tmp_path: Path, how: str):
    lies.close(tmp_path / "lies.parquet", b"PAR1", lies.footer_of_columns(1_000_000))
    store, before = open_store(tmp_path.as_uri()), resident_bytes()
    with pytest.raises(FormatError, match=r"lies\.parquet.*memory.*restore it"):
        READERS[how](store)
    assert resident_bytes() - before < 64 << 20


def test_a_sound_one_is_read(tmp_path: Path):
    (tmp_path / "rows.parquet").write_bytes(table_to_parquet(pa.table({"id": ["a", "b"]})))
    store = open_store(tmp_path.as_uri())
    assert read_table(store, "rows.parquet").to_pylist() == [{"id": "a"}, {"id": "b"}]
    assert column_names(store, "rows.parquet") == ["id"]
    decode_keys(encode_keys((), ""), "", "nothing")


NAME = "0f" * 16
RECORD = {"id": ["a"], "source": ["file:///a"], "fragment": [NAME], "row": [7], "part": pa.array([None], pa.int32())}
#: What a table of records may not hold, and what is said of it.
LIES: dict[str, tuple[dict[str, Any], str]] = {
    "a fragment that is no name": ({"fragment": ["zz" * 16]}, "'fragment' holds 'zz"),
    "half a fragment": ({"fragment": ["000"]}, "'fragment' holds '000'"),
    "no fragment": ({"fragment": pa.array([None], pa.string())}, "'fragment' has no value in 1 of its rows"),
    "a negative row": ({"row": [-1]}, "'row' holds -1 to -1"),
    "a row beyond all": ({"row": [(1 << 63) - 1]}, "'row' holds 9223372036854775807"),
    "no row": ({"row": pa.array([None], pa.int64())}, "'row' has no value in 1 of its rows"),
    "a row that is text": ({"row": ["7"]}, "'row' is of string, and should be of int64"),
    "an id that is a number": ({"id": [5]}, "'id' is of int64, and should be of string"),
    "text that is bytes": ({"text": [b"a"]}, "'text' is of binary, and should be of string"),
}


@pytest.mark.parametrize("lie", LIES)
def test_values_that_no_sink_writes_are_faults_of_the_file(tmp_path: Path, lie: str):
    store, (column, said) = open_store(tmp_path.as_uri()), LIES[lie]
    pq.write_table(pa.table({**RECORD, **column}), tmp_path / "rows.parquet")
    data = (tmp_path / "rows.parquet").read_bytes()
    names = [*RECORD, *column]
    readers: list[Callable[[], object]] = [
        lambda: read_table(store, "rows.parquet"),
        lambda: list(read_row_groups(store, "rows.parquet", names)),
        lambda: decode_table(data, names, "rows.parquet"),
    ]
    for read in readers:
        with pytest.raises(FormatError, match=rf"rows\.parquet.*{re.escape(said)}.*restore it"):
            read()


def test_a_column_that_was_always_there_is_missed(tmp_path: Path):
    (tmp_path / "rows.parquet").write_bytes(table_to_parquet(pa.table({"id": ["a"]})))
    with pytest.raises(FormatError, match="no column 'fragment'"):
        read_table(open_store(tmp_path.as_uri()), "rows.parquet", ["id", "fragment"])


#: What a file of some kilobytes may unfold to, and how it says so.
BOMBS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a text of many rows": (lambda path: repeated(path, 5000), "unfold to more than"),
    "a page that unpacks to gigabytes": (
        lambda path: lies.write(path, [lies.Column("id", unpacking(), codec=lies.ZSTD)]),
        "memory",
    ),
    "a dictionary that counts gigabytes": (
        lambda path: lies.write(
            path,
            [lies.Column("id", lies.page(lies.DICTIONARY_PAGE, lies.INT_MAX, lies.PLAIN, b""), with_dictionary=True)],
        ),
        "",
    ),
}


def repeated(path: Path, rows: int) -> None:
    table = pa.table({"id": ["x" * (1 << 16)] * rows, "row": range(rows)})
    pq.write_table(table, path, compression="zstd", store_schema=False)


def unpacking() -> bytes:
    return lies.page(lies.DATA_PAGE, 1, lies.PLAIN, bytes(20), unpacked=lies.INT_MAX)


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("how", READERS)
def test_a_small_file_takes_no_gigabytes(tmp_path: Path, how: str, bomb: str):
    make, said = BOMBS[bomb]
    make(tmp_path / "lies.parquet")
    store = open_store(tmp_path.as_uri())
    if how == "names":
        assert "id" in column_names(store, "lies.parquet")
        return
    if how == "keys":
        said = ""  # it has no keys, which is looked at first
    bound = 1 << 30
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes() + bound, limits[1]))
    try:
        with pytest.raises(FormatError, match=rf"lies\.parquet.*{said}.*restore it"):
            READERS[how](store)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")


def test_bytes_that_changed_are_faults_and_end_no_process(tmp_path: Path):
    names, random = [*RECORD], Random(7)
    rows = {name: list(column) * 300 for name, column in RECORD.items()}
    sound = table_to_parquet(pa.table({**rows, "part": pa.array([None] * 300, pa.int32())}))
    seen = set[str]()
    for _ in range(150):
        data = bytearray(sound)
        for _ in range(random.randrange(1, 4)):
            data[random.randrange(len(data))] = random.choice((0, 127, 255, random.randrange(256)))
        try:
            decode_table(bytes(data), names, "rows.parquet")
            seen.add("read")
        except FormatError:
            seen.add("refused")
    assert seen == {"read", "refused"}
