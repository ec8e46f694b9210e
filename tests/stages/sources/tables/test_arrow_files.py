"""ORC and Arrow IPC: the same records as the same rows in Parquet, and what lies or is cut off is said."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import struct
from collections.abc import Sequence
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyarrow import feather, orc, parquet

from headrace.stages.runtime.errors import InputError
from headrace.stages.sources.mixed import MixedSource
from headrace.stages.sources.tables.columns import COLUMNS_MAX, ArrowSource, ColumnSource, OrcSource, ParquetSource
from headrace.store.columnar import child, layout
from headrace.store.columnar.gate import SIDECAR_NICE, ColumnarGate, open_columns
from tests.kits.inputs import files, reading

ROWS = pa.table(
    {
        "id": [f"r{number}" for number in range(200)],
        "doc": [{"text": None if number == 7 else f"é {number} " * (number % 9), "n": number} for number in range(200)],
        "when": pa.array(range(200), pa.timestamp("us")),
        "lists": [[str(number)] * (number % 3) for number in range(200)],
    }
)


def orc_of(compression: str = "zlib") -> bytes:
    out = io.BytesIO()
    orc.write_table(ROWS, out, compression=compression, stripe_size=64, batch_size=20)
    return out.getvalue()


def arrow_of(rows: pa.Table = ROWS, *, stream: bool = False, compression: str | None = None, step: int = 30) -> bytes:
    out = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(out, rows.schema, options=options) as writer:
        writer.write_table(rows, step)
    return out.getvalue()


def feather_of() -> bytes:
    out = io.BytesIO()
    feather.write_feather(ROWS, out, chunksize=50)
    return out.getvalue()


def polars_stream() -> bytes:
    out = io.BytesIO()
    frame: Any = pl.from_arrow(ROWS)
    frame.write_ipc_stream(out, compression="zstd")
    return out.getvalue()


def polars_file() -> bytes:
    out = io.BytesIO()
    frame: Any = pl.from_arrow(ROWS)
    frame.write_ipc(out)
    return out.getvalue()


FILES = {
    **{f"{codec}.orc": (OrcSource, orc_of(codec)) for codec in ("uncompressed", "zlib", "snappy", "lz4", "zstd")},
    "file.arrow": (ArrowSource, arrow_of()),
    "packed.ipc": (ArrowSource, arrow_of(compression="zstd")),
    "stream.arrows": (ArrowSource, arrow_of(stream=True, compression="lz4")),
    "a.feather": (ArrowSource, feather_of()),
    "polars.ipc": (ArrowSource, polars_file()),
    "polars.arrow": (ArrowSource, polars_stream()),
}


def told(source: ColumnSource) -> list[Any]:
    """The fates of all records, whatever the file is called."""
    return [
        (verdict, identity, text, json.loads(more) if isinstance(more, str) else more)
        for verdict, identity, text, more in reading.read_all(source)
    ]


@pytest.mark.parametrize("name", FILES)
def test_rows_are_those_of_the_same_table_in_parquet(tmp_path: pathlib.Path, name: str) -> None:
    kind, data = FILES[name]
    options: dict[str, Any] = {"text_key": "doc.text", "batch_records": 16}
    path = files.write(tmp_path / "lang=fr" / name, data)
    right = files.write_parquet(tmp_path / "lang=fr" / "a.parquet", ROWS)
    found = told(kind("read", [str(path)], fragment_bytes=1024, **options))
    assert found == told(ParquetSource("read", [str(right)], **options))
    assert [fate[0] for fate in found].count("quarantined") == 1
    assert found[1][3] == {"lang": "fr", "doc": {"n": 1}, "when": "1970-01-01T00:00:00.000001", "lists": ["1"]}


@pytest.mark.parametrize("name", ["uncompressed.orc", "file.arrow", "stream.arrows"])
def test_any_gaps_of_a_fragment_are_read_alone(tmp_path: pathlib.Path, name: str) -> None:
    kind, data = FILES[name]
    path = files.write(tmp_path / name, data)
    source = kind("read", [str(path)], text_key="doc.text", fragment_bytes=256, batch_records=8)
    assert len(list(source.list())) > 1
    reading.check_gaps(source, rounds=2)


@pytest.mark.parametrize("stream", [False, True])
def test_dictionaries_are_read_wherever_a_batch_begins(tmp_path: pathlib.Path, stream: bool) -> None:
    texts = pa.chunked_array([pa.array(["a", "b", "a"]).dictionary_encode(), pa.array(["c", "a"]).dictionary_encode()])
    table = pa.table({"text": texts}).unify_dictionaries() if not stream else pa.table({"text": texts})
    path = files.write(tmp_path / "a.arrow", arrow_of(table, stream=stream, step=2))
    source = ArrowSource("read", [str(path)], fragment_bytes=1)
    assert [fate[2] for fate in reading.read_all(source)] == ["a", "b", "a", "c", "a"]
    reading.check_gaps(source, rounds=2)


def test_a_folder_of_all_formats_is_read_together(tmp_path: pathlib.Path) -> None:
    files.write_parquet(tmp_path / "d.parquet", {"text": ["from parquet"]})
    pl.DataFrame({"text": ["from polars"]}).write_ipc(tmp_path / "p.arrow")
    orc.write_table(pa.table({"text": ["from orc"]}), tmp_path / "o.orc")
    files.write(tmp_path / "j.jsonl", b'{"text": "a line"}\n')
    found = reading.read_all(MixedSource("read", [str(tmp_path)]))
    assert sorted(str(fate[2]) for fate in found) == ["a line", "from orc", "from parquet", "from polars"]


CUT = {name: FILES[name][1] for name in ("zlib.orc", "file.arrow", "stream.arrows")}


@pytest.mark.parametrize("name", CUT)
def test_a_file_that_is_cut_off_is_said_to_be_so(tmp_path: pathlib.Path, name: str) -> None:
    kind, data = FILES[name]
    path = files.write(tmp_path / name, data[:-300] if name != "stream.arrows" else data[:-600])
    with pytest.raises(InputError, match=r"cannot be read \(.*cut off"):
        list(kind("read", [str(path)], text_key="doc.text").list())


BAD = {
    "empty.arrow": (b"", "it is empty"),
    "empty.orc": (b"", "it has 0 bytes, too few for any"),
    "lines.orc": (b'{"text": "a"}\n', "holds no ORC but plain JSON; take .orc off its name"),
    "orc.arrow": (orc_of(), "holds no Arrow IPC but ORC; let its name end in .orc"),
    "old.feather": (b"FEA1" + bytes(40), "it is Feather of version 1; write it again as version 2"),
    "columns.arrow": (arrow_of(), 'has no column "text"; it has: id, doc, when, lists; name it with text_key='),
    "lists.arrow": (arrow_of(pa.table({"text": [[1]]})), 'column "text" holds list<item: int64>, no text'),
    "huge.arrows": (b"\xff\xff\xff\xff" + struct.pack("<i", (1 << 31) - 8), "says 2147483640 bytes of metadata"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_named(tmp_path: pathlib.Path, name: str) -> None:
    data, why = BAD[name]
    path = files.write(tmp_path / name, data)
    with pytest.raises(InputError, match=name) as caught:
        reading.read_all((OrcSource if name.endswith("orc") else ArrowSource)("read", [str(path)]))
    assert why in str(caught.value)


@pytest.mark.parametrize("name", ["zlib.orc", "file.arrow", "stream.arrows"])
def test_a_changed_byte_ends_in_rows_or_in_words(tmp_path: pathlib.Path, name: str) -> None:
    kind, data = FILES[name]
    path, step = tmp_path / name, max(1, len(data) // 12)
    source = kind("read", [str(path)], text_key="doc.text", damaged="quarantine")
    for at in range(3, len(data), step):
        files.write(path, data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :])
        with contextlib.suppress(InputError):
            assert len(reading.read_all(source)) <= 200


def test_a_batch_that_unpacks_to_gigabytes_is_refused(tmp_path: pathlib.Path) -> None:
    table = pa.table({"text": ["x" * 4000] * 30})
    data = bytearray(arrow_of(table, compression="zstd", step=100))
    # each buffer begins with the bytes that it unpacks to
    at = data.index(struct.pack("<q", 4000 * 30))
    data[at : at + 8] = struct.pack("<q", 1 << 42)
    path = files.write(tmp_path / "a.arrow", bytes(data))
    with pytest.raises(InputError, match="record batch 0 cannot be read"):
        reading.read_all(ArrowSource("read", [str(path)]))


def test_rows_that_unfold_are_answered_a_few_at_a_time(tmp_path: pathlib.Path) -> None:
    """A file of some kilobytes says 140 MB; whoever asked holds an answer at a time, and gets each row once."""
    texts = [chr(97 + row) * 20_000_000 for row in range(7)]
    path = files.write(tmp_path / "a.arrow", arrow_of(pa.table({"text": texts}), compression="zstd"))
    assert path.stat().st_size < 100_000
    gate = ColumnarGate()
    with path.open("rb") as raw:
        assert len(gate.open(raw, kind=child.ARROW_READER)) == 1
        first = [row["text"][0] for row in next(gate.rows(0, 1024)).to_pylist()]
        found, sizes = [], []
        for rows in gate.rows(0, 1024):
            sizes.append(rows.nbytes)
            found += [row["text"] for row in rows.to_pylist()]
    gate.close()
    assert first == ["a", "b", "c"]
    assert found == texts
    assert max(sizes) <= child.ANSWER_BYTES


def with_blocks(data: bytes, order: Sequence[int]) -> bytes:
    """An Arrow file whose footer names these record batches of it, in this order."""
    (length,) = struct.unpack("<i", data[-10:-6])
    begin = len(data) - 10 - length
    footer = bytearray(data[begin:-10])
    table = layout.Table.root(bytes(footer))
    blocks, place = table.blocks(3), table._place(3)
    first = place + table._read("<I", place) + 4
    for number, named in enumerate(order):
        layout._BLOCK.pack_into(footer, first + number * layout._BLOCK.size, *blocks[named])
    return data[:begin] + bytes(footer) + data[-10:]


ORDERS = {"backwards": range(6, -1, -1), "mixed": (3, 6, 0, 5, 1, 4, 2)}


@pytest.mark.parametrize("fragment_bytes", [1, 6000, 1 << 24])
@pytest.mark.parametrize("order", ORDERS)
def test_batches_that_a_footer_names_in_any_order_are_read_once(
    tmp_path: pathlib.Path, order: str, fragment_bytes: int
) -> None:
    data = with_blocks(arrow_of(), ORDERS[order])
    path = files.write(tmp_path / "a.arrow", data)
    source = ArrowSource("read", [str(path)], text_key="doc.text", fragment_bytes=fragment_bytes)
    fragments = list(source.list())
    assert [(item.start, item.size >= 0) for item in fragments] == [
        (start, True) for start in sorted({item.start for item in fragments})
    ]
    assert sorted(fate[1] for fate in reading.read_all(source)) == sorted(f"r{number}" for number in range(200))


def test_a_batch_that_a_footer_names_twice_is_refused(tmp_path: pathlib.Path) -> None:
    path = files.write(tmp_path / "a.arrow", with_blocks(arrow_of(), [0] * 7))
    with pytest.raises(InputError, match="is named twice by its footer"):
        list(ArrowSource("read", [str(path)], text_key="doc.text").list())


def test_a_stripe_that_a_footer_names_twice_is_refused(tmp_path: pathlib.Path) -> None:
    data = orc_of("uncompressed")
    first, second = layout.stripes_of(lambda at, size: data[at : at + size], len(data))[:2]
    offset = bytes([second.at & 127 | 128, second.at >> 7])
    assert data.count(b"\x08" + offset) == 1
    forged = data.replace(b"\x08" + offset, b"\x08" + bytes([first.at | 128, 0]))
    path = files.write(tmp_path / "a.orc", forged)
    with pytest.raises(InputError, match="is named twice by its footer"):
        list(OrcSource("read", [str(path)], text_key="doc.text").list())


def test_rows_of_nothing_are_bounded_by_the_bytes_of_their_file(tmp_path: pathlib.Path) -> None:
    rows = (1 << 31) - 1
    batch = pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["text"])
    path = files.write(tmp_path / "a.arrow", arrow_of(pa.Table.from_batches([batch]), step=rows))
    with pytest.raises(InputError, match=r"says it holds 2,147,483,647 rows in \d+ bytes"):
        list(ArrowSource("read", [str(path)]).list())


def test_a_file_of_too_many_columns_is_refused(tmp_path: pathlib.Path) -> None:
    names = ["text", *(f"c{number}" for number in range(COLUMNS_MAX))]
    table = pa.table([pa.array(["a"]), *[pa.nulls(1)] * COLUMNS_MAX], names=names)
    path = files.write(tmp_path / "a.arrow", arrow_of(table))
    with pytest.raises(InputError, match="has 16,385 columns, the limit is 16,384"):
        list(ArrowSource("read", [str(path)]).list())


def test_who_reads_a_datasets_own_tables_gives_way_to_the_flow() -> None:
    out = io.BytesIO()
    parquet.write_table(pa.table({"text": ["a"]}), out)
    with open_columns(io.BytesIO(out.getvalue())) as (gate, _):
        child_nice = os.getpriority(os.PRIO_PROCESS, gate._living().pid)
    assert child_nice == min(19, os.getpriority(os.PRIO_PROCESS, 0) + SIDECAR_NICE)
