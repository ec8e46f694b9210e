"""Input that changed or vanished while some of it was open: what a run does about it, and which versions are held back.

An object is recorded with its version when it is listed. One that is not the same any more cannot be read on: its
records have other ordinals. So what is open of it halts, and the run's choice says what follows (docs/inputs.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from headrace.store.entries import Fragment
from headrace.store.fold import LedgerState


class ChangedInput(Enum):
    """What becomes of input that changed or vanished while some of it was open."""

    #: It stays open: all else is read and closed, then the run ends with an error.
    HALT = "halt"
    #: What is open of it is given up, and later versions of it are not read.
    DROP = "drop"
    #: What is open of it is given up, and the version that is there now is read as a new object.
    REREAD = "reread"


class Earlier:
    """The objects of which something is open, or given up for good, when a listing begins; and the names of the others.

    `submitted` are fragments that may be on their way into the ledger.
    """

    def __init__(self, ledger: LedgerState, sinks: tuple[str, ...], submitted: Iterable[Fragment] = ()) -> None:
        self._by_object: dict[tuple[str, str], list[Fragment]] = {}
        #: By stage.
        self._closed: dict[str, set[str]] = {}
        for fragment in submitted:
            if fragment.id not in ledger.fragments:
                self._by_object.setdefault((fragment.stage, fragment.uri), []).append(fragment)
        for state in ledger.fragments.values():
            given_up = state.dropped is not None and not state.dropped.reread
            if given_up or not state.done(sinks):
                fragment = state.fragment
                self._by_object.setdefault((fragment.stage, fragment.uri), []).append(fragment)
            else:
                self._closed.setdefault(state.fragment.stage, set()).add(state.fragment.uri)

    def repeats(self, fragment: Fragment) -> bool:
        """Whether a fragment that is new is of an object of which another version, or another cut, was closed."""
        return fragment.uri in self._closed.get(fragment.stage, ())

    def contradicts(self, fragment: Fragment) -> bool:
        """Whether a fragment that is new is of another version, or another cut, of such an object."""
        known: Iterable[Fragment] = self._by_object.get((fragment.stage, fragment.uri), ())
        return any(old.version != fragment.version or _overlap(old, fragment) for old in known)


def _overlap(a: Fragment, b: Fragment) -> bool:
    """Whether two ranges meet; an end of -1 is that of the object."""
    return (b.end < 0 or a.start < b.end) and (a.end < 0 or b.start < a.end)
