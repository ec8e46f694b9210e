"""Rows and their differences: who has the whole and each change since has what stands."""

import itertools
import json
import random
from typing import Any

import pytest

from headrace.page.core import board as module
from headrace.page.core.board import (
    MARKS_MAX,
    NAME_MAX,
    POINTS_MAX,
    RANKS_MAX,
    SUM_MAX,
    WORDS_MAX,
    Board,
    Loaders,
    ReportRefused,
    Timeline,
)


def apply(seen: dict[str, dict[str, Any]], change: bytes) -> None:
    """What the browser does."""
    for table, rows in json.loads(change or b"{}").items():
        for key, row in rows.items():
            if row is None:
                seen.setdefault(table, {}).pop(key, None)
            else:
                seen.setdefault(table, {})[key] = row


@pytest.mark.parametrize("seed", range(20))
def test_changes_one_by_one_come_to_the_whole(seed: int) -> None:
    rng, board, seen = random.Random(seed), Board(), dict[str, dict[str, Any]]()
    for _ in range(200):
        table, key = rng.choice("ab"), rng.choice(['x"', "y\n", "<b>", "__proto__"])
        match rng.randrange(4):
            case 0 | 1:
                board.put(table, key, [rng.randrange(3)])
            case 2:
                board.drop(table, key)
            case _:
                apply(seen, board.change())
    apply(seen, board.change())
    whole = json.loads(board.whole())
    assert {name: rows for name, rows in seen.items() if rows} == {name: rows for name, rows in whole.items() if rows}
    assert board.change() == b""


def test_a_row_that_stands_as_it_is_changes_nothing() -> None:
    board = Board()
    board.put("a", "x", {"n": 1})
    assert json.loads(board.change()) == {"a": {"x": {"n": 1}}}
    board.put("a", "x", {"n": 1})
    assert board.change() == b""
    board.keep("a", ["y"])
    assert json.loads(board.change()) == {"a": {"x": None}}


def test_rows_beyond_the_limits_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_MAX", 2)
    board = Board()
    for key in "xyz":
        board.put("a", key, 1)
    board.put("a", "x", "l" * module.ROW_BYTES_MAX)
    assert json.loads(board.whole()) == {"a": {"x": 1, "y": 1}}
    assert board.left_out == 2


def test_a_long_run_keeps_a_bounded_number_of_points() -> None:
    board = Board()
    line = Timeline(board)
    for second in range(20_000):
        line.point("plain", float(second), {"kept": second})
    points = sorted(row["at"] for row in json.loads(board.whole())["points"].values())
    assert len(points) <= POINTS_MAX
    assert points[0] == 0
    assert points[-1] > 19_900
    apart = [after - before for before, after in itertools.pairwise(points)]
    assert max(apart) <= 2 * min(apart)
    line.forget("plain")
    assert json.loads(board.whole())["points"] == {}


def test_marks_are_bounded_in_number_and_length() -> None:
    board = Board()
    line = Timeline(board)
    for number in range(MARKS_MAX + 7):
        line.mark(number, "death", "w" * 9999)
    marks = json.loads(board.whole())["marks"].values()
    assert len(marks) == MARKS_MAX
    assert min(mark["at"] for mark in marks) == 7
    assert {len(mark["words"]) for mark in marks} == {WORDS_MAX}


@pytest.mark.parametrize(
    ("value", "shown"),
    [("caf\udce9.txt", "caf\\udce9.txt"), (1 << 70, str(1 << 70)), ({"a": [(-1 << 70,)]}, {"a": [[str(-1 << 70)]]})],
    ids=["a file's name", "a number", "within others"],
)
def test_a_row_of_any_text_or_number_is_shown(value: object, shown: object) -> None:
    board = Board()
    board.put("a", "\udce9", [value])
    assert json.loads(board.whole()) == {"a": {"\\udce9": [shown]}}
    board.drop("a", "\udce9")
    assert json.loads(board.change()) == {"a": {"\\udce9": None}}


def test_of_a_row_that_is_nested_too_deep_the_top_is_shown() -> None:
    value: list[Any] = []
    for _ in range(400):
        value = [value]
    assert module.written(value) == b"[" * module.NESTING_MAX + '"…"'.encode() + b"]" * module.NESTING_MAX


SUMS = ("tokens", "position", "batches", "data_wait_s", "elapsed_s")


def report(**said: object) -> dict[str, object]:
    return {"name": "l", "rank": 0, **dict.fromkeys(SUMS, 0), **said}


@pytest.mark.parametrize(
    "said",
    [
        {"name": "l"},
        {"name": "l" * NAME_MAX},
        {"rank": RANKS_MAX - 1},
        *({key: SUM_MAX} for key in SUMS),
    ],
)
def test_a_report_up_to_its_limits_is_a_row(said: dict[str, object]) -> None:
    board = Board()
    Loaders(board).take(report(**said), 0.0)
    (row,) = json.loads(board.whole())["loaders"].values()
    assert row["name"] == report(**said)["name"]


@pytest.mark.parametrize(
    "said",
    [
        *({"name": name} for name in ("", "l" * (NAME_MAX + 1), 7, None)),
        *({"rank": rank} for rank in (-1, RANKS_MAX, 1.0, True, None)),
        *({key: value} for key in SUMS for value in (-1, SUM_MAX + 1, float("nan"), True, "1", None)),
    ],
)
def test_a_report_beyond_its_limits_is_refused(said: dict[str, object]) -> None:
    board = Board()
    with pytest.raises(ReportRefused):
        Loaders(board).take(report(**said), 0.0)
    assert not json.loads(board.whole()).get("loaders")
