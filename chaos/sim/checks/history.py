"""What must hold of every log, whatever it is about: invariants 1 to 3 of docs/design/ledger.md.

One history for each log of a simulated cluster. It folds what is durable by itself, and compares with that whatever a
controller writes, or has folded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from headrace.chaos.sim.checks.observed import Asked, Folding
from headrace.chaos.sim.storage import SimulatedLog
from headrace.chaos.sim.world import ViolationError
from headrace.controller.core.messages import WriteEntry
from headrace.store.ledger import Entry, FoldError, Led, LogState

S = TypeVar("S", bound=LogState)


class History(Generic[S]):
    """The entries of one log, who leads it, and what a fold knows after each entry."""

    def __init__(self, log: SimulatedLog, ledger: S, summary: Callable[[S], tuple[Any, ...]]) -> None:
        self._log = log
        #: The fold of all that is durable.
        self.ledger = ledger
        self._summary = summary
        self._summaries: list[tuple[Any, ...]] = []
        self._leaders: dict[int, str] = {}
        #: What somebody has tried to write last in a term: number and bytes.
        self._writing: dict[tuple[str, int], tuple[int, bytes]] = {}
        self._folded: dict[str, int] = {}
        self._entries: list[bytes] = []

    def led_by(self, term: int) -> str | None:
        """Who leads a term, once its `Led` is durable."""
        return self._leaders.get(term)

    def write_asked(self, controller: Asked, command: WriteEntry, data: bytes) -> None:
        """1, 3: the bytes of a number never change, and no number is tried before the one below it is known."""
        author = controller.identity, command.entry.term
        before = self._writing.get(author)
        if before is not None:
            number, bytes_before = before
            if command.number == number and data != bytes_before:
                raise ViolationError(1, f"{controller.name} tries other bytes as entry {number} of {command.log}")
            if command.number < number:
                raise ViolationError(3, f"{controller.name} goes back from entry {number} to {command.number}")
        if command.number > len(self._entries):
            raise ViolationError(
                3, f"{controller.name} tries entry {command.number} before {command.number - 1} is known"
            )
        self._writing[author] = (command.number, data)

    def led(self, entry: Entry, writer: str) -> None:
        """2: an entry that has become durable is of a term that its writer leads."""
        for change in entry.changes:
            if isinstance(change, Led):
                self._leaders[change.term] = writer
        leader = self._leaders.get(entry.term)
        if leader != writer:
            raise ViolationError(2, f"an entry of term {entry.term} is by {writer}, the term is that of {leader}")

    def fold(self, number: int, entry: Entry) -> None:
        """4 and others: it follows from the entries before it."""
        self._entries.append(self._log.entries[number])
        try:
            self.ledger.apply(number, entry)
        except FoldError as error:
            raise ViolationError(4, str(error)) from error
        self._summaries.append(self._summary(self.ledger))

    def compare(self, controller: Folding, ledger: S) -> None:
        """1: what a controller has folded is a prefix of the log, and is folded alike."""
        key = f"{controller.identity}/{id(ledger)}"
        if ledger.number < 0 or self._folded.get(key) == ledger.number:
            return
        self._folded[key] = ledger.number
        if ledger.number >= len(self._summaries):
            raise ViolationError(1, f"{controller.name} has folded entry {ledger.number}, which is not durable")
        if self._summary(ledger) != self._summaries[ledger.number]:
            raise ViolationError(1, f"{controller.name} knows other things after entry {ledger.number}")

    def finish(self) -> None:
        """1: no entry has other bytes than it had."""
        if self._entries != self._log.entries:
            raise ViolationError(1, "the bytes of an entry have changed")
