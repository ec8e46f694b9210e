"""Little that unfolds to much: one record is quarantined, a whole file is damaged, in memory that is bounded."""

from __future__ import annotations

import bz2
import gzip
import itertools
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard

from headrace.stages.runtime.errors import DamagedInput
from headrace.stages.sources.mixed import MixedSource
from headrace.stages.sources.objects import streams
from headrace.stages.sources.warc_payloads import CODINGS_MAX, UndecodablePayload, decode_payload
from tests.kits.inputs import files
from tests.kits.inputs.reading import read_all

MIB = 1 << 20
#: What each unfolds to, the limit of a record, and what may be held for one: its bytes, pieces of them, and a text.
UNFOLDED_BYTES, RECORD_BYTES, HELD_BYTES = 128 * MIB, MIB, 48 * MIB


@pytest.fixture
def peak() -> Callable[[], int]:
    """Bytes that this process had in memory at most since the fixture was made, beyond those that it had then."""

    def read(name: str) -> int:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1]) << 10

    Path("/proc/self/clear_refs").write_text("5")
    before = read("VmRSS")
    return lambda: read("VmHWM") - before


def pieces() -> Iterator[bytes]:
    """The long text, a piece at a time."""
    for _ in range(UNFOLDED_BYTES // MIB):
        yield b"a" * MIB


def packed(kind: str, head: bytes = b"", tail: bytes = b"") -> bytes:
    if kind == "zst":
        work = zstandard.ZstdCompressor().compressobj()
        return b"".join(work.compress(part) for part in itertools.chain([head], pieces(), [tail])) + work.flush()
    work_of = zlib.compressobj(wbits=31 if kind == "gz" else 15)
    return b"".join(work_of.compress(part) for part in itertools.chain([head], pieces(), [tail])) + work_of.flush()


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_line_that_unfolds_to_much_is_one_record(tmp_path: Path, kind: str, peak: Callable[[], int]):
    files.write(tmp_path / f"a.jsonl.{kind}", packed(kind, b'{"text":"', b'"}\n{"text":"behind"}\n'))
    found = read_all(MixedSource("read", [str(tmp_path)], max_record_bytes=RECORD_BYTES))
    assert [(fate[0], fate[2][:13]) for fate in found] == [("quarantined", "line too long"), ("kept", "behind")]
    assert peak() < HELD_BYTES


@pytest.mark.parametrize("kind", ["zst", "bz2"])
def test_a_file_that_unfolds_to_too_much_is_damaged(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch):
    line = b'{"text":"a"}\n'
    much = line * (MIB // 2 // len(line))
    packed_much = bz2.compress(much) if kind == "bz2" else zstandard.compress(much)
    files.write(tmp_path / f"a.jsonl.{kind}", packed_much)
    whole = len(read_all(MixedSource("read", [str(tmp_path)])))
    monkeypatch.setattr(streams, "UNFOLDED_BYTES_FREE", MIB // 8)
    monkeypatch.setattr(streams, "UNFOLDED_A_STORED", 2)
    with pytest.raises(DamagedInput, match=r"unfold to more than .*the limit is 2 times"):
        read_all(MixedSource("read", [str(tmp_path)]))
    part = read_all(MixedSource("read", [str(tmp_path)], damaged="quarantine"))
    assert MIB // 8 <= len(part) * len(line) < whole * len(line)
    assert part[-1][0] == "quarantined"


def test_a_member_of_a_warc_that_unfolds_to_much_is_one_record(tmp_path: Path, peak: Callable[[], int]):
    head = (
        "WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Record-ID: <urn:a>\r\nWARC-Date: 2026-01-01T00:00:00Z\r\n"
        f"Content-Type: text/plain\r\nContent-Length: {UNFOLDED_BYTES}\r\n\r\n"
    )
    files.write(tmp_path / "a.warc.gz", packed("gz", head.encode(), b"\r\n\r\n"))
    found = read_all(MixedSource("read", [str(tmp_path)], max_record_bytes=RECORD_BYTES))
    assert [(fate[0], fate[2][:15]) for fate in found] == [("quarantined", "record too long")]
    assert peak() < HELD_BYTES


def brotli() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "brotli") as stream:
        for part in pieces():
            stream.write(part)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd", "br"])
def test_a_payload_that_unfolds_to_much_is_refused_before_it_has(coding: str, peak: Callable[[], int]):
    body = brotli() if coding == "br" else packed({"gzip": "gz", "zstd": "zst"}.get(coding, ""))
    assert len(body) < MIB
    with pytest.raises(UndecodablePayload, match=f"above the limit of {RECORD_BYTES} bytes"):
        decode_payload({"Content-Encoding": coding}, body, RECORD_BYTES, is_truncated=False)
    assert peak() < HELD_BYTES


def test_codings_upon_one_another_have_a_limit():
    body = b"text"
    for _ in range(CODINGS_MAX + 1):
        body = gzip.compress(body)
    with pytest.raises(UndecodablePayload, match="9 codings upon one another, the limit is 8"):
        decode_payload({"Content-Encoding": ",".join(["gzip"] * 9)}, body, RECORD_BYTES, is_truncated=False)
    headers = {"Content-Encoding": ",".join(["gzip"] * 8)}
    assert decode_payload(headers, gzip.decompress(body), RECORD_BYTES, is_truncated=False) == b"text"
