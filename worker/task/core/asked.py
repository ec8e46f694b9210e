"""The batches of a task that wait for a decider: which of them are duplicates is asked, and their texts stay here."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

B = TypeVar("B")

#: Batches that wait at once: so many are decided, and on their way, while another is made.
WAITING_MAX = 4
#: Questions of one attempt, and attempts whose questions have numbers of their own.
QUESTIONS_MAX, ATTEMPTS = 1 << 31, 1 << 31


class AskedBatches(Generic[B]):
    """Batches in the order in which the decider was asked, and the answers that have come.

    They go on in that order. A question is asked again when a link to the decider, or from it, was made anew: it may
    have been lost, or its answer. The decider answers it as it did before. Only the first answer counts.
    """

    def __init__(self, attempt: int = 0, waiting_max: int = WAITING_MAX) -> None:
        self._waiting_max = waiting_max
        #: Another attempt has other numbers: an answer to one of its questions is none to those of this one.
        self._number = (attempt % ATTEMPTS) * QUESTIONS_MAX
        self._batches: dict[int, B] = {}
        self._answers: dict[int, Any] = {}

    @property
    def empty(self) -> bool:
        """Whether none waits."""
        return not self._batches

    @property
    def full(self) -> bool:
        """Whether so many wait that no other may."""
        return len(self._batches) >= self._waiting_max

    @property
    def ready(self) -> bool:
        """Whether the first may go on."""
        return next(iter(self._batches), None) in self._answers

    def ask(self, batch: B) -> int:
        """A batch waits from now on; the number of its question."""
        self._number += 1
        self._batches[self._number] = batch
        return self._number

    def answered(self, number: int, answer: Any) -> None:
        """An answer came; None: the decider is fenced, and nobody has the batch any more."""
        if number not in self._batches or number in self._answers:
            return
        if answer is None:
            del self._batches[number]
        else:
            self._answers[number] = answer

    def take(self) -> tuple[B, Any]:
        """The first batch and its answer; it waits no longer."""
        number = next(iter(self._batches))
        return self._batches.pop(number), self._answers.pop(number)

    def unanswered(self) -> list[tuple[int, B]]:
        """The questions that have no answer, first to last."""
        return [(number, batch) for number, batch in self._batches.items() if number not in self._answers]
