"""Parquet that lies, in its footer or its pages: a named error or right rows come, and memory is bounded."""

from __future__ import annotations

import itertools
import json
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.errors import DamagedInput, InputError
from headrace.stages.sources.tables.columns import ParquetSource
from headrace.store.columnar.child import FOOTER_MEMORY_BYTES
from headrace.store.columnar.gate import ColumnarGate, UnsoundColumns, footer_of
from tests.kits.inputs import lying_parquet as lies
from tests.kits.inputs.reading import WHOLE, read_all

ROWS = 4096
#: Numbers in a block, blocks in it, and numbers in all, as the encodings of differences have them, and no more.
DIFFERENCES = lies.varint(1 << 27) + lies.varint(4) + lies.varint(lies.INT_MAX) + bytes(42)


def resident_bytes(pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def small(path: Path, rows: int = 40, **options: Any) -> str:
    table = pa.table({"text": [f"text {at}" for at in range(rows)], "id": [str(at) for at in range(rows)]})
    pq.write_table(table, path, row_group_size=20, **options)
    return str(path)


@pytest.fixture
def gate() -> Iterator[ColumnarGate]:
    gate = ColumnarGate()
    yield gate
    gate.close()


def one(kind: int, encoding: int, data: bytes, **says: int) -> list[lies.Column]:
    codec = says.pop("codec", lies.STORED)
    return [lies.Column("text", lies.page(kind, 1, encoding, data, **says), codec=codec)]


LIES = {
    "a value of a fixed size, 4,096 times nothing": [
        lies.a_text(ROWS),
        lies.Column(
            "fixed",
            lies.page(lies.DATA_PAGE, ROWS, lies.PLAIN, lies.nothing(ROWS)),
            kind=lies.FIXED,
            type_length=1_400_000,
            repetition=lies.OPTIONAL,
            values=ROWS,
        ),
    ],
    "a page that unpacks": one(lies.DATA_PAGE, lies.PLAIN, bytes(20), unpacked=lies.INT_MAX, codec=lies.ZSTD),
    "a page that is stored": one(lies.DATA_PAGE, lies.PLAIN, bytes(20), unpacked=lies.INT_MAX, stored=lies.INT_MAX),
    "entries of a dictionary": [
        lies.Column(
            "text",
            lies.page(lies.DICTIONARY_PAGE, lies.INT_MAX, lies.PLAIN, lies.text(b"a"))
            + lies.page(lies.DATA_PAGE, 1, lies.DICTIONARY, b"\x01\x02\0"),
            with_dictionary=True,
        )
    ],
    "lengths as differences": one(lies.DATA_PAGE, lies.DELTA_LENGTH, DIFFERENCES),
    "beginnings as differences": one(lies.DATA_PAGE, lies.DELTA_BYTES, DIFFERENCES),
}


def test_a_file_written_by_hand_is_read_if_truthful(tmp_path: Path):
    source = ParquetSource("p", [lies.write(tmp_path / "a.parquet", [lies.a_text(100)], rows=100)])
    assert [fate[2] for fate in read_all(source)] == ["so"] * 100


@pytest.mark.parametrize("what", LIES)
def test_pages_of_two_hundred_bytes_do_not_take_gigabytes(tmp_path: Path, what: str):
    before = resident_bytes()
    rows = ROWS if len(LIES[what]) > 1 else 1
    source = ParquetSource("p", [lies.write(tmp_path / "lies.parquet", LIES[what], rows)])
    with pytest.raises(DamagedInput, match=r"lies\.parquet' is damaged: row group 0 cannot be read \(decoding it"):
        read_all(source)
    assert resident_bytes() - before < 64 << 20


def test_rows_that_unpack_beyond_memory_are_read_fewer(tmp_path: Path):
    """2,048 rows of one text of 2 MB, which the file has once: 4 GB."""
    text = b"t" * (2 << 20)
    pq.write_table(
        pa.table({"text": pa.array([text.decode()], pa.string()).dictionary_encode().take(pa.array([0] * 2048))}),
        tmp_path / "a.parquet",
        compression="zstd",
        data_page_size=64 << 20,
        dictionary_pagesize_limit=64 << 20,
    )
    before = resident_bytes()
    source = ParquetSource("p", [str(tmp_path / "a.parquet")], max_record_bytes=4 << 20)
    some: list[Batch] = []
    for batch in itertools.islice(source.read(next(iter(filter(None, source.list()))), WHOLE), 40):
        assert isinstance(batch, Batch)
        some.append(batch)
        assert set(batch.rows.column("text").to_pylist()) == {text.decode()}
        assert resident_bytes() - before < 1 << 30
        some = some[-1:]
    assert some[-1].first + some[-1].count >= 40


def test_a_file_of_seventy_bytes_does_not_take_gigabytes(tmp_path: Path):
    before = resident_bytes()
    path = lies.close(tmp_path / "lies.parquet", b"PAR1", lies.footer_of_columns(1_000_000))
    with pytest.raises(DamagedInput, match=r"Parquet footer cannot be read .*memory.*; it has \d\d bytes"):
        list(ParquetSource("p", [path]).list())
    assert resident_bytes() - before < 64 << 20


def spoilt(path: Path, whole: bytes, places: range, flip: int) -> tuple[int, list[list[Any]]]:
    """How often a file with one other byte was refused, and what was read otherwise."""
    # one source for all, as one of many files has one gate
    source, refused, found = ParquetSource("p", [str(path)]), 0, []
    for number, at in enumerate(places, 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
        try:
            found.append(read_all(source))
        except InputError as error:
            refused += "small.parquet" in str(error)
            assert refused + len(found) == number, error  # noqa: PT017 (either is right, and each is looked at)
    return refused, found


def test_values_of_dictionaries_are_values_however_deep(tmp_path: Path):
    words = pa.array(["x", "y", "x"]).dictionary_encode()
    ends: Any = pa.array([0, 1, 2, 3], pa.int32())
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3, 3], pa.int32()), words)
    maps = pa.MapArray.from_arrays(ends, pa.array(["a", "b", "c"]), words)
    structs = pa.StructArray.from_arrays([words], names=["word"])
    columns = {"text": words, "lists": lists, "maps": maps, "structs": structs}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    found = read_all(ParquetSource("p", [str(tmp_path / "a.parquet")]))
    assert [json.loads(fate[3]) for fate in found] == [
        {"lists": ["x"], "maps": [["a", "x"]], "structs": {"word": "x"}},
        {"lists": ["y", "x"], "maps": [["b", "y"]], "structs": {"word": "y"}},
        {"lists": [], "maps": [["c", "x"]], "structs": {"word": "x"}},
    ]


def test_a_byte_of_a_footer_may_be_another(tmp_path: Path):
    path = Path(small(tmp_path / "small.parquet", store_schema=False))
    whole, right = path.read_bytes(), read_all(ParquetSource("p", [str(path)]))
    first = len(whole) - 8 - struct.unpack("<I", whole[-8:-4])[0]
    before = resident_bytes()
    refused, found = spoilt(path, whole, range(first, len(whole), 3), 0xFF)
    assert refused > len(whole[first:]) // 6
    assert all(len(rows) <= len(right) for rows in found)
    assert resident_bytes() - before < 128 << 20


def nested(path: Path, **options: Any) -> str:
    columns = {
        "text": [f"text {at}" for at in range(12)],
        "lists": pa.array([[["a", None], ["b"]], None, []] * 4, pa.list_(pa.list_(pa.string()))),
        "maps": pa.array([[("k", {"x": "y"})], [], None] * 4, pa.map_(pa.string(), pa.struct([("x", pa.string())]))),
        "numbers": list(range(12)),
    }
    pq.write_table(pa.table(columns), path, store_schema=False, **options)
    return str(path)


KINDS: dict[str, dict[str, Any]] = {
    **{codec: {"compression": codec} for codec in ("none", "snappy", "gzip", "brotli", "zstd", "lz4")},
    "pages of version 2": {"data_page_version": "2.0"},
    **{
        encoding: {"use_dictionary": False, "column_encoding": {"text": encoding, "numbers": "DELTA_BINARY_PACKED"}}
        for encoding in ("PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY")
    },
    "split bytes": {"use_dictionary": False, "column_encoding": {"text": "PLAIN", "numbers": "BYTE_STREAM_SPLIT"}},
}


def spoil_each(path: Path, kind: str, step: int) -> None:
    whole, right = Path(nested(path, **KINDS[kind])).read_bytes(), read_all(ParquetSource("p", [str(path)]))
    before = resident_bytes()
    for flip in (0xFF, 0x01, 0x80):
        _, found = spoilt(path, whole, range(flip % step, len(whole), step), flip)
        assert all(len(rows) <= len(right) for rows in found)
    source = ParquetSource("p", [str(path)])
    for end in range(0, len(whole), step):
        path.write_bytes(whole[:end])
        with pytest.raises(DamagedInput, match=r"small\.parquet"):
            read_all(source)
    assert resident_bytes() - before < 128 << 20


@pytest.mark.parametrize("kind", ["zstd", "pages of version 2", "DELTA_BYTE_ARRAY"])
def test_any_byte_of_a_page_and_any_end_may_be_wrong(tmp_path: Path, kind: str):
    spoil_each(tmp_path / "small.parquet", kind, 293)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_byte_of_a_page_and_any_end_may_be_wrong(tmp_path: Path, kind: str):
    spoil_each(tmp_path / "small.parquet", kind, 1)


def test_a_page_whose_checksum_is_another_is_damage(tmp_path: Path):
    path = Path(small(tmp_path / "small.parquet", compression="none", write_page_checksum=True))
    whole = path.read_bytes()
    at = whole.index(b"text 7")
    path.write_bytes(whole[:at] + b"test 7" + whole[at + 6 :])
    with pytest.raises(DamagedInput, match=r"row group 0 cannot be read .*CRC"):
        read_all(ParquetSource("p", [str(path)]))


def test_a_footer_that_kills_is_an_error_and_others_follow(tmp_path: Path, gate: ColumnarGate):
    with open(small(tmp_path / "small.parquet"), "rb") as file:
        footer = footer_of(file)
        gate.open(file, footer)
        os.kill(gate.pid, signal.SIGSEGV)
        # it served another file before it ended, so that is no answer to this one
        assert sum(rows.num_rows for rows in gate.rows(0, 7)) == 20


def test_what_kills_each_process_that_tries_it_is_an_error(tmp_path: Path, gate: ColumnarGate):
    path = Path(small(tmp_path / "small.parquet"))

    class Killing:
        def seek(self, offset: int, whence: int = 0) -> int:
            return path.stat().st_size

        def read(self, size: int) -> bytes:
            os.kill(gate.pid, signal.SIGSEGV)
            return bytes(size)

    with path.open("rb") as file:
        gate.open(Killing(), footer_of(file))
    with pytest.raises(UnsoundColumns, match=r"ended the process .* with SIGSEGV"):
        list(gate.rows(0, 7))


def test_what_a_disk_says_is_no_fault_of_the_file(tmp_path: Path, gate: ColumnarGate):
    path = Path(small(tmp_path / "small.parquet"))

    class Failing:
        def seek(self, offset: int, whence: int = 0) -> int:
            return path.stat().st_size

        def read(self, size: int) -> bytes:
            raise OSError(5, "Input/output error")

    with path.open("rb") as file:
        footer = footer_of(file)
        gate.open(Failing(), footer)
        with pytest.raises(OSError, match="Input/output"):
            list(gate.rows(0, 7))
        gate.open(file, footer)
        assert sum(rows.num_rows for rows in gate.rows(1, 7)) == 20


def test_a_footer_that_says_it_is_larger_than_its_file_is_refused(tmp_path: Path):
    path = tmp_path / "short.parquet"
    path.write_bytes(b"PAR1" + bytes(40) + struct.pack("<I", 1 << 20) + b"PAR1")
    with pytest.raises(DamagedInput, match="says it has 1048576 bytes, of 52"):
        list(ParquetSource("p", [str(path)]).list())


def test_a_child_ends_with_its_source(tmp_path: Path):
    source = ParquetSource("p", [small(tmp_path / "small.parquet")])
    assert len(list(source.list())) == 1
    child = source._gates[0]._living()
    del source
    assert child.wait(timeout=300) is not None


def test_files_are_read_beside_one_another(tmp_path: Path):
    source = ParquetSource("p", [small(tmp_path / "a.parquet"), small(tmp_path / "b.parquet")], batch_records=7)
    a, b = [fragment for fragment in source.list() if fragment is not None]
    pairs = list(zip(source.read(a, WHOLE), source.read(b, WHOLE), strict=True))
    assert [batch.count for pair in pairs for batch in pair] == [7, 7, 7, 7, 6, 6, 7, 7, 7, 7, 6, 6, 40, 40]


@pytest.mark.parametrize("columns", [1, 1000])
def test_memory_that_a_sound_footer_takes_is_within_its_bound(tmp_path: Path, columns: int, gate: ColumnarGate):
    table = pa.table({f"column {at}": pa.array([at] * 8) for at in range(columns)} | {"text": ["a"] * 8})
    pq.write_table(table, tmp_path / "wide.parquet", row_group_size=2)
    with (tmp_path / "wide.parquet").open("rb") as file:
        gate.open(file, footer_of(file))
        assert resident_bytes(gate.pid) < FOOTER_MEMORY_BYTES * 2


def test_a_child_starts_without_numpy(tmp_path: Path, gate: ColumnarGate):
    with open(small(tmp_path / "small.parquet"), "rb") as file:
        gate.open(file, footer_of(file))
        assert [rows.num_rows for rows in gate.rows(0, 7)] == [7, 7, 6]
    assert "libparquet" in (maps := Path(f"/proc/{gate.pid}/maps").read_text())
    assert "numpy" not in maps


def test_a_row_group_that_is_named_a_thousand_times_is_refused(tmp_path: Path):
    data = lies.page(lies.DATA_PAGE, 1, lies.PLAIN, lies.text(b"x" * 1000))
    path = lies.write(tmp_path / "a.parquet", [lies.Column("text", data)], groups=1000)
    with pytest.raises(DamagedInput, match=r"its row groups come to more than its \d+ bytes"):
        list(ParquetSource("read", [path]).list())


def test_more_rows_than_so_few_bytes_hold_are_refused(tmp_path: Path):
    rows = (1 << 31) - 1
    path = lies.write(tmp_path / "a.parquet", [lies.a_text(rows)], rows=rows)
    with pytest.raises(DamagedInput, match=r"says it holds 2,147,483,647 rows in \d+ bytes"):
        list(ParquetSource("read", [path]).list())
    ((verdict, _, why, _),) = read_all(ParquetSource("read", [path], damaged="quarantine"))
    assert verdict == "quarantined"
    assert "2,147,483,647 rows" in why


def test_texts_that_unfold_without_end_are_refused(tmp_path: Path):
    """A value of a megabyte that stands once in its file, and in each of four thousand rows: 4 GiB."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 4000, pa.int16()), pa.array(["x" * (1 << 20)]))
    pq.write_table(pa.table({"text": text}), tmp_path / "a.parquet", compression="zstd")
    source = ParquetSource("read", [str(tmp_path / "a.parquet")])
    (fragment,) = source.list()
    records, found = 0, source.read(fragment, WHOLE)
    with pytest.raises(DamagedInput, match=r"unfold to more than 2,048 times as many"):  # noqa: PT012 (what comes first)
        for batch in found:
            records += batch.count
    assert 0 < records <= 1200
