"""Connections whose other end has proved nothing yet: so many at most, each for so long, and the oldest gives way.

A flood of them keeps nobody out: who comes is taken in, and one of the address that has most of them is sent away, the
one that came first. A true node needs some milliseconds. Pure, but for the clock that is handed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

#: Seconds within which LINES_MAX of those that are sent away are named in the log; the rest are counted.
WINDOW_S = 10.0
LINES_MAX = 10


class Strangers:
    """Those of one door. Each has a number, and something that sends it away."""

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        #: In the order in which they came: the address, and what sends it away.
        self._there: dict[int, tuple[str, Callable[[], object]]] = {}
        self._by_address: Counter[str] = Counter()
        self._made = 0

    def __len__(self) -> int:
        return len(self._there)

    def come(self, address: str, send_away: Callable[[], object]) -> int:
        """Take one in, for another if there is no room; its number."""
        if len(self._there) >= self._at_most:
            (crowd, _), *_ = self._by_address.most_common(1)
            oldest = next(number for number, (where, _) in self._there.items() if where == crowd)
            _, send = self._there[oldest]
            self.go(oldest)
            send()
        self._made += 1
        self._there[self._made] = address, send_away
        self._by_address[address] += 1
        return self._made

    def go(self, number: int) -> None:
        """It has proved itself, or is gone."""
        found = self._there.pop(number, None)
        if found is not None:
            self._by_address[found[0]] -= 1
            if not self._by_address[found[0]]:
                del self._by_address[found[0]]


class LineBudget:
    """How many lines a door may write of those that it sends away."""

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
