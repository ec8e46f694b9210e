"""What a page keeps of loaders that report: bounded, and nothing of it believed but numbers."""

import json
from typing import Any

import pytest

from headrace.page.core.board import LOADERS_MAX, SILENT_S_MAX, Board, Loaders, ReportRefused


def report(rank: int = 0, **more: Any) -> dict[str, Any]:
    sums = {"tokens": 0, "position": 0, "batches": 0, "data_wait_s": 0.0, "elapsed_s": 0.0}
    return {"name": "host:1", "rank": rank, **sums, **more}


def rows(board: Board) -> dict[str, Any]:
    return dict(json.loads(board.whole()).get("loaders", {}))


def test_two_reports_are_a_rate_and_a_share() -> None:
    board = Board()
    loaders = Loaders(board)
    loaders.take(report(3), 10.0)
    assert rows(board) == {"3 host:1": {"name": "host:1", "rank": 3, "position": 0, "batches": 0}}
    loaders.take(report(3, tokens=4000, position=64, batches=8, data_wait_s=0.5, elapsed_s=2.0), 12.0)
    (row,) = rows(board).values()
    assert (row["tokens_s"], row["wait"], row["position"]) == (2000.0, 0.25, 64)
    loaders.take(report(3), 13.0)
    assert "tokens_s" not in rows(board)["3 host:1"], "it was begun again"


def test_who_is_silent_is_let_go_of() -> None:
    board = Board()
    loaders = Loaders(board)
    loaders.take(report(0), 0.0)
    loaders.take(report(1), 30.0)
    loaders.expire(SILENT_S_MAX)
    assert len(rows(board)) == 2
    loaders.expire(SILENT_S_MAX + 0.1)
    assert list(rows(board)) == ["1 host:1"]


def test_no_more_loaders_are_kept_than_a_page_can_show() -> None:
    board = Board()
    loaders = Loaders(board)
    for rank in range(LOADERS_MAX):
        loaders.take(report(rank), 0.0)
    with pytest.raises(ReportRefused, match="report already"):
        loaders.take(report(LOADERS_MAX), 0.0)
    loaders.take(report(0, tokens=1), 1.0)
    assert len(rows(board)) == LOADERS_MAX


@pytest.mark.parametrize(
    "lie",
    [
        {"name": ""},
        {"name": "x" * 129},
        {"name": 7},
        {"rank": -1},
        {"rank": True},
        {"rank": "0"},
        {"tokens": -1},
        {"tokens": 1e300},
        {"tokens": float("nan")},
        {"position": None},
        {"data_wait_s": "0"},
        {"elapsed_s": [1]},
        {"batches": True},
        {"position": 10**400},
    ],
)
def test_what_is_no_report_is_refused_and_leaves_nothing(lie: dict[str, Any]) -> None:
    board = Board()
    with pytest.raises(ReportRefused):
        Loaders(board).take(report() | lie, 0.0)
    assert rows(board) == {}
