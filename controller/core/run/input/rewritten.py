"""The listing of a source that names all it has, as a table does: what of it was read and is gone, and what is new.

Whoever rewrites a table puts the records of its files into others, new by their names and by their bytes: nobody can
tell whose records they hold. So what is new waits until all that was read is listed again. Where something is gone at
the end of the listing, the run's choice says what follows (docs/guide/inputs.md). Only such a choice ends the waiting
for what is gone: until then what joins later may hold its records. What is passed over by choice may hold records that
were read, and is waited for as if it had been read itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.store.ledger import Fragment, LedgerState

#: The version in which an object is seen that its source has no more.
GONE = ""


class WholeListing:
    """One listing of a source that names all it has below a place."""

    def __init__(self, ledger: LedgerState, sinks: tuple[str, ...], stage: str, place: str) -> None:
        self.place = place
        #: What is new, and waits.
        self.new: list[Fragment] = []
        #: By URI, the objects of which records are closed, or that were passed over, and which were not listed yet:
        #: whether all of each is done.
        self._missing: dict[str, bool] = {}
        open_still: set[str] = set()
        for state in ledger.fragments.values():
            uri, seen = state.fragment.uri, ledger.seen.get((state.fragment.stage, state.fragment.uri))
            if state.fragment.stage != stage or not uri.startswith(place) or (seen and seen.version == GONE):
                continue
            if not state.done(sinks):
                open_still.add(uri)
            if any(state.closed.values()) or (seen and not seen.same):
                self._missing[uri] = True
        for uri in open_still & self._missing.keys():
            self._missing[uri] = False

    @property
    def missing(self) -> list[str]:
        """The objects that were read, wholly or in part, or passed over, and were not listed yet."""
        return sorted(self._missing)

    @property
    def gone(self) -> Iterator[str]:
        """Those of them of which nothing is open: nothing more becomes of these while they are not there."""
        return (uri for uri in self.missing if self._missing[uri])

    @property
    def objects(self) -> list[str]:
        """The objects that are new and wait."""
        return sorted({item.uri for item in self.new})

    def lacks(self, uri: str) -> bool:
        """Whether an object is one of the missing."""
        return uri in self._missing

    def meet(self, uri: str) -> None:
        """An object is there."""
        self._missing.pop(uri, None)

    def take(self) -> list[Fragment]:
        """What may be read, since all that was read before is there."""
        if self._missing:
            return []
        new, self.new = self.new, []
        return new
