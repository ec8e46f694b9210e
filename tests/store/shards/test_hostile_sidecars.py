"""Sidecars and files of keys whose footer or values lie: an error names the file, and memory is bounded."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.store.contract.errors import FormatError
from headrace.store.contract.objects import ObjectStore
from headrace.store.open import open_store
from headrace.store.shards.key_files import decode_keys, encode_keys
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
