"""A spool's folder that somebody damaged is refused by name: what was acknowledged is never cut off in silence."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from headrace.stages.runtime.errors import InputError
from headrace.stages.sources.spool import PUSH_RECORDS_MAX, SpoolSource
from headrace.store.contract.errors import StoreError
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap
from headrace.worker.spool.spool import Spool, Taken

LINE = b'{"text": "twenty bytes"}\n'
PUSH = {"end": len(LINE), "records": 1, "key": "a"}
NO_PUSHES = [
    b"no json",
    b"[]",
    b"null",
    b"{}",
    orjson.dumps({**PUSH, "end": "25"}),
    orjson.dumps({**PUSH, "end": -1}),
    orjson.dumps({**PUSH, "end": 1.5}),
    orjson.dumps({**PUSH, "end": 1 << 60}),
    orjson.dumps({**PUSH, "records": 0}),
    orjson.dumps({**PUSH, "records": PUSH_RECORDS_MAX + 1}),
    orjson.dumps({**PUSH, "records": True}),
    orjson.dumps({**PUSH, "key": None}),
    orjson.dumps({**PUSH, "key": ["a"]}),
]


def folder(tmp_path: Path, *lines: bytes, segment: bytes = LINE) -> Path:
    (tmp_path / "000000000001.commits").write_bytes(b"".join(line + b"\n" for line in lines))
    (tmp_path / "000000000001.jsonl.open").write_bytes(segment)
    return tmp_path


@pytest.mark.parametrize("line", NO_PUSHES)
def test_a_journal_damaged_within_refuses_the_folder_by_name(tmp_path: Path, line: bytes) -> None:
    with pytest.raises(StoreError, match=r"000000000001.commits is damaged in line 1"):
        Spool(folder(tmp_path, line, orjson.dumps(PUSH)), limit_bytes=1 << 20)
    assert (tmp_path / "000000000001.jsonl.open").read_bytes() == LINE


@pytest.mark.parametrize("line", NO_PUSHES)
def test_what_a_power_failure_left_of_the_last_push_is_none(tmp_path: Path, line: bytes) -> None:
    spool = Spool(folder(tmp_path, orjson.dumps(PUSH), line, segment=LINE + b"more"), limit_bytes=1 << 20)
    assert spool.push(LINE, "a") == Taken(1)
    assert (tmp_path / "000000000001.jsonl").read_bytes() == LINE


def test_a_short_acknowledged_segment_is_not_filled_with_zeros(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="less than the 25 bytes that were acknowledged"):
        Spool(folder(tmp_path, orjson.dumps(PUSH), segment=LINE[:-3]), limit_bytes=1 << 20)


def test_a_journal_that_goes_backwards_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="damaged in line 2"):
        Spool(folder(tmp_path, *(orjson.dumps(PUSH),) * 3), limit_bytes=1 << 20)


@pytest.mark.parametrize("name", ["mine.commits", "1.commits", "x.shed", "notes.shed.open", "000000000001.shed.old"])
def test_files_of_others_are_let_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"no json\n")
    Spool(tmp_path, limit_bytes=1 << 20).push(LINE, "a")
    assert (tmp_path / name).read_bytes() == b"no json\n"


@pytest.mark.parametrize("line", [*NO_PUSHES[:4], b'{"records": -1, "key": ""}', b'{"records": 1e9, "key": ""}'])
def test_a_list_of_shed_that_is_none_is_refused(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "000000000001.shed").write_bytes(line + b"\n")
    with pytest.raises(StoreError, match=r"000000000001.shed is damaged"):
        Spool(tmp_path, limit_bytes=1 << 20)
    (tmp_path / "closed").touch()
    source = SpoolSource("read", str(tmp_path))
    (fragment,) = source.list()
    assert fragment is not None
    with pytest.raises(InputError, match="no list of pushes that were shed"):
        list(source.read(fragment, [Gap(0, UNBOUNDED, 0)]))


def test_a_folder_that_was_refused_is_nobodys(tmp_path: Path) -> None:
    damaged = folder(tmp_path, b"no json", orjson.dumps(PUSH))
    with pytest.raises(StoreError, match="damaged"):
        Spool(damaged, limit_bytes=1 << 20)
    (tmp_path / "000000000001.commits").unlink()
    assert Spool(damaged, limit_bytes=1 << 20).push(LINE, "a") == Taken(1)
