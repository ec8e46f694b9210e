"""Loaders that report to a page: what each rank waits for data, reads a second, and where it stands. Pure.

A report says sums, and who it is; nothing of it is believed but that it is a number within bounds. Who is silent is
let go of, and no more than so many are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.page.core.board import Board

#: Loaders at once, characters of a name, and ranks.
LOADERS_MAX, NAME_MAX, RANKS_MAX = 1024, 128, 1 << 24
#: Seconds of silence after which a loader is let go of.
SILENT_S_MAX = 60.0
#: The largest sum: what every browser reads exactly.
SUM_MAX = 1 << 53
_SUMS = ("tokens", "position", "batches", "data_wait_s", "elapsed_s")


class ReportRefused(Exception):  # noqa: N818 - named after what is so
    """What is no report of a loader, and why."""


@dataclass(frozen=True, slots=True)
class _Heard:
    at: float
    sums: Mapping[str, float]


class Loaders:
    """The loaders of which a page knows, as rows of a board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._heard: dict[str, _Heard] = {}

    def take(self, given: Mapping[str, Any], now: float) -> None:
        """Note a report; `now` is in seconds. Raises ReportRefused."""
        name, rank = given.get("name"), given.get("rank")
        if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX:
            raise ReportRefused(f"a loader's name has from 1 to {NAME_MAX} characters")
        if type(rank) is not int or not 0 <= rank < RANKS_MAX:
            raise ReportRefused("a rank is a whole number, from 0 on")
        sums = {key: _number(key, given.get(key)) for key in _SUMS}
        key = f"{rank} {name}"
        before = self._heard.get(key)
        if before is None and len(self._heard) >= LOADERS_MAX:
            raise ReportRefused(f"{LOADERS_MAX} loaders report already")
        self._heard[key] = _Heard(now, sums)
        row: dict[str, Any] = {"name": name, "rank": rank, "position": sums["position"], "batches": sums["batches"]}
        if before is not None and now > before.at:
            more = {item: sums[item] - before.sums[item] for item in _SUMS}
            if min(more["tokens"], more["data_wait_s"], more["elapsed_s"]) >= 0:
                row["tokens_s"] = more["tokens"] / (now - before.at)
                row["wait"] = min(1.0, more["data_wait_s"] / more["elapsed_s"]) if more["elapsed_s"] else None
        self._board.put("loaders", key, row)

    def expire(self, now: float) -> None:
        """Let go of those that have been silent for long."""
        for key in [key for key, heard in self._heard.items() if now - heard.at > SILENT_S_MAX]:
            del self._heard[key]
            self._board.drop("loaders", key)


def _number(key: str, value: object) -> float:
    # A comparison with NaN is false.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= SUM_MAX:
        raise ReportRefused(f"{key} is a number from 0 to 2^53")
    return value
