"""Scratch files: bytes on their way into an object, outside memory and without a name."""

import contextlib
import gc
import os
import threading
from pathlib import Path

import pytest

from headrace.store.files import scratch
from headrace.store.files.scratch import Scratch, near
from headrace.store.files.store import FileStore

MAKERS = {"disk": Scratch.on_disk, "memory": Scratch.in_memory}


@pytest.fixture(params=sorted(MAKERS))
def file(request: pytest.FixtureRequest) -> Scratch:
    return MAKERS[request.param]()


def _read(file: Scratch, offset: int, count: int) -> bytes:
    target = bytearray(count)
    file.read_into(memoryview(target), offset)
    return bytes(target)


def _open_below(folder: Path) -> list[str]:
    """What this process has open there."""
    found: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [path for path in found if path.startswith(str(folder))]


def test_what_is_appended_is_read_from_where_it_begins(file: Scratch) -> None:
    assert [file.append(data) for data in (b"one", b"", b"three")] == [0, 3, 3]
    assert (file.size, _read(file, 0, 3), _read(file, 3, 5), _read(file, 2, 2)) == (8, b"one", b"three", b"et")


def test_a_patch_changes_what_stands_there_and_nothing_else(file: Scratch) -> None:
    file.append(b"12345678")
    file.patch(b"ab", 3)
    assert _read(file, 0, file.size) == b"123ab678"
    with pytest.raises(ValueError, match="reaches past 8"):
        file.patch(b"ab", 7)


def test_bytes_that_are_not_there_are_not_made_up(file: Scratch) -> None:
    file.append(b"123")
    with pytest.raises(ValueError, match="are not there"):
        _read(file, 1, 3)


def test_all_bytes_come_in_pieces(file: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "PIECE_BYTES", 4)
    for size in (0, 3, 4, 9):
        file.append(bytes(range(file.size, size)))
        assert [bytes(piece) for piece in file.pieces()] == [
            bytes(range(size))[at : at + 4] for at in range(0, size, 4)
        ]


def test_another_thread_reads_while_one_appends(file: Scratch) -> None:
    file.append(b"first")
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(_read(file, 0, 5)))
    reader.start()
    file.append(b"second")
    reader.join(10)
    assert found == [b"first"]


def test_a_disk_that_is_nearly_full_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = os.statvfs(tmp_path)
    for room, where in ((0, str(tmp_path)), (disk.f_blocks * disk.f_frsize + 1, "headrace scratch")):
        monkeypatch.setattr(scratch, "FREE_BYTES_MIN", room)
        file = near(FileStore(tmp_path))
        assert where in os.readlink(f"/proc/self/fd/{file.fileno()}")


def test_a_scratch_file_is_nameless_and_goes_with_its_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "FREE_BYTES_MIN", 0)
    file = near(FileStore(tmp_path))
    file.append(b"x")
    assert len(_open_below(tmp_path / ".tmp")) == 1
    assert list((tmp_path / ".tmp").iterdir()) == []
    del file
    gc.collect()
    assert _open_below(tmp_path / ".tmp") == []


def test_where_no_folder_can_be_made_a_scratch_file_is_in_memory(tmp_path: Path) -> None:
    (tmp_path / ".tmp").write_text("in the way")
    file = near(FileStore(tmp_path))
    file.append(b"x")
    assert "headrace scratch" in os.readlink(f"/proc/self/fd/{file.fileno()}")
