"""Targets of what reads files of many records in one: rows of CSV, members of tar, units of compressed streams."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import tarfile
from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import zstandard
from pyarrow import orc

from headrace.stages.runtime.errors import InputError
from headrace.stages.sources.csv_rows import CsvSource
from headrace.stages.sources.objects import units
from headrace.stages.sources.tar import TarSource
from headrace.store.columnar import layout
from tests.fuzz.fuzz_files import fates, file_of, fragment_of
from tests.fuzz.harness import Target

#: Bytes of a stream when it is decompressed.
PLAIN_BYTES_MAX = 1 << 20

CSV_WORDS = (b'"', b'""', b"\r\n", b",", b',"')
CSV_SEEDS = (
    b'\x05id,text\n1,"one, two"\n2,"line\nand ""line"""\r\n3\n',
    b'\x09text,b\n"open,1\nfine,2\n,\n\n',
)


def run_csv(data: bytes) -> object | None:
    """However the rows are read in batches, they are the same."""
    with file_of(data[1:]) as path:
        step = 1 + (data[0] & 63 if data else 0)
        whole = CsvSource("read", [path], max_record_bytes=60)
        parts = CsvSource("read", [path], max_record_bytes=60, batch_bytes=step, batch_records=2)
        try:
            found = fates(whole, fragment_of(path, whole.READER))
        except InputError:
            return None
        again = fates(parts, fragment_of(path, parts.READER))
    assert again == found
    kept = [(text, metadata) for verdict, _, text, metadata in found if verdict == "kept"]
    return kept or None


def run_tar(data: bytes) -> object | None:
    """However the samples are read in batches, they are the same; none is above its limit."""
    with file_of(data) as path:
        whole = TarSource("read", [path], max_record_bytes=200)
        parts = TarSource("read", [path], max_record_bytes=200, batch_records=1)
        try:
            found = fates(whole, fragment_of(path, whole.READER))
        except InputError:
            return None
        again = fates(parts, fragment_of(path, parts.READER))
    assert again == found
    kept = [(text, metadata) for verdict, _, text, metadata in found if verdict == "kept"]
    return kept or None


def tar_seeds() -> list[bytes]:
    found: list[bytes] = []
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=kind) as archive:
            for name, data in (("a.txt", b"one"), ("a.json", b'{"n": 1}'), ("long" * 20 + "/b.txt", b"two")):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        found.append(out.getvalue()[:6144])
    return found


def mutate_tar(data: bytes, chance: Random) -> bytes:
    """Change a header and set its checksum right."""
    blocks = [bytearray(data[at : at + 512].ljust(512, b"\0")) for at in range(0, len(data), 512)]
    block = chance.choice(blocks) if blocks else bytearray(512)
    at = chance.choice([*range(100), *range(124, 136), 156, 156, 156, *range(257, 265), *range(345, 355)])
    block[at] = chance.choice(b"\0 01234567xLgK/.\x80\xff") if chance.random() < 0.8 else chance.randrange(256)
    total = sum(block[:148]) + sum(block[156:]) + 256
    block[148:156] = b"%06o\0 " % total
    return b"".join(blocks)


UNIT_CODECS = ("gzip", "zstd", "bzip2")


def run_units(data: bytes) -> object | None:
    """Wherever a stream is cut, its parts have its lines, once and in order; or one of them says that it is not so."""
    codec, cut, stored = UNIT_CODECS[data[0] % 3] if data else "gzip", data[1:2], data[2:]
    with (
        patch.object(units, "CHAIN_BYTES", 24),
        patch.object(units, "BACK_BYTES", 64),
        patch.object(units, "WALK_BYTES_MAX", PLAIN_BYTES_MAX),
    ):
        try:
            whole = _unit_lines(stored, codec, 0, -1)
            at = min(int.from_bytes(cut, "little"), len(stored))
            first = _unit_lines(stored, codec, 0, at)
            second = _unit_lines(stored, codec, at, -1)
        except OSError:
            return None
    assert first + second == whole, (first, second, whole)
    return whole or None


def _unit_lines(stored: bytes, codec: str, start: int, end: int) -> bytes:
    def fetch(at: int, size: int) -> bytes:
        return stored[at : at + size]

    first = units.first_unit(fetch, codec, start, b"", 1 << 20) if start else (0, b"\n")
    raw = io.BytesIO(stored)
    raw.seek(first[0])
    stream: Any = raw
    found, read = b"", units.Cut(stream, fetch, codec, first, end, b"", 1 << 20)
    while part := read.read():
        found += part
        if len(found) > PLAIN_BYTES_MAX:
            raise OSError("long")
    return found.partition(b"\n")[2] if first[1] != b"\n" else found


def unit_seeds() -> list[bytes]:
    parts = [b'{"text": "one"}\n{"te', b'xt": "two"}\n', b'{"text": "three"}\n']
    packs: tuple[Callable[[bytes], bytes], ...] = (
        lambda part: gzip.compress(part, mtime=0),
        zstandard.compress,
        bz2.compress,
    )
    return [bytes([place, 60]) + b"".join(map(pack, parts)) for place, pack in enumerate(packs)]


def run_layout(data: bytes) -> object | None:
    """Stripes and messages lie within the file, whatever it says of them."""

    def read_at(at: int, size: int) -> bytes:
        return data[at : at + size]

    with contextlib.suppress(ValueError, OSError):
        stripes = layout.stripes_of(read_at, len(data))
        assert all(0 <= one.at <= one.at + one.size <= len(data) and one.rows >= 0 for one in stripes)
        return "stripes", len(stripes)
    with contextlib.suppress(ValueError):
        told = layout.messages_of(read_at, len(data))
        groups = (*told.dictionaries, *told.batches)
        assert all(0 <= one.at < one.at + one.size <= len(data) and one.rows >= 0 for one in groups)
        return "messages", told.schema is None, len(told.dictionaries), len(told.batches)
    return None


def layout_seeds() -> list[bytes]:
    table = pa.table({"t": pa.array(["x", "y"]).dictionary_encode()})
    found: list[bytes] = []
    for new in (pa.ipc.new_file, pa.ipc.new_stream):
        out = io.BytesIO()
        with new(out, table.schema) as writer:
            writer.write_table(table, 1)
        found.append(out.getvalue())
    for codec in ("uncompressed", "zlib", "snappy", "lz4", "zstd"):
        out = io.BytesIO()
        orc.write_table(pa.table({"t": ["x", "y"]}), out, compression=codec)
        found.append(out.getvalue())
    return found


TARGETS = [
    Target("csv", ("headrace.stages.sources.csv_rows",), run_csv, lambda: CSV_SEEDS, words=CSV_WORDS),
    Target("tar", ("headrace.stages.sources.tar",), run_tar, tar_seeds, mutate=mutate_tar, bytes_max=8192),
    Target("layout", ("headrace.store.columnar.layout",), run_layout, layout_seeds, bytes_max=8192),
    Target("units", ("headrace.stages.sources.objects.units",), run_units, unit_seeds),
]
