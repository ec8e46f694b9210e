"""Which commands a worker obeys: those of no lower term than it has heard of, of the cluster and of each run's log.

A leader that was frozen may wake and go on talking before it learns that others have led. What it orders by then is
void, also for a task that this worker has no longer: a start is the very command that would do harm.
"""

from __future__ import annotations

#: Logs whose terms are remembered; beyond it the one that was longest without a command is forgotten.
LOGS_MAX = 4096


class Fencing:
    """The highest terms that this worker has heard of."""

    def __init__(self) -> None:
        self.term = 0
        self._logs: dict[str, int] = {}

    def admits(self, term: int, log: str = "", log_term: int = 0) -> bool:
        """Whether to do what a command of these terms says; `term` 0 is a controller without a cluster's log."""
        if term < self.term or log_term < self._logs.get(log, 0):
            return False
        self.term = term
        if log and log_term:
            self._logs.pop(log, None)
            self._logs[log] = log_term
            if len(self._logs) > LOGS_MAX:
                del self._logs[next(iter(self._logs))]
        return True
