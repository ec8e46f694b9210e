"""The index of a host: made once, mapped by all, believed only as it was written."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace.pipeline.errors import PipelineError
from headrace.stages.decontamination import index
from headrace.stages.decontamination.index import SuiteIndex, open_index
from headrace.stages.decontamination.stage import find_items
from headrace.stages.decontamination.suites import describe_suites
from headrace.store.files import disk

Write = Callable[..., pathlib.Path]
QUESTION = "How many of the mills on the lower river were still grinding barley when the second war began?"


@pytest.fixture
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "headrace" / "suites"


@pytest.fixture
def tables(write_jsonl: Write) -> list[dict[str, Any]]:
    return describe_suites("d", str(write_jsonl({"question": QUESTION, "answer": "Seven"})))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[SuiteIndex]:
    found: list[SuiteIndex] = []
    make = index.make_index

    def counted(*given: Any) -> SuiteIndex:
        found.append(make(*given))
        return found[-1]

    monkeypatch.setattr(index, "make_index", counted)
    return found


def finds(opened: SuiteIndex) -> bool:
    return find_items(pa.array([QUESTION]), opened, 0.8)[2].tolist() == [0]


def file_of(cache: pathlib.Path) -> pathlib.Path:
    (path,) = cache.glob("*.index")
    return path


def test_it_is_made_once_and_only_its_user_may_touch_it(
    cache: pathlib.Path, tables: list[dict[str, Any]], made: list[SuiteIndex]
) -> None:
    assert all(finds(open_index("d", tables)) for _ in range(3))
    assert len(made) == 1
    assert (cache.stat().st_mode & 0o777, file_of(cache).stat().st_mode & 0o777) == (0o700, 0o600)
    assert sorted(path.name for path in cache.iterdir()) == sorted((file_of(cache).name, "making"))


def test_another_process_maps_it(cache: pathlib.Path, tables: list[dict[str, Any]]) -> None:
    open_index("d", tables)
    before = file_of(cache).stat().st_ino
    code = (
        "from headrace.stages.decontamination import index; import sys, json\n"
        "index.make_index = None\n"
        "print(index.open_index('d', json.loads(sys.argv[1])).items)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, json.dumps(tables)], capture_output=True, text=True, check=True, timeout=120
    )
    assert (answer.stdout.strip(), file_of(cache).stat().st_ino) == ("1", before)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "another file", "head"])
def test_a_damaged_file_is_made_again(
    cache: pathlib.Path, tables: list[dict[str, Any]], made: list[SuiteIndex], damage: str
) -> None:
    open_index("d", tables)
    path = file_of(cache)
    whole = path.read_bytes()
    flipped = bytes([*whole[:-700], whole[-700] ^ 1, *whole[-699:]])
    head = whole[:32] + b"\xff" * 8 + whole[40:]
    path.write_bytes(
        {"cut": whole[:-64], "flipped": flipped, "empty": b"", "another file": b"text " * 99, "head": head}[damage]
    )
    assert finds(open_index("d", tables))
    assert (len(made), path.read_bytes()) == (2, whole)


def test_other_suites_have_another_file(cache: pathlib.Path, tables: list[dict[str, Any]], write_jsonl: Write) -> None:
    open_index("d", tables)
    open_index("d", describe_suites("d", str(write_jsonl({"question": QUESTION.lower()}))))
    assert len(list(cache.glob("*.index"))) == 2


def test_a_cache_that_others_may_write_is_not_believed(
    cache: pathlib.Path, tables: list[dict[str, Any]], made: list[SuiteIndex]
) -> None:
    open_index("d", tables)
    cache.chmod(0o770)
    assert finds(open_index("d", tables))
    assert len(made) == 2


def test_a_file_that_cannot_be_written_costs_no_run(
    cache: pathlib.Path,
    tables: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(disk, "rename", refuse)
    with caplog.at_level(logging.WARNING):
        assert finds(open_index("d", tables))
    assert "each task makes its own" in caplog.text
    assert [path.name for path in cache.iterdir()] == ["making"]


def test_the_oldest_files_go_when_they_take_too_much(
    cache: pathlib.Path, tables: list[dict[str, Any]], write_jsonl: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "CACHE_BYTES_MAX", 0)
    open_index("d", tables)
    open_index("d", describe_suites("d", str(write_jsonl({"question": QUESTION.lower()}))))
    assert len(list(cache.glob("*.index"))) == 1


def test_where_it_is_not_yet_a_suite_that_changed_is_refused(
    cache: pathlib.Path, tables: list[dict[str, Any]], write_jsonl: Write
) -> None:
    write_jsonl({"question": "Another one?"})
    with pytest.raises(PipelineError, match="put the same content on every host"):
        open_index("d", tables)
    assert not list(cache.glob("*.index"))
