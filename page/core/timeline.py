"""What a run has done over time, in a bounded number of points, and the marks of what happened. Pure.

When there are as many points as fit, each second one goes and the points to come stand twice as far apart.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.page.core.board import Board

#: Points of one series, and marks of all.
POINTS_MAX = 600
MARKS_MAX = 400
#: Seconds between two points at first.
STEP_S = 1.0
#: Characters of a mark.
WORDS_MAX = 300


class Timeline:
    """The series of each pipeline, and marks, as rows of a board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        #: By pipeline: the seconds between two points, the last one's time, and the keys of all.
        self._series: dict[str, tuple[float, float, list[str]]] = {}
        self._marks: list[str] = []
        self._made = 0

    def point(self, pipeline: str, at: float, values: Mapping[str, float]) -> None:
        """Note what holds at this time, in seconds since 1970, if it is time for a point."""
        step, last, keys = self._series.get(pipeline, (STEP_S, float("-inf"), []))
        if at < last + step * 0.9:
            return
        if len(keys) >= POINTS_MAX:
            for key in keys[1::2]:
                self._board.drop("points", key)
            step, keys = step * 2, keys[0::2]
        self._made += 1
        key = f"{pipeline}#{self._made}"
        self._board.put("points", key, {"pipeline": pipeline, "at": round(at, 1), **values})
        self._series[pipeline] = step, at, [*keys, key]

    def mark(self, at: float, kind: str, words: str, pipeline: str = "") -> None:
        """Note that something happened."""
        self._made += 1
        key = str(self._made)
        self._board.put("marks", key, {"at": round(at, 1), "kind": kind, "words": words[:WORDS_MAX], "of": pipeline})
        self._marks.append(key)
        if len(self._marks) > MARKS_MAX:
            self._board.drop("marks", self._marks.pop(0))

    def forget(self, pipeline: str) -> None:
        """A pipeline is no more, or begins anew."""
        for key in self._series.pop(pipeline, (0.0, 0.0, []))[2]:
            self._board.drop("points", key)
