"""What the ledger knows of each object when a listing begins, and which versions are held back.

An object is recorded with its version when it is listed. One that is not the same any more cannot be read on: its
records have other ordinals. What is open of it halts, and the run's choice says what follows (docs/guide/inputs.md).
One that was read to its end is compared with what was read, before anything of it is read again (`comparison.py`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from enum import Enum

from headrace.store.ledger import Fragment, FragmentState, IntervalSet, LedgerState


class ListedAs(Enum):
    """What a listed fragment, which the ledger does not know by its name, is to what it does know of the object."""

    #: Nothing is known of the object.
    NEW = "new"
    #: The object is known in this version, or in one that held the same bytes.
    THERE = "there"
    #: It was given up, or skipped in this version, by somebody's choice.
    SKIPPED = "skipped"
    #: Something is open of it in another version that nobody can tell from this one.
    CONTRADICTED = "contradicted"
    #: It was read in another version, to its end: whether that held the same bytes can be told.
    TO_COMPARE = "to compare"


class KnownObjects:
    """What is known of each object when a listing begins.

    `submitted` are fragments that may be on their way into the ledger, `handed` those of which records may be on their
    way; None: nobody knows which.
    """

    def __init__(
        self,
        ledger: LedgerState,
        sinks: tuple[str, ...],
        submitted: Iterable[Fragment] = (),
        handed: Container[bytes] | None = None,
    ) -> None:
        self._seen, self._sinks, self._handed = ledger.seen, sinks, handed
        #: By stage and URI; most objects have one fragment, and there may be millions.
        self._known: dict[str, dict[str, FragmentState | list[FragmentState]]] = {}
        self._submitted: dict[tuple[str, str], list[Fragment]] = {}
        self._tiles: dict[tuple[str, str], tuple[FragmentState, ...]] = {}
        for fragment in submitted:
            if fragment.id not in ledger.fragments:
                self._submitted.setdefault((fragment.stage, fragment.uri), []).append(fragment)
        for state in ledger.fragments.values():
            objects = self._known.setdefault(state.fragment.stage, {})
            first = objects.setdefault(state.fragment.uri, state)
            if isinstance(first, list):
                first.append(state)
            elif first is not state:
                objects[state.fragment.uri] = [first, state]

    def _of(self, fragment: Fragment) -> Sequence[FragmentState]:
        found = self._known.get(fragment.stage, {}).get(fragment.uri, [])
        return found if isinstance(found, list) else (found,)

    def listed_as(self, fragment: Fragment) -> ListedAs:
        """See `ListedAs`."""
        key = fragment.stage, fragment.uri
        known, submitted = self._of(fragment), self._submitted.get(key, ())
        if not known and not submitted:
            return ListedAs.NEW
        seen = self._seen.get(key)
        if seen is not None and seen.version == fragment.version:
            return ListedAs.THERE if seen.same else ListedAs.SKIPPED
        if seen is None and any(state.fragment.version == fragment.version for state in self.tile(fragment)):
            return ListedAs.THERE
        if any(item.version == fragment.version for item in submitted):
            return ListedAs.THERE
        if any(state.dropped is not None and not state.dropped.reread for state in known):
            return ListedAs.SKIPPED
        if not self.tile(fragment) and not submitted:
            return ListedAs.NEW
        unknown = [state for state in known if not state.checksum and not state.done(self._sinks)]
        told = not unknown or self._are_told(fragment, unknown)
        return ListedAs.TO_COMPARE if told and not submitted else ListedAs.CONTRADICTED

    def _are_told(self, fragment: Fragment, unknown: Sequence[FragmentState]) -> bool:
        """Whether these were read in part, and checksums say of which bytes. What is on its way is of any others.

        An object that was not read to its end is another one if it has another size.
        """
        tile = self.tile(fragment)
        whole = fragment.start == 0 and fragment.end < 0
        if whole and fragment.size != sum(state.fragment.size for state in tile):
            return False
        if self._handed is None or evidence_of(tile) is None:
            return False
        return all(state in tile and state.fragment.id not in self._handed for state in unknown)

    def tile(self, fragment: Fragment) -> tuple[FragmentState, ...]:
        """The fragments that account for what its object held last: the newest of those that meet one another."""
        key = fragment.stage, fragment.uri
        if key not in self._tiles:
            covered = IntervalSet()
            tile: list[FragmentState] = []
            for state in reversed(self._of(fragment)):
                first, end = _span(state.fragment)
                if state.dropped is not None or (first < end and covered.overlap(first, end)):
                    continue
                if first < end:
                    covered.add(first, end)
                tile.append(state)
            self._tiles[key] = tuple(reversed(tile))
        return self._tiles[key]

    def uncovered(self, fragment: Fragment) -> list[Fragment]:
        """The parts of a fragment of an object that is there which no fragment of it has: it was cut otherwise.

        What was given up, and is not to be read again, has its part.
        """
        key = fragment.stage, fragment.uri
        covered = IntervalSet()
        given_up = [state for state in self._of(fragment) if state.dropped is not None and not state.dropped.reread]
        known = (state.fragment for state in (*self.tile(fragment), *given_up))
        for item in (*known, *self._submitted.get(key, ())):
            covered.cover(*_span(item))
        first, end = _span(fragment)
        parts: list[Fragment] = []
        for low, high in (*covered.overlap(first, end), (end, end)):
            if first < low:
                parts.append(part_of(fragment, first, low))
            first = high
        return parts


def evidence_of(tile: Sequence[FragmentState]) -> Mapping[bytes, tuple[int, bytes]] | None:
    """By fragment, how many of its first bytes were read, as far as anything of it is closed, and their checksum.

    None where nobody took it. The last record of a fragment ends in the next one: that was read as well then.
    """
    found: dict[bytes, tuple[int, bytes]] = {}
    crossed = False
    for state in sorted(tile, key=lambda state: state.fragment.start):
        fragment, prefix = state.fragment, state.prefix
        closed = max((end for intervals in state.closed.values() for _, end in intervals), default=0)
        if state.checksum:
            found[fragment.id] = fragment.size, state.checksum
        elif state.count is None and prefix is not None and prefix.count >= closed:
            found[fragment.id] = prefix.size, prefix.checksum
        elif state.count is None and not closed and not crossed:
            found[fragment.id] = 0, b""
        else:
            return None
        crossed = found[fragment.id][0] == fragment.size
    return found


def _span(fragment: Fragment) -> tuple[int, int]:
    """Its bytes as they are stored."""
    return fragment.start, fragment.start + fragment.size


def part_of(fragment: Fragment, first: int, end: int) -> Fragment:
    """The fragment of some of another's bytes; as open at its end, where it ends with it, as that is."""
    if (first, end) == _span(fragment):
        return fragment
    stop = fragment.end if end == fragment.start + fragment.size else end
    facts = fragment.stage, fragment.uri, fragment.version
    return Fragment.named(*facts, start=first, end=stop, reader=fragment.reader, size=end - first)
