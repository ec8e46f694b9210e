"""Footers of Parquet files that lie: a named error or a right answer comes, the process lives, memory is bounded."""

import os
import signal
import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reading_kit import read_all

from headrace.stages import footer_child
from headrace.stages.errors import DamagedInput, InputError
from headrace.stages.footers import FooterGate, footer_of
from headrace.stages.parquet import ParquetSource


def varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


def footer_that_lies(columns: int) -> bytes:
    """A footer whose only row group says that it has so many columns, and ends before the first."""
    schema = bytes([0x19, 0x1C, 0x48]) + varint(6) + b"schema" + b"\x15\x00\x00"
    group = bytes([0x19, 0x1C, 0x19, 0xFC]) + varint(columns)
    return b"\x15\x02" + schema + b"\x16\x00" + group + bytes(40)


def parquet(path: Path, footer: bytes) -> str:
    path.write_bytes(b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1")
    return str(path)


def resident_bytes(pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def small(path: Path, rows: int = 40) -> str:
    table = pa.table({"text": [f"text {at}" for at in range(rows)], "id": [str(at) for at in range(rows)]})
    pq.write_table(table, path, row_group_size=20)
    return str(path)


def test_a_file_of_seventy_bytes_does_not_take_gigabytes(tmp_path: Path):
    before = resident_bytes()
    source = ParquetSource("p", [parquet(tmp_path / "lies.parquet", footer_that_lies(1_000_000))])
    with pytest.raises(DamagedInput, match=r"Parquet footer cannot be read .*(bad_alloc|memory).*; it has 64 bytes"):
        list(source.list())
    assert resident_bytes() - before < 64 << 20


def test_each_byte_of_a_footer_may_be_another(tmp_path: Path):
    path = Path(small(tmp_path / "small.parquet"))
    whole = path.read_bytes()
    first = len(whole) - 8 - struct.unpack("<I", whole[-8:-4])[0]
    right = read_all(ParquetSource("p", [str(path)]))
    # one gate for all, as a source of many files has
    source = ParquetSource("p", [str(path)])
    before, refused = resident_bytes(), 0
    for at in range(first, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            found = read_all(source)
        except InputError:
            refused += 1
        else:
            assert len(found) <= len(right)
    assert refused > len(whole[first:]) // 2
    assert resident_bytes() - before < 128 << 20


def test_a_footer_that_kills_is_an_error_and_the_next_one_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with open(small(tmp_path / "small.parquet"), "rb") as file:
        footer = footer_of(file, "small.parquet")
    gate = FooterGate()
    child = gate._living()
    os.kill(child.pid, signal.SIGSEGV)
    child.wait()
    with pytest.raises(DamagedInput, match="ended the process that was to try it"):
        gate.check(footer, "small.parquet")
    gate.check(footer, "small.parquet")
    gate.close()


def test_a_footer_that_says_it_is_larger_than_its_file_is_refused(tmp_path: Path):
    path = tmp_path / "short.parquet"
    path.write_bytes(b"PAR1" + bytes(40) + struct.pack("<I", 1 << 20) + b"PAR1")
    with pytest.raises(DamagedInput, match="says it has 1048576 bytes, of 52"):
        list(ParquetSource("p", [str(path)]).list())


def test_a_child_ends_with_its_source(tmp_path: Path):
    source = ParquetSource("p", [small(tmp_path / "small.parquet")])
    assert len(list(source.list())) == 1
    child = source._gate._living()
    del source
    assert child.wait(timeout=10) is not None


@pytest.mark.parametrize("columns", [1, 1000])
def test_memory_that_a_sound_footer_takes_is_within_its_bound(tmp_path: Path, columns: int):
    table = pa.table({f"column {at}": pa.array([at] * 8) for at in range(columns)} | {"text": ["a"] * 8})
    pq.write_table(table, tmp_path / "wide.parquet", row_group_size=2)
    with (tmp_path / "wide.parquet").open("rb") as file:
        footer = footer_of(file, "wide.parquet")
    gate = FooterGate()
    gate.check(footer, "wide.parquet")
    assert resident_bytes(gate._living().pid) < footer_child.FOOTER_MEMORY_BYTES * 2
    gate.close()
