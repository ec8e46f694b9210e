"""Input that is not what it should be: a fault of a record is quarantined, a fault of a file ends the run."""

from __future__ import annotations

import gzip
import os
import pathlib
import random
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from headrace.stages.runtime.errors import DamagedInput, InputError
from headrace.stages.sources.mixed import MixedSource
from tests.kits.inputs import files, reading

NOBODY = 65534
#: Text that does not compress, so that a file of it has many blocks.
_RANDOM = random.Random(7)
MANY = [{"id": f"r{index}", "text": _RANDOM.randbytes(600).hex()} for index in range(600)]
GZ = gzip.compress(files.lines(MANY), mtime=0)
ZST = files.zstd(files.lines(MANY))
WARC = b"".join(files.warc())


def parquet_bytes(tmp_path: pathlib.Path) -> bytes:
    return files.parquet_of(tmp_path / "sound.parquet").read_bytes()


def source(path: pathlib.Path, **parameters: Any) -> MixedSource:
    return MixedSource("read", [str(path)], **parameters)


DAMAGED = {
    "cut.jsonl.gz": (GZ[: len(GZ) // 2], r"the gzip stream is cut off after about \d+ uncompressed bytes"),
    "last.jsonl.gz": (GZ[:-1], "the gzip stream is cut off"),
    "flip.jsonl.gz": (GZ[:5000] + bytes([GZ[5000] ^ 0xFF]) + GZ[5001:], "not a sound gzip stream after"),
    "junk.jsonl.gz": (b"no gzip at all" * 100, "not a sound gzip stream after 0 uncompressed bytes"),
    "tail.jsonl.gz": (GZ + b"garbage", "not a sound gzip stream after"),
    "padded.jsonl.gz": (GZ + bytes(100_000) + b"garbage", "not a sound gzip stream after"),
    "zeros.jsonl.gz": (bytes(100_000), "not a sound gzip stream after 0 uncompressed bytes"),
    "empty.jsonl.gz": (b"", "it is empty, where a gzip stream should be"),
    "cut.jsonl.zst": (ZST[: len(ZST) // 2], "the zstd stream is cut off"),
    "last.jsonl.zst": (ZST[:-1], "the zstd stream is cut off"),
    "junk.jsonl.zst": (b"no zstd at all" * 100, "not a sound zstd stream"),
    "head.warc": (WARC[: WARC.index(b"uuid:p9")], "cut off within the headers of a record"),
    "cut.warc": (WARC[: WARC.index(b"page 9")], r"cut off within the record <urn:uuid:p9>, which has \d+ of \d+ bytes"),
    "cut.warc.gz": (gzip.compress(WARC)[:-300], "the gzip stream is cut off"),
    "lines.warc": (WARC.replace(b"\r\n", b"\n"), "its lines end in LF, where those of a WARC's headers end in CR LF"),
    "junk.warc": (b"no WARC at all\r\n\r\n" * 100, "no WARC record where one should be"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_ends_the_run_with_a_remedy(tmp_path: pathlib.Path, name: str) -> None:
    data, why = DAMAGED[name]
    files.write(tmp_path / name, data)
    with pytest.raises(DamagedInput, match=f"{name}' is damaged: {why}.*; fetch it again or take it out") as caught:
        reading.read_all(source(tmp_path / name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_can_be_read_as_far_as_it_goes(tmp_path: pathlib.Path, name: str) -> None:
    data, _ = DAMAGED[name]
    files.write(tmp_path / name, data)
    reader = source(tmp_path / name, damaged="quarantine", batch_records=50)
    *kept, last = reading.read_all(reader)
    # A flipped byte may decode to other text for a while; such lines are quarantined one by one, before the file is.
    assert {fate[0] for fate in kept} <= ({"kept", "quarantined"} if name.startswith("flip") else {"kept"})
    assert last[0] == "quarantined"
    assert last[2].startswith("damaged file: ")
    assert last[2].endswith("; what follows is lost")
    if name == "last.jsonl.gz":
        assert len(kept) > 400
    if name in ("tail.jsonl.gz", "padded.jsonl.gz"):
        assert len(kept) == len(MANY)
    reading.check_gaps(reader, rounds=8)


def test_an_empty_file_is_a_file_of_no_records(tmp_path: pathlib.Path) -> None:
    for name in ("a.jsonl", "a.warc"):
        files.write(tmp_path / name, b"")
    assert reading.read_all(source(tmp_path)) == []
    files.write_parquet(tmp_path / "b.parquet", {"text": pa.array([], pa.string())})
    assert reading.read_all(source(tmp_path)) == []
    files.write(tmp_path / "c.jsonl.gz", gzip.compress(b""))
    assert reading.read_all(source(tmp_path)) == []


@pytest.mark.parametrize("cut", [0, 3, 200, -4, -40])
def test_a_parquet_without_its_footer_is_damaged(tmp_path: pathlib.Path, cut: int) -> None:
    files.write(tmp_path / "a.parquet", parquet_bytes(tmp_path)[:cut])
    with pytest.raises(DamagedInput, match="its Parquet footer cannot be read"):
        list(source(tmp_path / "a.parquet").list())
    reader = source(tmp_path / "a.parquet", damaged="quarantine")
    ((verdict, _, reason, _),) = reading.read_all(reader)
    assert (verdict, reason[:46]) == ("quarantined", "damaged file: its Parquet footer cannot be rea")


def test_a_parquet_whose_pages_are_garbage_is_damaged(tmp_path: pathlib.Path) -> None:
    data = bytearray(parquet_bytes(tmp_path))
    data[40:120] = b"\xff" * 80
    files.write(tmp_path / "a.parquet", bytes(data))
    with pytest.raises(DamagedInput, match="row group 0 cannot be read"):
        reading.read_all(source(tmp_path / "a.parquet"))
    reader = source(tmp_path / "a.parquet", damaged="quarantine", fragment_bytes=1)
    found = reading.read_all(reader)
    assert [fate[0] for fate in found] == ["quarantined"] * 10 + ["kept"] * 50
    reading.check_gaps(reader)


def test_a_parquet_without_text_names_the_columns_it_has(tmp_path: pathlib.Path) -> None:
    files.write_parquet(tmp_path / "a.parquet", {"content": ["a"], "text": [1]})
    with pytest.raises(InputError, match=r'column "text" holds int64, no text; name another with text_key='):
        list(source(tmp_path / "a.parquet").list())
    with pytest.raises(InputError, match=r'has no column "body"; it has: content, text; name it with text_key='):
        list(source(tmp_path / "a.parquet", text_key="body").list())
    assert [fate[2] for fate in reading.read_all(source(tmp_path / "a.parquet", text_key="content"))] == ["a"]


@pytest.mark.parametrize("column", ["text", "id", "other"])
def test_a_parquet_with_two_columns_of_one_name_is_refused(tmp_path: pathlib.Path, column: str) -> None:
    values = [pa.array(["a"])] * 4
    files.write_parquet(tmp_path / "a.parquet", pa.Table.from_arrays(values, names=["id", "text", "other", column]))
    with pytest.raises(InputError, match=rf"""a.parquet' has 2 columns "{column}"; rename or drop all but one"""):
        list(source(tmp_path / "a.parquet").list())


def test_nulls_and_bytes_that_are_no_text_in_parquet_quarantine_their_rows(tmp_path: pathlib.Path) -> None:
    texts = pa.array([b"a", None, b"\xed\xa0\x80", b"z\0z", b"y" * 50], pa.binary())
    columns = {"id": ["i", None, "k", "l", "m"], "text": texts, "n": [None, 1, 2, float("nan"), 3]}
    files.write_parquet(tmp_path / "a.parquet", columns)
    found = reading.read_all(source(tmp_path / "a.parquet", max_record_bytes=49))
    uri = (tmp_path / "a.parquet").as_uri()
    assert found == [
        ("kept", "i", "a", '{"n":null}'),
        ("quarantined", f"{uri}#1", 'text is not a string: column "text" is null', b""),
        ("quarantined", "k", "invalid UTF-8: byte 0xed at byte 0", b"\xed\xa0\x80"),
        ("kept", "l", "z\0z", '{"n":null}'),
        ("quarantined", "m", "text too long: 50 bytes, the limit is 49", b"y" * 50),
    ]


def test_strings_in_parquet_that_are_not_utf_8_quarantine_their_rows(tmp_path: pathlib.Path) -> None:
    broken = pa.array([b"a", b"\xff"], pa.binary())
    fake = pa.Array.from_buffers(pa.string(), 2, broken.buffers())
    files.write_parquet(tmp_path / "a.parquet", {"text": fake, "id": ["p", "q"]})
    files.write_parquet(tmp_path / "b.parquet", {"text": ["a", "b"], "note": fake})
    found = reading.read_all(source(tmp_path / "*.parquet"))
    assert [fate[0] for fate in found] == ["kept", "quarantined"] * 2
    assert found[1][2] == "invalid UTF-8: byte 0xff at byte 0"
    assert found[3][2] == "invalid UTF-8 in a column of the metadata"


def test_nul_bytes_and_lone_surrogates_in_json_lines(tmp_path: pathlib.Path) -> None:
    rows = [b'{"text":"a\\u0000b"}', b'{"text":"\\ud800"}', b'{"text":"a\0b"}', b'{"text":"\xed\xa0\x80"}', b"\0\0\0"]
    files.write(tmp_path / "a.jsonl", b"\n".join([*rows, b'{"text":"last"}']))
    found = reading.read_all(source(tmp_path / "a.jsonl"))
    assert [fate[0] for fate in found] == ["kept", *["quarantined"] * 4, "kept"]
    assert found[0][2] == "a\0b"
    assert [fate[3] for fate in found[1:5]] == rows[1:]


def test_carriage_returns_and_a_byte_order_mark_in_a_compressed_file(tmp_path: pathlib.Path) -> None:
    data = b'\xef\xbb\xbf{"text":"a"}\r\n\r\n{"text":"b"}\r\n'
    files.write(tmp_path / "a.jsonl.gz", gzip.compress(data))
    files.write(tmp_path / "a.jsonl.zst", files.zstd(data))
    assert [fate[2] for fate in reading.read_all(source(tmp_path))] == ["a", "b"] * 2


def test_a_million_tiny_lines_are_a_million_records(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "a.jsonl", b'{"text":"a"}\n' * 1_000_000)
    reader = source(tmp_path / "a.jsonl")
    (fragment,) = reader.list()
    batches, count = [], 0
    for item in reader.read(fragment, reading.WHOLE):
        count = getattr(item, "count", 0)
        batches.append(count)
    assert count == 1_000_000
    assert max(batches[:-1]) <= 4096


BOUNDED = """
import resource, sys
from headrace.stages.sources.mixed import MixedSource
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap
reader = MixedSource("read", [sys.argv[1]])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
fates = []
for fragment in reader.list():
    for item in reader.read(fragment, [Gap(0, UNBOUNDED, 0)]):
        if hasattr(item, "rows"):
            fates += [(row["reason"], len(row["raw"])) for row in item.verdicts.to_pylist()]
            fates += [row["text"] for row in item.rows.to_pylist()]
print(fates, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def measured(path: pathlib.Path) -> tuple[str, int]:
    """The fates of a file's records, and by how many bytes reading them made a process grow."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", BOUNDED, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    fates, _, grown = done.stdout.strip().rpartition(" ")
    return fates, int(grown) * 1024


@pytest.mark.parametrize("name", [pytest.param("a.jsonl", marks=pytest.mark.slow), "a.jsonl.gz", "a.jsonl.zst"])
def test_a_line_of_a_gibibyte_takes_bounded_memory(tmp_path: pathlib.Path, name: str) -> None:
    path, tail = tmp_path / name, b'x\n{"text":"after"}\n'
    size = 1 << 30
    if name.endswith(".jsonl"):
        with open(path, "wb") as file:
            file.truncate(size)
            file.seek(size)
            file.write(tail)
    else:
        pack = gzip.compress if name.endswith("gz") else files.zstd
        path.write_bytes(pack(bytes(16 << 20)) * 64 + pack(tail))
    fates, grown = measured(path)
    assert f"line too long: {size + 1} bytes at byte 0 of the file" in fates
    assert "'after'" in fates
    assert grown < 96 << 20


def test_a_warc_record_over_the_limit_is_quarantined_with_its_beginning(tmp_path: pathlib.Path) -> None:
    big = files.response("big", files.page("x" * 5000))
    files.write(tmp_path / "a.warc", big + files.response("small", files.page("y")))
    found = reading.read_all(source(tmp_path / "a.warc", max_record_bytes=1000))
    assert found[0][:2] == ("quarantined", "urn:uuid:big")
    assert found[0][2].startswith("record too long: ")
    assert found[1][2] == "y"


def test_a_file_that_this_user_may_not_read_is_named(tmp_path: pathlib.Path) -> None:
    path = files.write(tmp_path / "a.jsonl", files.lines())
    path.chmod(0)
    reader = source(path)
    (fragment,) = reader.list()
    user = os.geteuid()
    if not user:
        os.seteuid(NOBODY)
    try:
        with pytest.raises(
            InputError, match=r"cannot read .*a\.jsonl': Permission denied; let this user read it, or take it out"
        ):
            list(reader.read(fragment, reading.WHOLE))
    finally:
        os.seteuid(user)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: pathlib.Path) -> None:
    path = files.write(tmp_path / "a.jsonl", files.lines())
    reader = source(path)
    (fragment,) = reader.list()
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(InputError, match=r"cannot read .*a\.jsonl': Too many levels of symbolic links"):
        list(reader.read(fragment, reading.WHOLE))
    with pytest.raises(InputError, match=r"cannot list .*a\.jsonl': Too many levels of symbolic links"):
        list(reader.list())
