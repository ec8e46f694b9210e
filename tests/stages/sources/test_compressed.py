"""Compressed input as other tools write it: members and frames end to end, padded with zeros, with large windows."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import pathlib
import random
import tracemalloc
from collections.abc import Callable

import pyarrow as pa
import pytest
import zstandard

from headrace.stages.runtime.errors import DamagedInput
from headrace.stages.sources import warc_payloads
from headrace.stages.sources.mixed import MixedSource
from headrace.stages.sources.objects import unpack
from headrace.store.columnar import layout
from tests.kits.inputs import files, reading

Place = tuple[pathlib.Path, Callable[[str], str]]

#: Text that does not compress, so that a file of it is read in many pieces.
_RANDOM = random.Random(11)
MANY = [{"id": f"r{index}", "text": _RANDOM.randbytes(600).hex()} for index in range(1500)]
LINES = files.lines(MANY)
#: A window that Arrow does not read, and its logarithm.
WIDE, WIDE_LOG = 256 << 20, 28


def wide(data: bytes) -> bytes:
    """A frame that asks for WIDE: its length is not in its header, so that a reader must believe it."""
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=WIDE_LOG)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed: bytes = compressor.compress(data) + compressor.flush()
    return packed


def texts(found: list[tuple[object, ...]]) -> list[object]:
    assert {fate[0] for fate in found} <= {"kept"}
    return [fate[2] for fate in found]


GZIP = {
    "zeros behind it": gzip.compress(LINES) + bytes(10_000),
    "one zero": gzip.compress(LINES) + b"\0",
    "zeros behind each member": (gzip.compress(LINES[: len(LINES) // 2]) + bytes(512)) * 1
    + gzip.compress(LINES[len(LINES) // 2 :])
    + bytes(300_000),
    "an empty member in between": gzip.compress(LINES[:1000]) + gzip.compress(b"") + gzip.compress(LINES[1000:]),
    "many small members": b"".join(gzip.compress(LINES[at : at + 700]) for at in range(0, len(LINES), 700)),
}


@pytest.mark.parametrize("kind", GZIP)
def test_a_gzip_stream_is_all_members_and_zeros_are_nothing(place: Place, kind: str) -> None:
    folder, uri_of = place
    data = GZIP[kind]
    assert gzip.decompress(data) == LINES
    files.write(folder / "a.jsonl.gz", data)
    reader = MixedSource("read", [uri_of("a.jsonl.gz")], batch_records=100)
    assert texts(reading.read_all(reader)) == [record["text"] for record in MANY]
    reading.check_gaps(reader, rounds=4)


#: Fewer, for what is slow to unpack: six blocks of the smallest size.
FEW = MANY[:500]
FEW_LINES = files.lines(FEW)
BZIP2 = {
    "one stream": bz2.compress(FEW_LINES, 1),
    "many small streams": b"".join(bz2.compress(FEW_LINES[at : at + 700], 1) for at in range(0, 70_000, 700))
    + bz2.compress(FEW_LINES[70_000:], 1),
    "an empty stream in between": bz2.compress(FEW_LINES[:1000]) + bz2.compress(b"") + bz2.compress(FEW_LINES[1000:]),
}


@pytest.mark.parametrize("kind", BZIP2)
def test_a_bzip2_file_is_all_its_streams(place: Place, kind: str) -> None:
    folder, uri_of = place
    files.write(folder / "a.jsonl.bz2", BZIP2[kind])
    reader = MixedSource("read", [uri_of("a.jsonl.bz2")], batch_records=100)
    assert texts(reading.read_all(reader)) == [record["text"] for record in FEW]
    reading.check_gaps(reader, rounds=2)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (bz2.compress(LINES)[:-10], "the bzip2 stream is cut off after about"),
        (bz2.compress(LINES) + b"no stream at all", "not a sound bzip2 stream after"),
        (b"no stream at all", "not a sound bzip2 stream after 0"),
        (gzip.compress(LINES), "a gzip stream; let its name end in .gz"),
        (b"", "it is empty, where a bzip2 stream should be"),
    ],
)
def test_a_bzip2_file_that_is_none_is_damaged(tmp_path: pathlib.Path, data: bytes, words: str) -> None:
    files.write(tmp_path / "a.jsonl.bz2", data)
    with pytest.raises(DamagedInput, match=words):
        reading.read_all(MixedSource("read", [str(tmp_path)]))


ZSTD = {
    "wide": wide(LINES),
    "wide behind others": files.zstd(LINES[:400_000]) + wide(LINES[400_000:]),
    "wide before others": wide(LINES[:400_000]) + files.zstd(LINES[400_000:]),
    "wide behind a frame that is skipped": b"\x50\x2a\x4d\x18\x04\0\0\0skip" + wide(LINES),
    "one byte a frame": b"".join(wide(LINES[at : at + 1]) for at in range(100)) + wide(LINES[100:]),
}


@pytest.mark.parametrize("kind", ZSTD)
def test_a_large_zstd_window_is_read_where_memory_allows(place: Place, kind: str) -> None:
    folder, uri_of = place
    files.write(folder / "a.jsonl.zst", ZSTD[kind])
    with pytest.raises(DamagedInput, match=r"above 128 MiB; declare the source with window_bytes_max=2 << 30"):
        reading.read_all(MixedSource("read", [uri_of("a.jsonl.zst")]))
    reader = MixedSource("read", [uri_of("a.jsonl.zst")], window_bytes_max=WIDE, batch_records=100)
    assert texts(reading.read_all(reader)) == [record["text"] for record in MANY]
    reading.check_gaps(reader, rounds=4)


def test_a_window_above_the_allowed_memory_is_refused_so(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "a.jsonl.zst", files.zstd_of_window(29, b'{"text":"a"}\n'))
    with pytest.raises(DamagedInput, match="but one with a window above 256 MiB; declare"):
        reading.read_all(MixedSource("read", [str(tmp_path)], window_bytes_max=WIDE))
    for log in (27, 28, 29, 31):
        files.write(tmp_path / "a.jsonl.zst", files.zstd_of_window(log, b'{"text":"a"}\n'))
        assert texts(reading.read_all(MixedSource("read", [str(tmp_path)], window_bytes_max=2 << 30))) == ["a"]


@pytest.mark.parametrize("cut", [8, -1, -100_000])
def test_a_stream_of_a_large_window_that_is_cut_off_is_damaged(tmp_path: pathlib.Path, cut: int) -> None:
    files.write(tmp_path / "a.jsonl.zst", wide(LINES)[:cut])
    with pytest.raises(DamagedInput, match="the zstd stream is cut off after about"):
        reading.read_all(MixedSource("read", [str(tmp_path)], window_bytes_max=WIDE))
    *kept, last = reading.read_all(MixedSource("read", [str(tmp_path)], window_bytes_max=WIDE, damaged="quarantine"))
    assert (len(kept) > 1000, last[0]) == (cut < 0, "quarantined")


def test_garbage_behind_a_frame_of_a_large_window_is_damage(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "a.jsonl.zst", wide(LINES) + b"no frame at all")
    with pytest.raises(DamagedInput, match="not a sound zstd stream after"):
        reading.read_all(MixedSource("read", [str(tmp_path)], window_bytes_max=WIDE))


def test_what_becomes_four_bytes_a_block_takes_little_memory_at_a_time(tmp_path: pathlib.Path) -> None:
    """A block of zstd may be one byte, 131,072 times over: 200 MiB in 6.5 kB, of which 8 MiB are a record."""
    block = (128 << 10) << 3 | 1 << 1
    header = b"\x28\xb5\x2f\xfd" + bytes([0, (WIDE_LOG - 10) << 3])
    blocks = (block.to_bytes(3, "little") + b"x") * 1600 + (1 | 1 << 3).to_bytes(3, "little") + b"\n"
    files.write(tmp_path / "a.jsonl.zst", header + blocks)
    ((verdict, _, reason, _),) = reading.read_all(MixedSource("read", [str(tmp_path)], window_bytes_max=WIDE))
    assert (verdict, reason.split(":")[0], str(1600 * (128 << 10)) in reason) == ("quarantined", "line too long", True)


def test_batches_of_compressed_files_are_as_large_as_plain(
    tmp_path: pathlib.Path,
) -> None:
    counts: list[list[int]] = []
    for name, data in (
        ("a.jsonl", LINES),
        ("a.jsonl.gz", gzip.compress(LINES)),
        ("a.jsonl.zst", zstandard.compress(LINES)),
    ):
        files.write(tmp_path / name, data)
        reader = MixedSource("read", [str(tmp_path / name)], batch_bytes=512 << 10)
        (fragment,) = reader.list()
        batches, _ = reading.read_whole(reader, fragment)
        counts.append([batch.count for batch in batches])
    assert counts[0] == counts[1] == counts[2]
    assert len(counts[0]) < 4 + len(LINES) // (512 << 10)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_what_was_read_of_a_block_before_the_damage_is_kept(tmp_path: pathlib.Path, suffix: str) -> None:
    # a block of 2 MiB would hold all lines; the fault is met some pieces of 128 KiB behind its beginning
    packed = gzip.compress(LINES) if suffix == ".gz" else zstandard.compress(LINES)
    files.write(tmp_path / f"a.jsonl{suffix}", packed[: len(packed) * 3 // 4])
    kept = {}
    for batch_bytes in (64 << 10, 2 << 20):
        reader = MixedSource(
            "read", [str(tmp_path / f"a.jsonl{suffix}")], batch_bytes=batch_bytes, damaged="quarantine"
        )
        kept[batch_bytes] = reading.read_all(reader)
    assert kept[64 << 10] == kept[2 << 20]
    *sound, lost = kept[2 << 20]
    assert len(sound) > len(MANY) // 2
    assert [fate[0] for fate in sound] == ["kept"] * len(sound)
    assert lost[0] == "quarantined"


CUT = zstandard.compress(b"hello, water " * 50)[:-20]
CUT_BROTLI: bytes = pa.compress(b"hello, water " * 50, "brotli", asbytes=True)[:-5]
READERS: dict[str, Callable[[], object]] = {
    "a file": lambda: unpack.Zstd(io.BytesIO(CUT)).read(),
    "a page": lambda: warc_payloads._zstd(CUT, 1 << 20),
    "a page in brotli": lambda: warc_payloads._brotli(CUT_BROTLI, 1 << 20),
    "a chunk of Parquet": lambda: layout._zstd(CUT, 1 << 20),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_damaged_stream_leaves_no_memory_behind(read: Callable[[], object]) -> None:
    def fails() -> None:
        with contextlib.suppress(OSError):
            assert read() == (b"", False)

    fails()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(32):
            fails()
        assert tracemalloc.get_traced_memory()[0] - before < 1 << 20
    finally:
        tracemalloc.stop()
