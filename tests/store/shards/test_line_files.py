"""Lines of a shard's texts: read as they were written, and a file that unfolds to gigabytes is refused in little."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
import zstandard

from headrace.store import FormatError, open_store
from headrace.store.contract.objects import ObjectStore
from headrace.store.shards import line_files
from headrace.store.shards.line_files import read_lines

KEY = "shards/1/x.jsonl.zst"
MIB = 1 << 20
ZEROS = zstandard.ZstdCompressor().compress(bytes(64 * MIB))


def held(tmp_path: Path, data: bytes) -> ObjectStore:
    store = open_store(f"file://{tmp_path}/data")
    store.create(KEY, [data])
    return store


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_lines_of_several_frames_are_read_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    monkeypatch.setattr(line_files, "_READ_BYTES", 7)
    text = b"a\n\n" + b"b" * 99 + b"\nlast" + end
    frames = b"".join(zstandard.ZstdCompressor().compress(text[at : at + 20]) for at in range(0, len(text), 20))
    assert list(read_lines(held(tmp_path, frames), KEY)) == text.splitlines(keepends=True)


@pytest.mark.parametrize("data", [b"no zstd", ZEROS[:-9] + b"?" * 9])
def test_what_is_no_zstd_is_named(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(FormatError, match="not readable JSON Lines"):
        assert list(read_lines(held(tmp_path, data), KEY)) == [b"never"]


@pytest.mark.parametrize("data", [ZEROS, zstandard.ZstdCompressor().compress((b"l" * 99 + b"\n") * MIB)])
def test_what_unfolds_to_too_much_is_refused_in_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(line_files, "UNFOLDED_BYTES_FREE", 8 * MIB)
    monkeypatch.setattr(line_files, "UNFOLDED_A_STORED", 2)
    store = held(tmp_path, data)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="unfolds to more than"):
            for _ in read_lines(store, KEY):
                pass
        assert tracemalloc.get_traced_memory()[1] < 40 * MIB
    finally:
        tracemalloc.stop()


def test_a_line_longer_than_a_record_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_files, "LINE_BYTES_MAX", 2 * MIB)
    with pytest.raises(FormatError, match="a line of more than 2,097,152 bytes"):
        list(read_lines(held(tmp_path, ZEROS), KEY))
