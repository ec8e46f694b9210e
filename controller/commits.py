"""How long entries take to become durable: a histogram for metrics, which decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Upper bounds in seconds; what is slower is counted behind the last.
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class CommitTimes:
    """Entries written by this controller, by the time that their writing took."""

    total_s: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))

    def take(self, seconds: float) -> None:
        """An entry was answered for after so long."""
        self.total_s += seconds
        self.counts[sum(seconds > bound for bound in BOUNDS_S)] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as Prometheus has them."""
        found: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], self.counts, strict=True):
            running += count
            found.append((bound, float(running)))
        return found
