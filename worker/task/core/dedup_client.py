"""The one question that a solitary task may have on its way to the decider: the pure half of
`worker/task/dedup_client.py`.

Its record is in nobody's hands meanwhile but the source's, which has not sent it: a sweep says so, and one that halts
lets go of it. An answer to any question but the last is of no use.
"""

from __future__ import annotations

#: Seconds without an answer after which a question is asked again; the same question has the same answer.
ASK_AGAIN_S = 1.0


class Asking:
    """Whether a question waits for its answer, and when it is to be put."""

    def __init__(self) -> None:
        self._number = 0
        self._due_at: float | None = None

    @property
    def waiting(self) -> bool:
        """Whether a question has no answer yet."""
        return self._due_at is not None

    @property
    def number(self) -> int:
        """The number of the last question."""
        return self._number

    def ask(self, now: float) -> int:
        """There is a question, to be put at once; its number."""
        self._number += 1
        self._due_at = now
        return self._number

    def wake_at(self) -> float | None:
        """When it is to be put, for the first time or again."""
        return self._due_at

    def due(self, now: float) -> bool:
        """Whether it is to be put now; not again before a while has passed."""
        if self._due_at is None or now < self._due_at:
            return False
        self._due_at = now + ASK_AGAIN_S
        return True

    def answered(self, number: int) -> bool:
        """An answer came; whether it is to the question that waits."""
        if self._due_at is None or number != self._number:
            return False
        self._due_at = None
        return True

    def let_go(self) -> None:
        """The record is to be read again by whoever is told to: its answer is of no use."""
        self._due_at = None
