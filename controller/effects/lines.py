"""Lines of a log that others cause: so many within a while, and the rest as a number."""

from __future__ import annotations

#: Seconds within which LINES_MAX lines are written; what is more is counted, and told with the next line.
WINDOW_S, LINES_MAX = 10.0, 10


class LineBudget:
    """How many lines of one kind may be written."""

    def __init__(self) -> None:
        self._since, self._lines, self._left_out = float("-inf"), 0, 0

    def line(self, words: str, now: float) -> str:
        """The line to write at this time, with how many were not written before it; empty for none."""
        if now >= self._since + WINDOW_S:
            self._since, self._lines = now, 0
        if self._lines >= LINES_MAX:
            self._left_out += 1
            return ""
        more = f"; {self._left_out} more were not told" if self._left_out else ""
        self._lines, self._left_out = self._lines + 1, 0
        return f"{words}{more}"
