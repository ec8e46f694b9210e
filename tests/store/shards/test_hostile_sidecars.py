"""Sidecars and files of keys whose footer lies: an error names the file, and memory is bounded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.store.contract.errors import FormatError
from headrace.store.contract.objects import ObjectStore
from headrace.store.open import open_store
from headrace.store.shards.key_files import decode_keys, encode_keys
from headrace.store.shards.sidecars import column_names, read_row_groups, read_table, table_to_parquet
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
