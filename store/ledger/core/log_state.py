"""What every log has in common, whatever it is about: numbers, terms, and who leads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

from headrace.store.ledger.core.entries import Beat, Change, Entry, Led, Resigned, encode_entry


class FoldError(RuntimeError):
    """An entry that contradicts those before it: the log was damaged or written by a broken leader."""


class ForeignLog(FoldError):  # noqa: N818 - named after what is so
    """A log that is about something else than what was to be folded: a dataset's ledger, or a cluster's log."""


@dataclass(slots=True)
class LogState:
    """What a log says of itself up to entry `number` (-1: nothing yet). What it is about is added by those below."""

    number: int = -1
    term: int = 0
    leader: Mapping[str, Any] = field(default_factory=dict[str, Any])
    resigned: bool = True
    #: The hash of the first entry: two logs that have it in common are one log.
    origin: str = ""
    #: The numbers of the entries that begin a term: a truncation keeps them.
    led_at: list[int] = field(default_factory=list[int])

    def apply(self, number: int, entry: Entry) -> None:
        """Fold entry `number`; FoldError, naming entry and reason, if it cannot follow what was folded."""
        if number != self.number + 1:
            raise FoldError(f"entry {number} does not follow entry {self.number}: the log has a hole")
        if entry.term < self.term:
            raise FoldError(f"entry {number} is of term {entry.term} behind term {self.term}")
        if entry.term > self.term and not (entry.changes and isinstance(entry.changes[0], Led)):
            raise FoldError(f"entry {number} is the first of term {entry.term} and does not begin with Led")
        for change in entry.changes:
            match change:
                case Led():
                    if change.term != entry.term or change.term <= self.term:
                        raise FoldError(
                            f"entry {number}: Led({change.term}) in term {entry.term} behind term {self.term}"
                        )
                    self.term, self.leader, self.resigned = change.term, change.leader, False
                    self.led_at.append(number)
                case Resigned():
                    self.resigned = True
                case Beat():
                    pass
                case _:
                    self._folded(number, change)
        if number == 0:
            self.origin = xxhash.xxh3_128_hexdigest(encode_entry(entry))
        self.number = number

    def restore(self, other: LogState) -> None:
        """Become what another fold of the same log is; its parts are taken over, so `other` is used no more."""
        if type(other) is not type(self):
            raise ForeignLog(f"the snapshot of entry {other.number} is that of a {type(other).__name__}")
        for name in _all_slots(type(self)):
            setattr(self, name, getattr(other, name))

    def _folded(self, number: int, change: Change) -> None:
        """Whatever a change cannot be folded for is said in one way, since every reader folds it."""
        try:
            self._change(number, change)
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
            raise FoldError(f"entry {number}: {type(change).__name__} cannot be: {error}") from error

    def _change(self, number: int, change: Change) -> None:
        raise ForeignLog(f"entry {number}: {type(change).__name__} does not belong into this log")


def _all_slots(kind: type[Any]) -> list[str]:
    return [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
