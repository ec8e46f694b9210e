"""Objects under several names that hold the same bytes: each is read, and that is said."""

from __future__ import annotations

from headrace.store import counted
from headrace.store.ledger import Fragment, LedgerState


class Copies:
    """What one run has read under a new name, though it was read under another. Told by the first fragment of each."""

    def __init__(self, ledger: LedgerState) -> None:
        self._ledger = ledger
        #: The first URI of each checksum; made when it is asked for, since a run of what is done reads nothing.
        self._names: dict[bytes, str] | None = None
        #: By source: how many, and the first with its twin.
        self._found: dict[str, tuple[int, str, str]] = {}

    def note(self, fragment: Fragment, checksum: bytes) -> None:
        """A fragment was read to its end, and the ledger says so."""
        if not checksum or fragment.start or not fragment.size:
            return
        if self._names is None:
            states = self._ledger.fragments.values()
            known = [state for state in states if state.checksum and state.fragment.size and not state.fragment.start]
            self._names = {state.checksum: state.fragment.uri for state in known if state.fragment.id != fragment.id}
        twin = self._names.setdefault(checksum, fragment.uri)
        if twin != fragment.uri:
            count, *first = self._found.get(fragment.stage, (0, fragment.uri, twin))
            self._found[fragment.stage] = count + 1, first[0], first[1]

    def notes(self) -> list[str]:
        """A line a source."""
        return [
            f"source {stage}: {counted(count, 'object holds, or begins', 'objects hold, or begin')} with, the same "
            "bytes as another that was read: their records are in the dataset twice, unless a dedup stage finds them; "
            f"the first is {name!r} as {twin!r}"
            for stage, (count, name, twin) in self._found.items()
        ]
