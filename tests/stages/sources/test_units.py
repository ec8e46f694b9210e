"""Compressed files of many units, cut among tasks: each record once, wherever the cuts lie and whatever is stored."""

from __future__ import annotations

import base64
import bz2
import gzip
import json
import pathlib
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import zstandard

from headrace.stages.runtime.contract import ContentAnswer, FragmentEnd
from headrace.stages.runtime.errors import DamagedInput, InputError
from headrace.stages.sources.jsonl import JsonlSource
from headrace.stages.sources.objects import units
from headrace.stages.sources.warc import WarcSource
from tests.kits.inputs import files, reading

SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00\x1f\x8b\x08\x00"
PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda data: gzip.compress(data, 1, mtime=0),
    ".zst": lambda data: SKIPPABLE + zstandard.compress(data, 1),
    ".bz2": lambda data: bz2.compress(data, 1),
}
STEP = 256 << 10


def text_of(count: int, seed: int = 0, size: int = 1500) -> list[bytes]:
    chance = random.Random(seed)
    texts = (base64.b64encode(chance.randbytes(chance.randrange(size))).decode() for _ in range(count))
    return [json.dumps({"text": text}).encode() + b"\n" for text in texts]


def packed(data: bytes, suffix: str, unit: int, seed: int = 0) -> bytes:
    """The data in units of about so many bytes, cut anywhere."""
    chance, at, found = random.Random(seed), 0, list[bytes]()
    while at < len(data):
        size = chance.randrange(1, 2 * unit)
        found.append(PACK[suffix](data[at : at + size]))
        at += size
    return b"".join(found)


def fates(source: JsonlSource | WarcSource) -> list[tuple[object, ...]]:
    return [(fate[0], fate[2]) for fate in reading.read_all(source)]


def check(path: pathlib.Path, lines: Sequence[bytes], step: int = STEP) -> int:
    source = JsonlSource("read", [str(path)], fragment_bytes=4 * step)
    fragments = [item for item in source.list() if item]
    assert fates(source) == [("kept", json.loads(line)["text"]) for line in lines]
    assert sum(item.size for item in fragments) == path.stat().st_size
    assert source.stored_read <= path.stat().st_size
    return len(fragments)


@pytest.mark.parametrize(("suffix", "unit"), [(".gz", 3000), (".gz", 70_000), (".zst", 70_000), (".bz2", 90_000)])
def test_lines_that_units_cut_are_read_once(tmp_path: pathlib.Path, suffix: str, unit: int) -> None:
    lines = text_of(3000)
    path = files.write(tmp_path / f"a.jsonl{suffix}", packed(b"".join(lines), suffix, unit))
    assert check(path, lines) > 4


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_units_that_end_with_lines_and_zeros_between(tmp_path: pathlib.Path, suffix: str) -> None:
    lines = text_of(3000, 1)
    units_of = [b"".join(lines[at : at + 50]) for at in range(0, len(lines), 50)]
    between = bytes(700) if suffix == ".gz" else b""
    data = b"".join(PACK[suffix](part) + between for part in units_of)
    assert check(files.write(tmp_path / f"a.jsonl{suffix}", data), lines) > 4


def test_a_line_longer_than_a_range_is_read_once(tmp_path: pathlib.Path) -> None:
    chance = random.Random(3)
    long = json.dumps({"text": base64.b64encode(chance.randbytes(1_500_000)).decode()}).encode() + b"\n"
    lines = [*text_of(700, 4), long, *text_of(700, 5)]
    check(files.write(tmp_path / "a.jsonl.gz", packed(b"".join(lines), ".gz", 60_000)), lines)


def test_gaps_are_read_again_exactly(tmp_path: pathlib.Path) -> None:
    path = files.write(tmp_path / "a.jsonl.gz", packed(b"".join(text_of(2000, 6)), ".gz", 40_000))
    reading.check_gaps(JsonlSource("read", [str(path)], fragment_bytes=4 * 500_000, batch_bytes=30_000), rounds=3)


def test_whole_gzip_files_within_stored_data_are_no_units(tmp_path: pathlib.Path) -> None:
    """The data is stored as it is and holds gzip files, whose beginnings look like those of members."""
    inner = gzip.compress(b'{"text":"' + b"n" * 50 + b'"}', 6, mtime=0).replace(b"\n", b" ")
    chance = random.Random(7)
    found = list[bytes]()
    while sum(map(len, found)) < 6 * STEP:
        line = json.dumps({"text": base64.b64encode(chance.randbytes(2000)).decode()}).encode() + b"\n"
        found.append(gzip.compress(line + inner * 3 + b"\n", 0, mtime=0))
    path = files.write(tmp_path / "a.jsonl.gz", b"".join(found))
    cut = JsonlSource("read", [str(path)], fragment_bytes=4 * STEP)
    whole = JsonlSource("read", [str(path)], fragment_bytes=1 << 30)
    assert len(list(cut.list())) > len(list(whole.list())) == 1
    assert fates(cut) == fates(whole)


def test_a_file_that_cannot_be_cut_says_so(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a walk that proves nothing, units within stored data are taken for true ones: the task before finds out."""
    monkeypatch.setattr(units, "CHAIN_BYTES", 1 << 10)
    monkeypatch.setattr(units, "BACK_BYTES", 8 << 10)
    inner = b"".join(gzip.compress(b'{"text":"false"}\n', 0, mtime=0) for _ in range(500))
    near = b"".join(PACK[".gz"](line) for line in text_of(100, 8))
    path = files.write(tmp_path / "a.jsonl.gz", near + gzip.compress(inner, 0, mtime=0) + near)
    monkeypatch.setattr("headrace.stages.sources.base.has_several", lambda *_: True)
    step = len(near) + 10_000
    source = JsonlSource("read", [str(path)], fragment_bytes=4 * step)
    first, second, *_ = [item for item in source.list() if item]
    assert second.start < len(near) + len(inner)
    with pytest.raises(DamagedInput, match=r"cannot be cut among tasks: .*declare the source with fragment_bytes"):
        list(source.read(first, reading.WHOLE))


def test_pages_are_cut_where_records_begin(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "CHAIN_BYTES", 8 << 10)
    monkeypatch.setattr(units, "BACK_BYTES", 32 << 10)
    records = files.warc()
    data = b"".join(gzip.compress(record, 1, mtime=0) for _ in range(100) for record in records)
    path = files.write(tmp_path / "a.warc.gz", data)
    cut = WarcSource("read", [str(path)], fragment_bytes=4 * (len(data) // 5))
    assert len(list(cut.list())) > 4
    assert fates(cut) == fates(WarcSource("read", [str(path)], fragment_bytes=1 << 30))


def test_what_is_appended_begins_where_the_old_piece_ended(tmp_path: pathlib.Path) -> None:
    old, new = text_of(2000, 14), text_of(300, 15)
    path = files.write(tmp_path / "a.jsonl.gz", packed(b"".join(old), ".gz", 40_000))
    source = JsonlSource("read", [str(path)], fragment_bytes=4 * 400_000)
    last = [item for item in source.list() if item][-1]
    *_, end = source.read(last, reading.WHOLE)
    path.write_bytes(path.read_bytes() + packed(b"".join(new), ".gz", 40_000))
    later = next(item for item in source.list() if item)
    known = replace(last, version=later.version, end=last.start + last.size)
    *_, answer = source.compare(known)
    assert isinstance(end, FragmentEnd)
    assert answer == ContentAnswer(end.checksum, True)
    piece = replace(last, version=later.version, start=last.start + last.size, end=-1)
    kept = [row["text"] for batch in reading.read_whole(source, piece)[0] for row in batch.rows.to_pylist()]
    assert kept == [json.loads(line)["text"] for line in new]


def test_a_warc_whose_records_are_no_units_is_not_cut(tmp_path: pathlib.Path) -> None:
    path = files.write(tmp_path / "a.warc.gz", packed(b"".join(files.warc() * 500), ".gz", 5000))
    assert len(list(WarcSource("read", [str(path)], fragment_bytes=path.stat().st_size).list())) == 1


def test_one_stream_is_not_cut_and_said(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.stages.sources.base.NOTED_BYTES", 1 << 20)
    path = files.write(tmp_path / "a.jsonl.gz", gzip.compress(b"".join(text_of(2000, 11)), 1))
    source = JsonlSource("read", [str(path)], fragment_bytes=1 << 20)
    assert len(list(source.list())) == 1
    assert source.skipped() == (
        f"not cut, so that one task reads all of it: {str(path)!r}, {path.stat().st_size >> 20} MiB in one compressed "
        "stream; bgzip, pzstd and pbzip2 write many"
    )


def test_what_is_damaged_is_so_for_one_task(tmp_path: pathlib.Path) -> None:
    lines = text_of(3000, 12)
    data = bytearray(packed(b"".join(lines), ".gz", 20_000))
    place = len(data) // 3
    data[place : place + 60] = bytes(60)
    path = files.write(tmp_path / "a.jsonl.gz", bytes(data))
    with pytest.raises(InputError):
        reading.read_all(JsonlSource("read", [str(path)], fragment_bytes=4 * STEP))
    kept = JsonlSource("read", [str(path)], fragment_bytes=4 * STEP, damaged="quarantine")
    found = [fate for fate in reading.read_all(kept) if fate[0] == "kept"]
    assert {fate[2] for fate in found} <= {json.loads(line)["text"] for line in lines}
    assert len(found) > len(lines) // 2


def test_a_bomb_before_a_cut_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "WALK_BYTES_MAX", 1 << 20)
    data = gzip.compress(bytes(4 << 20)) * 100
    with pytest.raises(units.NoCut, match="come to more than"):
        units.first_unit(lambda at, size: data[at : at + size], "gzip", len(data) - 100, b"", 1 << 27)


def test_endless_false_beginnings_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "TRIES_MAX", 20)
    data = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x00\xff\xff" * 200_000
    with pytest.raises(units.NoCut, match="20 units before byte"):
        units.first_unit(lambda at, size: data[at : at + size], "gzip", 2_000_000, b"", 1 << 27)


def test_stored_data_cannot_hold_a_chain_as_long_as_a_walk() -> None:
    inner = gzip.compress(random.Random(13).randbytes(units.CHAIN_BYTES), 0, mtime=0)
    assert inner not in zlib.compress(inner, 0)
