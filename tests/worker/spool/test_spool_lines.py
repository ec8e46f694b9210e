"""The lines of a push: blank ones are none, and short ones take no more memory than their bytes are worth."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from headrace.worker.spool import spool as spool_module
from headrace.worker.spool.spool import Spool, Taken


def taken(folder: Path, data: bytes) -> tuple[Taken, bytes]:
    """What is answered to a push of `data` alone, and what the spool holds then."""
    spool = Spool(folder, limit_bytes=1 << 30)
    answer = spool.push(data)
    spool.close()
    return answer, b"".join(path.read_bytes() for path in folder.glob("*.jsonl"))


@pytest.mark.parametrize("split", [1, 2, 3, 5, 1 << 18])
def test_blank_lines_are_none_wherever_a_push_is_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: int
) -> None:
    monkeypatch.setattr(spool_module, "_SPLIT_BYTES", split)
    data = b'\n \n{"a": 1}\n\n\r\n{"b": 22}\r\n\t\n{"c": 333}'
    assert taken(tmp_path / "some", data) == (Taken(3), b'{"a": 1}\n{"b": 22}\r\n{"c": 333}\n')
    assert taken(tmp_path / "none", b"\n\n  \n") == (Taken(0), b"")


def test_a_push_of_short_lines_takes_a_few_times_its_bytes(tmp_path: Path) -> None:
    data = b"1\n" * (1 << 21)
    tracemalloc.start()
    try:
        answer, held = taken(tmp_path / "spool", data)
        assert tracemalloc.get_traced_memory()[1] < 6 * len(data)
    finally:
        tracemalloc.stop()
    assert (answer, held) == (Taken(1 << 21), data)
