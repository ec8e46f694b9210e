"""Lines of a log: what they hold, what finds them, and what they cost."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.daemon import log_files
from headrace.daemon.log_files import LogFiles, pages
from headrace.daemon.log_lines import LINE_BYTES_MAX, Search, about, as_text, caused_by, make_line, parse

NOON = 1_700_000_000.0
TASK = {"task": "plain/read.0", "attempt": 1, "stages": "read+write", "pipeline": "plain"}


def logger_of(book: LogFiles) -> logging.Logger:
    made = logging.getLogger("headrace.test_logbook")
    made.handlers[:], made.propagate = [], False
    made.setLevel(logging.DEBUG)
    made.addHandler(book)
    return made


def said(book: LogFiles, **search: Any) -> list[str]:
    return [json.loads(line)["message"] for line in book.read(Search(**search), 100)]


def test_a_line_says_when_who_what_and_why() -> None:
    book = LogFiles("worker one")
    with caused_by("apply.1f.3"):
        logger_of(book).warning("kills %s", "it", extra=about(task="plain/read.0", attempt=2))
    (line,) = (json.loads(line) for line in book.read(Search(), 10))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "process": "worker one",
        "task": "plain/read.0",
        "pipeline": "plain",
        "attempt": 2,
        "cause": "apply.1f.3",
        "message": "kills it",
    }


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ({}, ["begins", "reads", "fails"]),
        ({"pipeline": "plain"}, ["reads", "fails"]),
        ({"stage": "write"}, ["reads", "fails"]),
        ({"stage": "rea"}, []),
        ({"task": "plain/read.0", "level": "warning"}, ["fails"]),
        ({"cause": "apply.1f.3"}, ["begins"]),
        ({"since": NOON + 1.5}, ["fails"]),
    ],
)
def test_a_search_finds_what_it_asks_for(search: dict[str, Any], found: list[str]) -> None:
    book = LogFiles("controller")
    book.add(make_line(NOON, "info", "controller", "begins", {"cause": "apply.1f.3"}))
    book.add(make_line(NOON + 1, "debug", "plain/read.0", "reads", TASK))
    book.add(make_line(NOON + 2, "error", "plain/read.0", "fails", TASK))
    assert said(book, **search) == found


def test_a_task_cannot_say_that_it_is_another() -> None:
    book = LogFiles("worker one")
    book.take(make_line(NOON, "info", "controller", "all is well", {"task": "other/read.0", "bytes": 7}), TASK)
    (line,) = (json.loads(line) for line in book.read(Search(), 10))
    assert (line["process"], line["task"], line["bytes"]) == ("plain/read.0", "plain/read.0", 7)


@given(st.one_of(st.binary(max_size=200), st.text(max_size=50).map(lambda text: b'{"time":' + text.encode())))
def test_whatever_a_task_writes_becomes_a_line(data: bytes) -> None:
    book = LogFiles("worker one")
    book.take(data, TASK)
    (line,) = book.read(Search(task="plain/read.0"), 10)
    assert parse(line)


def test_a_line_that_is_too_long_is_cut_and_says_so() -> None:
    line = make_line(NOON, "info", "controller", "x" * 1_000_000, {"more": "y" * 1_000_000, "count": 3})
    assert len(line) < LINE_BYTES_MAX
    assert "2000" in str((parse(line) or {})["cut"])


def test_what_is_no_line_is_shown_as_it_is() -> None:
    assert as_text(b"Traceback (most recent call last):") == "Traceback (most recent call last):"
    assert as_text(make_line(NOON, "info", "controller", "serves", {})).endswith("info controller: serves")


def test_what_a_terminal_would_obey_is_shown_escaped() -> None:
    line = make_line(NOON, "info", "plain/read.0", "red \x1b[31m\nnext", {"traceback": "one\n\x1b[2Jtwo"})
    assert as_text(line).splitlines()[0].endswith("red \\x1b[31m\\x0anext")
    assert as_text(line).splitlines()[1:] == ["one", "\\x1b[2Jtwo"]
    assert as_text(b"\x1b[2Jgone") == "\\x1b[2Jgone"


def test_memory_holds_the_newest_lines() -> None:
    book = LogFiles("controller", memory_bytes=1000)
    for number in range(100):
        book.add(make_line(NOON + number, "info", "controller", str(number), {}))
    kept = said(book)
    assert kept == [str(number) for number in range(100 - len(kept), 100)]
    assert 5 < len(kept) < 20


def test_a_logbook_begins_with_what_its_files_hold(tmp_path: Path) -> None:
    first = LogFiles("worker one", tmp_path)
    first.add(make_line(NOON + 2, "info", "worker one", "second", {}))
    first.take(make_line(NOON + 1, "info", "", "first", {}), TASK)
    (tmp_path / "torn.jsonl").write_bytes(b'{"time":"2023')
    assert said(LogFiles("worker one", tmp_path)) == ["first", "second"]
    assert {path.name for path in tmp_path.iterdir()} == {"worker-one.jsonl", "plain-read.0.jsonl", "torn.jsonl"}


def test_files_are_bounded_in_size_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "FILE_BYTES_MAX", 1000)
    monkeypatch.setattr(log_files, "FILES_MAX", 8)
    monkeypatch.setattr(log_files, "OPEN_FILES_MAX", 3)
    book = LogFiles("worker one", tmp_path)
    for number in range(200):
        book.take(b"words", {**TASK, "task": f"plain/read.{number // 20}"})
    files = list(tmp_path.iterdir())
    assert len(files) <= 9
    assert all(path.stat().st_size <= 1000 for path in files)


def test_a_folder_that_cannot_be_written_costs_the_file_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    book = LogFiles("worker one", tmp_path / "file" / "logs")
    book.add(make_line(NOON, "info", "worker one", "goes on", {}))
    assert said(book) == ["goes on"]


def test_a_reader_that_does_not_read_holds_nobody_up() -> None:
    read, write = os.pipe()
    book = LogFiles("worker one", stream=write)
    for _ in range(1000):
        book.add(make_line(NOON, "info", "worker one", "x" * 1000, {}))
    assert book.untold > 900
    assert os.read(read, 20).startswith(b'{"time":"2023')
    os.close(read)
    os.close(write)


def test_a_follower_hears_what_it_asked_for_until_it_leaves() -> None:
    book, heard = LogFiles("controller"), list[bytes]()
    book.follow(1, Search(level="warning"), heard.append)
    logger_of(book).info("well")
    logger_of(book).warning("not well")
    book.leave(1)
    logger_of(book).warning("unheard")
    assert [json.loads(line)["message"] for line in heard] == ["not well"]


def test_daemons_that_share_a_variable_have_folders_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS_DIRECTORY", "/var/log/headrace/worker")
    assert log_files.logs_folder("", "worker-one") == "/var/log/headrace/worker"
    monkeypatch.setenv("HEADRACE_LOGS", "/var/log/cluster")
    assert log_files.logs_folder("", "worker-one") == "/var/log/cluster/worker-one"
    assert log_files.logs_folder("/given", "worker-one") == "/given"


def test_pages_are_bounded() -> None:
    lines = [b"x" * (400 << 10)] * 6
    assert [len(page) for page in pages(lines)] == [2, 2, 2]
