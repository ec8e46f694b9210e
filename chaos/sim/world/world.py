"""Virtual time from one seed: what is due when, and the story of what happened.

Nothing here waits, and nothing reads a clock. The same seed gives the same events in the same order, on any machine.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Lines of the story that are kept.
STORY_LINES_MAX = 400
#: Characters of one line of the story.
LINE_CHARACTERS_MAX = 300
#: How much faster or slower than the world a node's clock may run, as a share.
SKEW_MAX = 0.1
#: Seconds by which a sum of floating-point numbers may fall short.
_ROUNDING_S = 1e-6


class ViolationError(AssertionError):
    """An invariant does not hold. `number` is that of docs/design/ledger.md."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"invariant {number}: {text}")
        self.number = number


@dataclass(frozen=True, slots=True)
class Clock:
    """A node's own monotonic clock: it began at another number, and runs a little fast or slow."""

    rate: float
    offset: float

    def at(self, time: float) -> float:
        """What it shows at a moment of the world."""
        return self.offset + time * self.rate

    def when(self, moment: float) -> float:
        """The moment of the world at which it shows this at the latest."""
        return (moment - self.offset) / self.rate + _ROUNDING_S


class World:
    """The clock, the dice and the agenda."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        #: Virtual seconds since the beginning.
        self.now = 0.0
        #: Events that have happened.
        self.events = 0
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._story: deque[tuple[float, str, str, object]] = deque(maxlen=STORY_LINES_MAX)

    def at(self, time: float, action: Callable[..., None], *arguments: Any) -> None:
        """Do something at `time`; what is due at the same time is done in the order in which it was asked for."""
        self._count += 1
        heapq.heappush(self._agenda, (max(time, self.now), self._count, action, arguments))

    def after(self, delay: float, action: Callable[..., None], *arguments: Any) -> None:
        """Do something `delay` seconds from now."""
        self._count += 1
        heapq.heappush(self._agenda, (self.now + delay, self._count, action, arguments))

    def within(self, low: float, high: float, action: Callable[..., None], *arguments: Any) -> None:
        """Do something in a number of seconds, evenly drawn."""
        self._count += 1
        due = self.now + (low + (high - low) * self.rng.random())
        heapq.heappush(self._agenda, (due, self._count, action, arguments))

    def between(self, low: float, high: float) -> float:
        """A number of seconds, evenly drawn."""
        return low + (high - low) * self.rng.random()

    def clock(self) -> Clock:
        """A clock for a node."""
        return Clock(self.between(1.0 - SKEW_MAX, 1.0 + SKEW_MAX), self.between(0.0, 10_000.0))

    def chance(self, probability: float) -> bool:
        """Whether a die falls this way."""
        return self.rng.random() < probability

    def note(self, who: str, what: str, detail: object = "") -> None:
        """A line of the story; it is put into words only when somebody wants to read it."""
        self._story.append((self.now, who, what, detail))

    def step(self) -> bool:
        """Let the next event happen; False when nothing is due any more."""
        if not self._agenda:
            return False
        self.now, _, action, arguments = heapq.heappop(self._agenda)
        self.events += 1
        action(*arguments)
        return True

    def tail(self, lines: int = 60) -> list[str]:
        """The end of the story, a line an event."""
        told = list(self._story)[-lines:]
        return [f"{time:9.4f} {who:<14} {what} {detail}"[:LINE_CHARACTERS_MAX] for time, who, what, detail in told]
