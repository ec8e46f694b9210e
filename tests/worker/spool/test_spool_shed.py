"""What a spool sheds: a line for each push, whole or not at all, over restarts."""

import errno
import threading
from pathlib import Path

import pytest

from headrace.store.files import disk
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import Entry, Led, PipelineApplied, encode_entry
from headrace.store.ledger.log import Log
from headrace.worker.spool.server import _release
from headrace.worker.spool.spool import JOURNALS_KEPT, ShedLog, Spool, SpoolClosedError, Taken

LINE = b'{"text": "twenty bytes"}\n'


def full(folder: Path) -> Spool:
    """A spool with room for one push."""
    return Spool(folder, limit_bytes=len(LINE), sheds=True)


def test_a_push_has_one_answer_over_restarts(tmp_path: Path) -> None:
    spool = full(tmp_path)
    answers = [spool.push(LINE, key) for key in "abab"]
    assert answers == [Taken(1), Taken(0, 1), Taken(1), Taken(0, 1)]
    spool.close()
    (tmp_path / "000000000001.jsonl").unlink()
    again = full(tmp_path)
    assert again.push(LINE, "b") == Taken(0, 1), "there is room now, but it was told that it was shed"
    assert again.push(LINE, "c") == Taken(1)
    again.close()
    assert sorted(path.name for path in tmp_path.glob("0*[dl]")) == ["000000000002.shed", "000000000003.jsonl"]


def test_half_a_line_of_a_power_cut_is_cut_off(tmp_path: Path) -> None:
    log = ShedLog(tmp_path)
    log.note(7, 3, 100, "a")
    with open(tmp_path / "000000000007.shed.open", "ab") as file:
        file.write(b'{"records": 9, "by')
    assert list(ShedLog(tmp_path).recover()) == [(7, [(3, "a")])]
    assert (tmp_path / "000000000007.shed").read_bytes().count(b"\n") == 1


def test_a_released_shed_segment_keeps_its_number_and_keys_over_restarts(tmp_path: Path) -> None:
    spool = full(tmp_path)
    assert [spool.push(LINE, key) for key in "ab"] == [Taken(1), Taken(0, 1)]
    spool.close()
    assert spool.release(["000000000001.jsonl", "000000000002.shed"]) == 2
    again = full(tmp_path)
    assert [again.push(LINE, key) for key in "bcd"] == [Taken(0, 1), Taken(1), Taken(0, 1)]
    again.close()
    assert sorted(path.name for path in tmp_path.glob("0*[dl]")) == ["000000000003.jsonl", "000000000004.shed"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_shed_segment_without_a_push_is_never_listed(
    restarts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    log = ShedLog(tmp_path)
    with monkeypatch.context() as failing:
        failing.setattr(disk, "sync_data", fails)
        with pytest.raises(OSError, match="No space left"):
            log.note(7, 3, 100, "a")
    if restarts:
        assert list(ShedLog(tmp_path).recover()) == [(7, [])]
    else:
        log.seal()
    assert list(tmp_path.iterdir()) == []


def test_the_number_of_an_empty_shed_segment_is_given_once(tmp_path: Path) -> None:
    (tmp_path / "000000000007.shed").touch()
    spool = Spool(tmp_path, limit_bytes=0, sheds=True)
    spool.push(LINE, "a")
    spool.close()
    assert sorted(path.name for path in tmp_path.glob("0*")) == ["000000000007.shed", "000000000008.shed"]


def test_a_spool_that_is_finished_takes_nothing_after_a_restart_either(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit_bytes=1 << 20)
    assert spool.push(LINE, "a") == Taken(1)
    spool.finish()
    spool.close()
    assert (tmp_path / "000000000001.jsonl").read_bytes() == LINE
    again = Spool(tmp_path, limit_bytes=1 << 20)
    assert again.push(LINE, "a") == Taken(1), "what is known is answered as before"
    with pytest.raises(SpoolClosedError):
        again.push(LINE, "b")
    again.close()


def test_released_segments_make_room_and_their_keys_are_remembered(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit_bytes=3 * len(LINE), segment_bytes=1)
    for key in "abc":
        spool.push(LINE, key)
    assert spool.used_bytes() == 3 * len(LINE)
    assert spool.release(["000000000001.jsonl", "000000000002.jsonl", "000000000009.jsonl"]) == 2
    assert spool.push(LINE, "d") == Taken(1)
    spool.close()
    again = Spool(tmp_path, limit_bytes=1 << 20)
    assert again.push(LINE, "a") == Taken(1)
    assert again.used_bytes() == 2 * len(LINE)
    again.close()


class Twice(threading.Event):
    """An end that comes at the third look."""

    looks = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.looks += 1
        return self.looks > 2


def test_a_ledger_that_this_release_cannot_read_ends_no_spool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = {"name": "a", "kind": "of later", "target": "t", "parameters": {}}
    later = PipelineApplied("v", {"name": "x", "dataset": "y", "stages": [stage]})
    Log(FileStore(tmp_path / "data")).append(0, encode_entry(Entry(1, (Led(1, {}), later))))
    spool = Spool(tmp_path / "spool", limit_bytes=1 << 20)
    _release(spool, str(tmp_path / "data"), tmp_path / "spool", Twice())
    spool.close()
    assert capsys.readouterr().err.count(f"no segment is released: dataset {tmp_path / 'data'}: ") == 2


@pytest.mark.parametrize("kind", ["", ".shed"])
def test_journals_of_what_is_gone_are_bounded(tmp_path: Path, kind: str) -> None:
    last = JOURNALS_KEPT + 20
    for number in range(1, last + 1):
        (tmp_path / f"{number:012d}{kind}.commits").touch()
    for number in range(last + 1, last + 9):
        (tmp_path / f"{number:012d}.jsonl").touch()
        (tmp_path / f"{number:012d}.commits").touch()
    spool = Spool(tmp_path, limit_bytes=1 << 20)
    spool.release([])
    spool.close()
    kept = sorted(int(path.name[:12]) for path in tmp_path.glob("*.commits"))
    assert kept == list(range(21, last + 9)), "the last, and those of segments that are there"
