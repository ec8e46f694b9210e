"""What a spool has answered survives a power failure: what it took, what it shed, and that it is closed."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from headrace.store.files import disk
from headrace.worker.spool.spool import Spool, SpoolClosedError, Taken
from tests.kits.store.power_cut import Disk

LINE = b'{"text": "twenty bytes"}\n'


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def open_spool(folder: Path, limit_bytes: int = 1 << 20) -> Spool:
    return Spool(folder, limit_bytes=limit_bytes, sheds=True)


def after_the_cut(recorded: Disk, tmp_path: Path) -> Spool:
    """A spool on what a power failure leaves."""
    return open_spool(recorded.left(tmp_path, tmp_path / "left") / "parent" / "spool")


def test_a_push_that_was_answered_is_there(tmp_path: Path, recorded: Disk) -> None:
    open_spool(tmp_path / "parent" / "spool").push(LINE, "a")
    again = after_the_cut(recorded, tmp_path)
    assert again.used_bytes() == len(LINE), "its bytes are there"
    assert again.push(LINE, "a") == Taken(1)
    assert again.used_bytes() == len(LINE), "and were not written again"


def test_a_push_that_was_shed_is_shed_still(tmp_path: Path, recorded: Disk) -> None:
    open_spool(tmp_path / "parent" / "spool", limit_bytes=0).push(LINE, "a")
    assert after_the_cut(recorded, tmp_path).push(LINE, "a") == Taken(0, 1)


def test_what_was_shed_before_a_restart_is_shed_still(tmp_path: Path, recorded: Disk) -> None:
    first = open_spool(tmp_path / "parent" / "spool", limit_bytes=0)
    first.push(LINE, "a")
    first.close()
    open_spool(tmp_path / "parent" / "spool").close()
    assert after_the_cut(recorded, tmp_path).push(LINE, "a") == Taken(0, 1)


def test_a_push_left_unsynced_by_death_is_durable_before_answers(
    tmp_path: Path, recorded: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "parent" / "spool"
    with monkeypatch.context() as dying:
        dying.setattr(disk, "sync_data", lambda _: None)
        killed = open_spool(folder)
        killed.push(LINE, "a")
    (folder / "owner").unlink()  # its lock went with it; what it had written did not
    again = open_spool(folder)
    assert again.push(LINE, "a") == Taken(1)
    after = after_the_cut(recorded, tmp_path)
    assert (after.used_bytes(), after.push(LINE, "a"), after.used_bytes()) == (len(LINE), Taken(1), len(LINE))


def test_a_sealed_segment_is_there_by_its_name(tmp_path: Path, recorded: Disk) -> None:
    spool = open_spool(tmp_path / "parent" / "spool")
    spool.push(LINE, "a")
    spool.close()
    left = recorded.left(tmp_path, tmp_path / "left") / "parent" / "spool"
    assert (left / "000000000001.jsonl").read_bytes() == LINE


def test_a_closed_spool_is_closed(tmp_path: Path, recorded: Disk) -> None:
    open_spool(tmp_path / "parent" / "spool").finish()
    with pytest.raises(SpoolClosedError):
        after_the_cut(recorded, tmp_path).push(LINE, "a")


def test_a_push_whose_segment_has_no_durable_name_is_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = open_spool(tmp_path)

    def fails(_: object) -> None:
        raise OSError(errno.EIO, "the device failed")

    with monkeypatch.context() as failing:
        failing.setattr(disk, "sync_folder", fails)
        for _ in range(2):
            with pytest.raises(OSError, match="device"):
                spool.push(LINE, "a")
    assert spool.push(LINE, "a") == Taken(1)


def test_a_segment_that_cannot_be_sealed_now_takes_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path, limit_bytes=1 << 20, segment_bytes=1)

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "the device failed")

    with monkeypatch.context() as failing:
        failing.setattr(disk, "rename", fails)
        assert spool.push(LINE, "a") == Taken(1)
    assert spool.push(LINE, "b") == Taken(1)
    assert [(tmp_path / f"00000000000{number}.jsonl").read_bytes() for number in (1, 2)] == [LINE, LINE]
