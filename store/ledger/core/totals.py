"""Running totals of a fold: how many records and fragments are closed, open and given up, without a look at each.

A controller is asked for its status several times a second and may hold a million fragments. `Totals.of` counts the
same from the fragments themselves; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headrace.store.ledger.core.entries import FragmentDropped
from headrace.store.ledger.core.intervals import IntervalSet


class FragmentFacts(Protocol):
    """What totals ask of a fragment."""

    count: int | None
    dropped: FragmentDropped | None
    closed: dict[str, IntervalSet]


@dataclass(slots=True)
class SinkTotals:
    """What one sink has closed."""

    #: Records, of all fragments.
    records: int = 0
    #: Of these, those of fragments whose end is logged and of which nothing was given up.
    records_of_ended: int = 0
    #: Of such fragments that hold a record, those that are closed from end to end.
    fragments: int = 0


@dataclass(slots=True)
class Totals:
    """The fragments of a fold, and what each sink has closed of them."""

    fragments: int = 0
    #: Fragments of which the rest was given up; the numbers below leave them out.
    given_up: int = 0
    #: Fragments whose end is not logged, so that nobody knows how many records they hold.
    unended: int = 0
    #: Fragments whose end is logged and that hold no record.
    empty: int = 0
    #: Records of the fragments whose end is logged.
    records_of_ended: int = 0
    sinks: dict[str, SinkTotals] = field(default_factory=dict[str, SinkTotals])

    @staticmethod
    def of(fragments: Iterable[FragmentFacts]) -> Totals:
        """Count from the beginning."""
        made = Totals()
        for state in fragments:
            made.listed(1)
            for sink, held in state.closed.items():
                made._sink(sink).records += held.size
            if state.count is not None:
                made.ended(state.closed, state.count)
            if state.dropped is not None:
                made.dropped(state)
        return made

    def records(self, sink: str) -> int:
        """Records that a sink has closed, by its closed intervals."""
        return self.sinks.get(sink, SinkTotals()).records

    def records_open(self, sink: str) -> int:
        """Records that a source read to the end of their fragment and that this sink has not closed."""
        return self.records_of_ended - self.sinks.get(sink, SinkTotals()).records_of_ended

    def fragments_open(self, sink: str) -> int:
        """Fragments of which this sink has something to close, or may have: those whose end is not logged too."""
        return self.fragments - self.given_up - self.empty - self.sinks.get(sink, SinkTotals()).fragments

    def listed(self, fragments: int) -> None:
        """So many more fragments are known."""
        self.fragments += fragments
        self.unended += fragments

    def ended(self, closed: Mapping[str, IntervalSet], count: int) -> None:
        """The end of a fragment that is not given up is logged; `closed` is what sinks had closed of it by then."""
        self.unended -= 1
        self._add_ended(closed, count, 1)

    def closed(self, sink: str, held: IntervalSet, records: int, count: int | None) -> None:
        """A sink closed so many more records of a fragment of `count` records; `held` is all that it has closed."""
        mine = self._sink(sink)
        mine.records += records
        if count is not None:
            mine.records_of_ended += records
            mine.fragments += held.tiles(count)

    def dropped(self, state: FragmentFacts) -> None:
        """The rest of a fragment was given up."""
        self.given_up += 1
        if state.count is None:
            self.unended -= 1
        else:
            self._add_ended(state.closed, state.count, -1)

    def _add_ended(self, closed: Mapping[str, IntervalSet], count: int, sign: int) -> None:
        self.empty += sign * (count == 0)
        self.records_of_ended += sign * count
        for sink, held in closed.items():
            if held:
                mine = self._sink(sink)
                mine.records_of_ended += sign * held.size
                mine.fragments += sign * held.tiles(count)

    def _sink(self, name: str) -> SinkTotals:
        return self.sinks.setdefault(name, SinkTotals())
